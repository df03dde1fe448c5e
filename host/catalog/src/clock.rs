//! The node's two clocks: one that keeps counting while the machine is suspended, and cluster time (R8, R17).
//! Neither is a wall clock; wall-clock time is only shown.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_core::message::Now;
use ostraca_wire::clock::since_boot;

/// The clock that counts suspension, in milliseconds.
#[must_use]
pub fn boot_millis() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}

/// The machine's wall clock, in milliseconds since 1970. It is for display and for correlation with other logs;
/// no decision depends on it.
#[must_use]
pub fn wall_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Cluster time: the value that the `ClusterStore` had at start, advanced by the node's own clock.
#[derive(Debug)]
pub struct ClusterClock {
    started: u64,
    base: AtomicU64,
}

impl ClusterClock {
    /// Creates a clock that starts at `cluster` milliseconds.
    #[must_use]
    pub fn new(cluster: u64) -> Self {
        Self { started: boot_millis(), base: AtomicU64::new(cluster) }
    }

    /// Moves the clock forward to `cluster`, unless it is already past it.
    pub fn advance_to(&self, cluster: u64) {
        let since = boot_millis().saturating_sub(self.started);
        self.base.fetch_max(cluster.saturating_sub(since), Ordering::Relaxed);
    }

    /// Returns both times.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono = boot_millis();
        let cluster = self.base.load(Ordering::Relaxed) + mono.saturating_sub(self.started);
        Now { mono, cluster_time: cluster }
    }

    /// Milliseconds since the node started.
    #[must_use]
    pub fn uptime(&self) -> u64 {
        boot_millis().saturating_sub(self.started)
    }
}
