//! The journal in native builds: events, snapshots, and their rollback.

use ostraca_sdk::journal::EventSourced;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::{Error, entity, journal, testing};
use serde::{Deserialize, Serialize};

/// What can happen to a notebook.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Noted(String);

/// An event-sourced notebook.
#[derive(Default, Serialize, Deserialize)]
pub struct Notes {
    notes: Vec<String>,
}

impl EventSourced for Notes {
    type Event = Noted;
    const SNAPSHOT_EVERY: u64 = 3;

    fn apply(&mut self, Noted(note): &Noted) {
        self.notes.push(note.clone());
    }
}

#[entity(state = "events")]
impl Notes {
    /// Records a note.
    #[message]
    pub fn note(&mut self, text: String) -> Result<u64, Error> {
        let refuse = text == "no";
        let number = self.record(&Noted(text));
        if refuse { Err(Error::new("no", "refused after recording")) } else { Ok(number) }
    }

    /// All notes.
    #[message]
    pub fn all(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Tries to write in a query.
    #[message]
    pub fn sly(&self) -> u64 {
        journal::append("sly")
    }

    /// Records a note and saves a snapshot of it, and then refuses.
    #[message]
    pub fn note_and_refuse(&mut self, text: String) -> Result<(), Error> {
        self.record(&Noted(text));
        journal::save_snapshot(self);
        Err(Error::new("no", "refused after a snapshot"))
    }

    /// Changes the struct without an event.
    #[message]
    pub fn forge(&mut self) {
        self.notes.push("forged".into());
    }
}

fn note(text: &str) -> Result<ostraca_sdk::serde_json::Value, testing::MessageError> {
    testing::call::<Notes>("note", text)
}

#[test]
fn a_new_instance_rebuilds_its_state_from_the_journal() {
    for (number, text) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        assert_eq!(note(text), Ok(json!(number + 1)));
        testing::crash_instance::<Notes>();
        let notes = testing::call::<Notes>("all", ()).unwrap();
        assert_eq!(notes.as_array().map(Vec::len), Some(number + 1), "{notes}");
    }
    let extent = journal::extent();
    assert_eq!((extent.first, extent.next), (4, 6), "a snapshot replaces the first three events");
    assert_eq!(extent.snapshot, Some(3));
    assert_eq!(journal::snapshot::<Notes>().map(|(through, _)| through), Some(3));
    let events: Vec<(u64, Noted)> = journal::events(0).collect();
    assert_eq!(events, [(4, Noted("d".into())), (5, Noted("e".into()))]);
}

#[test]
fn a_refused_turn_leaves_no_event() {
    note("a").unwrap();
    assert!(note("no").is_err());
    assert_eq!(journal::extent().next, 2);
    assert_eq!(testing::call::<Notes>("all", ()), Ok(json!(["a"])), "nor a trace in the struct");
    assert_eq!(note("b"), Ok(json!(2)), "its number is free again");
}

#[test]
fn r21_a_refused_turns_snapshot_is_not_what_the_struct_becomes() {
    note("a").unwrap();
    assert!(testing::call::<Notes>("note_and_refuse", "b").is_err());
    assert_eq!(testing::call::<Notes>("all", ()), Ok(json!(["a"])));
    assert_eq!(journal::extent().snapshot, None);
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_that_appends_panics() {
    let _ = testing::call::<Notes>("sly", ());
}

#[test]
#[should_panic(expected = "changed-without-event")]
fn a_change_without_an_event_panics_in_tests() {
    let _ = testing::call::<Notes>("forge", ());
}

#[test]
fn events_are_fetched_in_pages() {
    for number in 0..450_u64 {
        assert_eq!(journal::append(&number), number + 1);
    }
    let events: Vec<(u64, u64)> = journal::events(2).collect();
    assert_eq!((events.len(), events[0], events[448]), (449, (2, 1), (450, 449)));
    let page = journal::read_raw(449, 1);
    assert_eq!((page.events.len(), page.next), (1, Some(450)));
}

#[test]
#[should_panic(expected = "state-does-not-decode: event 1")]
fn an_event_of_another_shape_names_its_number() {
    journal::append(&7);
    let _ = journal::events::<Noted>(0).count();
}
