//! The load of each shard, as its owner last measured it (A4).
//!
//! A shard keeps its load while it moves: its next owner says nothing about it until it has measured it for long enough.
//! Otherwise a busy shard would seem idle after each move, and the next round would give its new host too much.

use super::{BTreeMap, Manager, Member, ShardId};

/// Loads by shard. They are measured anew in each term, and do not survive it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct Loads(BTreeMap<ShardId, u32>);

impl Loads {
    pub(super) fn of(&self, shard: ShardId) -> u32 {
        self.0.get(&shard).copied().unwrap_or_default()
    }
}

impl Manager {
    /// A node has measured its shards. What it says about the shards of others is out of date.
    pub(in super::super) fn on_loads(&mut self, from: &Member, loads: Vec<(ShardId, u32)>) {
        let Some(term) = &mut self.term else { return };
        for (shard, load) in loads {
            let row = term.stable_assignment(shard);
            if row.is_some_and(|(row, _)| row.owner.as_ref() == Some(from)) {
                term.loads.0.insert(shard, load);
            }
        }
    }
}
