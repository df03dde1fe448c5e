//! Registration: never over a lease that may still be valid (R7).

use super::{
    Action, Context, Incarnation, Member, Membership, Mutation, NodeRow, NodeStatus, Notice,
    ObservedCluster, Registration, Row, RowKey, State, WritePurpose,
};
use crate::extensions::Extensions;
use crate::format;

impl Membership {
    pub(super) fn try_register(&mut self, context: &mut Context, observed: &ObservedCluster) {
        let node = context.identity.node.clone();
        let known = observed.node(&node).cloned();
        if let Some((row, _)) = &known
            && row.status == NodeStatus::Live
            && !context.settings.embedded_store
            && !context.has_mutation(Mutation::RegisterOverLiveLease)
            && !observed.lease_unchanged_for(
                &node,
                context.mono(),
                row.lease + context.settings.lease_margin,
            )
        {
            // An incarnation of this name may still own shards: its lease must lapse first (R7).
            let (incarnation, renewals) = (row.incarnation, row.renewals);
            return self.detect_name_conflict(context, incarnation, renewals);
        }
        self.name_conflict = None;
        let counter = known.as_ref().map_or(0, |(row, _)| row.incarnation.counter) + 1;
        let nonce = context.draw();
        let row = NodeRow {
            incarnation: Incarnation { counter, nonce },
            renewals: 0,
            status: NodeStatus::Live,
            // An operator's drain applies to all incarnations of the node, until it is undone.
            draining: known.as_ref().is_some_and(|(row, _)| row.draining),
            store_available: true,
            roles: context.identity.roles,
            version: context.identity.version,
            registered_at: context.now.cluster_time,
            addresses: context.identity.addresses.clone(),
            format: format::newest().into(),
            lease: context.settings.lease,
            settings_revision: context.settings.settings_revision,
            // The row describes one incarnation: fields that another release set for the last one are dropped.
            extensions: Extensions::default(),
        };
        let row = match context.unix_ms {
            Some(unix_ms) => row.with_registered_unix_ms(unix_ms),
            None => row,
        };
        // A row of one incarnation has space for any number of roles that a configuration may name.
        let row = row.clone().with_pool_roles(&context.identity.pool_roles).unwrap_or(row);
        let row = row.clone().with_weight(context.identity.weight).unwrap_or(row);
        let row = match &context.process {
            Some(process) => row.with_process(process),
            None => row,
        };
        let row = match &context.host_process {
            Some(process) => row.with_host_process(process),
            None => row,
        };
        let row = match context.settings.keep_alive_interval {
            Some(_) => row.with_keep_alives(context.settings.arbiter),
            None => row,
        };
        self.state = State::Registering;
        let expected = known.map(|(_, revision)| revision);
        let purpose = WritePurpose::Register(row.clone(), context.mono());
        context.write(purpose, RowKey::Node(node), expected, Row::Node(row));
    }

    /// A lease that continues to be renewed belongs to another process: this is reported once per lease. One
    /// renewal may have been in flight when its node died.
    fn detect_name_conflict(
        &mut self,
        context: &mut Context,
        incarnation: Incarnation,
        renewals: u64,
    ) {
        let now = context.mono();
        let seen = ((incarnation, renewals), now + context.settings.lease);
        let Some(((last, last_renewals), compare_at)) = self.name_conflict else {
            self.name_conflict = Some(seen);
            return;
        };
        if now >= compare_at && (last != incarnation || renewals >= last_renewals + 2) {
            self.name_conflict = Some(seen);
            let node = context.identity.node.clone();
            context.notify(Notice::NodeNameInUse(Member { node, incarnation }));
        }
    }

    /// The registration failed, or its outcome is unknown. In either case another incarnation is tried once the row
    /// is known. If one was registered without this node's knowledge, its lease lapses like any other, and nothing
    /// was ever done in its name.
    pub(in super::super) fn on_registration_failed(&mut self) {
        self.state = State::Unregistered;
    }

    /// This row was registered by a write sent at `sent_at`.
    pub(in super::super) fn on_registered(
        &mut self,
        context: &mut Context,
        row: &NodeRow,
        revision: u64,
        sent_at: u64,
    ) {
        let now = context.mono();
        let lease_start = if context.has_mutation(Mutation::LeaseFromRegistrationResponse) {
            now
        } else {
            sent_at
        };
        let node = context.identity.node.clone();
        let member = Member { node, incarnation: row.incarnation };
        let lease = row.lease.min(context.settings.lease);
        self.state = State::Registered(Box::new(Registration {
            member: member.clone(),
            row: row.clone(),
            revision,
            lease_start,
            first_renewal_since: None,
            lease,
            longer_until: 0,
            recovered_at: 0,
            pending: false,
            due: lease_start + context.settings.renew_interval,
            suspended: false,
            claim_check: None,
            claims_at: 0,
            claims_unverified: false,
            is_retiring: false,
        }));
        self.store_last_responded = now;
        context.push(Action::Registered(member));
        context.push(Action::LeaseRenewed { sent_at: lease_start, lease });
    }
}
