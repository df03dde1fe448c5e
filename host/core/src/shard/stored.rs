//! What stored entities count for (K38).

use std::ops::{AddAssign, Sub, SubAssign};

use bytes::Bytes;

use crate::ids::Entity;
use crate::records::Head;

/// The stored entities of one type in a shard. Deleted entities of which a head is left do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredEntities {
    /// How many there are.
    pub entities: u64,
    /// Size of the keys and values of their state, in bytes, without journals and channels.
    pub state_bytes: u64,
}

/// Entities in order, each with its head; and where the next page begins.
pub type HeadPage = (Vec<(Entity, Box<Head>)>, Option<Bytes>);

/// A number of entities and the size of their state. It is negative while the answer to a commit is known but not the
/// one to an earlier commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) entities: i64,
    pub(super) bytes: i64,
}

impl Amount {
    /// What an entity counts for; nothing if it does not exist.
    pub(super) fn of(head: &Head) -> Self {
        if head.deleted || head.version == 0 {
            return Self::default();
        }
        Self { entities: 1, bytes: i64::try_from(head.state_bytes).unwrap_or(i64::MAX) }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Self) {
        self.entities = self.entities.wrapping_add(more.entities);
        self.bytes = self.bytes.wrapping_add(more.bytes);
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, less: Self) {
        self.entities = self.entities.wrapping_sub(less.entities);
        self.bytes = self.bytes.wrapping_sub(less.bytes);
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(mut self, less: Self) -> Self {
        self -= less;
        self
    }
}
