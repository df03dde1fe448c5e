//! A clock that goes on while the machine sleeps.
//!
//! Leases end by it (R8), and clients move cluster time on by it, which they stamp their messages with (R17). The standard
//! library's clock stands still while a machine is suspended: stamps of a laptop that slept would lie far behind, and
//! be refused by every entity that has forgotten sessions meanwhile.

use std::time::Duration;

#[cfg(unix)]
use nix::time::{ClockId, clock_gettime};

/// A moment on this machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self(since_boot())
    }

    /// How long ago it was, sleep included.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// How long after an earlier one it was; nothing if it was before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// Elsewhere this one counts sleep.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// What the machine's clock says.
#[cfg(unix)]
#[must_use]
pub fn since_boot() -> Duration {
    // The clock is there; an error would only make what is held look young, and stop a lease.
    clock_gettime(CLOCK).map_or(Duration::ZERO, Duration::from)
}

/// What the machine's clock says.
#[cfg(not(unix))]
#[must_use]
pub fn since_boot() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    // This one counts sleep.
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn r17_the_clock_keeps_counting_while_suspended() {
        // A machine that was never suspended tells the same by the other one.
        assert_eq!(CLOCK, ClockId::CLOCK_BOOTTIME);
        let (before, now, after) = (since_boot(), BootInstant::now(), since_boot());
        assert!(before <= now.0 && now.0 <= after && before > Duration::ZERO);
        assert_eq!(BootInstant(Duration::from_secs(1)).since(now), Duration::ZERO);
    }
}
