//! The mark of a remembered entity in native builds.

use ostraca_sdk::{Error, entity, lifecycle, testing};

/// An entity that is remembered while it is on.
#[derive(Default)]
pub struct Lamp;

#[entity(state = "keys")]
impl Lamp {
    /// Switches the lamp; it refuses to be switched to what it is.
    #[message]
    pub fn switch(&mut self, on: bool) -> Result<bool, Error> {
        let was = lifecycle::is_remembered();
        if on {
            lifecycle::remember()
        } else {
            lifecycle::forget()
        }
        if was == on { Err(Error::new("no-change", "it is so already")) } else { Ok(was) }
    }

    /// Tries to switch it on in a query.
    #[message]
    pub fn sly(&self) {
        lifecycle::remember();
    }
}

#[test]
fn a_mark_is_kept_with_its_turn_or_not_at_all() {
    assert!(!lifecycle::is_remembered());
    assert!(testing::call::<Lamp>("switch", true).is_ok());
    assert!(lifecycle::is_remembered());
    lifecycle::forget();
    assert!(testing::call::<Lamp>("switch", false).is_err(), "a refused turn");
    lifecycle::remember();
    assert!(testing::call::<Lamp>("switch", true).is_err());
    assert!(lifecycle::is_remembered(), "what was before the refused turn");
    testing::reset();
    assert!(!lifecycle::is_remembered());
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_that_remembers_panics() {
    let _ = testing::call::<Lamp>("sly", ());
}
