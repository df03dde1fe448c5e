//! Measures how long a guest has been running, and interrupts it.
//!
//! R22 counts time in the guest, not time that the guest spends waiting for the host. No clock measures exactly that:
//! the wall clock would charge a guest for the node's other threads, and the thread's processor clock costs two system
//! calls per turn. So time is counted in segments. A segment runs from the start of a poll, or from the last epoch
//! tick, to the next tick or the end of the poll. It counts as at most two ticks, so a guest is not charged when its
//! thread loses the processor for longer. A guest that sleeps through WASI is charged in full, since it chose to sleep,
//! unless an outgoing call is pending, for which it may be waiting.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;

use crate::trap::HostTrap;

const GUEST: u8 = 0;
const YIELDED: u8 = 1;
const IN_HOST: u8 = 2;
const ASLEEP: u8 = 3;

/// One instance's meter and interrupt flag, shared by the turn's future, the epoch callback and the owner.
pub(crate) struct Meter {
    /// Where the guest is while the future is not being polled: one of the constants above.
    position: AtomicU8,
    mark: AtomicU64,
    spent: AtomicU64,
    limit: AtomicU64,
    segment: u64,
    interrupted: AtomicBool,
    /// Number of outgoing calls that have not ended. While there are any, a sleeping guest waits for them.
    waits: AtomicU32,
    waker: AtomicWaker,
}

/// Ends a wait when it is dropped.
pub(crate) struct WaitGuard(Arc<Meter>);

impl Drop for WaitGuard {
    fn drop(&mut self) {
        if self.0.waits.fetch_sub(1, SeqCst) == 1 {
            // From now on, sleeping is charged again.
            self.0.wake();
        }
    }
}

fn now() -> u64 {
    static BASE: OnceLock<Instant> = OnceLock::new();
    nanos(BASE.get_or_init(Instant::now).elapsed())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Meter {
    pub(crate) fn new(tick: Duration) -> Arc<Meter> {
        Arc::new(Meter {
            position: AtomicU8::new(GUEST),
            mark: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            segment: nanos(tick * 2),
            interrupted: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            waker: AtomicWaker::new(),
        })
    }

    /// Restarts counting at zero, with a new `limit`.
    pub(crate) fn begin(&self, limit: Duration) {
        self.spent.store(0, Relaxed);
        self.limit.store(nanos(limit), Relaxed);
    }

    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Relaxed))
    }

    /// Called at an epoch tick. Fails if the guest must not continue.
    pub(crate) fn tick(&self) -> Result<(), HostTrap> {
        self.charge(self.segment);
        self.check()?;
        self.position.store(YIELDED, Relaxed);
        Ok(())
    }

    /// Stops counting while the host works for the guest.
    pub(crate) fn enter_host(&self) {
        self.charge(self.segment);
        self.position.store(IN_HOST, Relaxed);
    }

    pub(crate) fn leave_host(&self) {
        self.mark.store(now(), Relaxed);
        self.position.store(GUEST, Relaxed);
    }

    /// Until the guard is dropped, time spent sleeping counts as waiting for the host and is not charged.
    pub(crate) fn wait(self: &Arc<Self>) -> WaitGuard {
        self.waits.fetch_add(1, SeqCst);
        WaitGuard(self.clone())
    }

    fn waits(&self) -> bool {
        self.waits.load(SeqCst) > 0
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, SeqCst);
        self.waker.wake();
    }

    fn wake(&self) {
        self.waker.wake();
    }

    fn charge(&self, most: u64) {
        let now = now();
        let passed = now.saturating_sub(self.mark.swap(now, Relaxed)).min(most);
        self.spent.store(self.spent.load(Relaxed).saturating_add(passed), Relaxed);
    }

    fn check(&self) -> Result<(), HostTrap> {
        if self.interrupted.load(SeqCst) {
            return Err(HostTrap::Interrupted);
        }
        if self.spent.load(Relaxed) >= self.limit.load(Relaxed) {
            return Err(HostTrap::TimeLimitExceeded);
        }
        Ok(())
    }
}

/// When a sleeping guest will have used up its time.
type Alarm = (Instant, Weak<Meter>);

/// Guests that are waiting for a WASI clock.
#[derive(Clone, Default)]
pub(crate) struct Sleepers(Arc<Mutex<Vec<Alarm>>>);

impl Sleepers {
    pub(crate) fn wake_after(&self, after: Duration, meter: &Arc<Meter>) {
        let due = Instant::now() + after;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A guest may sleep many times in a turn; only its latest wait counts.
        all.retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(meter)));
        all.push((due, Arc::downgrade(meter)));
    }

    pub(crate) fn wake_due(&self, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(due, meter)| match meter.upgrade() {
            Some(meter) if *due <= now => {
                meter.wake();
                false
            }
            Some(_) => true,
            None => false,
        });
    }
}

/// Runs a call into the guest under its meter. Dropping `call` midway unwinds the guest's stack. The caller pins it: an
/// async function that pins its argument takes twice the argument's size.
pub(crate) async fn metered<F: Future>(
    meter: &Arc<Meter>,
    sleepers: &Sleepers,
    mut call: Pin<&mut F>,
) -> Result<F::Output, HostTrap> {
    poll_fn(|cx| {
        match meter.position.load(Relaxed) {
            IN_HOST => {}
            ASLEEP => meter.charge(u64::MAX),
            _ => meter.mark.store(now(), Relaxed),
        }
        if let Err(fault) = meter.check() {
            return Poll::Ready(Err(fault));
        }
        if meter.position.load(Relaxed) != IN_HOST {
            meter.position.store(GUEST, Relaxed);
        }
        if let Poll::Ready(output) = call.as_mut().poll(cx) {
            meter.charge(meter.segment);
            return Poll::Ready(Ok(output));
        }
        let slept = meter.position.load(Relaxed) == GUEST;
        let waits = slept && meter.waits();
        if waits {
            meter.charge(meter.segment);
            meter.position.store(YIELDED, Relaxed);
        } else if slept {
            meter.charge(meter.segment);
            meter.position.store(ASLEEP, Relaxed);
            let left = meter.limit.load(Relaxed).saturating_sub(meter.spent.load(Relaxed));
            sleepers.wake_after(Duration::from_nanos(left), meter);
        }
        meter.waker.register(cx.waker());
        // An interrupt may have arrived between the check above and the registration.
        if meter.interrupted.load(SeqCst) {
            return Poll::Ready(Err(HostTrap::Interrupted));
        }
        // The last wait may also have ended in between.
        if waits && !meter.waits() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Sleeps for 200 ms under a limit of 80 ms, with a call that ends after `call` ms. Returns whether the guest may
    /// continue.
    async fn may_sleep(call: u64) -> bool {
        let (meter, sleepers) = (Meter::new(Duration::from_millis(5)), Sleepers::default());
        meter.begin(Duration::from_millis(80));
        let guard = meter.wait();
        let calling = async {
            tokio::time::sleep(Duration::from_millis(call)).await;
            drop(guard);
        };
        let asleep = pin!(tokio::time::sleep(Duration::from_millis(200)));
        let (slept, ()) = tokio::join!(metered(&meter, &sleepers, asleep), calling);
        slept.is_ok()
    }

    #[tokio::test]
    async fn r22_sleep_is_free_only_while_a_call_is_pending() {
        assert!(may_sleep(300).await);
        assert!(may_sleep(180).await, "the rest is shorter than the limit");
        assert!(!may_sleep(20).await, "the call's end wakes the guest's meter");
    }
}
