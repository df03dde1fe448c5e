//! Fuzzes histories of a client's ledger: calls, replies (genuine, lost, late or invented), broken connections, and
//! time.
//!
//! A small model tracks the copies in transit. Each call must complete exactly once; a call that completes as `not-run`
//! has no copy that may have run; and each sent message names its predecessor and a `settled` not above the unresolved
//! messages.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use ostraca_client::ledger::{Ledger, OutgoingMessage, SessionLimits};
use ostraca_client::{CallError, Entity, SessionId};
use ostraca_codes::{Code, codes};
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Outcome, Reply};

/// Fixed, so that an input always gives the same run.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

const CODES: [Code; 6] = [
    codes::REBALANCING,
    codes::DEADLINE_EXCEEDED,
    codes::SUPERSEDED,
    codes::ID_REUSED,
    codes::REPLY_TOO_LARGE,
    codes::MAILBOX_FULL,
];

#[derive(Default)]
struct Model {
    entities: BTreeMap<u64, u8>,
    /// Calls without an outcome, and whether a copy of each may have run or may still run.
    open: BTreeMap<u64, bool>,
    out: BTreeSet<u64>,
    /// The creation time with which each message was last sent.
    stamps: BTreeMap<u64, u64>,
}

fuzz_target!(|data: &[u8]| {
    let mut now = *BEGAN;
    let mut ledger: Ledger<u64> = Ledger::new(SessionId([1; 16]), 1, 42);
    ledger.set_limits(SessionLimits { messages: 4, ..SessionLimits::default() });
    let (mut model, mut next) = (Model::default(), 1);
    for step in data.chunks_exact(2) {
        let (what, with) = (step[0], step[1]);
        match what % 8 {
            0 | 1 => {
                let entity = Entity::new("counter", format!("e{}", with % 3));
                let envelope = Envelope { id: entity.id.to_string(), ..Envelope::default() };
                let deadline = now + Duration::from_millis(u64::from(with) * 4 + 1);
                let created = 1_000 + (now - *BEGAN).as_millis() as u64;
                let message =
                    OutgoingMessage { entity, envelope, created_ms: created, deadline, is_resend: false };
                ledger.push(next, message, next);
                model.open.insert(next, false);
                model.entities.insert(next, with % 3);
                next += 1;
            }
            2 | 3 => {
                while let Some(envelope) = ledger.next_to_send(now) {
                    let (sequence, entity) =
                        (envelope.sequence, model.entities[&envelope.sequence]);
                    assert!(model.open.contains_key(&sequence), "{sequence} has an outcome");
                    let before = model.open.range(..sequence).rev().map(|(before, _)| *before);
                    let after = before.filter(|before| model.entities[before] == entity).next();
                    assert_eq!(envelope.after, after.unwrap_or(0));
                    let first = model.open.keys().next().copied().unwrap_or(next);
                    assert!(envelope.settled <= first, "{} is settled", envelope.settled);
                    assert!(model.out.insert(sequence), "{sequence} is in transit twice");
                    // A copy of a message that may have run keeps its creation time (R17).
                    let stamp = envelope.created_ms;
                    let before = model.stamps.insert(sequence, stamp);
                    assert!(
                        before == Some(stamp) || !model.open[&sequence],
                        "{sequence} is restamped"
                    );
                }
            }
            4 | 5 => {
                let (sequence, kind) = (u64::from(with) % next.max(1), what / 8 % 5);
                let outcome = match kind {
                    0 => Outcome::Result,
                    1 => Outcome::ApplicationError,
                    2 => Outcome::Unknown,
                    _ => Outcome::NotRun,
                };
                let mut said = problem(CODES[usize::from(with / 8) % CODES.len()], "");
                said.retryable = kind == 3;
                let lost = said.code == codes::REPLY_TOO_LARGE;
                let problem = (outcome != Outcome::Result).then_some(said);
                let reply =
                    Reply { sequence, outcome: outcome.into(), problem, ..Reply::default() };
                if model.out.remove(&sequence)
                    && (outcome == Outcome::Unknown || (lost && outcome != Outcome::NotRun))
                {
                    model.open.entry(sequence).and_modify(|doubt| *doubt = true);
                }
                ledger.on_reply(reply, now);
            }
            6 => {
                ledger.connection_lost(now);
                for sequence in std::mem::take(&mut model.out) {
                    model.open.entry(sequence).and_modify(|doubt| *doubt = true);
                }
            }
            _ => {
                now += Duration::from_millis(u64::from(with));
                ledger.tick(now);
            }
        }
        ended(&mut ledger, &mut model);
        assert_eq!(ledger.is_empty(), model.open.is_empty());
    }
    ledger.complete_all(&problem(codes::CLIENT_CLOSED, ""), now);
    ended(&mut ledger, &mut model);
    assert!(model.open.is_empty(), "without an outcome: {:?}", model.open);
});

fn ended(ledger: &mut Ledger<u64>, model: &mut Model) {
    for (sequence, outcome) in ledger.take_completed() {
        let doubt = model.open.remove(&sequence).expect("a call completes once");
        let out = model.out.contains(&sequence);
        if let Err(CallError::NotRun { code, .. }) = outcome {
            // The id belongs to another message: this one has not run, whatever happened to the other.
            assert!(!(doubt || out) || &*code == "id-reused", "{sequence} may have run: {code}");
        }
    }
}
