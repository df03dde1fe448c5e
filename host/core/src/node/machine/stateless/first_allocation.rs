//! The first allocation of a pool without a manager waits for enough hosts (K27), as that of every pool does.

use super::{Context, Epoch, Mutation, ObservedCluster, Pool, Stateless};
use crate::node::{Action, Notice};
use crate::rows::NodeRow;

impl Stateless {
    /// Whether there are enough hosts to own a pool's shards, in the cluster and in the pool. The host with the first
    /// number emits an event if the shards must wait, and again when the number of hosts changes.
    pub(super) fn has_enough_hosts(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        pool: &Pool,
        place: Option<usize>,
    ) -> bool {
        let has_allocated = |of: &dyn Fn(&_) -> bool| {
            observed.assignments().any(|(shard, row)| row.epoch > Epoch(0) && of(&shard))
        };
        let (min, min_of_pool) = (context.settings.min_hosts, pool.min_hosts as usize);
        let hosts = observed.count_hosts_that_stay(NodeRow::is_host);
        let of_pool = self.numbers.get(&pool.name).map_or(0, |(row, _)| row.holders.len());
        let (hosts, min) = if context.has_mutation(Mutation::AllocateEarly) {
            return true;
        } else if hosts < min && !has_allocated(&|_| true) {
            (hosts, min)
        } else if of_pool < min_of_pool && !has_allocated(&|shard| pool.contains(*shard)) {
            (of_pool, min_of_pool)
        } else {
            return true;
        };
        if place == Some(0) && self.waits_with_hosts.insert(pool.first, hosts) != Some(hosts) {
            let pool = pool.name.clone();
            context.push(Action::Notify(Notice::AllocationWaits { pool, hosts, min }));
        }
        false
    }
}
