//! Reports to the manager: everything that this node holds, so that a lost report is repaired by the next one (R11).

use super::{
    Context, Epoch, Extensions, Holdings, Membership, NodeReport, ObservedCluster, ReportedShard,
    ShardId,
};

impl Holdings {
    pub(in super::super) fn set_unrunnable_types(
        &mut self,
        context: &Context,
        mut types: Vec<String>,
    ) {
        types.truncate(NodeReport::MAX_UNRUNNABLE_TYPES);
        if self.unrunnable_types != types {
            self.unrunnable_types = types;
            self.report_soon(context);
        }
    }

    pub(in super::super) fn set_misplaced(
        &mut self,
        context: &Context,
        mut shards: Vec<(ShardId, Epoch)>,
    ) {
        shards.sort_unstable();
        if self.misplaced != shards {
            self.misplaced = shards;
            self.report_soon(context);
        }
    }

    /// Whether a shard that the driver named as misplaced must be handed off. A shard that is not served yet is being
    /// claimed, and its claim moves the state.
    fn is_misplaced(&self, (shard, epoch): &(ShardId, Epoch)) -> bool {
        self.shards
            .get(shard)
            .is_some_and(|held| held.epoch == *epoch && held.serving && !held.stopping)
    }

    /// The shards that must be handed off for that.
    pub(super) fn misplaced_shards(&self) -> impl Iterator<Item = ShardId> {
        self.misplaced.iter().filter(|it| self.is_misplaced(it)).map(|(shard, _)| *shard)
    }

    pub(in super::super) fn report_soon(&mut self, context: &Context) {
        let at = context.mono() + context.settings.report_delay;
        self.report_at = Some(self.report_at.map_or(at, |before| before.min(at)));
    }

    /// When the next report may be sent.
    pub(in super::super) fn report_due(&self, membership: &Membership) -> Option<u64> {
        self.report_at.filter(|_| membership.member().is_some() && !membership.is_suspended())
    }

    /// The report that is due now.
    pub(in super::super) fn take_report(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        membership: &Membership,
    ) -> Option<NodeReport> {
        let me = membership.member()?;
        self.report_due(membership).filter(|at| *at <= context.mono())?;
        self.report_at = None;
        let store_available = !membership.has_lost_store(context) && !self.on_probation(context);
        let shards = self.shards.iter().map(|(shard, held)| ReportedShard {
            shard: *shard,
            epoch: held.epoch,
            serving: held.serving && !held.stopping,
        });
        let refused = self.refused_claims.iter();
        let mut report = NodeReport {
            incarnation: me.incarnation,
            store_available,
            applied_chunks: self.applied_chunks.iter().map(|(chunk, at)| (*chunk, *at)).collect(),
            shards: shards.collect(),
            refused_claims: refused.map(|(shard, (at, above))| (*shard, *at, *above)).collect(),
            extensions: Extensions::default(),
        };
        // If the names do not fit into the block, the report names no types, and the host keeps its shards.
        let _ = report.set_unrunnable_types(&self.unrunnable_types);
        let escalated = self.shards.iter().filter(|(_, held)| held.escalated);
        let escalated: Vec<_> = escalated.map(|(shard, held)| (*shard, held.epoch)).collect();
        // If they do not fit, the shards stay here until the next report.
        let _ = report.set_escalated(&escalated);
        if observed.manager_row().is_some_and(|row| row.holder.node != me.node) {
            // A node's report to itself is never overtaken by a later one.
            self.last_report_number += 1;
            let _ = report.set_number(self.last_report_number);
        }
        // Last, since it takes the space that is left.
        let misplaced = self.misplaced.iter().copied().filter(|it| self.is_misplaced(it));
        report.set_misplaced(&misplaced.collect::<Vec<_>>());
        Some(report)
    }
}
