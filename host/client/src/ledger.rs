//! The sans-IO state machine of a session: tracks unresolved messages, and decides what to send next and how each call
//! ends.
//!
//! Its inputs are messages, replies, lost connections and the time; its outputs are envelopes to send and outcomes. A
//! message is *unresolved* from its call to its outcome. It is *in doubt* as soon as the fate of a copy is unknown: the
//! connection broke, or a node replied `unknown`. From then on, `not-run` for another copy proves nothing, and only a
//! final reply ends the call before its deadline (R16).
//!
//! A call that ended as `unknown` is *given up*. It no longer counts for `after`, since a message that never arrived
//! must not delay its successors. It still holds `settled` down for a while, so that its recorded outcome can be
//! requested under its id.

mod admission;
mod gateway_switch;
mod jitter;
mod mutation;
mod outcome;
mod restamp;
mod send;
mod time;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_wire::flags::SENT_ONCE;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Problem};

use crate::call::{CallError, MessageId, Reply, SessionId};
pub use admission::{AdmissionError, CallAdmission};
pub use gateway_switch::{Stall, SwitchTimer};
use jitter::JitterRng;
pub use mutation::Mutation;
pub use time::ClusterTime;

/// The limits on what a session has in flight, as the node announced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum number of messages without a reply.
    pub messages: u32,
    /// Maximum total size of their envelopes in bytes.
    pub bytes: u64,
    /// Maximum size of a body in bytes.
    pub max_message: u32,
    /// Maximum size of an envelope in bytes.
    pub max_frame: u32,
}

impl Default for SessionLimits {
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
/// How many messages may follow a given-up one before it stops holding `settled` down: lanes keep a reply for each of
/// them.
pub const DOUBT_MESSAGES: u64 = 1_024;

/// A message as its caller submitted it.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// The entity that it is for.
    pub entity: Entity,
    /// The message without what the ledger fills in: sequence, after, settled, creation time, remaining time.
    pub envelope: Envelope,
    /// Its creation time, in milliseconds of cluster time: not lower than those of earlier messages (R17).
    pub created_ms: u64,
    /// When its caller stops waiting (R22).
    pub deadline: Instant,
    /// Whether an earlier process may have sent it: then it is in doubt from the start.
    pub is_resend: bool,
}

impl OutgoingMessage {
    /// Whether no other copy may be sent once one may have run (K18).
    fn is_sent_once(&self) -> bool {
        self.envelope.flags & SENT_ONCE != 0
    }
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// To be sent as soon as the window has capacity.
    Ready,
    /// Sent on the current connection, without a reply.
    InFlight,
    /// To be sent again at this time.
    Backoff(Instant),
}

#[derive(Debug)]
struct PendingCall<W> {
    message: OutgoingMessage,
    waiter: W,
    state: State,
    in_doubt: bool,
    /// The lowest creation time with which it may be sent again, if it needs a new one.
    restamp: Option<u64>,
    attempts: u32,
    /// Bytes of the window that it occupies while in flight.
    bytes: u64,
    /// The last problem that was reported for it.
    last_problem: Option<Problem>,
}

/// The ledger of a session. `W` is whatever the caller wants back with the outcome.
#[derive(Debug)]
pub struct Ledger<W> {
    session: SessionId,
    /// Higher than every sequence so far.
    next: u64,
    limits: SessionLimits,
    calls: BTreeMap<u64, PendingCall<W>>,
    by_entity: HashMap<Entity, BTreeSet<u64>>,
    ready: BTreeSet<u64>,
    retry_at: BTreeSet<(Instant, u64)>,
    deadlines: BTreeSet<(Instant, u64)>,
    given_up: BTreeMap<u64, Instant>,
    /// By sequence, the sizes of copies that were in flight when the call ended: their replies still free the window.
    orphaned_copies: HashMap<u64, Vec<u64>>,
    messages_in_flight: u32,
    bytes_in_flight: u64,
    completed: Vec<(W, Result<Reply, CallError>)>,
    /// Set from the time a message is sent until an entity answers or the connection is lost.
    stall: Option<Stall>,
    /// How long the same stall lasted on connections that were lost: no entity has answered since.
    stalled_before: Duration,
    /// Why nothing can be sent now; `None` if messages can be sent.
    not_connected: Option<Problem>,
    /// The highest creation time of a restamped message.
    highest_restamp: u64,
    noise: JitterRng,
    /// Rules that a test disables to see the oracle fail.
    #[cfg(feature = "testing")]
    mutations: Vec<Mutation>,
}

impl<W> Ledger<W> {
    /// The ledger of a session whose next message has the sequence `next`. `seed` randomises the pauses before retries.
    #[must_use]
    pub fn new(session: SessionId, next: u64, seed: u64) -> Self {
        Self {
            session,
            next: next.max(1),
            limits: SessionLimits::default(),
            calls: BTreeMap::new(),
            by_entity: HashMap::new(),
            ready: BTreeSet::new(),
            retry_at: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            given_up: BTreeMap::new(),
            orphaned_copies: HashMap::new(),
            messages_in_flight: 0,
            bytes_in_flight: 0,
            completed: Vec::new(),
            stall: None,
            stalled_before: Duration::ZERO,
            not_connected: None,
            highest_restamp: 0,
            noise: JitterRng::new(seed),
            #[cfg(feature = "testing")]
            mutations: Vec::new(),
        }
    }

    /// Sets the limits to those of the connected node.
    pub fn set_limits(&mut self, window: SessionLimits) {
        self.limits = window;
    }

    /// Sets the reason why nothing can be sent now, or `None` if messages can be sent. Messages that were never sent
    /// end with this reason.
    pub fn set_not_connected(&mut self, why: Option<Problem>) {
        self.not_connected = why;
    }

    /// The highest creation time of a restamped message. Later messages must not have a lower one.
    #[must_use]
    pub fn highest_restamp(&self) -> u64 {
        self.highest_restamp
    }

    /// The current stall: messages were sent, and no entity has answered since. `None` if no call is unresolved.
    #[must_use]
    pub fn stall(&self) -> Option<Stall> {
        self.stall.filter(|_| !self.calls.is_empty())
    }

    /// Whether there is no stall. Unlike in [`Ledger::stall`], one whose calls have all ended counts.
    #[must_use]
    pub fn is_progressing(&self) -> bool {
        self.stall.is_none()
    }

    /// Whether every message has its outcome.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Adds a message under a sequence: a higher one than all earlier ones, or that of a message that is sent again.
    pub fn push(&mut self, sequence: u64, mut message: OutgoingMessage, waiter: W) {
        if !message.is_resend {
            // The creation time was set earlier; a message before this one may have been restamped since (R17).
            message.created_ms = message.created_ms.max(self.highest_restamp);
        }
        if self.calls.contains_key(&sequence) {
            let text = "a message with this id is already in flight";
            let id = self.id(sequence);
            let error = CallError::not_run(id, problem(codes::ALREADY_IN_FLIGHT, text));
            self.completed.push((waiter, Err(error)));
            return;
        }
        self.next = self.next.max(sequence.saturating_add(1));
        self.given_up.remove(&sequence);
        let in_doubt = message.is_resend;
        self.by_entity.entry(message.entity.clone()).or_default().insert(sequence);
        self.deadlines.insert((message.deadline, sequence));
        self.ready.insert(sequence);
        let call = PendingCall {
            message,
            waiter,
            state: State::Ready,
            in_doubt,
            restamp: None,
            attempts: 0,
            bytes: 0,
            last_problem: None,
        };
        self.calls.insert(sequence, call);
    }

    /// Handles the loss of the connection: what was in flight is in doubt, and everything is sent again, in order. A
    /// stall continues on the next connection; the time without one does not count.
    pub fn connection_lost(&mut self, now: Instant) {
        if let Some(stall) = self.stall.take() {
            self.stalled_before = now.saturating_duration_since(stall.since);
        }
        self.messages_in_flight = 0;
        self.bytes_in_flight = 0;
        self.orphaned_copies.clear();
        self.retry_at.clear();
        let doubt = !self.has_mutation(Mutation::ForgetDoubt);
        let lost = || problem(codes::CONNECTION_LOST, "the connection was lost before the reply");
        let resends_once = self.has_mutation(Mutation::ResendOnce);
        let mut over = Vec::new();
        for (sequence, call) in &mut self.calls {
            if call.state == State::InFlight {
                call.in_doubt |= doubt;
                call.last_problem = Some(lost());
                if call.message.is_sent_once() && !resends_once {
                    over.push(*sequence);
                }
            }
            call.state = State::Ready;
            self.ready.insert(*sequence);
        }
        for sequence in over {
            self.complete_without_reply(sequence, lost(), now);
        }
    }

    /// Advances the time: ends backoffs, and calls whose deadline has passed.
    pub fn tick(&mut self, now: Instant) {
        while let Some(sequence) = pop_due(&mut self.retry_at, now) {
            if let Some(call) = self.calls.get_mut(&sequence) {
                call.state = State::Ready;
                self.ready.insert(sequence);
            }
        }
        while let Some(sequence) = pop_due(&mut self.deadlines, now) {
            let last_problem =
                self.calls.get_mut(&sequence).and_then(|call| call.last_problem.take());
            let why = last_problem.or_else(|| self.not_connected.clone()).unwrap_or_else(|| {
                problem(codes::DEADLINE_EXCEEDED, "no reply within the deadline")
            });
            self.complete_without_reply(sequence, why, now);
        }
        let next = self.next;
        self.given_up.retain(|sequence, since| {
            now.saturating_duration_since(*since) < DOUBT_TIME && next - sequence <= DOUBT_MESSAGES
        });
    }

    /// Ends every call, as when the client closes.
    pub fn complete_all(&mut self, why: &Problem, now: Instant) {
        while let Some((sequence, _)) = self.calls.first_key_value() {
            self.complete_without_reply(*sequence, why.clone(), now);
        }
    }

    /// When [`Ledger::tick`] will have something to do if nothing else happens.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let first = |set: &BTreeSet<(Instant, u64)>| set.first().map(|(due, _)| *due);
        match (first(&self.retry_at), first(&self.deadlines)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The calls that have ended since this function was last called.
    pub fn take_completed(&mut self) -> std::vec::Drain<'_, (W, Result<Reply, CallError>)> {
        self.completed.drain(..)
    }

    /// All of the session's sequences below this one are resolved (R17).
    #[must_use]
    pub fn settled(&self) -> u64 {
        let unread = |_: &u64| !self.has_mutation(Mutation::SettleUnreadReplies);
        let unresolved = self.calls.keys().next().copied().filter(unread);
        let given_up = self.given_up.first_key_value().map(|(sequence, _)| *sequence);
        self.next.min(unresolved.unwrap_or(u64::MAX)).min(given_up.unwrap_or(u64::MAX))
    }

    fn id(&self, sequence: u64) -> MessageId {
        let (created_ms, utc_ms) = self
            .calls
            .get(&sequence)
            .map_or((0, 0), |call| (call.message.created_ms, call.message.envelope.utc_ms));
        MessageId { session: self.session, sequence, created_ms, utc_ms }
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
