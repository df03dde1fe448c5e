//! Claims, and which one may replace another (R1, R4, R26).
//!
//! Two kinds of claims give nobody the right to commit: the one that a shard leaves in the store from which its data was
//! moved, and the one under which its data comes into another store. Both are stored like every other claim, so each
//! store's comparison of claims keeps commits away, whatever epoch they have.

use serde::{Deserialize, Serialize};

use crate::codec::CodecError;
use crate::extensions::{Extensible, Extensions};
use crate::ids::{ClusterId, Epoch, ShardPath};
use crate::rows::Member;

const MOVED: u8 = 1;
const INCOMING: u8 = 2;

/// The right to write a shard's records (R1). A shard has one current claim at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The cluster that the claimant belongs to.
    pub cluster: ClusterId,
    /// The claimed shard.
    pub shard: ShardPath,
    /// The epoch under which the shard was assigned.
    pub epoch: Epoch,
    /// The claimant.
    pub owner: Member,
    /// Counts the claims of one incarnation in one epoch: raised after an unknown outcome (R3).
    pub number: u64,
    /// Fields of later releases.
    pub extensions: Extensions<Claim>,
}

impl Extensible for Claim {
    const NAME: &'static str = "Claim";
    const FIELDS: &'static [u32] = &[Self::PLACEMENT];
}

/// What a claim says about its shard's data in a store (R26).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is in this store.
    Here,
    /// It was moved to another store, and no epoch passes this claim.
    MovedTo(Placement),
    /// It is being copied from another store, and is not complete.
    IncomingFrom(Placement),
}

/// The other store, and the version of the map that orders the move: a later move has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The store's id (R5).
    pub store_id: u128,
    /// The version of the map.
    pub version: u64,
}

impl Claim {
    /// The field with the version of the map, the kind (1 moved, 2 incoming), the id of the other store, and the attempt
    /// (0 if moved). The number is odd, so a release that does not know it refuses such a claim rather than replace it.
    const PLACEMENT: u32 = 1;

    /// Whether this claim may replace `current`: it has a higher epoch, or belongs to the same owner and epoch with
    /// an equal or higher number. A claim of another node in the same epoch is refused. A claim in a store that lacks
    /// the shard's data is replaced only by one under which the data comes into it, by a later move than the one by
    /// which it left; and such a claim replaces no other (R26).
    #[must_use]
    pub fn supersedes(&self, current: &Self) -> bool {
        let is_later = self.epoch > current.epoch
            || (self.epoch == current.epoch
                && self.owner == current.owner
                && self.number >= current.number);
        // A claim whose field is damaged replaces none and is replaced by none.
        let (Ok(new), Ok(old)) = (self.presence(), current.presence()) else { return false };
        is_later
            && match (new, old) {
                (Presence::Here | Presence::MovedTo(_), Presence::Here) => true,
                (Presence::IncomingFrom(new), Presence::IncomingFrom(old)) => {
                    new.version >= old.version
                }
                (Presence::IncomingFrom(new), Presence::MovedTo(old)) => new.version > old.version,
                (Presence::IncomingFrom(_), Presence::Here)
                | (Presence::Here | Presence::MovedTo(_), _) => false,
            }
    }

    /// What it says about the shard's data.
    ///
    /// # Errors
    /// [`CodecError`] if its field cannot be decoded.
    pub fn presence(&self) -> Result<Presence, CodecError> {
        if self.extensions.is_empty() {
            return Ok(Presence::Here);
        }
        let field = self.extensions.get::<(u64, u8, u128, u64)>(Self::PLACEMENT)?;
        let Some((version, kind, store_id, _)) = field else { return Ok(Presence::Here) };
        let placement = Placement { store_id, version };
        match kind {
            MOVED => Ok(Presence::MovedTo(placement)),
            INCOMING => Ok(Presence::IncomingFrom(placement)),
            other => Err(CodecError::Malformed(format!("{other} is no kind of placement"))),
        }
    }

    /// The claim by which this one's owner marks the shard's data as moved to a store.
    ///
    /// # Errors
    /// [`CodecError`] if the extension block has no space for it.
    pub fn moved_to(&self, to: Placement) -> Result<Self, CodecError> {
        self.with(MOVED, to, 0)
    }

    /// The claim under which this one's owner copies the shard's data from a store. Each attempt has a random number, so
    /// that writes of one that was given up have no effect in the next.
    ///
    /// # Errors
    /// [`CodecError`] if the extension block has no space for it.
    pub fn incoming_from(&self, from: Placement, attempt: u64) -> Result<Self, CodecError> {
        self.with(INCOMING, from, attempt)
    }

    fn with(&self, kind: u8, other: Placement, attempt: u64) -> Result<Self, CodecError> {
        let mut claim = self.clone();
        let field = (other.version, kind, other.store_id, attempt);
        claim.extensions.set(Self::PLACEMENT, &field)?;
        Ok(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, ShardId};

    fn claim(epoch: u64, node: &str, counter: u64, number: u64) -> Claim {
        Claim {
            cluster: ClusterId(1),
            shard: ShardPath {
                namespace: "default".into(),
                pool: "default".into(),
                shard: ShardId(1),
            },
            epoch: Epoch(epoch),
            owner: Member {
                node: node.into(),
                incarnation: Incarnation { counter, nonce: counter },
            },
            number,
            extensions: Extensions::default(),
        }
    }

    #[test]
    fn r1_a_claim_is_superseded_by_later_epochs_and_its_owner() {
        let current = claim(5, "a", 1, 3);
        for (higher, number) in [(6, 0), (6, 3), (7, 9)] {
            assert!(claim(higher, "b", 2, number).supersedes(&current));
            assert!(!current.supersedes(&claim(higher, "b", 2, number)));
        }
        // A claim of a lower epoch is always refused, even from the same owner and with a higher number.
        assert!(!claim(4, "a", 1, 9).supersedes(&current));
        // In the same epoch only the same incarnation of the same node may claim again, and only with an equal or
        // higher number.
        assert!(claim(5, "a", 1, 3).supersedes(&current));
        assert!(claim(5, "a", 1, 4).supersedes(&current));
        assert!(!claim(5, "a", 1, 2).supersedes(&current));
        assert!(!claim(5, "a", 2, 4).supersedes(&current));
        assert!(!claim(5, "b", 1, 4).supersedes(&current));
    }

    fn moved(claim: &Claim, version: u64) -> Claim {
        claim.moved_to(Placement { store_id: 7, version }).expect("it fits")
    }

    fn incoming(claim: &Claim, version: u64) -> Claim {
        claim.incoming_from(Placement { store_id: 7, version }, version).expect("it fits")
    }

    #[test]
    fn r26_no_epoch_passes_a_claim_of_moved_data() {
        let gone = moved(&claim(5, "a", 1, 1), 3);
        let placement = Placement { store_id: 7, version: 3 };
        assert_eq!(gone.presence(), Ok(Presence::MovedTo(placement)));
        let later = claim(9, "b", 1, 1);
        for other in [later.clone(), moved(&later, 4), gone.clone()] {
            assert!(!other.supersedes(&gone), "{other:?}");
        }
        // Only data that comes back does, by a later move; a node with an old map would bring back what it was.
        assert!(incoming(&later, 4).supersedes(&gone));
        assert!(!incoming(&later, 3).supersedes(&gone));
        assert!(!incoming(&claim(4, "b", 1, 1), 4).supersedes(&gone));
    }

    #[test]
    fn r26_incoming_data_is_claimed_only_to_copy_it() {
        let coming = incoming(&claim(5, "a", 1, 1), 3);
        let later = claim(6, "b", 1, 1);
        assert!(!later.supersedes(&coming), "the data is incomplete");
        assert!(!moved(&later, 3).supersedes(&coming));
        let next = incoming(&later, 3);
        assert!(next.supersedes(&coming) && !coming.supersedes(&next));
        assert!(coming.supersedes(&coming));
        assert!(!incoming(&later, 2).supersedes(&coming), "by an old map");
        // It would overwrite the data that is there.
        assert!(!next.supersedes(&claim(5, "a", 1, 1)));
        // Data that is here can leave, by the rule for all claims.
        assert!(moved(&later, 3).supersedes(&claim(5, "a", 1, 1)));
        assert!(!moved(&later, 3).supersedes(&claim(7, "a", 1, 1)));
    }

    #[test]
    fn r26_a_damaged_placement_replaces_nothing() {
        let damaged = claim(9, "b", 1, 1).with(9, Placement { store_id: 7, version: 1 }, 0);
        let damaged = damaged.expect("it fits");
        assert!(damaged.presence().is_err());
        assert!(!damaged.supersedes(&claim(1, "a", 1, 1)));
        assert!(!claim(10, "a", 1, 1).supersedes(&damaged));
    }
}
