//! A session's books, sans-IO: which messages are unresolved, what goes out next, how each ends.
//!
//! It takes messages, replies, broken connections and the time, and gives envelopes to send and
//! outcomes. A message is *unresolved* from its call to its outcome. It is *in doubt* once a copy of
//! it was sent whose fate is not known: the connection broke, or a node answered `unknown`. From then
//! on a `not-run` for another copy proves nothing, and only a final reply ends it before its
//! deadline (R16).
//!
//! A call that ended `unknown` is *given up*: it no longer counts for `after` (a message that never
//! arrived must not hold its successors), yet it holds `settled` down for a while, so that its
//! recorded outcome can still be asked for under its id.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ostraca_sharding::ids::Entity;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Kind, Outcome, Problem, Reply};
use prost::Message as _;

use crate::call::{Answer, CallError, MessageId, SessionId};

/// What of a session may be in flight, as the node announced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Messages without a reply.
    pub messages: u32,
    /// Bytes of their envelopes.
    pub bytes: u64,
    /// Bytes of a body.
    pub max_message: u32,
    /// Bytes of an envelope.
    pub max_frame: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            messages: 256,
            bytes: 8 << 20,
            max_message: 1 << 20,
            max_frame: (1 << 20) + (64 << 10),
        }
    }
}

/// The first wait before a message is sent again; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// The longest, unless a node asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long a given-up message holds `settled` down.
pub const DOUBT_TIME: Duration = Duration::from_secs(60);
/// How many messages may follow a given-up one before it no longer does: lanes keep a reply each.
pub const DOUBT_MESSAGES: u64 = 1_024;

/// Outcomes that no further copy can better: what ran cannot be told any more. (`superseded` says that
/// this copy did not run: proof, if it was the only one.)
const LOST_FOR_GOOD: [&str; 2] = ["superseded", "reply-too-large"];
/// The id stands for another message: this one has not run, whatever became of that one.
const OTHER_MESSAGE: &str = "id-reused";

/// A message as its caller gave it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Whom it is for.
    pub entity: Entity,
    /// All but what the ledger fills in: sequence, after, settled, age, remaining time.
    pub envelope: Envelope,
    /// When it was called.
    pub called: Instant,
    /// How old it was then: it was sent before, in an earlier life of the session.
    pub age: Duration,
    /// When its caller stops waiting (R22).
    pub deadline: Instant,
    /// It was sent in an earlier life of the session: in doubt from the start.
    pub again: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Goes out as soon as the window lets it.
    Ready,
    /// Sent on the standing connection, without a reply.
    InFlight,
    /// Sent again at this time.
    Waiting(Instant),
}

#[derive(Debug)]
struct Call<W> {
    message: Message,
    waiter: W,
    state: State,
    in_doubt: bool,
    /// How long the machine had slept by the time it was called.
    slept: Duration,
    attempts: u32,
    /// Bytes it takes of the window while it is in flight.
    bytes: u64,
    /// The last that was heard of it.
    heard: Option<Problem>,
}

/// The books. `W` is whatever the caller wants back with the outcome.
#[derive(Debug)]
pub struct Ledger<W> {
    session: SessionId,
    /// Above every sequence so far.
    next: u64,
    window: Window,
    calls: BTreeMap<u64, Call<W>>,
    by_entity: HashMap<Entity, BTreeSet<u64>>,
    ready: BTreeSet<u64>,
    waiting: BTreeSet<(Instant, u64)>,
    deadlines: BTreeSet<(Instant, u64)>,
    given_up: BTreeMap<u64, Instant>,
    /// In flight and given up: their replies still free the window.
    ghosts: HashMap<u64, Vec<u64>>,
    messages_in_flight: u32,
    bytes_in_flight: u64,
    ended: Vec<(W, Result<Answer, CallError>)>,
    /// Why nothing can be sent now, if so.
    absent: Option<Problem>,
    /// How long the machine has slept, on the clock that [`Instant`] does not count.
    slept: Duration,
    noise: u64,
}

impl<W> Ledger<W> {
    /// Books of a session whose next message is `next`. `seed` spreads the waits before retries.
    #[must_use]
    pub fn new(session: SessionId, next: u64, seed: u64) -> Self {
        Self {
            session,
            next: next.max(1),
            window: Window::default(),
            calls: BTreeMap::new(),
            by_entity: HashMap::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            given_up: BTreeMap::new(),
            ghosts: HashMap::new(),
            messages_in_flight: 0,
            bytes_in_flight: 0,
            ended: Vec::new(),
            absent: None,
            slept: Duration::ZERO,
            noise: seed | 1,
        }
    }

    /// What the node that is connected takes.
    pub fn set_window(&mut self, window: Window) {
        self.window = window;
    }

    /// Says why nothing can be sent now, or that it can: what never left ends for that reason.
    pub fn set_absent(&mut self, why: Option<Problem>) {
        self.absent = why;
    }

    /// Says how long the machine has slept in all: that much older is what was called before (R17). [`Instant`] stands
    /// still meanwhile, and so do the waits and deadlines here.
    pub fn set_slept(&mut self, slept: Duration) {
        self.slept = self.slept.max(slept);
    }

    /// Whether every message has its outcome.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes a message under a sequence: one above all earlier ones, or one that is sent again.
    pub fn push(&mut self, sequence: u64, message: Message, waiter: W) {
        if self.calls.contains_key(&sequence) {
            let text = "a message with this id is being sent already";
            let id = self.id(sequence);
            let error = CallError::not_run(id, problem("already-waiting", text));
            self.ended.push((waiter, Err(error)));
            return;
        }
        self.next = self.next.max(sequence.saturating_add(1));
        self.given_up.remove(&sequence);
        let in_doubt = message.again;
        self.by_entity.entry(message.entity.clone()).or_default().insert(sequence);
        self.deadlines.insert((message.deadline, sequence));
        self.ready.insert(sequence);
        let call = Call {
            message,
            waiter,
            state: State::Ready,
            in_doubt,
            slept: self.slept,
            attempts: 0,
            bytes: 0,
            heard: None,
        };
        self.calls.insert(sequence, call);
    }

    /// The lowest message that is ready, if the window has room: it counts as sent from now on.
    pub fn next_to_send(&mut self, now: Instant) -> Option<&Envelope> {
        let sequence = loop {
            if self.messages_in_flight >= self.window.messages
                || self.bytes_in_flight >= self.window.bytes
            {
                return None;
            }
            let sequence = self.ready.pop_first()?;
            match self.too_large(sequence) {
                Some(problem) => self.end_without_answer(sequence, problem, now),
                None => break sequence,
            }
        };
        let after = self.after(sequence);
        let settled = self.settled();
        let call = self.calls.get_mut(&sequence)?;
        call.state = State::InFlight;
        let envelope = &mut call.message.envelope;
        envelope.sequence = sequence;
        envelope.after = after;
        envelope.settled = settled;
        let awake = now.saturating_duration_since(call.message.called);
        let asleep = self.slept.saturating_sub(call.slept);
        envelope.age_ms = millis(call.message.age.saturating_add(awake).saturating_add(asleep));
        // 0 would say that there is no deadline.
        envelope.remaining_ms = millis(call.message.deadline.saturating_duration_since(now)).max(1);
        call.bytes = envelope.encoded_len() as u64;
        self.messages_in_flight += 1;
        self.bytes_in_flight += call.bytes;
        Some(&call.message.envelope)
    }

    /// Takes a reply. One to a message that has its outcome changes nothing.
    pub fn reply(&mut self, reply: Reply, now: Instant) {
        let sequence = reply.sequence;
        let outcome = reply.outcome();
        if let Some(mut copies) = self.ghosts.remove(&sequence) {
            self.landed(copies.pop().unwrap_or(0));
            if !copies.is_empty() {
                self.ghosts.insert(sequence, copies);
            }
            if outcome == Outcome::Result || outcome == Outcome::Error {
                self.given_up.remove(&sequence);
            }
        }
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        if call.state == State::InFlight {
            let bytes = call.bytes;
            call.state = State::Ready;
            self.landed(bytes);
        } else if outcome != Outcome::Result && outcome != Outcome::Error {
            // Of a copy that does not matter any more.
            return;
        }
        let id = self.id(sequence);
        let said = reply.problem.unwrap_or_default();
        match outcome {
            Outcome::Result => {
                let answer = Answer {
                    id,
                    version: reply.entity_version,
                    kind: Kind::try_from(reply.kind).unwrap_or_default(),
                    content_type: reply.content_type,
                    body: reply.body,
                };
                self.end(sequence, Ok(answer));
            }
            Outcome::Error => {
                let (code, message) = (said.code.into(), said.message.into());
                let version = reply.entity_version;
                self.end(sequence, Err(CallError::Application { id, code, message, version }));
            }
            _ if LOST_FOR_GOOD.contains(&said.code.as_str()) => {
                if outcome != Outcome::NotRun
                    && let Some(call) = self.calls.get_mut(&sequence)
                {
                    call.in_doubt = true;
                }
                self.end_without_answer(sequence, said, now);
            }
            Outcome::NotRun if said.code == OTHER_MESSAGE => {
                self.end(sequence, Err(CallError::not_run(id, said)));
            }
            Outcome::NotRun => self.not_run(sequence, said, now),
            Outcome::Unknown | Outcome::Unspecified => {
                if let Some(call) = self.calls.get_mut(&sequence) {
                    call.in_doubt = true;
                }
                self.again(sequence, said, now);
            }
        }
    }

    /// The connection is gone: what was in flight is in doubt, and all is sent again, in order.
    pub fn connection_lost(&mut self) {
        self.messages_in_flight = 0;
        self.bytes_in_flight = 0;
        self.ghosts.clear();
        self.waiting.clear();
        for (sequence, call) in &mut self.calls {
            if call.state == State::InFlight {
                call.in_doubt = true;
                call.heard =
                    Some(problem("connection-lost", "the connection broke before the reply"));
            }
            call.state = State::Ready;
            self.ready.insert(*sequence);
        }
    }

    /// Lets time pass: waits end, deadlines end calls.
    pub fn tick(&mut self, now: Instant) {
        while let Some(sequence) = pop_due(&mut self.waiting, now) {
            if let Some(call) = self.calls.get_mut(&sequence) {
                call.state = State::Ready;
                self.ready.insert(sequence);
            }
        }
        while let Some(sequence) = pop_due(&mut self.deadlines, now) {
            let heard = self.calls.get_mut(&sequence).and_then(|call| call.heard.take());
            let why = heard
                .or_else(|| self.absent.clone())
                .unwrap_or_else(|| problem("deadline", "no reply within the deadline"));
            self.end_without_answer(sequence, why, now);
        }
        let next = self.next;
        self.given_up.retain(|sequence, since| {
            now.saturating_duration_since(*since) < DOUBT_TIME && next - sequence <= DOUBT_MESSAGES
        });
    }

    /// Ends every call, as when the client closes.
    pub fn end_all(&mut self, why: &Problem, now: Instant) {
        while let Some((sequence, _)) = self.calls.first_key_value() {
            self.end_without_answer(*sequence, why.clone(), now);
        }
    }

    /// When [`Ledger::tick`] has something to do, if nothing else happens.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let first = |set: &BTreeSet<(Instant, u64)>| set.first().map(|(due, _)| *due);
        match (first(&self.waiting), first(&self.deadlines)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// What ended since the last time.
    pub fn take_ended(&mut self) -> std::vec::Drain<'_, (W, Result<Answer, CallError>)> {
        self.ended.drain(..)
    }

    /// Below this, all of the session's sequences are resolved (R17).
    #[must_use]
    pub fn settled(&self) -> u64 {
        let unresolved = self.calls.first_key_value().map(|(sequence, _)| *sequence);
        let given_up = self.given_up.first_key_value().map(|(sequence, _)| *sequence);
        self.next.min(unresolved.unwrap_or(u64::MAX)).min(given_up.unwrap_or(u64::MAX))
    }

    /// The last unresolved sequence below `sequence` to the same entity; 0: none (R17).
    fn after(&self, sequence: u64) -> u64 {
        self.calls
            .get(&sequence)
            .and_then(|call| self.by_entity.get(&call.message.entity))
            .and_then(|lane| lane.range(..sequence).next_back())
            .copied()
            .unwrap_or(0)
    }

    fn too_large(&self, sequence: u64) -> Option<Problem> {
        let envelope = &self.calls.get(&sequence)?.message.envelope;
        // What is filled in when it is sent takes at most so much.
        const FILLED_IN: usize = 64;
        let (size, body) = (envelope.encoded_len() + FILLED_IN, envelope.body.len());
        let (what, size, limit, setting) = if body > self.window.max_message as usize {
            ("body", body, self.window.max_message, "max_message")
        } else if size > self.window.max_frame as usize {
            ("message", size, self.window.max_frame, "max_frame")
        } else {
            return None;
        };
        let text = format!("a {what} of {size} bytes: the node takes {limit} (`{setting}`)");
        let mut large = problem("message-too-large", text);
        large.details.insert("setting".into(), setting.into());
        large.details.insert("limit".into(), limit.to_string());
        Some(large)
    }

    fn not_run(&mut self, sequence: u64, said: Problem, now: Instant) {
        let Some(call) = self.calls.get(&sequence) else { return };
        if call.in_doubt || said.retryable || said.retry_after_ms > 0 {
            self.again(sequence, said, now);
        } else {
            let error = CallError::not_run(self.id(sequence), said);
            self.end(sequence, Err(error));
        }
    }

    /// Sends it again after a wait, if its deadline lets it.
    fn again(&mut self, sequence: u64, said: Problem, now: Instant) {
        let noise = self.noise();
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        let full = FIRST_WAIT.saturating_mul(1 << call.attempts.min(10)).min(LONGEST_WAIT);
        // Between half of it and all of it, and never before the node asked for it.
        let wait = full.mul_f64(0.5 + noise / 2.0).max(Duration::from_millis(said.retry_after_ms));
        call.attempts += 1;
        let due = now + wait;
        if due >= call.message.deadline {
            self.end_without_answer(sequence, said, now);
            return;
        }
        call.state = State::Waiting(due);
        call.heard = Some(said);
        self.waiting.insert((due, sequence));
    }

    /// Ends a call by what is known of its copies: `not-run` if all of them are known not to have run.
    fn end_without_answer(&mut self, sequence: u64, why: Problem, now: Instant) {
        let Some(call) = self.calls.get(&sequence) else { return };
        if call.in_doubt || call.state == State::InFlight {
            self.give_up(sequence, why, now);
        } else {
            let error = CallError::not_run(self.id(sequence), why);
            self.end(sequence, Err(error));
        }
    }

    fn give_up(&mut self, sequence: u64, why: Problem, now: Instant) {
        let error = CallError::unknown(self.id(sequence), why);
        self.given_up.insert(sequence, now);
        self.end(sequence, Err(error));
    }

    fn end(&mut self, sequence: u64, outcome: Result<Answer, CallError>) {
        let Some(call) = self.calls.remove(&sequence) else { return };
        match call.state {
            State::Ready => {
                self.ready.remove(&sequence);
            }
            State::Waiting(due) => {
                self.waiting.remove(&(due, sequence));
            }
            State::InFlight => {
                self.ghosts.entry(sequence).or_default().push(call.bytes);
            }
        }
        self.deadlines.remove(&(call.message.deadline, sequence));
        if let Some(lane) = self.by_entity.get_mut(&call.message.entity) {
            lane.remove(&sequence);
            if lane.is_empty() {
                self.by_entity.remove(&call.message.entity);
            }
        }
        self.ended.push((call.waiter, outcome));
    }

    fn landed(&mut self, bytes: u64) {
        self.messages_in_flight -= 1;
        self.bytes_in_flight -= bytes;
    }

    fn id(&self, sequence: u64) -> MessageId {
        MessageId { session: self.session, sequence }
    }

    /// From 0 to 1; xorshift, which is noise enough to spread retries.
    fn noise(&mut self) -> f64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        (self.noise >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn pop_due(set: &mut BTreeSet<(Instant, u64)>, now: Instant) -> Option<u64> {
    let (due, sequence) = *set.first()?;
    if due > now {
        return None;
    }
    set.pop_first();
    Some(sequence)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
