//! Cancels work whose result is no longer needed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::Error;

/// The longest time until a waiting thread notices that it was cancelled.
const NOTICE: Duration = Duration::from_millis(20);

/// Whether work on another thread is still wanted. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a guard that cancels when it is dropped.
    pub(crate) fn on_drop(&self) -> CancelGuard {
        CancelGuard(self.clone())
    }

    /// Runs a future on this thread until it completes; `None` if it was cancelled first. Uses no async runtime, so
    /// that it works inside and outside of one.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut future = pin!(future);
        while !self.is_cancelled() {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return Some(output),
                Poll::Pending => std::thread::park_timeout(NOTICE),
            }
        }
        None
    }
}

/// The error that cancelled work returns. Nobody reads it.
pub(crate) fn cancelled() -> Error {
    Error::ThreadFailed("the request for the component was cancelled".into())
}

pub(crate) struct CancelGuard(CancelToken);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_work_ends_even_if_nothing_wakes_it() {
        let cancel = CancelToken::default();
        assert_eq!(cancel.block_on(async { 7 }), Some(7));
        let guard = cancel.on_drop();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cancel.block_on(std::future::pending::<()>()));
            drop(guard);
            assert_eq!(waiting.join().expect("the thread does not panic"), None);
        });
    }
}
