//! The steps of a move of a single shard (R26), which the committer evaluates in the order of the shard's claims and
//! commits.

use ostraca_core::records::{Claim, HeadFloor};
use ostraca_store::transfer::Item;

/// One step. Each has no effect unless the shard's current claim equals its own.
pub(crate) enum ShardOp {
    /// Writes items, unless they are there already.
    Write { incoming: Claim, items: Vec<Item> },
    /// Removes a part of the data of a shard that is not here.
    Remove { absent: Claim },
    /// Replaces the claim under which the shard came in.
    Finish { incoming: Claim, claim: Claim, floor: Option<HeadFloor>, last_sequence: u64 },
}

impl ShardOp {
    /// The claim that must be current.
    pub(crate) fn expected(&self) -> &Claim {
        match self {
            Self::Write { incoming, .. } | Self::Finish { incoming, .. } => incoming,
            Self::Remove { absent } => absent,
        }
    }
}
