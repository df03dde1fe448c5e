//! Cluster time as a client knows it: what nodes say, moved on by a clock that counts suspension (R17).

use std::sync::{Mutex, MutexGuard, PoisonError};

use ostraca_wire::clock::Moment;

/// A client's reading of cluster time, which stamps its messages. Behind is safe: what is stamped too low is refused
/// with a time that passes. Ahead is refused until the cluster's time is there.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock(Mutex<Option<(u64, Moment)>>);

impl ClusterClock {
    /// Milliseconds of cluster time, from 1.
    pub(crate) fn now(&self) -> u64 {
        reading(&self.lock()).max(1)
    }

    /// Somebody who knows says that it is so late, or later.
    pub(crate) fn at_least(&self, cluster_ms: u64) {
        let mut base = self.lock();
        if reading(&base) < cluster_ms {
            *base = Some((cluster_ms, Moment::now()));
        }
    }

    /// An owner says that it is so late, and that this clock is far ahead.
    pub(crate) fn set(&self, cluster_ms: u64) {
        *self.lock() = Some((cluster_ms, Moment::now()));
    }

    fn lock(&self) -> MutexGuard<'_, Option<(u64, Moment)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reading(base: &Option<(u64, Moment)>) -> u64 {
    base.map_or(0, |(base, at)| {
        base.saturating_add(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
    })
}
