//! A counter: the smallest useful entity.
//!
//! The struct is the state. The SDK stores it after a command has changed it, and loads it when an instance starts. The
//! methods do neither.
//!
//! ```text
//! ostraca dev examples/counter
//! ostraca send counter/alice add 2            # 2
//! ostraca send counter/alice add '{"by":3}'   # 5
//! ostraca send counter/alice get              # 5
//! ostraca send counter/alice limit 4          # refused: below-value
//! ```

use std::fmt;

use ostraca_sdk::{ApplicationError, entity};
use serde::{Deserialize, Serialize};

/// The state of one counter.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counter {
    value: u64,
    /// The highest value that the counter may reach; `None` means `u64::MAX`.
    #[serde(default)]
    limit: Option<u64>,
}

/// Why a counter refuses a message. The caller gets the code `limit-reached` or `below-value`, and the message.
#[derive(Debug, PartialEq, Eq, ApplicationError)]
pub enum Refused {
    /// The sum would exceed the limit.
    LimitReached {
        /// The current limit.
        limit: u64,
    },
    /// The new limit is below the current value.
    BelowValue,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::LimitReached { limit } => write!(f, "the counter may not exceed {limit}"),
            Refused::BelowValue => f.write_str("the limit may not be below the current value"),
        }
    }
}

#[entity]
impl Counter {
    /// Adds to the counter and returns the new value.
    ///
    /// # Errors
    /// `limit-reached`: the counter does not change.
    #[message]
    pub fn add(&mut self, by: u64) -> Result<u64, Refused> {
        let limit = self.limit.unwrap_or(u64::MAX);
        match self.value.checked_add(by) {
            Some(sum) if sum <= limit => {
                self.value = sum;
                Ok(sum)
            }
            _ => Err(Refused::LimitReached { limit }),
        }
    }

    /// Returns the current value.
    #[message]
    pub fn get(&self) -> u64 {
        self.value
    }

    /// Resets the counter to zero and returns the previous value.
    #[message]
    pub fn reset(&mut self) -> u64 {
        std::mem::take(&mut self.value)
    }

    /// Sets the highest value that the counter may reach; `null` removes the limit.
    ///
    /// # Errors
    /// `below-value`, if the counter is already above the new limit.
    #[message]
    pub fn limit(&mut self, at: Option<u64>) -> Result<(), Refused> {
        // Changes the state before the check, to show that a refusal undoes the change.
        self.limit = at;
        if at.is_some_and(|limit| limit < self.value) {
            return Err(Refused::BelowValue);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ostraca_sdk::StopReason;
    use ostraca_sdk::serde_json::json;
    use ostraca_sdk::testing::{self, MessageError, call};

    use super::{Counter, Refused};

    #[test]
    fn methods_are_plain_rust() {
        let mut counter = Counter::default();
        assert_eq!(counter.add(2), Ok(2));
        assert_eq!(counter.add(u64::MAX), Err(Refused::LimitReached { limit: u64::MAX }));
        assert_eq!(counter.get(), 2);
    }

    #[test]
    fn the_value_outlives_the_instance() {
        assert_eq!(call::<Counter>("add", 2), Ok(json!(2)));
        assert_eq!(call::<Counter>("add", json!({ "by": 3 })), Ok(json!(5)));
        testing::stop::<Counter>(StopReason::Idle);
        assert_eq!(call::<Counter>("get", ()), Ok(json!(5)));
        assert_eq!(call::<Counter>("reset", ()), Ok(json!(5)));
        assert_eq!(call::<Counter>("get", ()), Ok(json!(0)));
    }

    #[test]
    fn a_refused_limit_leaves_the_old_one() {
        assert_eq!(call::<Counter>("limit", 10), Ok(json!(null)));
        assert_eq!(call::<Counter>("add", 10), Ok(json!(10)));
        let refused = call::<Counter>("limit", 4);
        assert!(
            matches!(refused, Err(MessageError::Application { code, .. }) if code == "below-value")
        );
        let refused = call::<Counter>("add", 1);
        assert!(matches!(refused, Err(MessageError::Application { code, message })
                if code == "limit-reached" && message.ends_with("10")));
        assert_eq!(call::<Counter>("get", ()), Ok(json!(10)));
    }
}
