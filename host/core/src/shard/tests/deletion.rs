//! Deletions by a turn and by an operator, and the purge that follows (E17, R4, R17, R19).

use super::*;

/// The number of records in a page.
const PAGE: usize = 1_000;

impl Harness {
    /// The keys of alice's state in the store.
    fn with_keys(count: usize) -> Self {
        let mut harness = Self::serving();
        harness.keys = (0..count).map(|number| Bytes::from(format!("k{number:05}"))).collect();
        harness
    }

    /// Completes the running turn with this output.
    fn complete(&mut self, output: TurnOutput) {
        let (generation, turn, message) = self.running.take().expect("a running turn");
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn, result: output });
    }

    /// Runs a command that deletes its entity; the commit is not answered.
    pub(super) fn delete_by_turn(&mut self, sequence: u64) -> u64 {
        let token = self.send(sequence, sequence - 1, MessageKind::Command);
        self.complete(deleting());
        token
    }

    fn delete_by_operator(&mut self, sequence: u64) -> u64 {
        let message = Message {
            id: MessageId { session: ScopedSessionId([7; 16]), sequence },
            method: OperatorCommand::DeleteEntity.method().into(),
            body: Bytes::new(),
            digest: MessageDigest::compute(&alice(), OperatorCommand::DeleteEntity.method(), b""),
            ..self.template()
        };
        self.post(message)
    }

    pub(super) fn settle_all(&mut self) {
        while !self.commits.is_empty() {
            self.settle(CommitOutcome::Committed);
        }
    }

    /// The number of stored wake-ups that lead to a purge.
    fn purge_wakes(&self) -> usize {
        self.wakes.iter().filter(|(at, _)| *at == 0).count()
    }

    pub(super) fn stored(&self) -> &Head {
        self.head.as_ref().expect("a head")
    }
}

fn deleting() -> TurnOutput {
    TurnOutput { delete: true, ..turn(GuestReply::Result(Bytes::new()), true) }
}

fn timer(name: &str) -> TimerChange {
    TimerChange::Set { name: name.into(), due: 9_000, interval: 0, payload: Bytes::new() }
}

#[test]
fn e17_a_deletion_removes_everything_but_lanes_and_tells() {
    let mut harness = Harness::with_keys(3);
    harness.send(1, 0, MessageKind::Command);
    let tell = NewTell {
        target: Entity::new("counter", "bob"),
        method: "m".into(),
        body: Bytes::new(),
        content_type: "".into(),
        traceparent: "".into(),
        utc_ms: 5,
    };
    let events = vec![Bytes::from_static(b"e"); 2];
    harness.complete(TurnOutput {
        timers: vec![timer("a"), timer("b")],
        journal: JournalChange {
            events,
            snapshot: Some((1, Bytes::from_static(b"s"))),
            ..JournalChange::default()
        },
        remember: Some(true),
        ..turn(GuestReply::Result(Bytes::new()), true)
    });
    harness.settle(CommitOutcome::Committed);
    let deleted = harness.send(2, 1, MessageKind::Command);
    let keys = vec![(Bytes::from_static(b"late"), Some(Bytes::from_static(b"1")))];
    let effects = TurnOutput { writes: keys, tells: vec![tell], ..deleting() };
    harness.complete(TurnOutput { timers: vec![timer("c")], ..effects });
    assert_eq!(harness.code_of(deleted), None, "the reply waits for the commit");
    let commit = harness.commits.last().unwrap().clone();
    let is_lasting = |write: &RecordWrite| !matches!(write.key, RecordKey::Outbox { .. });
    let writes: Vec<_> = commit.writes.into_iter().filter(is_lasting).collect();
    assert!(writes.contains(&RecordWrite { key: RecordKey::Remembered, value: None }));
    let is_written = writes.iter().any(|it| matches!(it.key, RecordKey::State(_)));
    assert!(!is_written, "the turn's own writes are not kept: {writes:?}");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(deleted).as_deref(), Some("final 2"));
    let purge = harness.commits.last().expect("the purge").writes.clone();
    let removed = |it: fn(&RecordKey) -> bool| purge.iter().filter(|w| it(&w.key)).count();
    assert_eq!(removed(|key| matches!(key, RecordKey::State(_))), 3);
    assert_eq!(removed(|key| matches!(key, RecordKey::Journal { .. })), 3, "with the snapshot");
    assert_eq!(removed(|key| matches!(key, RecordKey::Timer { due: OWN_TIMERS, .. })), 2);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.keys.len(), harness.timers.len(), harness.outbox.len()), (0, 0, 1));
    let head = harness.stored().clone();
    assert!(head.deleted && !head.remembered && head.is_purged() == Ok(false));
    assert_eq!((head.generation(), head.version, head.state_bytes), (Ok(1), 3, 0));
    assert_eq!((head.timer_count(), head.journal()), (Ok(0), Ok(JournalExtent::default())));
    assert_eq!(harness.tells.len(), 1, "what was sent leaves");
    assert_eq!((harness.dropped, harness.hooks), (1, 0), "without a stop hook");
}

#[test]
fn e17_a_deleted_entity_starts_anew_and_its_version_continues() {
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    let next = harness.send(3, 2, MessageKind::Command);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.runs, 2, "no turn starts before the purge is durable");
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.runs, harness.reasons.last()), (3, Some(&StartReason::FirstMessage)));
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(next).as_deref(), Some("final 4"));
    assert!(!harness.stored().deleted && harness.stored().generation() == Ok(1));
    harness.delete_by_turn(4);
    harness.settle_all();
    assert_eq!(harness.stored().generation(), Ok(2));
}

#[test]
fn r17_lanes_outlive_a_deletion() {
    for by_operator in [false, true] {
        let mut harness = Harness::with_keys(1);
        let first = harness.send(1, 0, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        let deletion =
            if by_operator { harness.delete_by_operator(1) } else { harness.delete_by_turn(2) };
        harness.settle_all();
        let mut next = harness.restarted();
        let copy = next.send(1, 0, MessageKind::Command);
        assert_eq!(next.code_of(copy).as_deref(), Some("final 1"), "its recorded reply");
        let copy = if by_operator {
            next.delete_by_operator(1)
        } else {
            next.send(2, 1, MessageKind::Command)
        };
        assert_eq!(next.code_of(copy).as_deref(), Some("final 2"), "so does the deletion itself");
        assert_eq!((next.runs, next.commits.len()), (0, 0), "nothing runs again");
        let _ = (first, deletion);
    }
}

#[test]
fn e17_an_operator_deletes_without_the_guest() {
    let mut harness = Harness::with_keys(2);
    let missing = harness.delete_by_operator(1);
    assert_eq!(harness.code_of(missing).as_deref(), Some("unknown-entity"));
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let deleted = harness.delete_by_operator(2);
    assert_eq!((harness.code_of(deleted), harness.dropped), (None, 1), "its instance is dropped");
    harness.settle_all();
    assert_eq!((harness.code_of(deleted).as_deref(), harness.keys.len()), (Some("final 2"), 0));
    let again = harness.delete_by_operator(3);
    assert_eq!(harness.code_of(again).as_deref(), Some("unknown-entity"), "it was deleted");
    let mut idle = harness.restarted();
    idle.send(2, 1, MessageKind::Command);
    idle.run();
    idle.settle(CommitOutcome::Committed);
    let mut asleep = idle.restarted();
    asleep.delete_by_operator(4);
    asleep.settle_all();
    assert_eq!((asleep.starts, asleep.stored().generation()), (0, Ok(2)), "no instance is needed");
    assert_eq!(asleep.machine.stats(), (0, 0), "nothing remains in memory");
}

#[test]
fn e17_a_large_entity_is_purged_in_pages_that_nobody_sees() {
    let mut harness = Harness::with_keys(PAGE * 2 + 1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    let query = harness.send(3, 2, MessageKind::Query);
    harness.settle(CommitOutcome::Committed);
    for left in [PAGE + 1, 1, 0] {
        assert_eq!((harness.commits.len(), harness.runs), (1, 2), "page by page");
        assert!(harness.commits[0].writes.len() <= PAGE + 2);
        harness.settle(CommitOutcome::Committed);
        assert_eq!((harness.keys.len(), harness.purge_wakes() == 0), (left, left == 0));
    }
    assert_eq!((harness.runs, harness.code_of(query)), (3, None));
    harness.run();
    assert!(harness.stored().deleted, "a query leaves it deleted");
}

#[test]
fn e17_a_new_owner_continues_the_purge_without_a_message() {
    let mut harness = Harness::with_keys(PAGE + 1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    harness.settle(CommitOutcome::Committed);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.keys.len(), harness.wakes.clone()), (1, vec![(0, alice())]));
    let mut next = harness.restarted();
    assert_eq!((next.commits.len(), next.starts), (1, 0));
    next.settle_all();
    assert_eq!((next.keys.len(), next.purge_wakes(), next.machine.stats()), (0, 0, (0, 0)));
    assert!(next.stored().deleted && next.stored().is_purged() == Ok(false));
}

#[test]
fn e17_a_refused_deletion_leaves_the_entity_as_it_was() {
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let deletion = harness.delete_by_turn(2);
    let refusal = CommitRefusal::LimitReached("full".into());
    harness.settle(CommitOutcome::Refused(refusal.clone()));
    assert_eq!(harness.code_of(deletion).as_deref(), Some("store-full"));
    harness.send(3, 2, MessageKind::Command);
    assert_eq!((harness.keys.len(), harness.stored().deleted), (1, false));
    // A page of the purge that is refused is tried again after a pause.
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    harness.settle(CommitOutcome::Committed);
    harness.settle(CommitOutcome::Refused(refusal));
    assert_eq!((harness.commits.len(), harness.keys.len()), (0, 1), "not at once");
    harness.now = harness.machine.next_wake().expect("another attempt");
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Tick);
    harness.settle_all();
    assert_eq!((harness.keys.len(), harness.purge_wakes()), (0, 0));
}

#[test]
fn e17_hooks_and_application_errors_delete_nothing() {
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    let error = GuestReply::Error { code: "no".into(), message: "why".into() };
    harness.complete(TurnOutput { delete: true, ..turn(error, false) });
    harness.settle(CommitOutcome::Committed);
    assert!(!harness.stored().deleted);
    assert_eq!((harness.stored().version, harness.keys.len()), (1, 1));
}

#[test]
fn r25_no_timer_of_a_deleted_entity_fires() {
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    harness.complete(TurnOutput {
        timers: vec![timer("a")],
        ..turn(GuestReply::Result(Bytes::new()), true)
    });
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    harness.now = 9_500;
    harness.handle(Event::LeaseRenewed { sent_at: 9_500, lease: 3_000 });
    harness.handle(Event::Tick);
    harness.settle_all();
    harness.handle(Event::Tick);
    let before_sweep = harness.wakes.iter().filter(|(at, _)| *at < 3_600_000).count();
    assert_eq!((harness.firings, harness.timers.len(), before_sweep), (0, 0, 0));
}

#[test]
fn e17_a_message_waits_while_a_purge_is_tried_again() {
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    let query = harness.send(3, 2, MessageKind::Query);
    harness.settle(CommitOutcome::Committed);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    harness.now = harness.machine.next_wake().expect("another attempt");
    // Another event arrives first.
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Tick);
    assert_eq!((harness.commits.len(), harness.runs), (1, 2));
    harness.settle_all();
    harness.run();
    assert_eq!((harness.keys.len(), harness.code_of(query).as_deref()), (0, Some("final 3")));
}

#[test]
fn r9_no_page_is_removed_while_the_shard_is_suspended() {
    let mut harness = Harness::with_keys(1);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(2);
    let commit = harness.commits.remove(0);
    harness.head = Some(commit.head.clone());
    harness.answers_keys = false;
    let committed = vec![(alice(), commit.head.turn, CommitOutcome::Committed)];
    harness.handle(Event::CommitResults(committed));
    harness.handle(Event::Suspend);
    let Action::ScanKeys { entity, generation, .. } = harness.next_action() else {
        panic!("the keys are read")
    };
    harness.answers_keys = true;
    let page = Ok((harness.keys.clone(), false));
    harness.handle(Event::KeysScanned { entity, generation, page });
    assert!(harness.commits.is_empty());
    harness.handle(Event::Resume);
    harness.settle_all();
    assert!(harness.keys.is_empty(), "it continues");
}
