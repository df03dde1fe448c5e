//! Checks whether the processes of other nodes have ended (S7).

use std::collections::BTreeMap;

use futures::FutureExt;
use ostraca_core::ids::NodeId;
use ostraca_core::node::Event;
use ostraca_core::rows::Member;
use ostraca_health::{CheckOutcome, Suspect};

use super::event_loop::ControlLoop;

/// Minimum time between two warnings about failed checks of a node, in milliseconds. A check is repeated at each
/// interval, and usually fails in the same way.
const WARNING_INTERVAL: u64 = 60_000;

/// When the last warning about a failed check of each node was logged. A check that succeeds removes it.
#[derive(Debug, Default)]
pub(super) struct FailedChecks(BTreeMap<NodeId, u64>);

impl FailedChecks {
    /// Whether a failure at this time is to be a warning.
    fn is_warning(&mut self, node: &NodeId, now: u64) -> bool {
        self.0.retain(|_, last| now.saturating_sub(*last) < WARNING_INTERVAL);
        if self.0.contains_key(node) {
            return false;
        }
        self.0.insert(node.clone(), now);
        true
    }

    fn succeeded(&mut self, node: &NodeId) {
        self.0.remove(node);
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s7_a_failed_check_is_a_warning_each_minute_and_node() {
        let (mut failed, n1, n2) = (FailedChecks::default(), "n1".into(), "n2".into());
        assert!(failed.is_warning(&n1, 1_000));
        assert!(!failed.is_warning(&n1, 1_500), "again");
        assert!(failed.is_warning(&n2, 1_500), "another node");
        assert!(!failed.is_warning(&n1, 60_999));
        assert!(failed.is_warning(&n1, 61_000), "a minute later");
        assert!(!failed.is_warning(&n1, 61_500));
        failed.succeeded(&n1);
        assert!(failed.is_warning(&n1, 62_000), "it had succeeded in between");
        assert!(!failed.is_warning(&n2, 61_400), "that of another node did not");
    }
}
