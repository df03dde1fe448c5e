//! The node's clocks: one that keeps counting while the machine is suspended, cluster time (R8, R17), and the
//! cluster's UTC, for guests (R25). None of them is the machine's wall clock. The cluster's UTC comes from the wall
//! clock of the store's node; the wall clocks of all other machines are only displayed.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_core::message::Now;
use ostraca_wire::clock::since_boot;

/// The clock that keeps counting while the machine is suspended, in milliseconds.
#[must_use]
pub fn boot_millis() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}

/// The machine's wall clock, in milliseconds since 1970. It is for display and for correlation with other logs;
/// no decision depends on it, except that the store's node publishes it as the cluster's UTC.
#[must_use]
pub fn wall_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Cluster time and the cluster's UTC: the highest values known from the `ClusterStore`, advanced by the node's own
/// clock. Neither ever goes back.
#[derive(Debug)]
pub struct ClusterClock {
    source: Source,
    started: u64,
    base: AtomicU64,
    /// 0 while the store's value is not known.
    utc_base: AtomicU64,
}

/// What advances a clock.
#[derive(Debug)]
enum Source {
    Boot,
    /// Only [`ClusterClock::set_manual`]; in milliseconds.
    Manual(AtomicU64),
}

impl Source {
    fn millis(&self) -> u64 {
        match self {
            Self::Boot => boot_millis(),
            Self::Manual(millis) => millis.load(Ordering::Relaxed),
        }
    }
}

impl ClusterClock {
    /// Creates a clock that starts at `cluster` milliseconds.
    #[must_use]
    pub fn new(cluster: u64) -> Self {
        Self::from_source(Source::Boot, cluster)
    }

    /// Creates a clock for tests in virtual time: it stands still until [`ClusterClock::set_manual`] moves it. Its own
    /// time and cluster time start at `millis`; UTC is not known.
    #[must_use]
    pub fn manual(millis: u64) -> Self {
        Self::from_source(Source::Manual(AtomicU64::new(millis)), millis)
    }

    fn from_source(source: Source, cluster: u64) -> Self {
        let started = source.millis();
        Self { source, started, base: AtomicU64::new(cluster), utc_base: AtomicU64::new(0) }
    }

    /// Moves a manual clock forward to `millis` of its own time ([`Now::mono`]), unless it is already past it. Does
    /// nothing to other clocks.
    pub fn set_manual(&self, millis: u64) {
        if let Source::Manual(current) = &self.source {
            current.fetch_max(millis, Ordering::Relaxed);
        }
    }

    /// Moves the clock forward to `cluster`, unless it is already past it.
    pub fn advance_to(&self, cluster: u64) {
        self.base.fetch_max(cluster.saturating_sub(self.uptime()), Ordering::Relaxed);
    }

    /// Moves UTC forward to `utc_ms`, unless it is already past it.
    pub fn advance_utc_to(&self, utc_ms: u64) {
        self.utc_base.fetch_max(utc_ms.saturating_sub(self.uptime()), Ordering::Relaxed);
    }

    /// The cluster's UTC, in milliseconds since 1970 (R25); 0 while it is not known.
    #[must_use]
    pub fn utc_ms(&self) -> u64 {
        self.utc_after(self.uptime())
    }

    fn utc_after(&self, uptime: u64) -> u64 {
        match self.utc_base.load(Ordering::Relaxed) {
            0 => 0,
            base => base.saturating_add(uptime),
        }
    }

    /// Returns the current times of all clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono = self.source.millis();
        let uptime = mono.saturating_sub(self.started);
        let cluster_time = self.base.load(Ordering::Relaxed) + uptime;
        Now { mono, cluster_time, utc: self.utc_after(uptime) }
    }

    /// Milliseconds since the node started.
    #[must_use]
    pub fn uptime(&self) -> u64 {
        self.source.millis().saturating_sub(self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r25_the_clusters_utc_never_goes_back() {
        let clock = ClusterClock::new(0);
        assert_eq!(clock.utc_ms(), 0, "unknown until the row is read");
        clock.advance_utc_to(1_700_000_000_000);
        let first = clock.utc_ms();
        assert!((1_700_000_000_000..1_700_000_060_000).contains(&first), "{first}");
        clock.advance_utc_to(1_600_000_000_000);
        assert!(clock.utc_ms() >= first);
        clock.advance_utc_to(1_800_000_000_000);
        assert!(clock.utc_ms() >= 1_800_000_000_000);
    }

    #[test]
    fn a_manual_clock_moves_only_when_it_is_set() {
        let clock = ClusterClock::manual(1_000);
        clock.advance_utc_to(1_700_000_000_000);
        std::thread::sleep(std::time::Duration::from_millis(3));
        let now = Now { mono: 1_000, cluster_time: 1_000, utc: 1_700_000_000_000 };
        assert_eq!(clock.now(), now);
        clock.set_manual(1_500);
        clock.set_manual(1_200);
        let now = Now { mono: 1_500, cluster_time: 1_500, utc: 1_700_000_000_500 };
        assert_eq!(clock.now(), now);
    }
}
