//! Queries beside a waiting turn (R15, R20).

use super::asks::{ask_id, asked_by, bob, new_ask};
use super::*;

/// The running turn of the harness.
type Running = (u64, TurnId, Arc<Message>);

impl Harness {
    fn deploy_revision(&mut self, revision: u64, reentrant_queries: bool) {
        let settings = TypeSettings { revision, reentrant_queries, ..TypeSettings::default() };
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    /// Ends a turn that is not the harness's current one.
    fn finish_turn(&mut self, (generation, turn, message): Running, result: TurnOutput) {
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn, result });
    }

    fn ask_of(&mut self, (generation, _, message): &Running, place: u32, ask: NewAsk) {
        let entity = message.target.clone();
        self.handle(Event::AskStarted { entity, generation: *generation, place, ask });
    }

    /// A query that another entity asks.
    fn query_of(&mut self, chain: &[Entity], id: u8) -> u64 {
        let (id, origin) = asked_by(chain, id, 5);
        let kind = MessageKind::Query;
        self.post(Message { id, kind, asked_by: Some(Arc::new(origin)), ..self.template() })
    }
}

fn result(body: &'static str) -> GuestReply {
    GuestReply::Result(Bytes::from_static(body.as_bytes()))
}

/// A harness whose alice waits for an ask to bob in a command's turn, and that turn.
fn waiting_with(settings: Settings) -> (Harness, Running) {
    let mut harness = Harness::with(settings);
    harness.deploy_revision(2, true);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.send(2, 1, MessageKind::Command);
    let turn = harness.running.take().expect("a turn");
    harness.ask_of(&turn, 0, new_ask(&bob(), "1"));
    (harness, turn)
}

fn waiting() -> (Harness, Running) {
    waiting_with(Settings::default())
}

#[test]
fn r20_a_query_runs_beside_a_waiting_turn() {
    let (mut harness, first) = waiting();
    let command = harness.send_from(b"t", 1, 0, MessageKind::Command, "2");
    let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the query runs, past the command");
    assert_eq!((second.2.kind, second.0 == first.0), (MessageKind::Query, false));
    assert_eq!((harness.rooms, harness.reasons.last()), (2, Some(&StartReason::BesideTurn)));
    harness.finish_turn(second, turn(result("q"), false));
    assert_eq!(harness.code_of(query).as_deref(), Some("final 1"), "the last committed version");
    let again = harness.send_from(b"u", 2, 1, MessageKind::Query, "3");
    let second = harness.running.take().expect("on the same second instance");
    harness.finish_turn(second, turn(result("q"), false));
    assert_eq!((harness.starts, harness.code_of(again).as_deref()), (2, Some("final 1")));
    harness.finish_turn(first, turn(result("r"), true));
    assert_eq!((harness.dropped, harness.rooms), (1, 1), "the second instance is stale");
    assert_eq!(harness.code_of(command), None);
    assert!(harness.running.is_some(), "the command runs on the first instance");
}

#[test]
fn r20_a_query_that_outlasts_the_turn_runs_again() {
    let (mut harness, first) = waiting();
    let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the query");
    harness.finish_turn(first, turn(result("r"), true));
    let again = harness.running.take().expect("the query, on the first instance");
    assert_eq!(again.2.id, second.2.id);
    harness.finish_turn(second, turn(result("old"), false));
    assert_eq!(harness.code_of(query), None, "nothing of the old run counts");
    harness.finish_turn(again, turn(result("new"), false));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(query).as_deref(), Some("final 2"));
}

#[test]
fn r20_only_waiting_turns_of_such_types_admit_queries() {
    let (mut harness, first) = waiting();
    let (id, answer) = (harness.asks[0].1.id, Outcome::Final { reply: result("a"), version: 1 });
    harness.handle(Event::AskAnswered { asker: alice(), turn: first.1, id, outcome: answer });
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    assert!(harness.running.is_none(), "the turn runs again");
    harness.ask_of(&first, 1, new_ask(&bob(), "2"));
    assert!(harness.running.is_some(), "it waits again");
    // Without the setting, and with a newer revision than that of the waiting instance.
    for (revision, reentrant) in [(2, false), (3, true)] {
        let (mut harness, _) = waiting();
        harness.deploy_revision(revision, reentrant);
        harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
        assert!(harness.running.is_none(), "{revision} {reentrant}");
    }
}

#[test]
fn r20_a_query_waits_until_earlier_turns_are_durable() {
    let mut harness = Harness::serving();
    harness.deploy_revision(2, true);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    let turn = harness.running.take().expect("a turn");
    harness.ask_of(&turn, 0, new_ask(&bob(), "1"));
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    assert!(harness.running.is_none(), "the store does not have the first turn's state yet");
    harness.settle(CommitOutcome::Committed);
    assert!(harness.running.is_some());
}

#[test]
fn r20_a_cycle_ends_where_no_instance_could_run_it() {
    // Bob's turn, which alice's turn asked, queries alice.
    let (mut harness, _) = waiting();
    let command = harness.asked_by_bob();
    assert_eq!(harness.code_of(command).as_deref(), Some(&*codes::ASK_CYCLE), "commands wait");
    let query = harness.query_of(&[alice(), bob()], 2);
    let second = harness.running.take().expect("the query runs beside the turn");
    // The query asks bob, whose type is re-entrant too, and bob asks alice.
    harness.ask_of(&second, 0, new_ask(&bob(), "2"));
    let chain = [alice(), bob(), alice()];
    let ask = harness.asks.last().expect("an ask").1.clone();
    assert_eq!((&*ask.chain, ask.query_only), (&chain[..], true));
    let inner = harness.query_of(&[&chain[..], &[bob()]].concat(), 3);
    assert_eq!(harness.code_of(inner).as_deref(), Some(&*codes::ASK_CYCLE));
    let text = harness.replies.iter().find(|(token, _)| *token == inner).expect("a reply");
    let Outcome::NotRun { message, .. } = &text.1 else { panic!("{text:?}") };
    assert!(message.contains("counter/alice → counter/bob → counter/alice"), "{message}");
    let other = harness.query_of(&[alice(), bob()], 4);
    assert_eq!(harness.code_of(other), None, "it may not depend on the query that waits");
    let answer = Outcome::Final { reply: result("a"), version: 1 };
    harness.handle(Event::AskAnswered {
        asker: alice(),
        turn: second.1,
        id: ask.id,
        outcome: answer.clone(),
    });
    assert_eq!(harness.answers, [(0, answer)], "to the second instance's turn");
    harness.finish_turn(second, turn(result("q"), false));
    assert_eq!(harness.code_of(query).as_deref(), Some("final 1"));
    assert!(harness.running.is_some(), "the other query is next");
}

impl Harness {
    fn asked_by_bob(&mut self) -> u64 {
        let (id, origin) = asked_by(&[alice(), bob()], 1, 5);
        self.post(Message { id, asked_by: Some(Arc::new(origin)), ..self.template() })
    }
}

#[test]
fn r15_a_hand_off_drops_both_instances() {
    for waits in [true, false] {
        let (mut harness, first) = waiting();
        let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
        if !waits {
            let (id, outcome) = (harness.asks[0].1.id, Outcome::not_run(codes::ASK_CYCLE, ""));
            harness.handle(Event::AskAnswered { asker: alice(), turn: first.1, id, outcome });
        }
        harness.handle(Event::Stop(StopReason::HandedOff));
        assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::REBALANCING));
        assert_eq!(harness.dropped, if waits { 2 } else { 1 });
        if !waits {
            harness.finish_turn(first, turn(result("r"), true));
            harness.settle(CommitOutcome::Committed);
        }
        assert_eq!((harness.stopped, harness.rooms), (1, 0));
    }
}

#[test]
fn a_refused_commit_drops_the_second_instance_too() {
    let (mut harness, _) = waiting();
    let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the query");
    harness.handle(Event::Suspend);
    harness.finish_turn(second, turn(result("q"), false));
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::STORE_UNAVAILABLE), "R8");
    harness.handle(Event::Drop);
    assert_eq!((harness.dropped, harness.rooms), (2, 0));
}

#[test]
fn a_query_without_a_slot_waits_within_its_deadline() {
    let (mut harness, first) = waiting();
    harness.silent = true;
    let patient = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let deadline = Some(harness.now + 500);
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"v"), sequence: 1 };
    let kind = MessageKind::Query;
    let hasty = harness.post(Message { id, deadline, kind, ..harness.template() });
    harness.now += 600;
    harness.handle(Event::Tick);
    assert_eq!(harness.code_of(hasty).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    harness.now += 2_000;
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 30_000 });
    harness.now += 7_400;
    harness.handle(Event::Tick);
    // The ask has ended in the meantime, but the turn has not.
    assert_eq!(harness.code_of(patient).as_deref(), Some(&*codes::OVERLOADED));
    assert_eq!(harness.rooms, 1);
    harness.finish_turn(first, turn(result("r"), true));
    assert_eq!(harness.commits.len(), 1);
}

#[test]
fn an_idle_second_instance_is_evicted_alone() {
    let (mut harness, first) = waiting();
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    harness.handle(Event::Evict { entity: alice() });
    assert_eq!((harness.busy, harness.dropped), (1, 0), "both are busy");
    let second = harness.running.take().expect("the query");
    harness.finish_turn(second, turn(result("q"), false));
    harness.handle(Event::Evict { entity: alice() });
    assert_eq!((harness.dropped, harness.rooms), (1, 1));
    harness.send_from(b"u", 2, 1, MessageKind::Query, "3");
    assert!(harness.running.take().is_some(), "another one is started");
    harness.finish_turn(first, turn(result("r"), true));
    assert_eq!(harness.commits.len(), 1);
}

#[test]
fn a_second_instance_that_cannot_start_refuses_queries() {
    for retry_after in [None, Some(20)] {
        let (mut harness, first) = waiting();
        harness.silent = true;
        let starts = |harness: &mut Harness, body: &str| {
            harness.send_from(body.as_bytes(), 1, 0, MessageKind::Query, body)
        };
        let query = starts(&mut harness, "a");
        let slot = harness.next_action();
        let Action::RequestSlot { entity, generation, .. } = slot else { panic!("{slot:?}") };
        harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
        assert!(matches!(harness.next_action(), Action::Activate { .. }));
        let (code, message) = ("trap".into(), "no".into());
        let result = ActivationOutcome::Failed { code, message, retry_after };
        harness.handle(Event::ActivationResult { entity, generation, result });
        assert_eq!(harness.code_of(query).as_deref(), Some("trap"));
        assert_eq!((harness.dropped, harness.rooms), (1, 1));
        let next = starts(&mut harness, "b");
        let is_retried = harness.pending_actions.len() == 1;
        assert_eq!(is_retried, retry_after.is_some(), "it fails once for each waiting turn");
        assert_eq!(harness.code_of(next).is_some(), retry_after.is_none());
        harness.finish_turn(first, turn(result_of(), true));
        assert_eq!(harness.commits.len(), 1);
    }
}

fn result_of() -> GuestReply {
    result("r")
}

#[test]
fn a_trap_in_a_query_leaves_the_waiting_turn_alone() {
    let (mut harness, first) = waiting();
    let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the query");
    harness.finish_turn(second, trapped_turn());
    assert_eq!(harness.code_of(query).as_deref(), Some("trap"));
    assert_eq!((harness.dropped, harness.rooms), (1, 1));
    harness.finish_turn(first, turn(result("r"), true));
    assert_eq!(harness.commits.len(), 1);
}

#[test]
fn a_query_whose_caller_is_gone_ends_without_a_turn() {
    let (mut harness, first) = waiting();
    let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let (generation, turn, _) = harness.running.take().expect("the query");
    harness.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::CALLER_GONE));
    harness.send_from(b"u", 2, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the next query, on the second instance");
    assert_eq!((second.0, first.0 == generation), (generation, false));
}

#[test]
fn a_probe_follows_the_asks_of_the_instance_that_would_run_it() {
    let (mut harness, _) = waiting();
    let carol = Entity::new("counter", "carol");
    harness.query_of(std::slice::from_ref(&carol), 1);
    let second = harness.running.take().expect("the query");
    assert!(harness.notes.is_empty(), "it does not wait for the turn's ask");
    harness.ask_of(&second, 0, new_ask(&Entity::new("counter", "dave"), "2"));
    harness.query_of(std::slice::from_ref(&carol), 2);
    let targets: Vec<_> = harness.notes.iter().map(|(to, _)| to.id.to_string()).collect();
    assert_eq!(targets, ["dave"], "a query waits for the query");
    let (id, origin) = asked_by(std::slice::from_ref(&carol), 3, 5);
    harness.post(Message { id, asked_by: Some(Arc::new(origin)), ..harness.template() });
    assert_eq!(
        harness.notes.last().map(|(to, _)| to.clone()),
        Some(bob()),
        "a command, for the turn"
    );
    assert_ne!(ask_id(1), ask_id(2));
}

#[test]
fn r20_a_chain_that_fits_both_turns_is_left_to_probes() {
    let (mut harness, _) = waiting();
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the query");
    // The turn and the query both wait for bob, who asks alice for one of them.
    harness.ask_of(&second, 0, new_ask(&bob(), "2"));
    let query = harness.query_of(&[alice(), bob()], 1);
    assert_eq!(harness.code_of(query), None, "bob may ask for the turn, which does not wait here");
    let [(to, AskNote::Probe { path, .. })] = &*harness.notes else {
        panic!("{:?}", harness.notes)
    };
    let ask = harness.asks.last().expect("an ask").1.id;
    assert_eq!((to, path[1].id), (&bob(), ask), "along the query's ask");
    // Bob asks for the query: the probe comes back, and the ask that is queued here ends.
    let mut path = path.clone();
    path.push(AskStep { id: ask_id(1), asker: bob(), started: 5, is_queued: false });
    path.remove(0);
    harness.note(&AskNote::Probe { number: 9, path });
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::ASK_CYCLE));
}

#[test]
fn r8_no_query_starts_beside_a_turn_without_a_lease() {
    let (mut harness, first) = waiting();
    harness.ask_of(&first, 1, NewAsk { timeout: 60_000, ..new_ask(&bob(), "2") });
    harness.now += 2_500;
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    assert!(harness.running.is_none(), "80 % of the lease has passed");
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    assert!(harness.running.is_some());
}

#[test]
fn a_start_beside_a_turn_that_changes_something_fails() {
    let (mut harness, _) = waiting();
    harness.silent = true;
    let query = harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let slot = harness.next_action();
    let Action::RequestSlot { entity, generation, .. } = slot else { panic!("{slot:?}") };
    harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
    let result = ActivationOutcome::Started(turn(result_of(), true));
    harness.handle(Event::ActivationResult { entity, generation, result });
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::WRITE_IN_QUERY));
}

#[test]
fn the_next_wake_up_covers_the_second_instance() {
    let settings = Settings { instance_slot_timeout: 300, ..Settings::default() };
    let (mut harness, _) = waiting_with(settings.clone());
    harness.silent = true;
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    assert_eq!(harness.machine.next_wake(), Some(harness.now + 300), "it waits for a slot");
    let (mut harness, _) = waiting_with(settings);
    harness.send_from(b"u", 1, 0, MessageKind::Query, "3");
    let second = harness.running.take().expect("the query");
    let ask = NewAsk { timeout: 200, ..new_ask(&bob(), "2") };
    harness.ask_of(&second, 0, ask);
    assert_eq!(harness.machine.next_wake(), Some(harness.now + 200), "its ask ends");
}
