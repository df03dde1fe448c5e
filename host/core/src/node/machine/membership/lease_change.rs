//! A change of the lease's duration, in an order in which an observer never counts a shorter lease than the owner
//! (R8).
//!
//! An observer uses the lease in an incarnation's own row. So the row may show too long a lease for a while, but never
//! one that is too short: a longer lease is written first, and relied on once that renewal has succeeded. A shorter
//! lease is relied on immediately, and written when no node can still rely on the longer one. No node waits for
//! another, so the cluster's settings row can change in one write, and nodes may differ indefinitely.

use super::{Action, Context, Membership, Mutation, Registration};
use crate::node::{LeaseSettings, Settings};

impl Membership {
    /// Applies the cluster's settings from their row.
    pub(in super::super) fn on_lease_settings(
        &mut self,
        context: &mut Context,
        agreed: LeaseSettings,
    ) {
        let LeaseSettings {
            revision,
            lease,
            lease_margin,
            renew_interval,
            manager_silence_timeout,
        } = agreed;
        if revision <= context.settings.settings_revision {
            return;
        }
        let settings = &mut context.settings;
        settings.settings_revision = revision;
        settings.lease = lease;
        settings.lease_margin = lease_margin;
        settings.renew_interval = renew_interval;
        settings.manager_silence_timeout = manager_silence_timeout;
        let at_once = context.has_mutation(Mutation::ApplyLeaseImmediately);
        let Some(own) = self.registration_mut() else { return };
        if (lease < own.lease) != at_once {
            own.longer_until = own.longer_until.max(own.lease_start + own.lease);
            own.lease = lease;
            context.push(Action::LeaseRenewed { sent_at: own.lease_start, lease });
        }
        self.check_lapse(context);
        self.renew_now(context);
    }
}

/// The lease that the next renewal writes, and the revision of the settings that it comes from.
pub(super) fn declared_lease(context: &Context, own: &Registration) -> (u64, u64) {
    let Settings { lease, settings_revision, .. } = context.settings;
    if context.mono() >= own.longer_until
        || lease >= own.row.lease
        || context.has_mutation(Mutation::ApplyLeaseImmediately)
    {
        (lease, settings_revision)
    } else {
        (own.row.lease, own.row.settings_revision)
    }
}
