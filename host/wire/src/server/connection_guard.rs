//! Counts the connections from nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts one connection until it is dropped.
pub(super) struct ConnectionGuard(Arc<AtomicUsize>);

impl ConnectionGuard {
    /// Returns `None` if there are already `most`.
    pub(super) fn one_more(of: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let counted = Self(Arc::clone(of));
        (of.fetch_add(1, Ordering::Relaxed) < most).then_some(counted)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
