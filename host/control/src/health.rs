//! Checks whether the processes of other nodes have ended (S7).

use futures::FutureExt;
use ostraca_core::node::Event;
use ostraca_core::rows::Member;
use ostraca_health::{CheckOutcome, Suspect};

use super::event_loop::ControlLoop;

impl ControlLoop {
    /// Checks the process of an incarnation, unless the last check of it is still running.
    pub(super) fn check_process(&mut self, member: Member) {
        let Some(checks) = &self.deps.health_checks else { return };
        let mut nodes = self.deps.machine.nodes();
        let row = nodes
            .find(|(node, row)| **node == member.node && row.incarnation == member.incarnation);
        let Some((_, row)) = row else { return };
        let suspect = Suspect::new(member.clone(), row);
        if self.checking.insert(member.clone()) {
            let checking = checks.run(suspect).map(|outcome| (member, outcome));
            self.checks.push(checking.boxed());
        }
    }

    /// Handles what a check has found. Only that the process has ended has an effect (R9).
    pub(super) fn on_process_checked(&mut self, member: Member, outcome: CheckOutcome) {
        self.checking.remove(&member);
        if !matches!(outcome, CheckOutcome::Failed { .. }) {
            self.failed_checks.succeeded(&member.node);
        }
        match outcome {
            CheckOutcome::Ended { how } => {
                tracing::info!(%member, how, "the process of a node is known to have ended");
                self.handle_event(Event::ProcessEnded { member });
            }
            CheckOutcome::NotKnown { why } => {
                tracing::debug!(%member, why, "nothing proves that the process of a node has ended");
            }
            CheckOutcome::Failed { why } => {
                let now = self.deps.clock.now().mono;
                if self.failed_checks.is_warning(&member.node, now) {
                    tracing::warn!(%member, why, "a health check failed, so the lease alone decides");
                } else {
                    tracing::debug!(%member, why, "a health check failed again");
                }
            }
        }
    }
}
