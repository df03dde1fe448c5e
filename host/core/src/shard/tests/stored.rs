//! The count of stored entities (K38).

use super::*;
use crate::shard::StoredEntities;

fn stored(version: u64, state_bytes: u64) -> Box<Head> {
    Box::new(Head { version, state_bytes, ..Head::default() })
}

fn named(id: &str) -> Entity {
    Entity::new("counter", id)
}

impl Harness {
    /// Asks for the count. The page that is then read, if one is.
    fn count(&mut self) -> Option<(u64, Option<Bytes>)> {
        self.handle(Event::CountStored);
        self.next_page()
    }

    fn next_page(&mut self) -> Option<(u64, Option<Bytes>)> {
        let at = self.pending_actions.iter().position(|it| matches!(it, Action::ScanHeads { .. }));
        match at.map(|at| self.pending_actions.remove(at)) {
            Some(Action::ScanHeads { number, after, .. }) => Some((number, after)),
            _ => None,
        }
    }

    fn heads(&mut self, number: u64, page: Vec<(Entity, Box<Head>)>, next: Option<&'static [u8]>) {
        self.handle(Event::HeadsScanned { number, page: Ok((page, next.map(Bytes::from_static))) });
    }

    /// The number of counters, and the bytes of their state.
    fn counted(&self) -> Option<(u64, u64)> {
        let StoredEntities { entities, state_bytes } =
            self.machine.stored()?.get("counter").copied().unwrap_or_default();
        Some((entities, state_bytes))
    }
}

#[test]
fn k38_heads_are_read_once_page_by_page_when_asked() {
    let mut harness = Harness::serving();
    assert_eq!(harness.next_page(), None, "nobody has asked");
    let (first, after) = harness.count().expect("a page");
    assert_eq!(after, None);
    assert_eq!(harness.count(), None, "one page at a time");
    let deleted = Box::new(Head { version: 3, deleted: true, ..Head::default() });
    harness.heads(first, vec![(named("a"), stored(1, 10)), (named("b"), deleted)], Some(b"b"));
    assert_eq!(harness.counted(), None, "not before the last page");
    let (second, after) = harness.next_page().expect("the next page");
    assert_eq!(after, Some(Bytes::from_static(b"b")));
    harness.heads(first, vec![(named("a"), stored(1, 10))], None);
    assert_eq!(harness.counted(), None, "a page that was already read does not count");
    harness.heads(second, vec![(named("c"), stored(1, 5))], None);
    assert_eq!(harness.counted(), Some((2, 15)));
    assert_eq!(harness.count(), None, "the count is kept");
}

#[test]
fn k38_a_failed_page_is_read_again_by_the_next_request() {
    let mut harness = Harness::serving();
    let (first, _) = harness.count().expect("a page");
    harness.heads(first, vec![(named("a"), stored(1, 10))], Some(b"a"));
    let (second, _) = harness.next_page().expect("a page");
    harness.handle(Event::HeadsScanned { number: second, page: Err("down".into()) });
    assert_eq!(harness.next_page(), None);
    // What is committed meanwhile is in the page that is read then, which is newer.
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let (third, after) = harness.count().expect("a page");
    assert_eq!(after, Some(Bytes::from_static(b"a")));
    harness.heads(third, vec![(alice(), stored(1, 2))], None);
    assert_eq!(harness.counted(), Some((2, 12)));
}

#[test]
fn k38_commits_decide_over_pages_that_overtake_them() {
    // Alice's first turn writes 2 bytes. The page was read before or after it, and is answered before or after it.
    for (seen, first) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut harness = Harness::serving();
        let (number, _) = harness.count().expect("a page");
        harness.send(1, 0, MessageKind::Command);
        harness.run();
        let page = if seen { vec![(alice(), stored(1, 2))] } else { Vec::new() };
        if first {
            harness.settle(CommitOutcome::Committed);
            harness.heads(number, page, None);
        } else {
            harness.heads(number, page, None);
            assert_eq!(harness.counted(), Some((0, 0)), "it is not durable yet");
            harness.settle(CommitOutcome::Committed);
        }
        assert_eq!(harness.counted(), Some((1, 2)), "seen {seen}, answered first {first}");
    }
}

#[test]
fn k38_commits_behind_the_last_page_wait_for_theirs() {
    let mut harness = Harness::serving();
    let (first, _) = harness.count().expect("a page");
    harness.heads(first, vec![(named("aa"), stored(1, 10))], Some(b"aa"));
    let (second, _) = harness.next_page().expect("a page");
    // Alice is behind `aa`, and the page that is being read does not have her yet.
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.heads(second, vec![(named("ab"), stored(1, 1))], Some(b"ab"));
    let (third, _) = harness.next_page().expect("a page");
    harness.heads(third, vec![(alice(), stored(1, 2))], None);
    assert_eq!(harness.counted(), Some((3, 13)));
}

#[test]
fn k38_deletions_and_refused_turns_leave_the_count() {
    let mut harness = Harness::serving();
    let (number, _) = harness.count().expect("a page");
    harness.heads(number, Vec::new(), None);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.counted(), Some((1, 2)));
    harness.send(2, 1, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.counted(), Some((1, 2)));
    harness.send(3, 0, MessageKind::Command);
    let (generation, id, message) = harness.running.take().expect("a turn");
    let output = turn(GuestReply::Result(Bytes::new()), false);
    let result = TurnOutput { delete: true, ..output };
    harness.handle(Event::TurnDone {
        entity: message.target.clone(),
        generation,
        turn: id,
        result,
    });
    assert_eq!(harness.counted(), Some((1, 2)), "the deletion is not durable yet");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.counted(), Some((0, 0)));
}

#[test]
fn k38_a_page_between_two_refusals_counts_what_is_stored() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let (number, _) = harness.count().expect("a page");
    // Two turns wait for the store, which refuses the first one, and therefore the second one too.
    for sequence in [2, 3] {
        harness.send(sequence, sequence - 1, MessageKind::Command);
        let (generation, id, message) = harness.running.take().expect("a turn");
        let output = turn(GuestReply::Result(Bytes::new()), true);
        let result = TurnOutput { state_bytes: Some(50), ..output };
        let entity = message.target.clone();
        harness.handle(Event::TurnDone { entity, generation, turn: id, result });
    }
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    harness.heads(number, vec![(alice(), stored(1, 2))], None);
    assert_eq!(harness.counted(), Some((1, 2)));
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 1 }));
    assert_eq!(harness.counted(), Some((1, 2)));
}

#[test]
fn k38_after_an_unknown_commit_heads_are_read_again() {
    let mut harness = Harness::serving();
    let (number, _) = harness.count().expect("a page");
    harness.heads(number, vec![(named("a"), stored(1, 10))], None);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Unknown("lost".into()));
    assert_eq!(harness.counted(), None);
    harness.grant();
    let (number, after) = harness.count().expect("a page");
    assert_eq!(after, None, "from the start");
    harness.heads(number, vec![(named("a"), stored(1, 10)), (alice(), stored(1, 2))], None);
    assert_eq!(harness.counted(), Some((2, 12)));
}
