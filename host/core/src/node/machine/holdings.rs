//! The shards that this node holds: exactly those that rows assign to its incarnation (R11, R13).

mod manager_silence;
mod probation;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::context::Context;
use super::membership::{ChangedClaim, Membership};
use super::observed::ObservedCluster;
use crate::extensions::Extensions;
use crate::ids::{Epoch, NodeId, ShardId};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::node::{Action, ControlMessage, HandOff, Mutation, NodeReport, Notice, ReportedShard};
use crate::pools::Pool;
use crate::rows::{Assignment, Member, is_stateless_chunk, shard_at};
use crate::shard::StopReason;
use probation::Probation;

#[derive(Clone, Debug, Default)]
pub(super) struct Holdings {
    shards: BTreeMap<ShardId, HeldShard>,
    /// Epochs that this process has released: final (R11).
    released_epochs: BTreeMap<ShardId, Epoch>,
    /// Claims that the store refused, with the epoch of the current claim, until the row's epoch exceeds it.
    refused_claims: BTreeMap<ShardId, (Epoch, Epoch)>,
    /// The last applied revision of each chunk.
    applied_chunks: BTreeMap<u32, u64>,
    /// Chunks that changed since they were last applied.
    changed_chunks: BTreeSet<u32>,
    /// When the next report is due.
    report_at: Option<u64>,
    /// The number of the last report to another node.
    last_report_number: u64,
    /// Deployed types that this node cannot run (R24).
    unrunnable_types: Vec<String>,
    /// Shards whose state is in another database than the one that the map names, each with its epoch, in ascending
    /// order (R26).
    misplaced: Vec<(ShardId, Epoch)>,
    /// Shards whose release or hand-off the manager has yet to act on, each with its deadline.
    awaiting_manager: BTreeMap<ShardId, u64>,
    /// Set when this node releases its shards because the store does not respond.
    probation: Option<Probation>,
}

/// A shard that this node holds.
#[derive(Clone, Debug, Hash)]
struct HeldShard {
    epoch: Epoch,
    serving: bool,
    /// Whether the shard was asked to stop, which is final for this epoch.
    stopping: bool,
    /// Whether the failure of one of its entities is escalated (K33).
    escalated: bool,
    /// The manager's node, which waits for the shard to stop, and the hand-off.
    stop_requested_by: Option<(NodeId, HandOff)>,
}

impl HeldShard {
    /// Asks the shard's machine to stop, unless that was already done.
    fn stop(&mut self, context: &mut Context, shard: ShardId) {
        if !std::mem::replace(&mut self.stopping, true) {
            let (epoch, reason) = (self.epoch, StopReason::HandedOff);
            context.push(Action::StopShard { shard, epoch, reason });
        }
    }
}

impl Holdings {
    pub(super) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Each shard, its epoch, and whether it is served.
    pub(super) fn shards(&self) -> impl Iterator<Item = (ShardId, Epoch, bool)> {
        self.shards.iter().map(|(shard, held)| (*shard, held.epoch, held.serving))
    }

    pub(super) fn epochs(&self) -> Vec<(ShardId, Epoch)> {
        self.shards.iter().map(|(shard, held)| (*shard, held.epoch)).collect()
    }

    pub(super) fn holds(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.shards.get(&shard).is_some_and(|held| held.epoch == epoch)
    }

    // Rows.

    pub(super) fn on_chunk_changed(&mut self, chunk: u32) {
        self.changed_chunks.insert(chunk);
    }

    /// Marks every chunk to be applied again.
    pub(super) fn reapply_all_chunks(&mut self, observed: &ObservedCluster) {
        self.applied_chunks.clear();
        self.changed_chunks = observed.chunks().map(|(chunk, ..)| chunk).collect();
    }

    /// Applies the chunks that changed. While the node is suspended, they remain to be applied.
    pub(super) fn apply_changed_chunks(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        membership: &Membership,
    ) {
        if membership.is_suspended() || !context.identity.is_host() || !observed.is_watching() {
            return;
        }
        let Some(me) = membership.member() else { return };
        for chunk in std::mem::take(&mut self.changed_chunks) {
            let Some((row, revision)) = observed.chunk(chunk) else { continue };
            #[cfg(test)]
            {
                context.visits += 1;
            }
            let shards = context.identity.pools.shard_count();
            let mut all_known = true;
            for (place, row) in row.assignments.iter().enumerate() {
                let shard = shard_at(chunk, place);
                match shard.0 <= shards {
                    true => self.apply(context, membership, me, shard, row),
                    false => all_known = false,
                }
            }
            // A row with shards of a pool that this node does not know yet is applied again when it does. Until then, the
            // manager must not think that this node saw it and refused the shards.
            if all_known {
                self.applied_chunks.insert(chunk, *revision);
            }
            if !is_stateless_chunk(&context.identity.pools, chunk) {
                self.report_soon(context);
            }
        }
    }

    fn apply(
        &mut self,
        context: &mut Context,
        membership: &Membership,
        me: &Member,
        shard: ShardId,
        row: &Assignment,
    ) {
        let epoch = row.epoch;
        if let Some(held) = self.shards.get(&shard)
            && held.epoch < epoch
        {
            let old = held.epoch;
            context.push(Action::DropShard { shard, epoch: old });
            self.shards.remove(&shard);
            self.note_released(shard, old);
        }
        if self.refused_claims.get(&shard).is_some_and(|(refused, _)| *refused < epoch) {
            self.refused_claims.remove(&shard);
        }
        let was_released = self.released_epochs.get(&shard).is_some_and(|at| *at >= epoch);
        if row.owner.as_ref() == Some(me)
            && !was_released
            && !self.shards.contains_key(&shard)
            && !membership.is_departing()
        {
            let held = HeldShard {
                epoch,
                serving: false,
                stopping: false,
                escalated: false,
                stop_requested_by: None,
            };
            self.shards.insert(shard, held);
            if let Some(probation) = &mut self.probation {
                probation.on_shard_held(context.mono());
            }
            context.push(Action::StartShard { shard, epoch, member: me.clone() });
            if context.identity.pools.is_stateless(shard) {
                // The shard has a lease of its own, which is announced once a write of it has succeeded.
                context.push(Action::ShardLeaseRenewed { shard, epoch, sent_at: 0, lease: 0 });
            }
        }
        self.track_awaiting_manager(context, me, shard, row);
    }

    pub(super) fn note_released(&mut self, shard: ShardId, epoch: Epoch) {
        let released = self.released_epochs.entry(shard).or_default();
        *released = (*released).max(epoch);
    }

    /// Whether this process has released a shard in this epoch or a later one.
    pub(super) fn was_released(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.released_epochs.get(&shard).is_some_and(|at| *at >= epoch)
    }

    /// The epoch in which the store refused the claim of a shard, and that of the claim that stands.
    pub(super) fn refused_by(&self, shard: ShardId) -> Option<(Epoch, Epoch)> {
        self.refused_claims.get(&shard).copied()
    }

    /// Records that a shard was released in this epoch.
    fn release(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        me: Option<&Member>,
        shard: ShardId,
        epoch: Epoch,
    ) {
        self.note_released(shard, epoch);
        if let (Some(me), Some(row)) = (me, observed.assignment(shard)) {
            self.track_awaiting_manager(context, me, shard, row);
        }
    }

    // Shards' machines.

    pub(super) fn on_serving(&mut self, context: &Context, shard: ShardId, epoch: Epoch) {
        if let Some(held) = self.shards.get_mut(&shard)
            && held.epoch == epoch
        {
            held.serving = true;
            self.report_soon(context);
        }
    }

    pub(super) fn on_escalated(&mut self, context: &Context, shard: ShardId, epoch: Epoch) {
        if let Some(held) = self.shards.get_mut(&shard)
            && held.epoch == epoch
            && !held.escalated
        {
            held.escalated = true;
            self.report_soon(context);
        }
    }

    pub(super) fn on_stopped(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        me: Option<&Member>,
        shard: ShardId,
        epoch: Epoch,
    ) {
        if !self.holds(shard, epoch) {
            return;
        }
        let stop_requested_by = self.shards.remove(&shard).and_then(|held| held.stop_requested_by);
        self.release(context, observed, me, shard, epoch);
        if let (Some(me), Some((manager, hand_off))) = (me, stop_requested_by) {
            send_shard_stopped(context, me, &manager, hand_off);
        }
        self.report_soon(context);
    }

    /// The store refused a claim: `current` is the epoch of the current claim, if known.
    pub(super) fn on_lost(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        me: Option<&Member>,
        shard: ShardId,
        epoch: Epoch,
        current: Option<Epoch>,
    ) {
        if !self.holds(shard, epoch) {
            return;
        }
        self.shards.remove(&shard);
        self.release(context, observed, me, shard, epoch);
        self.refused_claims.insert(shard, (epoch, current.unwrap_or(epoch)));
        self.report_soon(context);
    }

    /// A claim changed while this node was suspended (R9). A shard that is being claimed has no claim yet, and is
    /// lost only if a higher claim exists.
    pub(super) fn on_claim_changed(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        me: Option<&Member>,
        ChangedClaim { shard, epoch, current }: ChangedClaim,
    ) {
        let is_lost =
            |held: &HeldShard| held.epoch == epoch && (held.serving || current > Some(epoch));
        if self.shards.get(&shard).is_some_and(is_lost) {
            context.push(Action::DropShard { shard, epoch });
            self.on_lost(context, observed, me, shard, epoch, current);
        }
    }

    // Hand-offs and stops.

    /// Handles a hand-off by stopping the shard. If there is nothing to stop now, there will be nothing later under
    /// this epoch either (A11).
    pub(super) fn on_hand_off(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        me: &Member,
        manager: &NodeId,
        hand_off: HandOff,
    ) {
        let HandOff { term, shard, epoch, incarnation, .. } = hand_off;
        let matches = me.incarnation == incarnation && term >= observed.manager_term();
        if !matches && !context.has_mutation(Mutation::SkipHandOffMatching) {
            return;
        }
        match self.shards.get_mut(&shard) {
            Some(held) if held.epoch == epoch => {
                held.stop_requested_by = Some((manager.clone(), hand_off));
                if !held.stopping {
                    self.awaiting_manager.remove(&shard);
                }
                held.stop(context, shard);
            }
            // A late message, for an epoch that has ended.
            Some(held) if held.epoch > epoch => {}
            held => {
                if let Some(held) = held {
                    context.push(Action::DropShard { shard, epoch: held.epoch });
                    self.shards.remove(&shard);
                }
                self.release(context, observed, Some(me), shard, epoch);
                send_shard_stopped(context, me, manager, hand_off);
            }
        }
    }

    /// Asks those shards of a pool to stop that are not in this range (E7), and, a few at each check, those whose state
    /// must move to another database (R26): the claim after the next one moves it.
    pub(super) fn stop_outside(&mut self, context: &mut Context, pool: &Pool, range: &Range<u32>) {
        let misplaced: Vec<_> = self.misplaced_shards().collect();
        let relocated = misplaced.into_iter().filter(|shard| pool.contains(*shard));
        let relocated: Vec<_> = relocated.take(context.settings.max_relocations).collect();
        for (shard, held) in self.shards.range_mut(pool.first..=pool.last()) {
            if !range.contains(&shard.0) || relocated.contains(shard) {
                held.stop(context, *shard);
            }
        }
    }

    /// Asks every shard to stop.
    pub(super) fn stop_all(&mut self, context: &mut Context) {
        for (shard, held) in &mut self.shards {
            held.stop(context, *shard);
        }
    }

    /// Drops every shard immediately.
    fn drop_all(&mut self, context: &mut Context, observed: &ObservedCluster, me: Option<&Member>) {
        for (shard, held) in std::mem::take(&mut self.shards) {
            context.push(Action::DropShard { shard, epoch: held.epoch });
            self.release(context, observed, me, shard, held.epoch);
        }
    }

    /// This incarnation was fenced: another node may own its shards by now (R7).
    pub(super) fn on_fenced(&mut self, context: &mut Context, observed: &ObservedCluster) {
        self.drop_all(context, observed, None);
        self.refused_claims.clear();
        self.awaiting_manager.clear();
    }
}

fn send_shard_stopped(context: &mut Context, me: &Member, manager: &NodeId, hand_off: HandOff) {
    let stopped = HandOff { incarnation: me.incarnation, ..hand_off };
    context.send(manager, ControlMessage::ShardStopped(stopped));
}

#[cfg(any(test, feature = "testing"))]
mod testing {
    use std::hash::{Hash, Hasher};

    use super::{Canonicalizer, HandOff, Holdings, ObservedCluster};
    use crate::rows::RowKey;

    impl Holdings {
        pub(in super::super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
            self.report_at = self.report_at.map(|at| to.map_deadline(at));
            self.awaiting_manager.retain(|_, until| !to.never(*until));
            for until in self.awaiting_manager.values_mut() {
                *until = to.map_deadline(*until);
            }
            if let Some(probation) = &mut self.probation {
                probation.canonicalize(to);
            }
            for (chunk, at) in &mut self.applied_chunks {
                *at = to.map_revision(&RowKey::Assignments(*chunk), *at);
            }
            // A model removes the numbers from messages: its reports count in order of arrival.
            self.last_report_number = 0;
        }

        /// Forgets released epochs below those of their rows: they are compared only with rows, whose epochs never
        /// fall.
        pub(in super::super) fn prune_irrelevant(&mut self, observed: &ObservedCluster) {
            self.released_epochs
                .retain(|shard, at| observed.assignment(*shard).is_none_or(|row| row.epoch <= *at));
        }

        /// Whether a hand-off to this incarnation changes nothing apart from its answer.
        pub(in super::super) fn is_hand_off_irrelevant(
            &self,
            observed: &ObservedCluster,
            HandOff { shard, epoch, .. }: &HandOff,
        ) -> bool {
            let is_above = observed.assignment(*shard).is_some_and(|row| row.epoch > *epoch);
            match self.shards.get(shard) {
                Some(held) => held.epoch > *epoch,
                None => is_above || self.was_released(*shard, *epoch),
            }
        }
    }

    /// Excludes what is derived from rows, and the numbering of reports.
    impl Hash for Holdings {
        fn hash<H: Hasher>(&self, state: &mut H) {
            (&self.shards, &self.released_epochs, &self.refused_claims).hash(state);
            (&self.applied_chunks, self.report_at, &self.unrunnable_types).hash(state);
            (self.probation, &self.awaiting_manager, &self.misplaced).hash(state);
        }
    }
}
