//! The first allocation of a cluster, and of a pool, waits for enough hosts (K27). Otherwise the first host would get
//! every shard, and most of them would move again a moment later.

use super::{
    Action, Context, Epoch, Manager, Mutation, NodeRow, Notice, ObservedCluster, ShardId, Term,
    shard_at,
};
use crate::pools::Pool;

impl Term {
    /// Whether any of these shards has had an owner, or is about to get one.
    fn has_allocated(&self, of: impl Fn(ShardId) -> bool) -> bool {
        let mut rows = (0..).zip(&self.chunks).flat_map(|(number, chunk)| {
            let rows = chunk.desired_assignments();
            rows.map(move |(place, row)| (shard_at(number, place), row))
        });
        rows.any(|(shard, row)| row.epoch > Epoch(0) && self.manages(shard) && of(shard))
    }
}

impl Manager {
    /// Whether there are enough hosts to give a pool's shards to, in the cluster and with the pool's role. Emits an event
    /// if the allocation must wait, and again when the number of hosts changes. All hosts count that stay, also those
    /// that cannot serve now.
    pub(super) fn has_enough_hosts(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        pool: &Pool,
    ) -> bool {
        if context.has_mutation(Mutation::AllocateEarly) {
            return true;
        }
        let hosts = observed.count_hosts_that_stay(NodeRow::is_host);
        let of_pool = observed.count_hosts_that_stay(|row| row.hosts(pool));
        let (min, min_of_pool) = (context.settings.min_hosts, pool.min_hosts as usize);
        let Some(term) = &mut self.term else { return false };
        let (hosts, min) = if hosts < min && !term.has_allocated(|_| true) {
            (hosts, min)
        } else if of_pool < min_of_pool && !term.has_allocated(|shard| pool.contains(shard)) {
            (of_pool, min_of_pool)
        } else {
            return true;
        };
        let waits = term.waits_with_hosts.insert(pool.first, hosts);
        if waits != Some(hosts) {
            let pool = pool.name.clone();
            context.push(Action::Notify(Notice::AllocationWaits { pool, hosts, min }));
        }
        false
    }
}
