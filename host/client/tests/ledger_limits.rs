//! The ledger of a session, condition by condition: pauses, windows, sizes, and what ends a call.

use std::time::{Duration, Instant};

use ostraca_client::ledger::{DOUBT_TIME, Ledger, OutgoingMessage, SessionLimits};
use ostraca_client::{CallError, Entity, SessionId};
use ostraca_codes::codes;
use ostraca_wire::problem;
use ostraca_wire::proto::problem::Hint;
use ostraca_wire::proto::{Envelope, Outcome, Reply};
use prost::Message as _;

const DEADLINE: Duration = Duration::from_secs(100);

fn message(body: usize, now: Instant) -> OutgoingMessage {
    let entity = Entity::new("counter", "a");
    let envelope =
        Envelope { id: entity.id.to_string(), body: vec![7; body].into(), ..Envelope::default() };
    let deadline = now + DEADLINE;
    OutgoingMessage { entity, envelope, created_ms: 100, deadline, is_resend: false }
}

fn reply(sequence: u64, outcome: Outcome, retryable: bool, retry_after_ms: u32) -> Reply {
    let mut refusal = problem(codes::OVERLOADED, "");
    (refusal.retryable, refusal.retry_after_ms) = (retryable, retry_after_ms);
    let problem = (outcome != Outcome::Result).then_some(refusal);
    Reply { sequence, outcome: outcome.into(), problem, ..Reply::default() }
}

/// A ledger with one message in flight.
fn out(seed: u64, now: Instant) -> Ledger<u64> {
    let mut ledger = Ledger::new(SessionId([1; 16]), 1, seed);
    ledger.push(1, message(10, now), 1);
    assert!(ledger.next_to_send(now).is_some());
    ledger
}

fn ended(ledger: &mut Ledger<u64>) -> Vec<u64> {
    ledger.take_completed().map(|(waiter, _)| waiter).collect()
}

#[test]
fn a_message_that_did_not_run_is_resent_if_retryable() {
    let now = Instant::now();
    for (retryable, after, again) in
        [(false, 0, false), (true, 0, true), (false, 1, true), (false, 500, true)]
    {
        let mut ledger = out(1, now);
        ledger.on_reply(reply(1, Outcome::NotRun, retryable, after), now);
        assert_eq!(ledger.next_wake().is_some() && !ledger.is_empty(), again, "{after}");
        assert_eq!(ended(&mut ledger).is_empty(), again);
    }
}

#[test]
fn retry_delays_double_up_to_a_second_with_jitter() {
    let now = Instant::now();
    let mut shares = Vec::new();
    for seed in 1..200 {
        let mut ledger = out(seed, now);
        let mut at = now;
        for full in [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000] {
            ledger.on_reply(reply(1, Outcome::NotRun, true, 0), at);
            let due = ledger.next_wake().expect("it will be resent");
            let (wait, full) = (due - at, Duration::from_millis(full));
            assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
            shares.push((wait - full / 2).as_secs_f64() / (full / 2).as_secs_f64());
            at = due;
            ledger.tick(at);
            assert!(ledger.next_to_send(at).is_some());
        }
        ledger.on_reply(reply(1, Outcome::NotRun, true, 5_000), at);
        assert_eq!(ledger.next_wake(), Some(at + Duration::from_secs(5)), "when the node asked");
    }
    for tenth in 0..10 {
        let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
        let share = shares.iter().filter(|share| (from..to).contains(*share)).count();
        let even = shares.len() / 10;
        assert!((even / 2..2 * even).contains(&share), "{share} of {} from {from}", shares.len());
    }
}

#[test]
fn bodies_and_messages_may_be_as_large_as_the_node_allows() {
    let now = Instant::now();
    let sent = |body: usize, window: SessionLimits| {
        let mut ledger = Ledger::new(SessionId([1; 16]), 1, 1);
        ledger.set_limits(window);
        ledger.push(1, message(body, now), 1_u64);
        let sent = ledger.next_to_send(now).is_some();
        assert_eq!(ended(&mut ledger).is_empty(), sent, "it is sent, or ends");
        sent
    };
    let bodies = SessionLimits { max_message: 1_000, ..SessionLimits::default() };
    assert_eq!(
        [999, 1_000, 1_001, 5_000].map(|body| sent(body, bodies)),
        [true, true, false, false]
    );
    // The envelope takes some bytes, and 64 are reserved for what is filled in.
    let frames = SessionLimits { max_frame: 1_000, ..SessionLimits::default() };
    let most = (0..1_000).rev().find(|body| sent(*body, frames)).expect("small bodies fit");
    assert!((900..=936).contains(&most), "{most}");
    assert!(!sent(most + 1, frames) && !sent(5_000, frames) && sent(0, frames));
    let tight = SessionLimits { max_frame: 64, ..SessionLimits::default() };
    assert!(!sent(0, tight), "no space is left for the message");
}

#[test]
fn a_reply_frees_room_in_the_window() {
    let now = Instant::now();
    let mut ledger = Ledger::new(SessionId([1; 16]), 1, 1);
    // Any single message fills the window.
    ledger.set_limits(SessionLimits { bytes: 1, ..SessionLimits::default() });
    for sequence in 1..=3 {
        ledger.push(sequence, message(10, now), sequence);
    }
    for sequence in 1..=3 {
        assert_eq!(ledger.next_to_send(now).map(|sent| sent.sequence), Some(sequence));
        assert!(ledger.next_to_send(now).is_none(), "the window is full");
        ledger.on_reply(reply(sequence, Outcome::Result, false, 0), now);
    }
}

#[test]
fn a_message_that_exactly_fills_a_frame_is_sent() {
    let now = Instant::now();
    let envelope = message(10, now).envelope;
    let most = u32::try_from(envelope.encoded_len()).expect("small") + 64;
    for (max_frame, goes) in [(most, true), (most - 1, false)] {
        let mut ledger = Ledger::new(SessionId([1; 16]), 1, 1);
        ledger.set_limits(SessionLimits { max_frame, ..SessionLimits::default() });
        ledger.push(1, message(10, now), 1_u64);
        assert_eq!(ledger.next_to_send(now).is_some(), goes);
    }
}

/// A refusal of a creation time that names an acceptable one.
fn too_old(sequence: u64, stamp: u64) -> Reply {
    let mut refused = reply(sequence, Outcome::NotRun, false, 0);
    let mut problem = problem(codes::TOO_OLD, "");
    problem.hint = Some(Hint::CreatedMs(stamp));
    refused.problem = Some(problem);
    refused
}

#[test]
fn r17_a_restamp_takes_only_a_later_time() {
    let now = Instant::now();
    for (stamp, again) in [(99, false), (100, false), (101, true)] {
        let mut ledger = out(1, now);
        ledger.on_reply(too_old(1, stamp), now);
        assert_eq!(ended(&mut ledger).is_empty(), again, "{stamp}");
    }
}

#[test]
fn r17_an_earlier_given_up_message_blocks_no_restamp() {
    let now = Instant::now();
    let mut ledger = out(1, now);
    ledger.connection_lost(now);
    let later = now + DEADLINE;
    ledger.tick(later);
    assert_eq!(ended(&mut ledger), [1], "given up");
    ledger.push(2, OutgoingMessage { deadline: later + DEADLINE, ..message(10, later) }, 2);
    assert_eq!(ledger.next_to_send(later).map(|sent| sent.sequence), Some(2));
    ledger.on_reply(too_old(2, 500), later);
    let later = later + Duration::from_secs(1);
    ledger.tick(later);
    let sent = ledger.next_to_send(later).map(|sent| (sent.sequence, sent.created_ms));
    assert_eq!(sent, Some((2, 500)));
}

#[test]
fn a_reply_to_an_earlier_copy_counts_only_if_final() {
    let now = Instant::now();
    let mut ledger = out(1, now);
    ledger.connection_lost(now);
    ledger.on_reply(reply(1, Outcome::NotRun, false, 0), now);
    assert_eq!(ended(&mut ledger), [0_u64; 0], "the reply is to an obsolete copy");
    assert!(!ledger.is_empty());
    ledger.on_reply(reply(1, Outcome::Result, false, 0), now);
    assert_eq!(ended(&mut ledger), [1]);
    assert!(ledger.is_empty());
}

#[test]
fn closing_the_client_ends_all_pending_calls() {
    let now = Instant::now();
    let mut ledger = out(1, now);
    ledger.push(2, message(10, now), 2);
    assert!(!ledger.is_empty());
    ledger.complete_all(&problem(codes::CLIENT_CLOSED, "the client closes"), now);
    assert_eq!(ended(&mut ledger), [1, 2]);
    assert!(ledger.is_empty());
}

#[test]
fn an_unsent_message_ends_with_the_connection_problem() {
    let now = Instant::now();
    let mut ledger = Ledger::new(SessionId([1; 16]), 1, 1);
    ledger.push(1, message(10, now), 1_u64);
    ledger.set_not_connected(Some(problem(codes::NO_GATEWAY, "nobody answers")));
    ledger.tick(now + DEADLINE);
    let (_, outcome) = ledger.take_completed().next().expect("its deadline passed");
    assert!(
        matches!(&outcome, Err(CallError::NotRun { code, .. }) if &**code == "no-gateway"),
        "{outcome:?}"
    );
}

#[test]
fn a_given_up_message_bounds_settled_by_time_and_count() {
    let now = Instant::now();
    let settled = |passed: Duration, pushed: u64| {
        let mut ledger = out(1, now);
        ledger.connection_lost(now);
        ledger.tick(now + DEADLINE);
        let at = now + DEADLINE + passed;
        ledger.set_limits(SessionLimits { messages: 10_000, ..SessionLimits::default() });
        for sequence in 2..2 + pushed {
            let deadline = at + DEADLINE;
            ledger.push(sequence, OutgoingMessage { deadline, ..message(1, at) }, sequence);
        }
        ledger.tick(at);
        ledger.next_to_send(at).expect("it is sent").settled
    };
    assert_eq!(settled(DOUBT_TIME - Duration::from_millis(1), 5), 1);
    assert_eq!(settled(DOUBT_TIME, 5), 2);
    assert_eq!(settled(Duration::ZERO, 1_023), 1);
    assert_eq!(settled(Duration::ZERO, 1_024), 2);
}
