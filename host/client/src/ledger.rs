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

mod intake;
mod leave;
mod mutation;
mod noise;
mod outcome;
mod send;
mod stamp;
mod time;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ostraca_core::ids::Entity;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Problem};

use crate::call::{Answer, CallError, MessageId, SessionId};
pub use intake::{Intake, Refused};
pub use leave::{Patience, Stuck};
pub use mutation::Mutation;
use noise::Noise;
pub use time::ClusterTime;

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

/// How long a given-up message holds `settled` down.
pub const DOUBT_TIME: Duration = Duration::from_secs(60);
/// How many messages may follow a given-up one before it no longer does: lanes keep a reply each.
pub const DOUBT_MESSAGES: u64 = 1_024;

/// A message as its caller gave it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Whom it is for.
    pub entity: Entity,
    /// All but what the ledger fills in: sequence, after, settled, creation time, remaining time.
    pub envelope: Envelope,
    /// When it was called.
    pub called: Instant,
    /// Its creation time, in milliseconds of cluster time: not lower than those of earlier messages (R17).
    pub created: u64,
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
    /// It needs a stamp as high as this before it goes out again.
    restamp: Option<u64>,
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
    /// Since when messages are out and no entity was heard of.
    stuck: Option<Stuck>,
    /// Why nothing can be sent now, if so.
    absent: Option<Problem>,
    /// The highest stamp that was given anew.
    latest: u64,
    noise: Noise,
    /// Rules that are switched off, to see the oracle fail. Empty in production.
    mutations: Vec<Mutation>,
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
            stuck: None,
            absent: None,
            latest: 0,
            noise: Noise::new(seed),
            mutations: Vec::new(),
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

    /// The highest stamp that was given anew: later messages must not bear a lower one.
    #[must_use]
    pub fn latest_stamp(&self) -> u64 {
        self.latest
    }

    /// Since when messages are out and no entity has answered one, if so.
    #[must_use]
    pub fn stuck(&self) -> Option<Stuck> {
        self.stuck.filter(|_| !self.calls.is_empty())
    }

    /// Whether an entity has answered since anything was sent: then nothing is stuck.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.stuck.is_none()
    }

    /// Whether every message has its outcome.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Takes a message under a sequence: one above all earlier ones, or one that is sent again.
    pub fn push(&mut self, sequence: u64, mut message: Message, waiter: W) {
        if !message.again {
            // It was stamped before it came here; an earlier one may have been stamped anew since (R17).
            message.created = message.created.max(self.latest);
        }
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
            restamp: None,
            attempts: 0,
            bytes: 0,
            heard: None,
        };
        self.calls.insert(sequence, call);
    }

    /// The connection is gone: what was in flight is in doubt, and all is sent again, in order.
    pub fn connection_lost(&mut self) {
        self.stuck = None;
        self.messages_in_flight = 0;
        self.bytes_in_flight = 0;
        self.ghosts.clear();
        self.waiting.clear();
        let doubt = !self.off(Mutation::ForgetDoubt);
        for (sequence, call) in &mut self.calls {
            if call.state == State::InFlight {
                call.in_doubt |= doubt;
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
        let unread = |_: &u64| !self.off(Mutation::SettleUnread);
        let unresolved = self.calls.keys().next().copied().filter(unread);
        let given_up = self.given_up.first_key_value().map(|(sequence, _)| *sequence);
        self.next.min(unresolved.unwrap_or(u64::MAX)).min(given_up.unwrap_or(u64::MAX))
    }

    fn id(&self, sequence: u64) -> MessageId {
        let created = self.calls.get(&sequence).map_or(0, |call| call.message.created);
        MessageId { session: self.session, sequence, created }
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
