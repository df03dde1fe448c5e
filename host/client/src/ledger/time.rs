//! Cluster time as a client knows it: reported by nodes, and advanced by a clock that counts suspension (R17).

use std::time::Duration;

use ostraca_codes::codes;
use ostraca_wire::proto;

use super::restamp::suggested_created_ms;

/// A client's reading of cluster time, with which it stamps its messages. A reading that is behind is safe: a refusal
/// of a creation time that is too low names an acceptable one. A creation time that is ahead is refused until cluster
/// time catches up.
///
/// Sans-IO: `local` is the reading of a clock of this machine that counts suspension.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterTime(Option<(u64, Duration)>);

impl ClusterTime {
    /// Milliseconds of cluster time, from 1.
    #[must_use]
    pub fn at(&self, local: Duration) -> u64 {
        self.reading(local).max(1)
    }

    /// The reading; `None` if no node has reported a time.
    #[must_use]
    pub fn known_at(&self, local: Duration) -> Option<u64> {
        self.0.map(|_| self.reading(local))
    }

    /// Advances the clock to a cluster time that a node reported, unless it is already later.
    pub fn advance_to(&mut self, cluster_ms: u64, local: Duration) {
        if self.reading(local) < cluster_ms {
            self.0 = Some((cluster_ms, local));
        }
    }

    /// Adopts the acceptable creation time that a refusal names (R17).
    pub fn observe_reply(&mut self, reply: &proto::Reply, local: Duration) {
        let Some(problem) = &reply.problem else { return };
        let Some(time) = suggested_created_ms(problem) else { return };
        if problem.code == codes::TOO_OLD {
            self.advance_to(time, local);
        } else if problem.code == codes::CREATED_IN_FUTURE {
            // An owner reports its own time, and that this clock is far ahead of it.
            self.0 = Some((time, local));
        }
    }

    fn reading(&self, local: Duration) -> u64 {
        self.0.map_or(0, |(base, at)| {
            let passed = local.saturating_sub(at).as_millis();
            base.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
        })
    }
}
