//! Clients with the real ledger: what they send over a connection that may fall silent, and where it arrives.
//!
//! There are no gateways: each copy goes directly to a node, and its answer returns only on the connection on which the
//! copy was sent. A client that misses an answer for a long time considers its connection broken, as on a silent
//! network. Then everything in flight is in doubt. Only such messages have further copies, whose answers are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca_client::CallError;
use ostraca_client::ledger::ClusterTime;
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, Epoch};
use ostraca_core::message::{MessageKind, MessageMetadata, Outcome, ReplyToken};
use ostraca_core::shard::Event;
use ostraca_wire::proto::Envelope;
use ostraca_wire::{outcome, problem, proto};

use super::World;
use super::event::SimEvent;
use crate::node::ReplyTo;
use crate::session::{PATIENT, PendingCall, SimSession, named_kind, overtaken};

/// The principal of all clients.
const PRINCIPAL: &str = "client/any";
/// Maximum number of messages per client without an outcome.
const UNRESOLVED: usize = 8;

/// One session, on its own connection.
pub(super) struct Client {
    pub(super) session: SimSession,
    time: ClusterTime,
    /// The number of the connection, incremented when the connection breaks.
    line: u64,
    /// By sequence, the number of copies that are answered or never will be.
    heard: BTreeMap<u64, u32>,
    /// Messages that are in doubt because a connection broke.
    doubts: BTreeSet<u64>,
    /// The creation time of every message that was sent.
    stamps: BTreeMap<u64, u64>,
    /// When the session will next be driven.
    armed: Option<u64>,
}

/// A copy in transit.
#[derive(Clone, Debug)]
pub(super) struct MessageCopy {
    pub(super) client: usize,
    /// The connection on which the answer returns. `None` if the answer is lost.
    pub(super) line: Option<u64>,
    /// Whether the copy reuses another message's id.
    pub(super) probe: bool,
    pub(super) envelope: Envelope,
}

impl World {
    pub(super) fn issue(&mut self, client: usize) {
        if self.issued >= self.options.messages {
            return;
        }
        let client = self.maybe_another(client);
        let delay = self.rng.range(1, 40);
        self.at(delay, SimEvent::Issue { client });
        if self.clients[client].session.unresolved.len() >= UNRESOLVED {
            return;
        }
        for _ in 0..self.rng.range(1, 4) {
            self.issued += 1;
            let id = self.rng.range(0, 4);
            let kind = if id == 3 { "starter" } else { "counter" };
            let call = match self.rng.range(0, 10) {
                of_ten if of_ten < self.options.queries => (MessageKind::Query, "get", 0),
                0..=4 => (MessageKind::Command, "take", self.rng.range(1, 20)),
                _ => (MessageKind::Command, "add", self.rng.range(1, 10)),
            };
            let impatient = self.rng.chance(self.options.impatient);
            let timeout = if impatient { self.rng.range(5, 200) } else { PATIENT };
            let mut called = PendingCall::new(Entity::new(kind, format!("{id}")), call);
            called.sent = self.now;
            self.call(client, called, timeout, None);
        }
        self.drive(client);
    }

    fn call(
        &mut self,
        client: usize,
        called: PendingCall,
        timeout: u64,
        again: Option<ostraca_client::MessageId>,
    ) {
        let called = PendingCall { until: self.now + timeout, ..called };
        let it = &mut self.clients[client];
        let cluster_ms = it.time.at(Duration::from_millis(self.now));
        it.session.take(self.begun, cluster_ms, called, again);
    }

    fn instant(&self) -> Instant {
        self.begun + Duration::from_millis(self.now)
    }

    /// Runs one round of a session: time passes, messages are sent, callers get their outcomes.
    pub(super) fn drive(&mut self, client: usize) {
        let now = self.instant();
        let it = &mut self.clients[client].session;
        it.admission.stamped(it.ledger.highest_restamp());
        it.ledger.tick(now);
        while let Some(envelope) = self.clients[client].session.ledger.next_to_send(now).cloned() {
            self.send(client, envelope);
        }
        self.hand_out(client, false);
        let Some(wake) = self.clients[client].session.ledger.next_wake() else { return };
        let after = wake.saturating_duration_since(now).as_micros().div_ceil(1_000);
        let when = self.now.saturating_add(u64::try_from(after).unwrap_or(u64::MAX).max(1));
        if self.clients[client].armed.is_none_or(|armed| armed > when) {
            self.clients[client].armed = Some(when);
            self.at(when - self.now, SimEvent::Session { client });
        }
    }

    pub(super) fn session_tick(&mut self, client: usize) {
        if self.clients[client].armed.is_some_and(|armed| armed <= self.now) {
            self.clients[client].armed = None;
            self.drive(client);
        }
    }

    fn send(&mut self, client: usize, envelope: Envelope) {
        let sequence = envelope.sequence;
        let it = &mut self.clients[client];
        it.stamps.insert(sequence, envelope.created_ms);
        let (line, in_doubt) = (it.line, it.doubts.contains(&sequence));
        let Some(sent) = it.session.unresolved.get_mut(&sequence) else { return };
        sent.copies += 1;
        let copies = sent.copies;
        let copy = MessageCopy { client, line: Some(line), probe: false, envelope };
        let mut timeout = self.rng.range(150, 600);
        if self.rng.chance(3) {
            // A paused gateway passes the copy on when it resumes.
            self.tally.count("fault: copy delayed long at another gateway");
            self.held_copies += 1;
            let delay = self.rng.range(200, 2_000);
            self.at(delay, SimEvent::Release { copy: Box::new(copy.clone()) });
        } else {
            self.post(copy.clone());
        }
        let burst = if self.rng.chance(1) { 20 } else { 1 };
        if in_doubt && self.rng.chance(25) {
            self.tally.count("fault: message duplicated");
            for _ in 0..burst {
                self.post(MessageCopy { line: None, ..copy.clone() });
            }
        } else if self.rng.chance(2) {
            // The connection breaks while the message is in transit.
            timeout = self.rng.range(1, 30);
        }
        if self.rng.chance(2) {
            self.probe(client, &copy.envelope);
        }
        self.at(timeout, SimEvent::Missed { client, line, sequence, copies });
    }

    /// Reuses the id of an answered command for another message.
    fn probe(&mut self, client: usize, envelope: &Envelope) {
        let it = &self.clients[client];
        let Some(operation) = it.session.history.last() else { return };
        let (Some((kind, id)), true, ostraca_oracle::Outcome::Final { .. }) =
            (operation.entity.split_once('/'), operation.command, &operation.outcome)
        else {
            return;
        };
        let envelope = Envelope {
            r#type: kind.into(),
            id: id.into(),
            sequence: operation.sequence,
            created_ms: it.stamps.get(&operation.sequence).copied().unwrap_or(1),
            after: 0,
            settled: 0,
            kind: proto::MessageKind::Command.into(),
            method: "add".into(),
            body: 777_u64.to_le_bytes().to_vec().into(),
            ..envelope.clone()
        };
        self.post(MessageCopy { client, line: None, probe: true, envelope });
    }

    /// Checks for silence: if no answer has arrived since, the client considers its connection broken.
    pub(super) fn missed(&mut self, client: usize, line: u64, sequence: u64, copies: u32) {
        let it = &self.clients[client];
        let waits = it.session.unresolved.get(&sequence).is_some_and(|sent| sent.copies == copies);
        let heard = it.heard.get(&sequence).is_some_and(|heard| *heard >= copies);
        if it.line != line || !waits || heard {
            return;
        }
        self.tally.count("fault: connection broken");
        let now = self.instant();
        let it = &mut self.clients[client];
        it.line += 1;
        for (sequence, sent) in &it.session.unresolved {
            // A message waiting to be resent was answered, so it is no more in doubt than before.
            if it.heard.insert(*sequence, sent.copies).unwrap_or(0) < sent.copies {
                it.doubts.insert(*sequence);
            }
        }
        it.session.ledger.connection_lost(now);
        self.drive(client);
    }

    /// Delivers a reply, if its connection still exists.
    pub(super) fn replied(
        &mut self,
        client: usize,
        line: Option<u64>,
        (sequence, kind, epoch): (u64, MessageKind, Epoch),
        outcome: Outcome,
    ) {
        let now = self.instant();
        let it = &mut self.clients[client];
        if line != Some(it.line) {
            return;
        }
        if let Some(sent) = it.session.unresolved.get(&sequence) {
            it.heard.insert(sequence, sent.copies);
        }
        let reply = proto::Reply { sequence, ..outcome::reply_for_outcome(outcome, kind, epoch) };
        it.time.observe_reply(&reply, Duration::from_millis(self.now));
        it.session.ledger.on_reply(reply, now);
        self.drive(client);
    }

    /// Delivers outcomes to callers. After an unknown outcome, a caller may resend under the same id while that is
    /// possible.
    fn hand_out(&mut self, client: usize, over: bool) {
        for (sequence, called, outcome) in self.clients[client].session.take_ended() {
            self.violations.extend(overtaken(sequence, &called, &outcome, self.forgetful));
            self.clients[client].heard.remove(&sequence);
            if let Err(CallError::Unknown { id, .. }) = &outcome
                && !over
                && called.given_up.is_none()
                && self.rng.chance(40)
            {
                let called = PendingCall { given_up: Some(self.now), ..called };
                let timeout = if self.rng.chance(50) { PATIENT } else { self.rng.range(50, 900) };
                self.call(client, called, timeout, Some(*id));
                self.clients[client].doubts.insert(sequence);
                self.at(1, SimEvent::Session { client });
                self.clients[client].armed = Some(self.now + 1);
                continue;
            }
            self.clients[client].doubts.remove(&sequence);
            self.clients[client].session.seen(self.now, sequence, &called, outcome);
        }
    }

    /// Closes all clients: every call without an outcome gets one.
    pub(super) fn close_clients(&mut self) {
        let (now, why) = (self.instant(), problem(codes::CLIENT_CLOSED, "the client was closed"));
        for client in 0..self.clients.len() {
            self.clients[client].session.ledger.complete_all(&why, now);
            self.hand_out(client, true);
        }
    }

    /// Returns the client or, if it has no open calls, perhaps a new one with a new session: many sessions are short.
    fn maybe_another(&mut self, client: usize) -> usize {
        let it = &self.clients[client].session;
        let ended = it.unresolved.is_empty() && it.admission.next_sequence() > 1;
        if !ended || !self.rng.chance(30) {
            return client;
        }
        self.a_client()
    }

    pub(super) fn a_client(&mut self) -> usize {
        let skew = if self.rng.chance(60) { 0 } else { self.rng.range(0, 160).cast_signed() - 80 };
        let mut time = ClusterTime::default();
        let hello = self.now.saturating_add_signed(skew).max(1);
        time.advance_to(hello, Duration::from_millis(self.now));
        let (seed, off) = (self.rng.draw(), self.options.client_mutations.clone());
        self.clients.push(Client {
            session: SimSession::new(self.clients.len(), PRINCIPAL, seed, off),
            time,
            line: 0,
            heard: BTreeMap::new(),
            doubts: BTreeSet::new(),
            stamps: BTreeMap::new(),
            armed: None,
        });
        self.clients.len() - 1
    }

    /// Sends a held copy to the node that its gateway now considers the owner.
    pub(super) fn release(&mut self, copy: Box<MessageCopy>) {
        self.held_copies -= 1;
        let node = self.owner.map_or(0, |(node, _)| node);
        self.arrive(node, copy);
    }

    fn post(&mut self, copy: MessageCopy) {
        if self.rng.chance(self.loss) {
            self.tally.count("fault: message lost");
            return;
        }
        let routed = self.owner.map_or(0, |(node, _)| node);
        let node = if self.rng.chance(85) { routed } else { 1 - routed };
        let delay = self.rng.range(1, 30);
        self.at(delay, SimEvent::Arrive { node, copy: Box::new(copy) });
    }

    pub(super) fn arrive(&mut self, node: usize, copy: Box<MessageCopy>) {
        let it = &mut self.nodes[node];
        if !it.alive || it.machine.is_none() {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, SimEvent::Arrive { node, copy });
        }
        self.tokens += 1;
        let MessageCopy { client, line, probe, envelope } = *copy;
        let kind = named_kind(&envelope);
        let resolved = (envelope.r#type.as_str().into(), envelope.method.as_str().into(), kind);
        let (token, session) = (ReplyToken(self.tokens), self.clients[client].session.key);
        let arrived = it.mono(self.now);
        let context = MessageMetadata::default();
        let message = envelope.to_message(token, session, resolved, (arrived, 0), context);
        let asker = ReplyTo { client, line, probe, sequence: message.id.sequence, kind };
        it.tokens.insert(token, asker);
        // Copies share a turn, which may start until the latest of their deadlines.
        let latest = self.deadlines.entry((node, message.id)).or_insert(message.deadline);
        *latest = latest.zip(message.deadline).map(|(one, other)| one.max(other));
        self.handle_event(node, Event::Message(Arc::new(message)));
    }
}
