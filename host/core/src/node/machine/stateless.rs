//! Pools without a manager (strategy `stateless`; E3, E5, E6, E8): their hosts take numbers, compute ranges of shards from
//! them, and own each shard under a lease of its own.
//!
//! Two rows decide. The row of numbers says which hosts divide a pool, so all hosts compute the same ranges from the same
//! row. The row of a shard's chunk says who owns the shard, in which epoch, and how often its lease was renewed. Both
//! change only by compare-and-set.
//!
//! Confusing at first: the numbers only say who *should* own a shard. A host may see an old row of numbers, or two hosts
//! may want the same shard for a while; the lease in the shard's row decides, and the claim after it (R1, R5). So what
//! happens to numbers costs time, not correctness.

mod first_allocation;
mod leases;
mod numbers;

use std::collections::BTreeMap;
use std::ops::Range;

use super::context::Context;
use super::holdings::Holdings;
use super::membership::Membership;
use super::observed::ObservedCluster;
use super::requests::{LeaseWrite, WritePurpose};
use crate::assign::contiguous_range;
use crate::ids::{Epoch, ShardId};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::node::{Action, Mutation, WriteError};
use crate::pools::Pool;
use crate::rows::{
    Assignment, AssignmentsRow, Member, NumbersRow, Row, RowKey, SHARDS_PER_CHUNK, ShardLease,
    chunk_of, index_in_chunk, shard_at,
};
use leases::{ObservedLease, OwnLease};

/// What this node knows about pools without a manager, and its leases in them.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct Stateless {
    /// Who has which number, by pool, and the row's revision.
    numbers: BTreeMap<String, (NumbersRow, u64)>,
    /// When the lease of each shard was last seen to change, on this node's clock (R8).
    observed_leases: BTreeMap<ShardId, ObservedLease>,
    /// The leases of the shards that this node holds.
    own_leases: BTreeMap<ShardId, OwnLease>,
    /// By the first shard of a pool whose first allocation waits: the number of hosts that the last event named.
    waits_with_hosts: BTreeMap<ShardId, usize>,
    /// Rows that are not written before this time, because the outcome of the last write is unknown.
    retry_at: BTreeMap<RowKey, u64>,
    /// Whether something has changed since the last check.
    changed: bool,
    /// When to check again without a known change, because time passes.
    check_at: u64,
}

impl Stateless {
    /// Something has changed that leases or numbers may depend on.
    pub(super) fn request_check(&mut self) {
        self.changed = true;
    }

    /// The incarnation has ended: it has no leases, and answers to its writes do not count.
    pub(super) fn on_fenced(&mut self) {
        self.own_leases.clear();
        self.changed = true;
    }

    /// The row of a pool's numbers, and its revision.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn numbers_of(&self, pool: &str) -> Option<&(NumbersRow, u64)> {
        self.numbers.get(pool)
    }

    /// Every pool's numbers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&str, &NumbersRow)> {
        self.numbers.iter().map(|(pool, (row, _))| (pool.as_str(), row))
    }

    /// Treats every lease of a shard as just renewed (R8).
    pub(super) fn restart_lease_timers(&mut self, now: u64) {
        for lease in self.observed_leases.values_mut() {
            lease.changed_at = now;
        }
    }

    /// Takes or releases a number, stops shards outside this node's range, and takes, renews or releases leases.
    pub(super) fn drive(
        &mut self,
        context: &mut Context,
        observed: &mut ObservedCluster,
        membership: &Membership,
        holdings: &mut Holdings,
    ) {
        let now = context.mono();
        if !self.changed && now < self.check_at {
            return;
        }
        let hosted = |pool: &&Pool| match &pool.role {
            None => context.identity.roles.host,
            Some(role) => context.identity.pool_roles.contains(role),
        };
        let pools: Vec<_> = context.identity.pools.stateless().filter(hosted).cloned().collect();
        if pools.is_empty() {
            self.changed = false;
            self.check_at = u64::MAX;
            return;
        }
        let Some(me) = membership.member().cloned() else { return };
        if membership.is_suspended() || !observed.is_watching() {
            return;
        }
        self.changed = false;
        self.check_at = now + context.settings.tick_interval();
        let mut ranges = BTreeMap::new();
        for pool in &pools {
            self.drive_number(context, observed, membership, holdings, pool, &me);
            let place = self.numbers.get(&pool.name).and_then(|(row, _)| row.place_of(&me));
            let stays = !membership.is_departing() && !pool.is_closed();
            let range = match stays && self.has_enough_hosts(context, observed, pool, place) {
                true => self.range(pool, &me),
                false => 0..0,
            };
            holdings.stop_outside(context, pool, &range);
            ranges.insert(pool.first, range);
        }
        self.announce_leases(context, holdings);
        let chunks = pools.iter().flat_map(|pool| chunk_of(pool.first)..=chunk_of(pool.last()));
        let mut chunks: Vec<_> = chunks.collect();
        chunks.dedup();
        for chunk in chunks {
            let work = leases::Work { chunk, pools: &pools, ranges: &ranges, me: &me };
            self.drive_leases(context, observed, membership, holdings, &work);
        }
    }

    /// The shards of a pool that an incarnation should own, by their numbers in the cluster.
    fn range(&self, pool: &Pool, me: &Member) -> Range<u32> {
        let row = self.numbers.get(&pool.name).map(|(row, _)| row);
        let Some((row, place)) = row.and_then(|row| Some((row, row.place_of(me)?))) else {
            return 0..0;
        };
        let range = contiguous_range(place, row.holders.len(), pool.shards);
        pool.first.0 + range.start..pool.first.0 + range.end
    }

    fn is_waiting(&self, context: &Context, key: &RowKey) -> bool {
        self.retry_at.get(key).is_some_and(|at| context.mono() < *at)
    }

    fn wait(&mut self, context: &Context, key: RowKey) {
        self.retry_at.insert(key, context.mono() + context.settings.store_retry_interval);
    }

    /// Handles the failure of a write: a newer row was learned, the row is read, or the write is repeated later.
    fn on_write_failed(
        &mut self,
        context: &mut Context,
        key: RowKey,
        known: Option<u64>,
        error: &WriteError,
    ) {
        match error {
            // The row that stands was learned just now, unless it was known before.
            WriteError::Conflict(Some((_, at))) if known == Some(*at) => {}
            WriteError::Conflict(_) => self.wait(context, key),
            WriteError::Unknown => {
                context.read(key.clone());
                self.wait(context, key);
            }
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for (pool, (_, at)) in &mut self.numbers {
            *at = to.map_revision(&RowKey::Numbers(pool.clone()), *at);
        }
        for (shard, lease) in &mut self.observed_leases {
            lease.changed_at = to.map_time(lease.changed_at);
            lease.renewals = to.map_shard_renewals(*shard, lease.renewals);
        }
        for lease in self.own_leases.values_mut() {
            lease.start = to.map_time(lease.start);
        }
        for at in self.retry_at.values_mut() {
            *at = to.map_deadline(*at);
        }
        // Without such a pool, there is nothing to check.
        if self.check_at < u64::MAX {
            self.check_at = to.map_deadline(self.check_at);
        }
    }
}
