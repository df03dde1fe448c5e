//! `#[migrate]` in native builds: the same dispatch as in a component.

use ostraca_sdk::entity::WHOLE_STATE_KEY;
use ostraca_sdk::serde_json::{self, json};
use ostraca_sdk::{Error, entity, state, testing};
use serde::{Deserialize, Serialize};

/// Schema 1 had a single field `name`; schema 3 will call `first` `given`.
#[derive(Default, Serialize, Deserialize)]
struct Person {
    first: String,
    last: String,
}

#[entity]
impl Person {
    #[migrate(schema = 2, newest = 3)]
    fn migrate(from: u32, old: serde_json::Value) -> Result<Self, Error> {
        let text = |key: &str| old[key].as_str().unwrap_or_default().to_owned();
        if from == 3 {
            return Ok(Self { first: text("given"), last: text("last") });
        }
        let name = text("name");
        let Some((first, last)) = name.split_once(' ') else {
            return Err(Error::new("one-word", format!("`{name}` has no last name")));
        };
        Ok(Self { first: first.into(), last: last.into() })
    }

    #[message]
    fn last(&self) -> String {
        self.last.clone()
    }

    #[message]
    fn rename(&mut self, last: String) {
        self.last = last;
    }
}

#[test]
fn r24_a_struct_is_migrated_from_its_old_json() {
    state::set(WHOLE_STATE_KEY, &json!({ "name": "Ada Lovelace" }));
    assert_eq!(testing::migrate::<Person>(1), Ok(()));
    assert_eq!(testing::call::<Person>("last", ()), Ok(json!("Lovelace")));
    state::set(WHOLE_STATE_KEY, &json!({ "given": "Ada", "last": "King" }));
    assert_eq!(testing::migrate::<Person>(3), Ok(()));
    assert_eq!(testing::call::<Person>("last", ()), Ok(json!("King")));
}

#[test]
fn r24_a_refused_migration_changes_nothing() {
    let old = json!({ "name": "Ada" });
    state::set(WHOLE_STATE_KEY, &old);
    assert_eq!(testing::migrate::<Person>(1), Err("one-word: `Ada` has no last name".into()));
    assert_eq!(state::get::<serde_json::Value>(WHOLE_STATE_KEY), Some(old));
}

#[test]
fn an_entity_that_stored_no_struct_has_nothing_to_migrate() {
    assert_eq!(testing::migrate::<Person>(1), Ok(()));
    assert_eq!(state::get::<serde_json::Value>(WHOLE_STATE_KEY), None);
    assert_eq!(testing::call::<Person>("rename", "King"), Ok(json!(null)));
}

#[derive(Default)]
struct Keys;

#[entity(state = "keys")]
impl Keys {
    #[migrate(schema = 1)]
    fn migrate(_from: u32) {
        if let Some(value) = state::get::<u64>("old") {
            state::set("new", &(value + 1));
            state::delete("old");
        }
    }

    #[message]
    fn value(&self) -> Option<u64> {
        state::get("new")
    }
}

#[test]
fn keys_are_migrated_by_the_function_itself() {
    state::set("old", &1);
    assert_eq!(testing::migrate::<Keys>(0), Ok(()));
    assert_eq!(testing::call::<Keys>("value", ()), Ok(json!(2)));
    assert_eq!(state::get::<u64>("old"), None);
}
