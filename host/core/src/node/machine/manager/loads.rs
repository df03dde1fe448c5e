//! The load of each shard, as its owner last measured it (A4).
//!
//! A shard keeps its load while it moves: its next owner says nothing about it until it has measured it for long enough.
//! Otherwise a busy shard would seem idle after each move, and the next round would give its new host too much. For the same
//! reason, a new manager balances nothing by load before every host has reported.

use super::{BTreeMap, BTreeSet, Context, Manager, Member, ShardId};

/// Loads by shard. They are measured anew in each term, and do not survive it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct Loads {
    shards: BTreeMap<ShardId, u32>,
    /// The incarnations that have reported in this term. What the shards of others do is not known.
    reported: BTreeSet<Member>,
}

impl Loads {
    pub(super) fn of(&self, shard: ShardId) -> u32 {
        self.shards.get(&shard).copied().unwrap_or_default()
    }

    pub(super) fn has_report_of(&self, member: &Member) -> bool {
        self.reported.contains(member)
    }
}

impl Manager {
    /// A node has measured its shards. What it says about the shards of others is out of date.
    pub(in super::super) fn on_loads(
        &mut self,
        context: &Context,
        from: &Member,
        loads: Vec<(ShardId, u32)>,
    ) {
        let Some(term) = &mut self.term else { return };
        term.loads.reported.retain(|known| known.node != from.node || known == from);
        let is_first = term.loads.reported.insert(from.clone());
        for (shard, load) in loads {
            let row = term.stable_assignment(shard);
            if row.is_some_and(|(row, _)| row.owner.as_ref() == Some(from)) {
                term.loads.shards.insert(shard, load);
            }
        }
        if is_first {
            self.request_rebalance(context);
        }
    }
}
