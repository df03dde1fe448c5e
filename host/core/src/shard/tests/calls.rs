//! Outgoing HTTP calls of running turns (R8, R15, R20).

use super::*;

fn digest(path: &str) -> CallDigest {
    CallDigest::compute("POST", "https", "api.example.com", path)
}

impl Harness {
    /// The running turn's entity and id.
    fn calling(&self) -> (Entity, TurnId) {
        match (&self.running, &self.firing) {
            (Some((_, turn, message)), _) => (message.target.clone(), *turn),
            (None, Some((_, turn, _))) => (alice(), *turn),
            (None, None) => panic!("no turn is running"),
        }
    }

    /// The running turn starts a call.
    fn call(&mut self, place: u32, path: &str) {
        let (entity, turn) = self.calling();
        let digest = digest(path);
        self.handle(Event::CallStarted { entity, turn, place, digest });
    }
}

/// A harness whose alice runs a command.
fn running() -> Harness {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness
}

#[test]
fn r20_a_call_waits_until_earlier_turns_are_durable() {
    let mut harness = running();
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    harness.call(0, "/");
    assert!(harness.released.is_empty(), "it could reveal what the first turn did");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.released.len(), 1);
    harness.call(1, "/");
    harness.handle(Event::Tick);
    let places: Vec<_> = harness.released.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [0, 1], "each call is released once");
}

#[test]
fn r8_a_call_is_made_only_under_a_valid_lease() {
    let mut harness = running();
    harness.now += 2_400;
    harness.call(0, "/");
    assert!(harness.released.is_empty(), "four fifths of the lease have passed");
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    assert_eq!(harness.released.len(), 1);
}

#[test]
fn r20_a_turn_that_runs_again_calls_under_the_same_keys() {
    let keys = |harness: &mut Harness| {
        for (place, path) in [(0, "/a"), (1, "/a"), (2, "/b")] {
            harness.call(place, path);
        }
        harness.released.iter().map(|(_, key)| *key).collect::<Vec<_>>()
    };
    let mut first = running();
    let before = keys(&mut first);
    let message = first.running.as_ref().expect("a turn").2.clone();
    let mut second = first.restarted();
    second.now += 500;
    second.post(Message::clone(&message));
    assert_eq!(keys(&mut second), before);
    let mut other = second.restarted();
    let id = MessageId { sequence: 2, ..message.id };
    other.post(Message { id, ..Message::clone(&message) });
    let mut all = [before, keys(&mut other)].concat();
    let count = all.len();
    all.sort_by_key(|key| key.0);
    all.dedup();
    assert_eq!(all.len(), count, "no two calls share a key");
}

#[test]
fn r20_an_attempt_of_a_firing_calls_under_the_same_key() {
    let mut harness = running();
    harness.call(0, "/");
    let of_message = harness.released.pop().expect("a call").1;
    let (generation, turn, message) = harness.running.take().expect("a turn");
    let due = harness.now + 100;
    let set = TimerChange::Set { name: "t".into(), due, interval: 0, payload: Bytes::new() };
    let result =
        TurnOutput { timers: vec![set], ..super::turn(GuestReply::Result(Bytes::new()), false) };
    let entity = message.target.clone();
    harness.handle(Event::TurnDone { entity, generation, turn, result });
    harness.settle(CommitOutcome::Committed);
    let mut keys = Vec::new();
    for _ in 0..2 {
        harness.now += 40_000;
        harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
        harness.handle(Event::Tick);
        harness.call(0, "/");
        keys.push(harness.released.pop().expect("a call").1);
        let (generation, turn, _) = harness.firing.take().expect("a firing");
        let result = trapped_turn();
        harness.handle(Event::TurnDone { entity: alice(), generation, turn, result });
        harness.settle(CommitOutcome::Committed);
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], of_message);
}

#[test]
fn r20_keys_differ_by_what_is_called_and_by_whom() {
    let (turn, caller) = (&b"turn"[..], Entity::new("order", "7"));
    let of = (ClusterId(1), "default");
    let key = |of, caller: &Entity, turn, place, digest: &CallDigest| {
        IdempotencyKey::derive(of, caller, turn, place, digest)
    };
    let first = key(of, &caller, turn, 0, &digest("/"));
    let another_method = CallDigest::compute("PUT", "https", "api.example.com", "/");
    let another_host = CallDigest::compute("POST", "https", "example.com", "/");
    let another_scheme = CallDigest::compute("POST", "http", "api.example.com", "/");
    let others = [
        key(of, &caller, turn, 1, &digest("/")),
        key(of, &caller, turn, 0, &digest("/?a=1")),
        key(of, &caller, turn, 0, &another_method),
        key(of, &caller, turn, 0, &another_host),
        key(of, &caller, turn, 0, &another_scheme),
        key(of, &caller, b"nrut", 0, &digest("/")),
        key(of, &Entity::new("order", "8"), turn, 0, &digest("/")),
        key(of, &Entity::new("bill", "7"), turn, 0, &digest("/")),
        key((ClusterId(2), "default"), &caller, turn, 0, &digest("/")),
        key((ClusterId(1), "other"), &caller, turn, 0, &digest("/")),
    ];
    for (at, other) in others.iter().enumerate() {
        assert_ne!(*other, first, "{at}");
    }
    // Nodes of two releases may run the same turn, so the derivation never changes.
    assert_eq!(first.to_string(), "05930dbc-f75c-8f23-b783-9005780589bd");
}

#[test]
fn r15_a_stopping_shard_abandons_calling_turns_at_once() {
    let mut harness = running();
    harness.call(0, "/");
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!((harness.stopped, harness.dropped), (1, 1), "without waiting for the response");
    assert_eq!(harness.code_of(1).as_deref(), Some(&*codes::REBALANCING));
    // A turn that is running may finish, but not start a call.
    let mut harness = running();
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(harness.stopped, 0);
    harness.call(0, "/");
    assert_eq!((harness.stopped, harness.released.len(), harness.commits.len()), (1, 0, 0));
}

#[test]
fn a_turn_waits_until_its_call_has_ended() {
    let mut harness = running();
    harness.call(0, "/");
    let (entity, turn) = harness.calling();
    let stale = TurnId { number: turn.number + 1, ..turn };
    let mut waiting = harness.machine.clone();
    let now = Now { mono: harness.now, cluster_time: harness.now, utc: harness.now };
    waiting.handle(now, Event::CallEnded { entity: entity.clone(), turn: stale, place: 0 });
    waiting.handle(now, Event::Stop(StopReason::HandedOff));
    assert_eq!(waiting.phase(), Phase::Stopped, "a call of another turn has ended");
    harness.handle(Event::CallEnded { entity, turn, place: 0 });
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(harness.stopped, 0, "it may finish");
    harness.run();
    assert_eq!(harness.commits.len(), 1);
}

#[test]
fn a_call_of_an_earlier_turn_is_not_released() {
    let mut harness = running();
    let (entity, turn) = harness.calling();
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.send(2, 1, MessageKind::Command);
    harness.handle(Event::CallStarted { entity, turn, place: 0, digest: digest("/") });
    assert!(harness.released.is_empty());
    let mut stopped = harness.machine.clone();
    let now = Now { mono: harness.now, cluster_time: harness.now, utc: harness.now };
    stopped.handle(now, Event::Stop(StopReason::HandedOff));
    assert_eq!(stopped.phase(), Phase::Stopping, "the later turn waits for nothing");
}

#[test]
fn r20_a_query_makes_no_calls() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Query);
    harness.call(0, "/");
    assert!(harness.released.is_empty());
}

#[test]
fn a_refused_commit_abandons_the_calls_that_built_on_it() {
    let mut harness = running();
    harness.run();
    harness.send(2, 0, MessageKind::Command);
    harness.call(0, "/");
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert!(harness.released.is_empty());
    harness.call(0, "/");
    assert_eq!(harness.released.len(), 1, "the turn runs again, and calls again");
}

#[test]
fn r9_suspension_holds_calls_back_and_keeps_their_turn() {
    let mut harness = running();
    harness.handle(Event::Suspend);
    harness.call(0, "/");
    assert_eq!((harness.released.len(), harness.dropped), (0, 0));
    harness.handle(Event::Resume);
    assert_eq!(harness.released.len(), 1);
}

#[test]
fn r3_calls_wait_while_the_shard_is_claimed_again() {
    let mut harness = running();
    let (_, turn, _) = harness.running.take().expect("alice's turn");
    harness.post(Message { target: Entity::new("counter", "carol"), ..harness.template() });
    harness.run();
    harness.settle(CommitOutcome::Unknown("lost".into()));
    harness.handle(Event::CallStarted { entity: alice(), turn, place: 0, digest: digest("/") });
    assert!(harness.released.is_empty(), "the claim is pending");
    harness.grant();
    assert_eq!(harness.released.len(), 1);
}
