//! Time and random numbers in unit tests: the test sets them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::{Duration, SystemTime};

use ostraca_sdk::serde_json::json;
use ostraca_sdk::testing::{self, call};
use ostraca_sdk::{clock, entity, random};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Draw {
    drawn: Vec<u64>,
}

#[entity]
impl Draw {
    /// Draws a number.
    #[message]
    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn.push(random::u64());
        self.drawn[self.drawn.len() - 1]
    }

    /// Returns the time.
    #[message]
    pub(crate) fn now(&self) -> u64 {
        assert_eq!(clock::now(), SystemTime::UNIX_EPOCH + Duration::from_millis(clock::unix_ms()));
        clock::unix_ms()
    }
}

#[test]
fn a_test_sets_the_time() {
    assert_eq!(call::<Draw>("now", ()), Ok(json!(1_000_000_000_000_u64)));
    testing::set_time(7);
    assert_eq!(call::<Draw>("now", ()), Ok(json!(7)));
    testing::reset();
    assert_eq!(call::<Draw>("now", ()), Ok(json!(1_000_000_000_000_u64)));
}

#[test]
fn a_test_draws_the_same_numbers_each_time() {
    let draw = || call::<Draw>("draw", ()).unwrap();
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    testing::reset();
    assert_eq!((draw(), draw()), (first.clone(), second));
    testing::set_random_seed(1);
    assert_ne!(draw(), first);
}

#[test]
fn any_number_of_random_bytes_can_be_drawn() {
    let (mut long, mut again) = (vec![0; 70_001], vec![0; 70_001]);
    random::fill(&mut long);
    testing::reset();
    random::fill(&mut again);
    assert_eq!(long, again);
    assert!(long[65_536..].iter().any(|byte| *byte != 0));
    assert_eq!(random::bytes::<0>(), [0; 0]);
    random::fill(&mut []);
}
