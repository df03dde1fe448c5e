//! The leases of shards: taken, renewed and released in the rows of their chunks (E8).
//!
//! One write of a chunk's row renews all leases that this node has in it, and takes and releases what else is due there.
//! So the number of writes depends on the number of rows and hosts, not on the number of shards.

use super::{
    Action, Assignment, AssignmentsRow, BTreeMap, Context, Epoch, Holdings, LeaseWrite, Member,
    Membership, Mutation, ObservedCluster, Pool, Range, Row, RowKey, SHARDS_PER_CHUNK, ShardId,
    ShardLease, Stateless, WriteError, WritePurpose, chunk_of, index_in_chunk, shard_at,
};

/// What this node last saw of a shard's lease.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct ObservedLease {
    epoch: Epoch,
    pub(super) renewals: u64,
    /// When the epoch or the number of renewals was last seen to change.
    pub(super) changed_at: u64,
}

/// The lease of a shard that this node holds.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct OwnLease {
    epoch: Epoch,
    /// When the last successful renewal was sent.
    pub(super) start: u64,
    /// How long it may be relied on from then.
    lease: u64,
    /// Whether the shard's machine knows.
    announced: bool,
}

/// One chunk, and what this node should own.
pub(super) struct Work<'a> {
    pub(super) chunk: u32,
    /// The pools without a manager that this node hosts.
    pub(super) pools: &'a [Pool],
    /// This node's range of shards in each, by the pool's first shard.
    pub(super) ranges: &'a BTreeMap<ShardId, Range<u32>>,
    pub(super) me: &'a Member,
}

impl Work<'_> {
    /// The shards of the chunk that this node may own, and whether it should.
    fn shards(&self) -> impl Iterator<Item = (ShardId, bool)> {
        let first = shard_at(self.chunk, 0).0;
        self.pools.iter().flat_map(move |pool| {
            let range = &self.ranges[&pool.first];
            let from = pool.first.0.max(first);
            let until = pool.last().0.min(first + SHARDS_PER_CHUNK - 1);
            (from..=until).map(move |shard| (ShardId(shard), range.contains(&shard)))
        })
    }
}

/// What to do about one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    /// Renew its lease together with others, or now if it is due.
    Renew {
        is_due: bool,
    },
    /// Own it in this epoch.
    Take(Epoch),
    Release,
}

impl Stateless {
    /// Records when leases of shards change, after a chunk's row was learned.
    pub(in super::super) fn on_chunk_learned(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        chunk: u32,
    ) {
        let Some((row, _)) = observed.chunk(chunk) else { return };
        for (place, row) in row.assignments.iter().enumerate() {
            let shard = shard_at(chunk, place);
            if !context.identity.pools.is_stateless(shard) {
                continue;
            }
            self.changed = true;
            if row.owner.is_none() {
                self.observed_leases.remove(&shard);
                continue;
            }
            let renewals = row.lease().map_or(0, |lease| lease.renewals);
            let seen = self.observed_leases.get(&shard);
            if seen.is_none_or(|seen| (seen.epoch, seen.renewals) != (row.epoch, renewals)) {
                let changed_at = context.mono();
                let seen = ObservedLease { epoch: row.epoch, renewals, changed_at };
                self.observed_leases.insert(shard, seen);
            }
        }
    }

    /// Tells the machines of held shards about leases that were written. A shard that was started because its row was
    /// found to name this incarnation, after the answer to a write was lost, has none until the next renewal.
    pub(super) fn announce_leases(&mut self, context: &mut Context, holdings: &Holdings) {
        self.own_leases.retain(|shard, own| holdings.holds(*shard, own.epoch));
        for (shard, own) in &mut self.own_leases {
            if !std::mem::replace(&mut own.announced, true) {
                let OwnLease { epoch, start: sent_at, lease, .. } = *own;
                context.push(Action::ShardLeaseRenewed { shard: *shard, epoch, sent_at, lease });
            }
        }
    }

    /// Writes what is due in the row of a chunk, unless a write is pending.
    pub(super) fn drive_leases(
        &mut self,
        context: &mut Context,
        observed: &mut ObservedCluster,
        membership: &Membership,
        holdings: &mut Holdings,
        work: &Work<'_>,
    ) {
        let key = RowKey::Assignments(work.chunk);
        let writes = |purpose: &WritePurpose| matches!(purpose, WritePurpose::ShardLeases(write) if write.chunk == work.chunk);
        if self.is_waiting(context, &key) || context.requests.any_write(writes) {
            return;
        }
        let none = Assignment::default();
        let mut steps = Vec::new();
        let mut unknown_owners = Vec::new();
        for (shard, is_wanted) in work.shards() {
            let row = observed.assignment(shard).unwrap_or(&none);
            let owner = row.owner.as_ref().filter(|owner| observed.has_ended(owner).is_none());
            unknown_owners.extend(owner.map(|owner| owner.node.clone()));
            let step = match row.owner.as_ref() == Some(work.me) {
                true => self.own_step(context, membership, holdings, shard, row, is_wanted),
                false
                    if is_wanted
                        && !membership.has_lost_store(context)
                        && self.is_free(context, observed, shard, row) =>
                {
                    Step::Take(next_epoch(holdings, shard, row))
                }
                false => Step::Nothing,
            };
            if step != Step::Nothing {
                steps.push((shard, step));
            }
        }
        observed.read_missing_rows(context, unknown_owners);
        let is_due = |(_, step): &(ShardId, Step)| !matches!(step, Step::Renew { is_due: false });
        if steps.iter().any(is_due) {
            self.write_leases(context, observed, work, &steps);
        }
    }

    /// What to do about a shard whose row names this incarnation.
    fn own_step(
        &self,
        context: &Context,
        membership: &Membership,
        holdings: &mut Holdings,
        shard: ShardId,
        row: &Assignment,
        is_wanted: bool,
    ) -> Step {
        if holdings.holds(shard, row.epoch) {
            let renewed = self.own_leases.get(&shard).map_or(0, |own| own.start);
            let is_due = context.mono() >= renewed + context.settings.renew_interval;
            let never = context.has_mutation(Mutation::NeverRenewShardLeases);
            return if never { Step::Nothing } else { Step::Renew { is_due } };
        }
        if membership.is_departing() {
            // It was never started, and never will be.
            holdings.note_released(shard, row.epoch);
        }
        match holdings.was_released(shard, row.epoch) {
            true if is_wanted && !membership.has_lost_store(context) => {
                Step::Take(next_epoch(holdings, shard, row))
            }
            true => Step::Release,
            false => Step::Nothing,
        }
    }

    /// Whether another incarnation may take a shard: nobody owns it, its owner has ended (R7), or its lease has lapsed,
    /// on this node's clock (R8).
    fn is_free(
        &self,
        context: &Context,
        observed: &ObservedCluster,
        shard: ShardId,
        row: &Assignment,
    ) -> bool {
        let Some(owner) = &row.owner else { return true };
        if observed.has_ended(owner) == Some(true)
            || context.has_mutation(Mutation::TakeUnlapsedShardLease)
        {
            return true;
        }
        let lease = row.lease().map_or(context.settings.lease, |lease| lease.lease);
        let span = lease.saturating_add(context.settings.lease_margin);
        let seen = self.observed_leases.get(&shard).filter(|seen| seen.epoch == row.epoch);
        seen.is_some_and(|seen| context.mono().saturating_sub(seen.changed_at) >= span)
    }

    fn write_leases(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        work: &Work<'_>,
        steps: &[(ShardId, Step)],
    ) {
        let known = observed.chunk(work.chunk);
        let (mut row, expected): (AssignmentsRow, _) =
            known.map(|(row, at)| (row.clone(), Some(*at))).unwrap_or_default();
        let first = work.chunk * SHARDS_PER_CHUNK;
        let shards = context.identity.pools.shard_count().saturating_sub(first);
        let shards = shards.min(SHARDS_PER_CHUNK) as usize;
        row.assignments.resize(shards.max(row.assignments.len()), Assignment::default());
        let lease = context.settings.lease;
        let (mut leased, mut changes_owners) = (Vec::new(), false);
        for (shard, step) in steps {
            let Some(row) = row.assignments.get_mut(index_in_chunk(*shard)) else { continue };
            let renewals = row.lease().map_or(0, |lease| lease.renewals) + 1;
            let renewed = match step {
                Step::Nothing => continue,
                Step::Renew { .. } => Some(ShardLease { renewals, lease }),
                Step::Take(epoch) => {
                    changes_owners = true;
                    row.owner = Some(work.me.clone());
                    row.epoch = *epoch;
                    row.hand_off = None;
                    Some(ShardLease { renewals: 1, lease })
                }
                Step::Release => {
                    changes_owners = true;
                    row.owner = None;
                    None
                }
            };
            // Without space in the block, the shard has no lease that it could rely on.
            if row.set_lease(renewed).is_ok() && renewed.is_some() {
                leased.push((*shard, row.epoch));
            }
        }
        let write = LeaseWrite {
            chunk: work.chunk,
            row: row.clone(),
            sent_at: context.mono(),
            lease,
            shards: leased,
            changes_owners,
        };
        let key = RowKey::Assignments(work.chunk);
        context.write(WritePurpose::ShardLeases(write), key, expected, Row::Assignments(row));
    }

    /// Handles the answer to a write of leases. The caller has recorded the row that was written, or found instead.
    pub(in super::super) fn on_leases_written(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        write: &LeaseWrite,
        result: &Result<u64, WriteError>,
    ) {
        self.changed = true;
        match result {
            Ok(_) => {
                let (start, lease) = (write.sent_at, write.lease);
                for (shard, epoch) in &write.shards {
                    let own = OwnLease { epoch: *epoch, start, lease, announced: false };
                    self.own_leases.insert(*shard, own);
                }
            }
            Err(error) => {
                let known = observed.chunk(write.chunk).map(|(_, at)| *at);
                let key = RowKey::Assignments(write.chunk);
                self.on_write_failed(context, key, known, error);
            }
        }
    }

    /// The chunks that contain shards of pools without a manager.
    pub(in super::super) fn concerns(context: &Context, chunk: u32) -> bool {
        context
            .identity
            .pools
            .stateless()
            .any(|pool| (chunk_of(pool.first)..=chunk_of(pool.last())).contains(&chunk))
    }
}

/// The epoch of the shard's next owner: above its row's, and above that of a claim that the store knows (R5).
fn next_epoch(holdings: &Holdings, shard: ShardId, row: &Assignment) -> Epoch {
    let refused = holdings.refused_by(shard).filter(|(at, _)| *at == row.epoch);
    Epoch(refused.map_or(row.epoch, |(_, claimed)| row.epoch.max(claimed)).0 + 1)
}
