//! Makes reads of a running guest wait until the commits before them have been passed to the store, which orders a read
//! only after commits that it knows (R2).

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Closed while the worker holds commits that it has not passed to the store.
#[derive(Debug, Default)]
pub(super) struct FlushGate {
    closed: AtomicBool,
    wanted: Notify,
    opened: Notify,
}

impl FlushGate {
    /// The worker holds a commit.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The worker has passed all commits to the store.
    pub(super) fn open(&self) {
        if self.closed.swap(false, Ordering::AcqRel) {
            self.opened.notify_waiters();
        }
    }

    /// Waits until a read wants the gate to be opened.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until all commits that the worker holds now have been passed to the store.
    pub(super) async fn pass(&self) {
        let opened = self.opened.notified();
        if self.closed.load(Ordering::Acquire) {
            self.wanted.notify_one();
            opened.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn r2_a_read_waits_for_the_commits_before_it() {
        let gate = FlushGate::default();
        assert_eq!(gate.pass().now_or_never(), Some(()), "nothing is held");
        gate.close();
        let mut first = Box::pin(gate.pass());
        assert_eq!(first.as_mut().now_or_never(), None);
        assert_eq!(gate.wanted().now_or_never(), Some(()), "the worker learns of it");
        gate.open();
        assert_eq!(first.now_or_never(), Some(()));
        assert_eq!(gate.pass().now_or_never(), Some(()));
    }
}
