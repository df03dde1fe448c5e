//! What the store's tasks know of the API server together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_store::{Stopped, StoreError};

/// What the store's tasks know of the API server together.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The highest version that an answer showed.
    seen: AtomicU64,
    /// The version of the last change of a row by this process.
    changed: AtomicU64,
    stopped: Stopped,
}

impl Health {
    pub(crate) fn new(seen: u64) -> Self {
        let (seen, changed) = (AtomicU64::new(seen), AtomicU64::default());
        Self(Arc::new(Shared { seen, changed, stopped: Stopped::default() }))
    }

    pub(crate) fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::SeqCst)
    }

    pub(crate) fn changed(&self) -> u64 {
        self.0.changed.load(Ordering::SeqCst)
    }

    /// Notes a change of a row by this process.
    pub(crate) fn note_change(&self, revision: u64) {
        self.0.changed.fetch_max(revision, Ordering::SeqCst);
    }

    /// Fails if the store has stopped.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.0.stopped.check()
    }

    /// Checks the version in the answer to a write or a list, before which `known` was the highest version (R5).
    pub(crate) fn check_version(&self, version: u64, known: u64) -> Result<u64, StoreError> {
        if version < known {
            return Err(self.stop(format!(
                "Kubernetes went back from resource version {known} to {version}: it lacks changes that were \
                 acknowledged; restore its newest state"
            )));
        }
        self.0.seen.fetch_max(version, Ordering::SeqCst);
        Ok(version)
    }

    fn stop(&self, why: String) -> StoreError {
        tracing::error!(why, "the store has stopped");
        self.0.stopped.stop(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r5_a_server_that_went_back_stops_the_store() {
        let health = Health::new(10);
        assert_eq!(health.check_version(12, 10), Ok(12));
        // A request that was sent before the last answer may be answered with less.
        assert_eq!(health.check_version(11, 10), Ok(11));
        assert_eq!((health.seen(), health.check()), (12, Ok(())));
        let refused = health.check_version(11, health.seen());
        assert!(
            matches!(&refused, Err(StoreError::Stopped(why)) if why.contains("from resource version 12 to 11"))
        );
        assert_eq!(health.check(), refused.map(|_| ()));
    }
}
