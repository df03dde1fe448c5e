//! Timers in unit tests: the test lets time pass and fires what is due.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use ostraca_sdk::serde_json::json;
use ostraca_sdk::testing::{self, call};
use ostraca_sdk::{Error, clock, entity, timers};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Alarm {
    rung: Vec<String>,
}

const SECOND: Duration = Duration::from_secs(1);

#[entity]
impl Alarm {
    /// Sets a timer that fires once.
    #[message]
    pub(crate) fn once(&mut self, name: String, seconds: u64) {
        timers::after(name, SECOND * seconds as u32).payload("hello").set();
    }

    /// Sets a timer that fires every second.
    #[message]
    pub(crate) fn every_second(&mut self) {
        timers::after("tick", SECOND).every(SECOND).set();
    }

    /// Cancels a timer, and then fails if asked to.
    #[message]
    pub(crate) fn cancel(&mut self, name: String, fail: bool) -> Result<bool, Error> {
        let cancelled = timers::cancel(&name);
        if fail { Err(Error::new("no", "not today")) } else { Ok(cancelled) }
    }

    /// Lists the names of timers.
    #[message]
    pub(crate) fn names(&self) -> Vec<String> {
        timers::list().into_iter().map(|timer| timer.name).collect()
    }

    /// A query that sets a timer.
    #[message]
    pub(crate) fn sly(&self) {
        timers::after("sly", SECOND).set();
    }

    #[timer]
    fn ring(&mut self, greeting: String) {
        let firing = timers::current().unwrap();
        self.rung.push(format!("{} {greeting} {}", firing.name, clock::unix_ms() - firing.due));
    }

    #[timer]
    fn tick(&mut self) {
        self.rung.push(format!("tick {}", timers::current().unwrap().missed));
    }

    #[timer]
    fn picky(&mut self, _number: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Returns what rang.
    #[message]
    pub(crate) fn rung(&self) -> Vec<String> {
        assert_eq!(timers::current(), None, "a message's turn handles no firing");
        self.rung.clone()
    }
}

fn once(name: &str, seconds: u64) {
    call::<Alarm>("once", json!({"name": name, "seconds": seconds})).unwrap();
}

#[test]
fn a_timer_fires_once_when_it_is_due() {
    once("ring", 2);
    once("ring/late", 1);
    testing::advance_time(Duration::from_millis(999));
    assert_eq!(testing::fire_timers::<Alarm>(), 0);
    testing::crash_instance::<Alarm>();
    testing::advance_time(SECOND * 2);
    assert_eq!(testing::fire_timers::<Alarm>(), 2);
    assert_eq!(
        call::<Alarm>("rung", ()),
        Ok(json!(["ring/late hello 1999", "ring hello 999"])),
        "in the order of their due times"
    );
    assert_eq!(testing::fire_timers::<Alarm>(), 0);
}

#[test]
fn missed_intervals_fire_once_with_a_count() {
    call::<Alarm>("every_second", ()).unwrap();
    testing::advance_time(SECOND);
    assert_eq!(testing::fire_timers::<Alarm>(), 1);
    testing::advance_time(SECOND * 7 / 2);
    assert_eq!(testing::fire_timers::<Alarm>(), 1);
    assert_eq!(call::<Alarm>("rung", ()), Ok(json!(["tick 0", "tick 2"])));
    testing::advance_time(SECOND / 2);
    assert_eq!(testing::fire_timers::<Alarm>(), 1, "the rate stays fixed");
}

#[test]
fn a_refused_turn_keeps_the_timers_of_before() {
    once("ring", 1);
    let cancel = |fail| call::<Alarm>("cancel", json!({"name": "ring", "fail": fail}));
    cancel(true).unwrap_err();
    assert_eq!(call::<Alarm>("names", ()), Ok(json!(["ring"])));
    assert_eq!(cancel(false), Ok(json!(true)));
    assert_eq!(cancel(false), Ok(json!(false)));
    testing::advance_time(SECOND);
    assert_eq!(testing::fire_timers::<Alarm>(), 0);
}

#[test]
fn a_refused_firing_stays_and_is_counted() {
    once("picky", 1);
    once("nobody", 2);
    testing::advance_time(SECOND);
    for attempt in 1..3 {
        let (code, why) = testing::fire_next_timer::<Alarm>().unwrap().unwrap_err();
        assert_eq!(code, "invalid-payload", "{why}");
        let timer = timers::get("picky").unwrap();
        assert_eq!((timer.attempts, timer.payload::<String>()), (attempt, "hello".to_owned()));
    }
    timers::cancel("picky");
    testing::advance_time(SECOND);
    let (code, why) = testing::fire_next_timer::<Alarm>().unwrap().unwrap_err();
    assert_eq!((&*code, why.contains("`nobody`")), ("unknown-timer", true), "{why}");
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_sets_no_timer() {
    let _ = call::<Alarm>("sly", ());
}
