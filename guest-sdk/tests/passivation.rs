//! Passivation after a delay, in native builds (E15).

use std::time::Duration;

use ostraca_sdk::{StopReason, entity, lifecycle, state, testing};
use serde_json::json;

/// A session that sleeps after a while.
#[derive(Default)]
pub struct Session;

#[entity(state = "keys")]
impl Session {
    /// Counts.
    #[message]
    pub fn touch(&mut self) -> u64 {
        let count = state::get("count").unwrap_or(0_u64) + 1;
        state::set("count", &count);
        count
    }

    /// Sets the delay, or none.
    #[message]
    pub fn sleep_after(&self, secs: Option<u64>) {
        lifecycle::passivate_after(secs.map(Duration::from_secs));
    }

    #[stop]
    fn stop(&mut self, reason: StopReason) {
        state::set("stopped", &format!("{reason:?}"));
    }
}

#[test]
fn e15_an_instance_sleeps_after_the_delay_that_it_set() {
    testing::reset();
    let _ = testing::call::<Session>("sleep_after", json!({ "secs": 5 }));
    testing::advance_time(Duration::from_millis(4_999));
    assert_eq!(testing::call::<Session>("touch", json!({})), Ok(json!(1)), "restarts the delay");
    testing::advance_time(Duration::from_millis(4_999));
    assert!(testing::has_live_instance::<Session>());
    testing::advance_time(Duration::from_millis(1));
    assert!(!testing::has_live_instance::<Session>());
    assert_eq!(state::get::<String>("stopped").as_deref(), Some("Passivated"));
    // The next instance starts without a delay.
    assert_eq!(testing::call::<Session>("touch", json!({})), Ok(json!(2)));
    testing::advance_time(Duration::from_secs(3_600));
    assert!(testing::has_live_instance::<Session>());
}
