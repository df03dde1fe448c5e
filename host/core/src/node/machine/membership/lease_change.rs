//! Another lease, in an order in which no judge is ever ahead of the life that it judges (R8).
//!
//! A judge goes by the lease that a life's own row says. So the row may say too much for a while, and never too
//! little: a longer lease is written first and relied on once that renewal has succeeded; a shorter one is relied on
//! at once, and written when nothing that was told of the longer one can be relied on any more. No node waits for
//! another, so the cluster's row of settings can change in one write, and nodes may differ for as long as they like.

use super::*;
use crate::node::LeaseSettings;

impl Machine {
    /// The cluster's settings, as their row says.
    pub(in super::super) fn on_lease_settings(&mut self, now: Now, agreed: LeaseSettings) {
        if agreed.revision <= self.settings.settings_revision {
            return;
        }
        let LeaseSettings {
            revision,
            lease,
            lease_margin: margin,
            renew_interval: renew,
            manager_silence_timeout: unheard,
        } = agreed;
        let settings = &mut self.settings;
        (settings.settings_revision, settings.lease, settings.lease_margin) =
            (revision, lease, margin);
        (settings.renew_interval, settings.manager_silence_timeout) = (renew, unheard);
        let at_once = self.has_mutation(Mutation::ApplyLeaseImmediately);
        let Membership::Registered(life) = &mut self.membership else { return };
        if (lease < life.lease) != at_once {
            life.longer_until = life.longer_until.max(life.lease_start + life.lease);
            life.lease = lease;
            self.actions.push_back(Action::LeaseRenewed { sent_at: life.lease_start, lease });
        }
        self.check_lapse(now);
        self.renew_now(now);
    }

    /// What the next renewal's row says of the lease, and which settings it goes by.
    pub(super) fn declared(&self, now: Now, life: &Registration) -> (u64, u64) {
        let Settings { lease, settings_revision: revision, .. } = self.settings;
        if now.mono >= life.longer_until
            || lease >= life.row.lease
            || self.has_mutation(Mutation::ApplyLeaseImmediately)
        {
            (lease, revision)
        } else {
            (life.row.lease, life.row.settings_revision)
        }
    }
}
