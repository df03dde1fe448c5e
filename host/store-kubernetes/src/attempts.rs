//! How often and how long a call is tried.

use std::time::Duration;

use ostraca_store::StoreError;
use tokio::time::{Instant, sleep};

use crate::error::CallError;

/// The first pause between two attempts. Each one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause, unless the server asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The attempts of one call.
pub(crate) struct Attempts {
    until: Instant,
    limit: Duration,
    pause: Duration,
}

impl Attempts {
    /// `limit` is the timeout of the call, for errors; `until` is when it ends.
    pub(crate) fn new(until: Instant, limit: Duration) -> Self {
        Self { until, limit, pause: FIRST_PAUSE }
    }

    /// Waits before the next attempt, as long as the server asked for.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the call would end before the next attempt; another error if there is no point in
    /// one.
    pub(crate) async fn after(&mut self, error: CallError) -> Result<(), StoreError> {
        let (why, asked) = match error {
            CallError::NotSent(error, asked) => (error.to_string(), asked),
            CallError::InDoubt(why, asked) => (why, asked),
            CallError::Conflict(why) => (why, None),
            CallError::Expired => ("its pages expired".into(), None),
            CallError::Refused(error) => return Err(error.into()),
        };
        tracing::debug!(why, "a request to Kubernetes failed");
        // So that processes that failed together do not come again together.
        let own = self.pause.mul_f64(rand::random_range(0.5..1.0));
        let pause = own.max(asked.unwrap_or_default());
        if Instant::now() + pause >= self.until {
            return Err(late(&why, self.limit));
        }
        sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

pub(crate) fn late(why: &str, limit: Duration) -> StoreError {
    let text = format!("no answer from Kubernetes within {limit:?} (`call-timeout`): {why}");
    StoreError::Unavailable(text)
}
