//! A clock that keeps running while the machine sleeps.
//!
//! It decides when leases lapse (R8), and clients use it to advance the cluster time that they stamp messages with
//! (R17). On Linux, the standard library's clock stops while the machine is suspended. After sleep, a laptop's creation
//! times would be far behind, and every entity that has dropped sessions in the meantime would refuse them.

use std::time::Duration;

#[cfg(unix)]
use nix::time::{ClockId, clock_gettime};

/// A moment on this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The current moment.
    #[must_use]
    pub fn now() -> Self {
        Self(since_boot())
    }

    /// Time since this moment, sleep included.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// Time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// On other Unix systems, `CLOCK_MONOTONIC` counts sleep.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Time since the machine booted, sleep included.
#[cfg(unix)]
#[must_use]
pub fn since_boot() -> Duration {
    // The clock always exists. An error must not make a lease look fresh, so it makes everything look old.
    clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from)
}

/// Time since the first call; serves as the time since boot.
#[cfg(not(unix))]
#[must_use]
pub fn since_boot() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    // `Instant` counts sleep here.
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn r17_the_clock_keeps_counting_while_suspended() {
        // On a machine that was never suspended, both clocks show the same time, so check which one is used.
        assert_eq!(CLOCK, ClockId::CLOCK_BOOTTIME);
        let (before, now, after) = (since_boot(), BootInstant::now(), since_boot());
        assert!(before <= now.0 && now.0 <= after && before > Duration::ZERO);
        assert_eq!(BootInstant(Duration::from_secs(1)).since(now), Duration::ZERO);
    }
}
