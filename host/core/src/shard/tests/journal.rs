//! The journal: which numbers its events get (E18).

use super::*;
use crate::shard::JournalChange;

impl Harness {
    /// Runs a command whose turn appends this many events. Returns the numbers that its commit writes or deletes.
    fn append(&mut self, sequence: u64, count: usize) -> Vec<u64> {
        let events = vec![Bytes::from_static(b"e"); count];
        self.change(sequence, JournalChange { events, ..JournalChange::default() })
    }

    fn change(&mut self, sequence: u64, journal: JournalChange) -> Vec<u64> {
        self.send(sequence, sequence - 1, MessageKind::Command);
        let (generation, id, message) = self.running.take().expect("a running turn");
        let result = TurnOutput { journal, ..turn(GuestReply::Result(Bytes::new()), false) };
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn: id, result });
        let commit = self.commits.last().expect("a commit");
        let numbers = commit.writes.iter().filter_map(|write| match write.key {
            RecordKey::Journal { number } => Some(number),
            _ => None,
        });
        numbers.collect()
    }
}

#[test]
fn events_of_turns_that_are_not_durable_are_counted() {
    let mut harness = Harness::serving();
    assert_eq!(harness.append(1, 2), [1, 2]);
    assert_eq!(harness.append(2, 1), [3]);
    assert_eq!((harness.journal.first, harness.journal.next), (1, 3), "as the second turn saw it");
    harness.settle(CommitOutcome::Committed);
    harness.settle(CommitOutcome::Committed);
    let stored = |harness: &Harness| harness.head.as_ref().unwrap().journal().unwrap();
    assert_eq!((stored(&harness).next, stored(&harness).bytes()), (4, 303));
    // A turn that does not use the journal keeps its extent.
    harness.send(3, 2, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(stored(&harness).next, 4);
}

#[test]
fn a_refused_commit_gives_its_event_numbers_back() {
    let mut harness = Harness::serving();
    harness.append(1, 2);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.append(2, 5), [3, 4, 5, 6, 7]);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.append(2, 1), [3]);
    assert_eq!((harness.loads, harness.journal.next), (2, 3));
}

#[test]
fn a_new_owner_continues_the_journal() {
    let mut harness = Harness::serving();
    let keep = JournalChange { keep_from: Some((3, 202)), ..JournalChange::default() };
    harness.append(1, 3);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.change(2, keep), [1, 2]);
    harness.settle(CommitOutcome::Committed);
    harness.evicted();
    assert_eq!(harness.append(3, 1), [4]);
    assert_eq!((harness.journal.first, harness.journal.bytes()), (3, 101));
}

#[test]
fn a_damaged_journal_extent_fails_the_load() {
    let mut harness = Harness::serving();
    let mut head = Head { version: 1, ..Head::default() };
    let field = crate::codec::encode(&vec![(10_u32, Bytes::from_static(b"\xff"))]).unwrap();
    head.extensions = crate::codec::decode(&field).unwrap();
    assert!(head.journal().is_err());
    harness.head = Some(head);
    let token = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(token).as_deref(), Some("store-unavailable"));
    assert!(harness.running.is_none());
}
