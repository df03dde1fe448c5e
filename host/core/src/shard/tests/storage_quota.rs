//! Namespaces that have used up a quota: nothing in them grows, and everything else goes on.

use super::*;
use crate::quota::Full;

const ENTITIES: Full = Full { entities: Some(3), state_bytes: None };
const BYTES: Full = Full { entities: None, state_bytes: Some(100) };

fn leaves(state_bytes: u64) -> TurnOutput {
    let answer = GuestReply::Result(Bytes::new());
    TurnOutput { state_bytes: Some(state_bytes), ..turn(answer, true) }
}

impl Harness {
    fn full(&mut self, namespace: &str, full: Full) {
        let full = BTreeMap::from([(namespace.into(), full)]);
        self.handle(Event::NamespacesFull(Arc::new(full)));
    }

    /// Completes the running turn.
    fn done(&mut self, result: TurnOutput) {
        let (generation, turn, message) = self.running.take().expect("a running turn");
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn, result });
    }

    /// A command whose turn leaves a state of so many bytes. How it ends, once it is committed.
    fn grow(&mut self, sequence: u64, state_bytes: u64) -> Option<String> {
        let token = self.send(sequence, 0, MessageKind::Command);
        self.done(leaves(state_bytes));
        if !self.commits.is_empty() {
            self.settle(CommitOutcome::Committed);
        }
        self.code_of(token)
    }
}

#[test]
fn a_command_creates_no_entity_in_a_full_namespace() {
    let mut harness = Harness::serving();
    harness.full("default", ENTITIES);
    let token = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(token).as_deref(), Some("quota-entities"));
    assert!(harness.may_be_sent_again(token) && harness.starts == 0, "nothing is started for it");
    harness.full("other", ENTITIES);
    assert_eq!(harness.grow(2, 10).as_deref(), Some("final 1"), "another namespace is full");
}

#[test]
fn existing_entities_of_a_full_namespace_go_on() {
    let mut harness = Harness::serving();
    assert_eq!(harness.grow(1, 10).as_deref(), Some("final 1"));
    harness.full("default", ENTITIES);
    assert_eq!(harness.grow(2, 20).as_deref(), Some("final 2"));
    let query = harness.send(3, 0, MessageKind::Query);
    harness.run();
    assert_eq!(harness.code_of(query).as_deref(), Some("final 2"));
}

#[test]
fn a_query_creates_no_entity_through_its_start_hook() {
    let mut harness = Harness::serving();
    harness.full("default", ENTITIES);
    harness.silent = true;
    let token = harness.send(1, 0, MessageKind::Query);
    let load = harness.next_action();
    harness.answer_load(&load);
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else { panic!() };
    harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
    harness.next_action();
    let result = ActivationOutcome::Started(leaves(5));
    harness.handle(Event::ActivationResult { entity, generation, result });
    assert_eq!(harness.code_of(token).as_deref(), Some("quota-entities"));
    assert!(harness.commits.is_empty());
}

#[test]
fn a_state_grows_no_more_in_a_full_namespace_but_shrinks() {
    let mut harness = Harness::serving();
    assert_eq!(harness.grow(1, 50).as_deref(), Some("final 1"));
    harness.full("default", BYTES);
    assert_eq!(harness.grow(2, 51).as_deref(), Some("quota-state"));
    assert_eq!((harness.dropped, harness.commits.len()), (1, 0), "its memory is dropped");
    assert_eq!(harness.grow(3, 50).as_deref(), Some("final 2"));
    assert_eq!(harness.grow(4, 20).as_deref(), Some("final 3"));
    assert_eq!(harness.grow(5, 21).as_deref(), Some("quota-state"));
    let token = harness.send(6, 0, MessageKind::Command);
    harness.done(TurnOutput { delete: true, ..leaves(90) });
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 4"), "it may be deleted");
}

#[test]
fn a_refusal_for_a_quota_is_no_failure_of_the_guest() {
    let mut harness = Harness::serving();
    let on_failure = OnFailure::Stop;
    let settings = TypeSettings { on_failure, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.grow(1, 50);
    harness.full("default", BYTES);
    let token = harness.send(2, 0, MessageKind::Command);
    harness.done(leaves(60));
    assert!(harness.may_be_sent_again(token));
    harness.full("other", BYTES);
    assert_eq!(harness.grow(2, 60).as_deref(), Some("final 2"), "the same message, later");
}

#[test]
fn the_last_turn_of_an_instance_may_always_grow() {
    let mut harness = Harness::serving();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.grow(1, 50);
    harness.full("default", BYTES);
    harness.silent = true;
    harness.handle(Event::Evict { entity: alice() });
    let Action::CallStopHook { entity, generation, turn, .. } = harness.next_action() else {
        panic!()
    };
    harness.handle(Event::TurnDone { entity, generation, turn, result: leaves(60) });
    assert_eq!(harness.commits[0].head.state_bytes, 60);
}
