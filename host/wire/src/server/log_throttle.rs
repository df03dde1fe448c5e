//! Rate-limits the log line for refused peer connections, and counts the suppressed lines.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The minimum time between two log lines.
const PAUSE: Duration = Duration::from_secs(10);

/// When the last line was logged, and how many have been suppressed since.
#[derive(Debug, Default)]
pub(super) struct LogThrottle(Mutex<(Option<Instant>, u64)>);

impl LogThrottle {
    /// If this line should be logged, returns the number of lines suppressed since the last logged one; else `None`.
    pub(super) fn should_log(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_at_a_limited_rate() {
        let refusals = LogThrottle::default();
        let now = Instant::now();
        assert_eq!(refusals.should_log(now), Some(0));
        assert_eq!((refusals.should_log(now), refusals.should_log(now)), (None, None));
        let later = now + PAUSE;
        assert_eq!((refusals.should_log(later), refusals.should_log(later)), (Some(2), None));
    }
}
