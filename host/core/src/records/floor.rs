//! What a shard keeps of the heads that were removed (E17).
//!
//! The head of a deleted entity holds what must never fall: its version, its generation and its watermarks. Once nothing
//! else is left of the entity, its head is removed too, and its values go into the shard's *floor*, which holds the
//! highest ones of all removed heads. An entity without a head starts from the floor. So a floor of a few bytes does
//! what any number of heads did, and an entity that returns cannot be told apart from one whose head was kept, except
//! that its numbers may be higher.

use serde::{Deserialize, Serialize};

use super::Head;
use crate::codec::CodecError;
use crate::extensions::{Extensible, Extensions};

/// The highest values of all heads that were removed from a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadFloor {
    /// The highest version.
    pub version: u64,
    /// The highest number of deletions.
    pub generation: u64,
    /// The highest watermark of clients' lanes.
    pub watermark: u64,
    /// The highest watermark of sending entities' lanes.
    pub tell_watermark: u64,
    /// Fields of later releases.
    pub extensions: Extensions<HeadFloor>,
}

impl Extensible for HeadFloor {
    const NAME: &'static str = "HeadFloor";
}

impl HeadFloor {
    /// Raises the floor to a head that is removed.
    ///
    /// # Errors
    /// [`CodecError`] if a field of the head is damaged.
    pub fn raise(&mut self, head: &Head) -> Result<(), CodecError> {
        let (generation, tell_watermark) = (head.generation()?, head.tell_watermark()?);
        self.version = self.version.max(head.version);
        self.generation = self.generation.max(generation);
        self.watermark = self.watermark.max(head.watermark);
        self.tell_watermark = self.tell_watermark.max(tell_watermark);
        Ok(())
    }

    /// Raises the floor to another one.
    pub fn merge(&mut self, other: &Self) {
        self.version = self.version.max(other.version);
        self.generation = self.generation.max(other.generation);
        self.watermark = self.watermark.max(other.watermark);
        self.tell_watermark = self.tell_watermark.max(other.tell_watermark);
    }

    /// The head that a load returns for an entity without one.
    ///
    /// # Errors
    /// [`CodecError`] if a field cannot be encoded.
    pub fn head(&self) -> Result<Head, CodecError> {
        let (version, watermark) = (self.version, self.watermark);
        let mut head = Head { version, watermark, deleted: true, ..Head::default() };
        head.set_generation(self.generation)?;
        head.set_tell_watermark(self.tell_watermark)?;
        head.set_removed(true)?;
        Ok(head)
    }
}
