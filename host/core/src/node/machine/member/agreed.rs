//! Another lease, in an order in which no judge is ever ahead of the life that it judges (R8).
//!
//! A judge goes by the lease that a life's own row says. So the row may say too much for a while, and never too
//! little: a longer lease is written first and relied on once that renewal has succeeded; a shorter one is relied on
//! at once, and written when nothing that was told of the longer one can be relied on any more. No node waits for
//! another, so the cluster's row of settings can change in one write, and nodes may differ for as long as they like.

use super::*;
use crate::node::Agreed;

impl Machine {
    /// The cluster's settings, as their row says.
    pub(in super::super) fn on_settings(&mut self, now: Now, agreed: Agreed) {
        if agreed.revision <= self.settings.revision {
            return;
        }
        let Agreed { revision, lease, margin, renew, unheard } = agreed;
        let settings = &mut self.settings;
        (settings.revision, settings.lease, settings.margin) = (revision, lease, margin);
        (settings.renew, settings.unheard) = (renew, unheard);
        let at_once = self.off(Mutation::LeaseAtOnce);
        let Membership::In(life) = &mut self.membership else { return };
        if (lease < life.lease) != at_once {
            life.longer_until = life.longer_until.max(life.sent + life.lease);
            life.lease = lease;
            self.actions.push_back(Action::Renewed { sent: life.sent, lease });
        }
        self.check_lapse(now);
        self.renew_soon(now);
    }

    /// What the next renewal's row says of the lease, and which settings it goes by.
    pub(super) fn declared(&self, now: Now, life: &Life) -> (u64, u64) {
        let Settings { lease, revision, .. } = self.settings;
        if now.mono >= life.longer_until
            || lease >= life.row.lease
            || self.off(Mutation::LeaseAtOnce)
        {
            (lease, revision)
        } else {
            (life.row.lease, life.row.settings)
        }
    }
}
