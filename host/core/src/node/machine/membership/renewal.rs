//! Renewals of the node's own row, whose answers may be lost, and the row's content (R7, R8).

use super::lease_change::declared_lease;
use super::{
    Action, Context, Effect, Membership, Mutation, NodeRow, NodeStatus, Row, RowKey, WriteError,
    WritePurpose,
};

impl Membership {
    pub(super) fn renew(&mut self, context: &mut Context) {
        let store_available = self.is_store_available(context);
        let leaves = !self.stays();
        let Some(own) = self.registration_mut() else { return };
        let now = context.mono();
        let (lease, settings_revision) = declared_lease(context, own);
        own.pending = true;
        own.due = now + context.settings.renew_interval;
        own.first_renewal_since.get_or_insert(now);
        let mut row = NodeRow {
            renewals: own.row.renewals + 1,
            store_available,
            lease,
            settings_revision,
            ..own.row.clone()
        };
        if leaves && !row.is_leaving() {
            // This fails only if fields of other releases leave no space in the block.
            let _ = row.set_leaving();
        }
        let purpose = WritePurpose::Renew(row.clone(), now);
        context.write(purpose, own.key(), Some(own.revision), Row::Node(row));
    }

    /// Reads the node's own row, because the answer to a renewal, or to the read after it, was lost or is late.
    pub(super) fn read_own_row(&mut self, context: &mut Context) {
        if context.requests.writes_own_row() {
            return;
        }
        let Some(own) = self.registration_mut() else { return };
        own.due = context.mono() + context.settings.store_retry_interval;
        context.read(own.key());
    }

    /// Makes the next renewal of the row due immediately, to publish a change.
    pub(in super::super) fn renew_now(&mut self, context: &Context) {
        if let Some(own) = self.registration_mut() {
            own.due = context.mono();
        }
    }

    /// Handles the answer to a renewal; `None` if it is obsolete.
    pub(in super::super) fn on_renewal_written(
        &mut self,
        context: &mut Context,
        row: &NodeRow,
        sent_at: u64,
        result: &Result<u64, WriteError>,
    ) -> Option<Effect> {
        let own = self.registration_mut()?;
        if own.member.incarnation != row.incarnation {
            return None;
        }
        own.pending = false;
        Some(match result {
            Ok(revision) => {
                if *revision >= own.revision {
                    own.row = row.clone();
                    own.revision = *revision;
                }
                own.first_renewal_since = None;
                let lease = row.lease.min(own.row.lease);
                self.count_renewal(context, sent_at, lease)
            }
            Err(WriteError::Conflict(Some(_))) => {
                own.due = context.mono();
                Effect::Nothing
            }
            Err(WriteError::Conflict(None)) => Effect::Fenced,
            Err(WriteError::Unknown) => {
                own.pending = true;
                own.due = context.mono() + context.settings.store_retry_interval;
                context.read(own.key());
                Effect::Nothing
            }
        })
    }

    /// A renewal succeeded, and its row shows this lease, which is counted from when the renewal was sent.
    fn count_renewal(&mut self, context: &mut Context, sent_at: u64, lease: u64) -> Effect {
        let now = context.mono();
        let sent_at =
            if context.has_mutation(Mutation::LeaseFromRenewalResponse) { now } else { sent_at };
        let Some(own) = self.registration_mut() else { return Effect::Nothing };
        if sent_at <= own.lease_start {
            return Effect::Nothing;
        }
        if sent_at - own.lease_start >= own.lease {
            own.recovered_at = now;
        }
        own.lease_start = sent_at;
        own.lease = lease.min(context.settings.lease);
        context.push(Action::LeaseRenewed { sent_at, lease: own.lease });
        Effect::Renewed
    }

    /// Handles the answer to a read of the node's own row, after a write whose answer was lost.
    pub(in super::super) fn on_own_row_read(
        &mut self,
        context: &mut Context,
        key: &RowKey,
        value: Option<&(Row, u64)>,
        holds_shards: bool,
    ) -> Effect {
        let Some(own) = self.registration_mut() else { return Effect::Nothing };
        if *key != own.key() || context.requests.writes_own_row() {
            return Effect::Nothing;
        }
        own.pending = false;
        match value {
            Some((Row::Node(row), revision)) if *revision >= own.revision => {
                self.on_own_row(context, row.clone(), *revision, holds_shards)
            }
            Some(_) => Effect::Nothing,
            None => Effect::Fenced,
        }
    }

    /// Handles the node's own row, from any source: others may set its drain mark, or end this incarnation.
    ///
    /// An incarnation writes its own row as left only when it no longer holds anything. Another node does so for an
    /// incarnation that was marked dead and then forgotten: that incarnation is fenced, like any dead one.
    pub(in super::super) fn on_own_row(
        &mut self,
        context: &mut Context,
        row: NodeRow,
        revision: u64,
        holds_shards: bool,
    ) -> Effect {
        let stays = self.stays();
        let Some(own) = self.registration_mut() else { return Effect::Nothing };
        if revision < own.revision {
            return Effect::Nothing;
        }
        let may_have_left = (!stays || own.is_retiring) && !holds_shards;
        let is_own = row.incarnation == own.member.incarnation;
        if is_own && row.status == NodeStatus::Left && may_have_left {
            // Its own write, delivered by the watch before the answer.
            return Effect::Left;
        }
        if !is_own || row.status != NodeStatus::Live {
            return Effect::Fenced;
        }
        if revision == own.revision {
            return Effect::Nothing;
        }
        // A pending renewal will conflict and be repeated, unless this row is what it wrote.
        let renewed = row.renewals > own.row.renewals;
        let sent_at = if renewed { own.first_renewal_since.take() } else { None };
        let lease = row.lease;
        own.row = row;
        own.revision = revision;
        match sent_at {
            Some(sent_at) => self.count_renewal(context, sent_at, lease),
            None => Effect::Nothing,
        }
    }
}
