//! Limits the warnings about health checks that fail (S7).

use std::collections::BTreeMap;

use ostraca_core::ids::NodeId;

/// Minimum time between two warnings about failed checks of a node, in milliseconds. A check is repeated at each
/// interval, and usually fails in the same way.
const WARNING_INTERVAL: u64 = 60_000;

/// When the last warning about a failed check of each node was logged. A check that succeeds removes it.
#[derive(Debug, Default)]
pub(super) struct FailedChecks(BTreeMap<NodeId, u64>);

impl FailedChecks {
    /// Whether a failure at this time is to be a warning.
    pub(super) fn is_warning(&mut self, node: &NodeId, now: u64) -> bool {
        self.0.retain(|_, last| now.saturating_sub(*last) < WARNING_INTERVAL);
        if self.0.contains_key(node) {
            return false;
        }
        self.0.insert(node.clone(), now);
        true
    }

    pub(super) fn succeeded(&mut self, node: &NodeId) {
        self.0.remove(node);
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
        assert!(!failed.is_warning(&n1, 61_300));
        failed.succeeded(&n1);
        assert!(failed.is_warning(&n1, 61_400), "it had succeeded in between");
        assert!(!failed.is_warning(&n2, 61_400), "that of another node did not");
    }
}
