//! The first allocation of a cluster waits for enough hosts (K27). Otherwise the first host would get every shard, and
//! most of them would move again a moment later.

use super::{
    Action, Context, Epoch, ManagedChunk, Manager, Mutation, NodeRow, Notice, ObservedCluster, Term,
};

impl Term {
    /// Whether any shard has had an owner, or is about to get one.
    fn has_allocated(&self) -> bool {
        let mut rows = self.chunks.iter().flat_map(ManagedChunk::desired_assignments);
        rows.any(|(_, row)| row.epoch > Epoch(0))
    }
}

impl Manager {
    /// Whether there are enough hosts to give shards to. Emits an event if the allocation must wait, and again when the
    /// number of hosts changes. All hosts count that stay, also those that cannot serve now.
    pub(super) fn has_enough_hosts(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) -> bool {
        let min = context.settings.min_hosts;
        let stays = |row: &NodeRow| row.roles.host && !row.is_draining_or_leaving();
        let hosts = observed.all_live().filter(|(_, row)| stays(row)).count();
        let Some(term) = &mut self.term else { return false };
        if hosts >= min || context.has_mutation(Mutation::AllocateEarly) || term.has_allocated() {
            return true;
        }
        if term.waits_with_hosts != Some(hosts) {
            term.waits_with_hosts = Some(hosts);
            context.push(Action::Notify(Notice::AllocationWaits { hosts, min }));
        }
        false
    }
}
