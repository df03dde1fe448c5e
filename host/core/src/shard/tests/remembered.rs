//! Remembered entities: their marks, and how a new owner starts them (R14, K31, K34).

use super::*;

fn named(number: usize) -> Entity {
    Entity::new("counter", format!("e{number:03}"))
}

fn marked() -> Option<Head> {
    Some(Head { version: 7, remembered: true, ..Head::default() })
}

impl Harness {
    /// A machine whose store holds the marks of this many entities, before the claim is granted.
    fn with_marks(settings: Settings, count: usize) -> Self {
        let mut harness = Self::new(settings);
        harness.head = marked();
        harness.marks = Some((0..count).map(named).collect());
        harness
    }

    /// Runs a command whose turn has this output. Returns the mark that its commit writes or deletes.
    fn marks_with(&mut self, sequence: u64, output: TurnOutput) -> Option<bool> {
        self.send(sequence, sequence - 1, MessageKind::Command);
        let (generation, id, message) = self.running.take().expect("a running turn");
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn: id, result: output });
        let commit = self.commits.last().expect("a commit");
        let mark = commit.writes.iter().find(|write| write.key == RecordKey::Remembered);
        let mark = mark.map(|write| write.value.is_some());
        let remembered = commit.head.remembered;
        assert!(mark.is_none_or(|mark| mark == remembered), "head and mark agree");
        self.settle(CommitOutcome::Committed);
        mark
    }

    fn remembers_by_default(&mut self) {
        let settings = TypeSettings { remembers: true, revision: 2, ..TypeSettings::default() };
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }
}

fn output(remember: Option<bool>) -> TurnOutput {
    TurnOutput { remember, ..turn(GuestReply::Result(Bytes::new()), true) }
}

#[test]
fn k31_a_new_owner_starts_remembered_entities() {
    let settings = Settings { timer_page: 8, ..Settings::default() };
    let mut harness = Harness::with_marks(settings, 50);
    assert_eq!(harness.starts, 0, "not before the claim");
    harness.grant();
    assert_eq!((harness.starts, harness.runs, harness.rooms), (50, 0, 50), "page by page");
    assert!(!harness.machine.awaits_recovery(&named(49)));
    assert!(harness.commits.is_empty(), "a start without effects writes nothing");
}

#[test]
fn k31_the_mark_is_committed_with_the_turn() {
    let mut harness = Harness::serving();
    assert_eq!(harness.marks_with(1, output(None)), None);
    assert_eq!(harness.marks_with(2, output(Some(true))), Some(true));
    assert_eq!(harness.marks_with(3, output(Some(true))), None, "it is remembered already");
    assert_eq!(harness.marks_with(4, output(None)), None);
    assert!(harness.head.as_ref().unwrap().remembered);
    assert_eq!(harness.marks_with(5, output(Some(false))), Some(false));
    assert_eq!(harness.marks_with(6, output(None)), None);
    assert!(!harness.head.as_ref().unwrap().remembered);
}

#[test]
fn k31_a_type_may_remember_every_entity() {
    let mut harness = Harness::serving();
    harness.remembers_by_default();
    assert_eq!(harness.marks_with(1, output(Some(false))), None, "the guest decides otherwise");
    assert_eq!(harness.marks_with(2, output(None)), Some(true));
    assert_eq!(harness.marks_with(3, output(None)), None);
}

#[test]
fn r14_a_message_does_not_wait_for_recovery() {
    let mut harness = Harness::with_marks(Settings::default(), 0);
    harness.marks = None;
    harness.grant();
    harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.runs, 1, "the marks have not been read");
}

#[test]
fn k34_recovery_starts_few_entities_at_a_time() {
    let settings = Settings { recovery_starts: 4, ..Settings::default() };
    let mut harness = Harness::with_marks(settings, 10);
    harness.silent = true;
    harness.grant();
    for started in 1..=10_usize {
        let waiting = |action: &Action| matches!(action, Action::Load { .. });
        let at = harness.pending_actions.iter().position(waiting).expect("a load");
        let loads = harness.pending_actions.iter().filter(|action| waiting(action)).count();
        assert_eq!(loads, 4.min(11 - started), "at most four at a time");
        let load = harness.pending_actions.remove(at);
        harness.answer_load(&load);
        let Action::RequestSlot { entity, generation, purpose } = harness.last_action() else {
            panic!("a slot is requested")
        };
        assert_eq!(purpose, SlotPurpose::Recovery);
        harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
        let Action::Activate { reason, generation, .. } = harness.last_action() else {
            panic!("an activation")
        };
        assert_eq!(reason, StartReason::Remembered);
        let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), false));
        harness.handle(Event::ActivationResult { entity, generation, result });
    }
    assert!((0..10).all(|number| !harness.machine.awaits_recovery(&named(number))));
}

impl Harness {
    /// Takes the newest pending action that is not a load.
    fn last_action(&mut self) -> Action {
        let other = |action: &Action| !matches!(action, Action::Load { .. });
        let at = self.pending_actions.iter().rposition(other).expect("an action");
        self.pending_actions.remove(at)
    }
}

#[test]
fn k34_recovery_keeps_to_a_constant_rate() {
    let settings = Settings { recovery_rate: 10, ..Settings::default() };
    let mut harness = Harness::with_marks(settings, 30);
    harness.grant();
    for started in 1..30 {
        assert_eq!(harness.starts, started);
        let next = harness.machine.next_wake().expect("the next start");
        assert_eq!(next, harness.now + 100);
        harness.tick(next);
    }
    assert_eq!((harness.starts, harness.now), (30, 3_900));
}

#[test]
fn k31_a_remembered_entity_is_not_passivated_when_idle() {
    let mut harness = Harness::serving();
    harness.marks_with(1, output(Some(true)));
    harness.tick(1_000_000);
    assert_eq!((harness.dropped, harness.starts), (0, 1));
    harness.marks_with(2, output(Some(false)));
    harness.tick(2_000_000);
    assert_eq!(harness.dropped, 1, "once it is forgotten, it is");
}

#[test]
fn k31_a_trap_restarts_a_remembered_entity() {
    let mut harness = Harness::serving();
    harness.marks_with(1, output(Some(true)));
    harness.send(2, 1, MessageKind::Command);
    let (generation, id, _) = harness.running.take().expect("a running turn");
    harness.handle(Event::TurnDone {
        entity: alice(),
        generation,
        turn: id,
        result: trapped_turn(),
    });
    assert_eq!((harness.dropped, harness.starts), (1, 2), "without another message");
    // An eviction keeps the mark; the entity starts again if a slot is free.
    harness.handle(Event::Evict { entity: alice() });
    assert_eq!((harness.dropped, harness.starts), (2, 3));
}

#[test]
fn k31_a_passivated_entity_stays_passivated() {
    let mut harness = Harness::serving();
    harness.marks_with(1, output(Some(true)));
    harness.marks_with(2, TurnOutput { passivate: true, ..output(None) });
    harness.tick(100_000);
    assert_eq!((harness.dropped, harness.starts), (1, 1));
    assert!(harness.head.as_ref().unwrap().remembered, "but it keeps its mark");
}

#[test]
fn k31_an_entity_that_was_forgotten_is_not_started() {
    let mut harness = Harness::with_marks(Settings::default(), 1);
    harness.head = Some(Head { version: 7, ..Head::default() });
    harness.grant();
    assert_eq!((harness.loads, harness.starts), (1, 0), "the mark was deleted meanwhile");
    assert_eq!(harness.machine.stats(), (0, 0), "and it does not stay in memory");
}

#[test]
fn k33_a_remembered_entity_that_never_starts_is_retried_slowly() {
    let mut harness = Harness::with_marks(Settings::default(), 1);
    harness.silent = true;
    harness.grant();
    harness.pending_actions.retain(|action| !matches!(action, Action::ScanWakes { .. }));
    let mut attempts = Vec::new();
    for _ in 0..8 {
        let load = harness.next_action();
        harness.answer_load(&load);
        let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
            panic!("a slot is requested")
        };
        harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
        let Action::Activate { generation, .. } = harness.next_action() else {
            panic!("an activation")
        };
        attempts.push(harness.now);
        let result = ActivationOutcome::Started(trapped_turn());
        harness.handle(Event::ActivationResult { entity, generation, result });
        while harness.pending_actions.is_empty() {
            let next = harness.machine.next_wake().expect("another attempt");
            harness.tick(next);
        }
    }
    let pauses: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[6] >= 2_000 && pauses.is_sorted(), "{pauses:?}");
}

#[test]
fn k31_marks_are_read_again_after_each_deployment() {
    let mut harness = Harness::new(Settings::default());
    harness.head = marked();
    harness.marks = Some(vec![Entity::new("later", "e")]);
    harness.grant();
    assert_eq!(harness.starts, 0, "its type is not deployed");
    harness.handle(Event::TypeDeployed {
        entity_type: "later".into(),
        settings: TypeSettings::default(),
    });
    assert_eq!(harness.starts, 1);
}

#[test]
fn k31_a_stopping_shard_starts_nothing() {
    let mut harness = Harness::serving();
    harness.marks_with(1, output(Some(true)));
    harness.handle(Event::Stop(StopReason::HandedOff));
    harness.tick(2_000);
    assert_eq!((harness.starts, harness.stopped), (1, 1));
}

#[test]
fn k31_entities_that_never_start_do_not_block_others() {
    let settings = Settings { timer_page: 4, recovery_starts: 2, ..Settings::default() };
    let mut harness = Harness::with_marks(settings, 30);
    harness.silent = true;
    harness.grant();
    let mut started = std::collections::BTreeSet::new();
    for _ in 0..2_000 {
        let Some(action) = (!harness.pending_actions.is_empty()).then(|| harness.next_action())
        else {
            let next = harness.machine.next_wake().expect("more to do");
            assert!(next > harness.now, "a wake-up that has passed makes no progress");
            harness.tick(next);
            continue;
        };
        match action {
            Action::Load { .. } => harness.answer_load(&action),
            Action::RequestSlot { entity, generation, .. } => {
                harness.handle(Event::SlotGranted { entity, generation });
            }
            Action::Activate { entity, generation, .. } => {
                // The first twenty entities always trap.
                let works = entity >= named(20);
                let output = match works {
                    true => turn(GuestReply::Result(Bytes::new()), false),
                    false => trapped_turn(),
                };
                if works {
                    started.insert(entity.clone());
                }
                let result = ActivationOutcome::Started(output);
                harness.handle(Event::ActivationResult { entity, generation, result });
            }
            _ => {}
        }
        if started.len() == 10 {
            return;
        }
    }
    panic!("only {started:?} were started");
}

#[test]
fn k31_a_refused_forget_keeps_the_entity_running() {
    let mut harness = Harness::serving();
    harness.marks_with(1, output(Some(true)));
    harness.send(2, 1, MessageKind::Command);
    let (generation, id, _) = harness.running.take().expect("a running turn");
    let result = output(Some(false));
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.starts, 2, "it is still remembered, so it starts again");
}

#[test]
fn k31_recovery_takes_over_a_start_that_a_message_began() {
    let mut harness = Harness::with_marks(Settings::default(), 0);
    harness.marks = Some(vec![alice()]);
    harness.silent = true;
    harness.grant();
    harness.send(1, 0, MessageKind::Command);
    let mut starts = 0;
    for _ in 0..100 {
        if harness.pending_actions.is_empty() {
            let next = harness.machine.next_wake().expect("another attempt");
            harness.tick(next);
            continue;
        }
        match harness.next_action() {
            action @ Action::Load { .. } => harness.answer_load(&action),
            Action::RequestSlot { entity, generation, .. } => {
                harness.handle(Event::SlotGranted { entity, generation });
            }
            Action::Activate { entity, generation, .. } => {
                starts += 1;
                let (code, message) = ("instance-limit".into(), String::new());
                let retry_after = Some(10);
                let result = ActivationOutcome::Failed { code, message, retry_after };
                harness.handle(Event::ActivationResult { entity, generation, result });
            }
            _ => {}
        }
        if starts == 3 {
            return;
        }
    }
    panic!("it was started only {starts} times");
}

#[test]
fn k31_a_refused_message_does_not_mark_its_entity() {
    let mut harness = Harness::serving();
    harness.remembers_by_default();
    let refusal = GuestReply::Error { code: "no".into(), message: String::new() };
    assert_eq!(harness.marks_with(1, turn(refusal, false)), None);
    assert!(!harness.head.as_ref().unwrap().remembered);
}

#[test]
fn k31_a_deployment_wakes_no_passivated_entity() {
    let mut harness = Harness::serving();
    harness.marks_with(1, output(Some(true)));
    harness.marks_with(2, TurnOutput { passivate: true, ..output(None) });
    harness.marks = Some(vec![alice()]);
    let deployed = |name: &str| Event::TypeDeployed {
        entity_type: name.into(),
        settings: TypeSettings { revision: 2, ..TypeSettings::default() },
    };
    harness.handle(deployed("other"));
    harness.handle(deployed("counter"));
    assert_eq!(harness.starts, 1);
    harness.send(3, 2, MessageKind::Command);
    assert_eq!(harness.starts, 2, "a message does");
}
