//! What the store's tasks know of etcd together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_store::{Stopped, StoreError};

use crate::proto::ResponseHeader;

/// What the store's tasks know of etcd together.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The id of the etcd cluster.
    etcd: u64,
    /// The highest revision of etcd that an answer showed.
    seen: AtomicU64,
    /// The revision of the last change of a row by this process.
    changed: AtomicU64,
    stopped: Stopped,
}

impl Health {
    pub(crate) fn new(etcd: u64, seen: u64) -> Self {
        let (seen, changed) = (AtomicU64::new(seen), AtomicU64::default());
        Self(Arc::new(Shared { etcd, seen, changed, stopped: Stopped::default() }))
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

    /// Checks an answer to a linearizable request, before which `known` was the highest revision (R5). Returns etcd's
    /// revision.
    pub(crate) fn check_header(
        &self,
        header: Option<&ResponseHeader>,
        known: u64,
    ) -> Result<u64, StoreError> {
        let missing = || StoreError::Corrupt("etcd's answer has no header".into());
        let ResponseHeader { cluster_id, revision } = *header.ok_or_else(missing)?;
        let revision = revision.cast_unsigned();
        if cluster_id != self.0.etcd {
            return Err(self.stop(format!(
                "another etcd cluster answers ({cluster_id:x} instead of {:x}): check the addresses; if it was restored, \
                 restart the nodes",
                self.0.etcd
            )));
        }
        if revision < known {
            return Err(self.stop(format!(
                "etcd went back from revision {known} to {revision}: it lacks changes that were acknowledged; restore \
                 its newest state"
            )));
        }
        self.0.seen.fetch_max(revision, Ordering::SeqCst);
        Ok(revision)
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
    fn r5_an_etcd_that_went_back_or_was_replaced_stops() {
        let header = |cluster_id, revision| Some(ResponseHeader { cluster_id, revision });
        let health = Health::new(7, 10);
        assert_eq!(health.check_header(header(7, 12).as_ref(), 10), Ok(12));
        // A request that was sent before the last answer may be answered with less.
        assert_eq!(health.check_header(header(7, 11).as_ref(), 10), Ok(11));
        assert_eq!((health.seen(), health.check()), (12, Ok(())));
        let refused = health.check_header(header(7, 11).as_ref(), health.seen());
        assert!(
            matches!(&refused, Err(StoreError::Stopped(why)) if why.contains("from revision 12 to 11"))
        );
        assert_eq!(health.check(), refused.map(|_| ()));
        let other = Health::new(7, 10).check_header(header(8, 20).as_ref(), 10);
        assert!(
            matches!(other, Err(StoreError::Stopped(why)) if why.contains("another etcd cluster"))
        );
    }
}
