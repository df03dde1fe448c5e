//! The ledger of a session: R16 and R17 in examples and in random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ostraca_client::ledger::{DOUBT_TIME, Ledger, OutgoingMessage, SessionLimits, Stall};
use ostraca_client::{CallError, Entity, SessionId};
use ostraca_wire::flags::SENT_ONCE;
use ostraca_wire::proto::problem::Hint;
use ostraca_wire::proto::{Envelope, MessageKind, Outcome, Problem, Reply};
use proptest::prelude::*;

const DEADLINE: Duration = Duration::from_secs(10);

fn message(entity: &str, now: Instant) -> OutgoingMessage {
    let entity = Entity::new("counter", entity);
    let envelope = Envelope { id: entity.id.to_string(), ..Envelope::default() };
    let deadline = now + DEADLINE;
    OutgoingMessage { entity, envelope, created_ms: 100, deadline, is_resend: false }
}

fn reply(sequence: u64, outcome: Outcome, code: &str, retryable: bool) -> Reply {
    let details = Problem { code: code.into(), retryable, ..Problem::default() };
    let problem = (outcome != Outcome::Result).then_some(details);
    Reply { sequence, outcome: outcome.into(), problem, ..Reply::default() }
}

fn sent(ledger: &mut Ledger<u64>, now: Instant) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    while let Some(envelope) = ledger.next_to_send(now) {
        all.push((envelope.sequence, envelope.after, envelope.settled));
    }
    all
}

fn new_ledger() -> Ledger<u64> {
    Ledger::new(SessionId([1; 16]), 1, 42)
}

#[test]
fn after_is_per_entity_and_settled_is_per_session() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for (sequence, entity) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        ledger.push(sequence, message(entity, now), sequence);
    }
    assert_eq!(sent(&mut ledger, now), [(1, 0, 1), (2, 0, 1), (3, 1, 1), (4, 2, 1)]);
    ledger.on_reply(reply(1, Outcome::Result, "", false), now);
    ledger.on_reply(reply(4, Outcome::ApplicationError, "refused", false), now);
    ledger.push(5, message("a", now), 5);
    ledger.push(6, message("b", now), 6);
    assert_eq!(sent(&mut ledger, now), [(5, 3, 2), (6, 2, 2)]);
}

#[test]
fn a_broken_connection_resends_all_in_order_with_new_after() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for sequence in 1..=3 {
        ledger.push(sequence, message("a", now), sequence);
    }
    assert_eq!(sent(&mut ledger, now), [(1, 0, 1), (2, 1, 1), (3, 2, 1)]);
    ledger.on_reply(reply(2, Outcome::Result, "", false), now);
    ledger.connection_lost(now);
    let later = now + Duration::from_secs(2);
    let first = ledger.next_to_send(later).expect("first").clone();
    assert_eq!((first.sequence, first.created_ms, first.remaining_ms), (1, 100, 8_000));
    assert_eq!(sent(&mut ledger, later), [(3, 1, 1)]);
}

/// A message of which no other copy may be sent.
fn sent_once(entity: &str, kind: MessageKind, now: Instant) -> OutgoingMessage {
    let mut message = message(entity, now);
    message.envelope.flags = SENT_ONCE;
    message.envelope.kind = kind.into();
    message
}

/// How the calls ended: their sequence, whether they may have run, and the code.
fn ends(ledger: &mut Ledger<u64>) -> Vec<(u64, &'static str, String)> {
    let ended = ledger.take_completed().map(|(sequence, outcome)| {
        let error = outcome.expect_err("no reply");
        let how = match &error {
            CallError::NotRun { .. } => "not run",
            CallError::Unknown { .. } => "unknown",
            CallError::Unanswered { .. } => "unanswered",
            _ => "final",
        };
        (sequence, how, error.code().to_string())
    });
    ended.collect()
}

#[test]
fn k18_a_lost_connection_ends_a_message_that_is_sent_once() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, sent_once("a", MessageKind::Command, now), 1);
    ledger.push(2, sent_once("a", MessageKind::Query, now), 2);
    ledger.push(3, message("a", now), 3);
    assert_eq!(sent(&mut ledger, now).len(), 3);
    ledger.push(4, sent_once("a", MessageKind::Command, now), 4);
    ledger.connection_lost(now);
    let (lost, query) = ("connection-lost".to_owned(), "query-unanswered".to_owned());
    assert_eq!(ends(&mut ledger), [(1, "unknown", lost), (2, "unanswered", query)]);
    // The others do not wait for it, and what was not sent yet is sent now.
    let again: Vec<_> =
        sent(&mut ledger, now).into_iter().map(|(it, after, _)| (it, after)).collect();
    assert_eq!(again, [(3, 0), (4, 3)]);
    assert_eq!(ends(&mut ledger), []);
}

#[test]
fn k18_a_refusal_ends_a_message_that_is_sent_once() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for sequence in 1..=4 {
        ledger.push(sequence, sent_once("a", MessageKind::Command, now), sequence);
    }
    sent(&mut ledger, now);
    ledger.on_reply(reply(1, Outcome::NotRun, "overloaded", true), now);
    ledger.on_reply(reply(2, Outcome::Unknown, "store-failed", true), now);
    ledger.on_reply(too_old(3, 500), now);
    ledger.on_reply(reply(4, Outcome::ApplicationError, "refused", false), now);
    let named = |code: &str| code.to_owned();
    assert_eq!(
        ends(&mut ledger),
        [
            (1, "not run", named("overloaded")),
            (2, "unknown", named("store-failed")),
            (3, "not run", named("too-old")),
            (4, "final", named("refused")),
        ]
    );
    ledger.tick(now + Duration::from_secs(5));
    assert_eq!(sent(&mut ledger, now + Duration::from_secs(5)), [], "nothing is sent again");
}

/// A refusal of a creation time that names an acceptable one.
fn too_old(sequence: u64, stamp: u64) -> Reply {
    let mut refused = reply(sequence, Outcome::NotRun, "too-old", false);
    let problem = refused.problem.as_mut().expect("a problem");
    problem.hint = Some(Hint::CreatedMs(stamp));
    refused
}

/// Ends the pauses that are due, sends what is ready, and returns the sequences and creation times.
fn stamps(ledger: &mut Ledger<u64>, now: Instant) -> Vec<(u64, u64)> {
    ledger.tick(now);
    let mut all = Vec::new();
    while let Some(envelope) = ledger.next_to_send(now) {
        all.push((envelope.sequence, envelope.created_ms));
    }
    all
}

#[test]
fn r17_every_copy_has_the_same_creation_time() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    assert_eq!(stamps(&mut ledger, now), [(1, 100)]);
    ledger.connection_lost(now);
    assert_eq!(stamps(&mut ledger, now + DEADLINE / 2), [(1, 100)]);
    ledger.on_reply(reply(1, Outcome::Unknown, "store-unknown", true), now + DEADLINE / 2);
    assert_eq!(stamps(&mut ledger, now + DEADLINE * 3 / 4), [(1, 100)]);
}

#[test]
fn r17_a_message_refused_as_too_old_is_restamped() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for sequence in 1..=3 {
        let entity = if sequence == 2 { "b" } else { "a" };
        ledger.push(sequence, message(entity, now), sequence);
    }
    assert_eq!(stamps(&mut ledger, now), [(1, 100), (2, 100), (3, 100)]);
    ledger.on_reply(too_old(1, 500), now);
    let later = now + Duration::from_secs(1);
    assert_eq!(stamps(&mut ledger, later), [], "3 may still run, with a lower stamp");
    assert_eq!(ledger.next_wake(), Some(later + Duration::from_millis(20)), "not immediately");
    ledger.on_reply(reply(3, Outcome::NotRun, "out-of-order", true), later);
    let later = later + Duration::from_secs(1);
    assert_eq!(stamps(&mut ledger, later), [(1, 500), (3, 500)], "b is another entity");
    assert_eq!(ledger.highest_restamp(), 500);
}

#[test]
fn r17_a_restamped_message_keeps_its_stamp_when_resent() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    stamps(&mut ledger, now);
    ledger.on_reply(too_old(1, 500), now);
    let later = now + Duration::from_secs(1);
    assert_eq!(stamps(&mut ledger, later), [(1, 500)]);
    ledger.connection_lost(now);
    assert_eq!(stamps(&mut ledger, later), [(1, 500)], "in doubt, it keeps its stamp");
    assert_eq!(ledger.take_completed().count(), 0);
}

#[test]
fn r17_each_message_is_restamped_with_its_own_required_time() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for sequence in 1..=2 {
        ledger.push(sequence, message("a", now), sequence);
    }
    assert_eq!(stamps(&mut ledger, now), [(1, 100), (2, 100)]);
    ledger.on_reply(too_old(2, 700), now);
    ledger.on_reply(too_old(1, 500), now);
    assert_eq!(stamps(&mut ledger, now + Duration::from_secs(1)), [(1, 500), (2, 700)]);
}

#[test]
fn r17_a_message_in_doubt_is_never_restamped() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    stamps(&mut ledger, now);
    ledger.connection_lost(now);
    stamps(&mut ledger, now);
    ledger.on_reply(too_old(1, 500), now);
    let (_, outcome) = ledger.take_completed().next().expect("it ends immediately");
    let Err(CallError::Unknown { id, code, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((id.created_ms, &*code), (100, "too-old"));
}

#[test]
fn a_stall_continues_when_the_connection_is_lost() {
    let (mut ledger, start) = (new_ledger(), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    let stuck = |since| Some(Stall { since, rejected_by_gateway: false });
    ledger.push(1, message("a", start), 1);
    sent(&mut ledger, start);
    ledger.on_reply(reply(1, Outcome::NotRun, "no-owner", true), start);
    ledger.connection_lost(after(1));
    sent(&mut ledger, after(3));
    assert_eq!(ledger.stall(), stuck(after(2)), "1 s on the lost connection; 2 s had none");
    ledger.connection_lost(after(4));
    sent(&mut ledger, after(4));
    assert_eq!(ledger.stall(), stuck(after(2)), "the times on lost connections add up");
    ledger.on_reply(reply(1, Outcome::NotRun, "mailbox-full", true), after(4));
    assert!(ledger.is_progressing(), "an entity's reply ends the stall");
    ledger.connection_lost(after(5));
    sent(&mut ledger, after(6));
    assert_eq!(ledger.stall(), stuck(after(6)), "a new stall");
}

#[test]
fn refusals_by_the_gateway_itself_are_no_progress() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    let stuck = |bounced| Some(Stall { since: now, rejected_by_gateway: bounced });
    for sequence in 1..=3 {
        ledger.push(sequence, message("a", now), sequence);
    }
    sent(&mut ledger, now);
    // The gateway's queue is full, and a deadline passed in it.
    ledger.on_reply(reply(1, Outcome::NotRun, "overloaded", true), now);
    ledger.on_reply(reply(2, Outcome::Unknown, "deadline-exceeded", true), now);
    assert_eq!((ledger.stall(), ledger.is_progressing()), (stuck(false), false));
    ledger.on_reply(reply(3, Outcome::NotRun, "no-owner", true), now);
    assert_eq!(ledger.stall(), stuck(true));
    let later = now + DEADLINE;
    ledger.tick(later);
    ledger.on_reply(reply(3, Outcome::NotRun, "deadline-exceeded", false), later);
    assert_eq!((ledger.stall(), ledger.is_progressing()), (None, false), "no call is unresolved");
    ledger.push(4, message("a", later), 4);
    sent(&mut ledger, later);
    assert_eq!(ledger.stall(), stuck(true));
    ledger.on_reply(reply(4, Outcome::NotRun, "mailbox-full", true), later);
    assert!(ledger.is_progressing());
}

#[test]
fn r17_a_query_in_doubt_delays_no_restamp() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    let mut query = message("a", now);
    query.envelope.kind = MessageKind::Query.into();
    ledger.push(2, query, 2);
    assert_eq!(stamps(&mut ledger, now), [(1, 100), (2, 100)]);
    ledger.on_reply(too_old(1, 500), now);
    ledger.connection_lost(now);
    let later = now + Duration::from_secs(1);
    assert_eq!(stamps(&mut ledger, later), [(1, 500), (2, 100)], "all copies of 2 have one stamp");
}

#[test]
fn r17_a_restamp_uses_the_time_of_a_later_message_in_doubt() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for (sequence, created) in [(1, 100), (2, 100), (3, 300)] {
        ledger.push(
            sequence,
            OutgoingMessage { created_ms: created, ..message("a", now) },
            sequence,
        );
    }
    assert_eq!(stamps(&mut ledger, now), [(1, 100), (2, 100), (3, 300)]);
    ledger.on_reply(too_old(1, 500), now);
    ledger.on_reply(reply(2, Outcome::NotRun, "out-of-order", true), now);
    ledger.connection_lost(now);
    let later = now + Duration::from_secs(1);
    // 3 waits for 1 at the entity: without this, neither would ever run.
    assert_eq!(stamps(&mut ledger, later), [(1, 300), (2, 300), (3, 300)]);
    ledger.on_reply(too_old(1, 500), later);
    ledger.on_reply(reply(2, Outcome::NotRun, "out-of-order", true), later);
    let later = later + Duration::from_secs(1);
    // 300 was not accepted, but 3 keeps it, and so does 1.
    assert_eq!(stamps(&mut ledger, later), [(1, 300), (2, 300)]);
    ledger.on_reply(too_old(1, 500), later);
    ledger.on_reply(too_old(3, 500), later);
    ledger.on_reply(reply(2, Outcome::NotRun, "out-of-order", true), later);
    let later = later + Duration::from_secs(1);
    assert_eq!(stamps(&mut ledger, later), [(2, 300)], "as 3 is given up, 1 ends");
    let ended: Vec<_> = ledger.take_completed().collect();
    assert!(matches!(ended[0], (3, Err(CallError::Unknown { .. }))), "{ended:?}");
    assert!(matches!(ended[1], (1, Err(CallError::NotRun { .. }))), "{ended:?}");
}

#[test]
fn r17_a_given_up_later_message_prevents_a_restamp() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, OutgoingMessage { deadline: now + DEADLINE * 3, ..message("a", now) }, 1);
    ledger.push(2, message("a", now), 2);
    stamps(&mut ledger, now);
    let later = now + DEADLINE;
    ledger.tick(later);
    assert_eq!(ledger.take_completed().count(), 1, "2 is given up, but may still run");
    ledger.on_reply(too_old(1, 500), later);
    assert_eq!(stamps(&mut ledger, later + Duration::from_secs(2)), []);
    let (_, outcome) = ledger.take_completed().next().expect("ended");
    assert!(matches!(outcome, Err(CallError::NotRun { .. })), "{outcome:?}");
}

#[test]
fn r17_a_reply_that_is_no_longer_kept_is_final() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, OutgoingMessage { is_resend: true, ..message("a", now) }, 1);
    stamps(&mut ledger, now);
    let ran =
        Reply { entity_version: 7, ..reply(1, Outcome::ReplyDropped, "reply-dropped", false) };
    ledger.on_reply(ran, now);
    let (_, outcome) = ledger.take_completed().next().expect("ended");
    assert!(matches!(outcome, Err(CallError::ReplyDropped { version: 7, .. })), "{outcome:?}");
    assert_eq!(ledger.settled(), 2);
}

#[test]
fn not_run_is_no_proof_once_a_copy_is_in_doubt() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    sent(&mut ledger, now);
    ledger.connection_lost(now);
    sent(&mut ledger, now);
    ledger.on_reply(reply(1, Outcome::NotRun, "unknown-method", false), now);
    assert_eq!(ledger.take_completed().count(), 0);
    ledger.tick(now + DEADLINE);
    let (_, outcome) = ledger.take_completed().next().expect("ended");
    assert!(matches!(outcome, Err(CallError::Unknown { .. })), "{outcome:?}");
}

#[test]
fn an_unanswered_query_is_never_in_doubt() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    let mut query = message("a", now);
    query.envelope.kind = MessageKind::Query.into();
    ledger.push(1, query, 1);
    sent(&mut ledger, now);
    ledger.tick(now + DEADLINE);
    let error = ledger.take_completed().next().expect("ended").1.expect_err("no answer");
    assert!(
        matches!(&error, CallError::Unanswered { cause, .. } if &**cause == "deadline-exceeded")
    );
    assert_eq!(error.code(), "query-unanswered");
    // There is no recorded outcome that could be requested.
    assert_eq!(ledger.settled(), 2);
}

#[test]
fn unknown_puts_a_message_in_doubt_until_a_final_reply() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    sent(&mut ledger, now);
    ledger.on_reply(reply(1, Outcome::Unknown, "store-unknown", false), now);
    let due = ledger.next_wake().expect("sent again");
    ledger.tick(due);
    assert_eq!(sent(&mut ledger, due).len(), 1);
    ledger.on_reply(reply(1, Outcome::Result, "", false), due);
    assert!(ledger.take_completed().next().expect("ended").1.is_ok());
    assert!(ledger.is_empty());
}

#[test]
fn an_unsent_or_refused_message_ends_as_not_run() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    ledger.push(2, message("a", now), 2);
    assert_eq!(ledger.next_to_send(now).expect("first").sequence, 1);
    ledger.on_reply(reply(1, Outcome::NotRun, "mailbox-full", true), now);
    ledger.tick(now + DEADLINE);
    let ended: Vec<_> = ledger.take_completed().collect();
    let codes: Vec<_> =
        ended.iter().map(|(_, outcome)| outcome.as_ref().expect_err("ended")).collect();
    assert!(codes.iter().all(|error| matches!(error, CallError::NotRun { .. })), "{codes:?}");
    assert_eq!(
        codes.iter().map(|e| e.code()).collect::<BTreeSet<_>>(),
        ["deadline-exceeded", "mailbox-full"].into()
    );
    assert_eq!(ledger.settled(), 3);
}

#[test]
fn a_given_up_message_delays_settled_but_not_after() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.push(1, message("a", now), 1);
    sent(&mut ledger, now);
    let later = now + DEADLINE;
    ledger.tick(later);
    assert_eq!(ledger.take_completed().count(), 1);
    ledger.push(2, message("a", later), 2);
    assert_eq!(sent(&mut ledger, later), [(2, 0, 1)]);
    ledger.on_reply(reply(2, Outcome::Result, "", false), later);
    ledger.tick(later + DOUBT_TIME);
    assert_eq!(ledger.settled(), 3);
}

#[test]
fn superseded_in_doubt_is_unknown_and_id_reused_is_not_run() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for sequence in [1, 2] {
        let again = OutgoingMessage { is_resend: true, ..message("a", now) };
        ledger.push(sequence, again, sequence);
    }
    sent(&mut ledger, now);
    ledger.on_reply(reply(1, Outcome::NotRun, "superseded", false), now);
    ledger.on_reply(reply(2, Outcome::NotRun, "id-reused", false), now);
    ledger.push(3, message("a", now), 3);
    sent(&mut ledger, now);
    ledger.on_reply(reply(3, Outcome::NotRun, "superseded", false), now);
    let ended: Vec<_> =
        ledger.take_completed().map(|(_, outcome)| outcome.expect_err("ended")).collect();
    assert!(matches!(ended[0], CallError::Unknown { .. }), "{ended:?}");
    assert!(matches!(ended[1], CallError::NotRun { .. }), "{ended:?}");
    assert!(matches!(ended[2], CallError::NotRun { .. }), "{ended:?}");
}

#[test]
fn a_reused_key_leaves_a_call_in_doubt_unknown() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    for (sequence, is_resend) in [(1, true), (2, false)] {
        ledger.push(sequence, OutgoingMessage { is_resend, ..message("a", now) }, sequence);
    }
    sent(&mut ledger, now);
    for sequence in [1, 2] {
        let refused = reply(sequence, Outcome::NotRun, "idempotency-key-reused", false);
        ledger.on_reply(refused, now);
    }
    let ended: Vec<_> =
        ledger.take_completed().map(|(_, outcome)| outcome.expect_err("ended")).collect();
    assert!(matches!(ended[0], CallError::Unknown { .. }), "a copy may still run: {ended:?}");
    assert!(matches!(ended[1], CallError::NotRun { .. }), "{ended:?}");
}

#[test]
fn the_window_counts_messages_that_were_given_up() {
    let (mut ledger, now) = (new_ledger(), Instant::now());
    ledger.set_limits(SessionLimits { messages: 2, ..SessionLimits::default() });
    for sequence in 1..=4 {
        ledger.push(sequence, message("a", now), sequence);
    }
    assert_eq!(sent(&mut ledger, now).len(), 2);
    let short = OutgoingMessage { deadline: now + DEADLINE * 2, ..message("a", now) };
    ledger.push(5, short, 5);
    ledger.tick(now + DEADLINE);
    assert_eq!(sent(&mut ledger, now + DEADLINE).len(), 0, "two are still in flight");
    ledger.on_reply(reply(1, Outcome::Result, "", false), now + DEADLINE);
    assert_eq!(sent(&mut ledger, now + DEADLINE).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Push(u8),
    Send,
    Reply(usize, u8),
    Break,
    Pass(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4_u8).prop_map(Step::Push),
        3 => Just(Step::Send),
        5 => (any::<usize>(), 0..8_u8).prop_map(|(which, how)| Step::Reply(which, how)),
        1 => Just(Step::Break),
        2 => (0..4_000_u16).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_agrees_with_a_model_in_random_runs(steps in steps()) {
        let mut ledger = new_ledger();
        ledger.set_limits(SessionLimits { messages: 8, ..SessionLimits::default() });
        let mut now = Instant::now();
        let mut next = 1;
        // The model: which messages are unresolved, in flight, or have ever had a copy in doubt.
        let mut unresolved: BTreeMap<u64, String> = BTreeMap::new();
        let mut flight: Vec<u64> = Vec::new();
        let mut doubt: BTreeSet<u64> = BTreeSet::new();
        let mut ended: BTreeSet<u64> = BTreeSet::new();
        // The creation time of every message's last copy.
        let mut created: BTreeMap<u64, u64> = BTreeMap::new();
        for step in steps.into_iter().chain([Step::Pass(30_000)]) {
            let mut over = Vec::new();
            match step {
                Step::Push(entity) => {
                    let entity = format!("e{entity}");
                    ledger.push(next, message(&entity, now), next);
                    unresolved.insert(next, entity);
                    next += 1;
                }
                Step::Send => {
                    let mut last = 0;
                    while let Some(envelope) = ledger.next_to_send(now).cloned() {
                        // A message that cannot be restamped ends while others are sent.
                        for (sequence, outcome) in ledger.take_completed() {
                            unresolved.remove(&sequence);
                            over.push((sequence, outcome));
                        }
                        let sequence = envelope.sequence;
                        prop_assert!(sequence > last, "in order");
                        last = sequence;
                        let after = unresolved
                            .iter()
                            .filter(|(s, entity)| **s < sequence && **entity == envelope.id)
                            .map(|(s, _)| *s)
                            .max()
                            .unwrap_or(0);
                        prop_assert_eq!(envelope.after, after);
                        let first = unresolved.keys().next().copied().unwrap_or(next);
                        prop_assert!(envelope.settled <= first);
                        prop_assert!(envelope.settled <= sequence);
                        if let Some(before) = created.insert(sequence, envelope.created_ms) {
                            let same = before == envelope.created_ms;
                            prop_assert!(same || !doubt.contains(&sequence), "same stamp in doubt");
                        }
                        for (other, stamp) in &created {
                            let of_entity = unresolved.get(other) == Some(&envelope.id);
                            let open = flight.contains(other) || doubt.contains(other);
                            if of_entity && open && *other > sequence {
                                prop_assert!(*stamp >= envelope.created_ms, "later ones cover it");
                            }
                        }
                        flight.push(sequence);
                        prop_assert!(flight.len() <= 8, "within the window");
                    }
                }
                Step::Reply(which, how) if !flight.is_empty() => {
                    let sequence = flight.remove(which % flight.len());
                    let (outcome, code, retryable) = match how {
                        0 | 1 => (Outcome::Result, "", false),
                        2 => (Outcome::ApplicationError, "refused", false),
                        3 => (Outcome::NotRun, "mailbox-full", true),
                        4 => (Outcome::NotRun, "unknown-method", false),
                        5 => (Outcome::Unknown, "store-unknown", true),
                        _ => (Outcome::NotRun, "too-old", false),
                    };
                    if outcome == Outcome::Unknown {
                        doubt.insert(sequence);
                    }
                    let answer = match how {
                        6 | 7 => too_old(sequence, 100 + 50 * sequence + u64::from(how)),
                        _ => reply(sequence, outcome, code, retryable),
                    };
                    ledger.on_reply(answer, now);
                }
                Step::Reply(..) => {}
                Step::Break => {
                    doubt.extend(flight.drain(..));
                    ledger.connection_lost(now);
                }
                Step::Pass(by) => {
                    now += Duration::from_millis(u64::from(by));
                    ledger.tick(now);
                }
            }
            over.extend(ledger.take_completed());
            for (sequence, outcome) in over {
                prop_assert!(ended.insert(sequence), "one outcome each");
                unresolved.remove(&sequence);
                match outcome {
                    Err(CallError::NotRun { .. }) => {
                        prop_assert!(!doubt.contains(&sequence) && !flight.contains(&sequence));
                    }
                    Err(CallError::Unknown { .. }) => {
                        prop_assert!(doubt.contains(&sequence) || flight.contains(&sequence));
                    }
                    _ => {}
                }
            }
        }
        prop_assert!(ledger.is_empty());
        prop_assert_eq!(ended.len() as u64, next - 1);
    }
}
