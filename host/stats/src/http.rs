//! Figures of the HTTP gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Histogram;

/// Status classes.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Responses of the HTTP gateway.
#[derive(Debug)]
pub struct HttpStats {
    responses: [AtomicU64; 5],
    durations: Histogram,
}

impl Default for HttpStats {
    fn default() -> Self {
        Self { responses: Default::default(), durations: Histogram::of_durations() }
    }
}

impl HttpStats {
    /// Counts a response with this status, this long after its request arrived.
    pub fn responded(&self, status: u16, after: Duration) {
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        self.responses[class].fetch_add(1, Ordering::Relaxed);
        self.durations.observe(after);
    }

    /// The number of responses, by the class of their status.
    #[must_use]
    pub fn responses(&self) -> [(&'static str, u64); 5] {
        let mut counts = CLASSES.map(|class| (class, 0));
        for ((_, count), counter) in counts.iter_mut().zip(&self.responses) {
            *count = counter.load(Ordering::Relaxed);
        }
        counts
    }

    /// The times until the gateway began to respond.
    #[must_use]
    pub fn durations(&self) -> &Histogram {
        &self.durations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_counted_by_the_class_of_their_status() {
        let http = HttpStats::default();
        for status in [100, 200, 204, 301, 404, 429, 499, 503, 999] {
            http.responded(status, Duration::from_millis(3));
        }
        let counts = [("1xx", 1), ("2xx", 2), ("3xx", 1), ("4xx", 3), ("5xx", 2)];
        assert_eq!((http.responses(), http.durations().distribution().count), (counts, 9));
    }
}
