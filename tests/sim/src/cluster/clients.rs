//! Clients of a cluster with the real [`ostraca_client::ledger`], which decides what is sent, resent, in doubt, given
//! up or restamped. This module stands in for the rest of a client: callers and time.
//!
//! A client has a connection, which its sessions share (`client_conns`), and switches to another gateway when its
//! switch timer fires.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ostraca_client::ledger::{ClusterTime, SessionLimits, SwitchTimer};
use ostraca_client::{CallError, MessageId};
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, MessageId as MessageKey};
use ostraca_core::message::{MessageKind, ReplyToken};
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Outcome, Problem, Reply};

use super::admission::PRINCIPAL;
use super::client_conns::ClientConnId;
use super::process::Pid;
use super::{LEASE, SimEvent, World};
use crate::deletion;
use crate::session::{PATIENT, PendingCall, SimSession, overtaken};
use crate::violation::ViolationKind;

/// How long a client's messages may only wait or bounce before the client tries another gateway.
const STALL_TIMEOUT: Duration = Duration::from_millis(LEASE * 5 / 2);
/// Maximum number of messages per session without an outcome.
const UNRESOLVED: usize = 8;

/// What a client's sessions share.
pub(super) struct Client {
    /// Its current or last gateway.
    pub(super) gateway: usize,
    /// The open connection, as far as the client knows.
    pub(super) connection: Option<ClientConnId>,
    /// Whether its gateways are chosen for it, and its connections are neither reset nor cut.
    pub(super) tied: bool,
    pub(super) sessions: Vec<usize>,
    switch_timer: SwitchTimer,
    time: ClusterTime,
    /// How far its cluster time is ahead or behind, in milliseconds.
    skew: i64,
}

/// A session and its callers.
pub(super) struct Session {
    pub(super) client: usize,
    pub(super) session: SimSession,
    /// For the mutation that treats silence as proof: by former sequence, the one under which a message was resent.
    renamed: BTreeMap<u64, u64>,
    /// When the session will next be driven.
    armed: Option<u64>,
}

impl World {
    /// The current time, as an instant for the ledgers.
    fn instant(&self) -> Instant {
        self.begun + Duration::from_millis(self.now)
    }

    pub(super) fn a_client(&mut self, home: usize, tied: bool) -> usize {
        let skew = if self.rng.chance(60) { 0 } else { self.rng.range(0, 160).cast_signed() - 80 };
        let timer = SwitchTimer::new(STALL_TIMEOUT, self.rng.draw(), self.instant());
        self.clients.push(Client {
            gateway: home,
            connection: None,
            tied,
            sessions: Vec::new(),
            switch_timer: timer,
            time: ClusterTime::default(),
            skew,
        });
        self.clients.len() - 1
    }

    pub(super) fn a_session(&mut self, client: usize) -> usize {
        let number = self.sessions.len();
        let (seed, off) = (self.rng.draw(), self.options.client_mutations.clone());
        let mut session = SimSession::new(number, PRINCIPAL, seed, off);
        session.ledger.set_limits(self.window());
        self.sessions.push(Session { client, session, renamed: BTreeMap::new(), armed: None });
        self.clients[client].sessions.push(number);
        number
    }

    /// A session of a client for one request with an idempotency key: a new key, or that of another such session.
    fn a_keyed_session(&mut self, client: usize, same: Option<usize>) -> usize {
        let number = self.a_session(client);
        if let Some(same) = same {
            let mut session = self.sessions[same].session.repeating(self.rng_of_keys.draw());
            session.ledger.set_limits(self.window());
            self.sessions[number].session = session;
        }
        self.sessions[number].session.is_keyed = true;
        number
    }

    /// The in-flight limits that gateways announce for a session.
    fn window(&self) -> SessionLimits {
        SessionLimits { messages: if self.narrow { 4 } else { 256 }, ..SessionLimits::default() }
    }

    pub(super) fn issue(&mut self, session: usize) {
        if self.issued >= self.options.messages {
            return;
        }
        let session = self.maybe_another(session);
        let delay = self.rng.range(10, 260);
        self.at(delay, SimEvent::Issue { session });
        if self.sessions[session].session.unresolved.len() >= UNRESOLVED {
            return;
        }
        for _ in 0..self.rng.range(1, 4) {
            self.issued += 1;
            let id = self.rng.range(0, self.entities);
            let kind = if id % 3 == 2 { "starter" } else { "counter" };
            let roll = self.rng.range(0, 10);
            let call = match roll {
                // If clocks may stop, no lease protects what a query reads (R8).
                0..=2 if !self.clocks_stop => (MessageKind::Query, "get", 0),
                0..=4 => (MessageKind::Command, "take", self.rng.range(1, 20)),
                _ => (MessageKind::Command, "add", self.rng.range(1, 10)),
            };
            let deletes = self.deletes && call.0 == MessageKind::Command;
            let call = match deletes && self.rng_of_deletions.chance(12) {
                true => (MessageKind::Command, deletion::METHOD, 0),
                false => call,
            };
            let deadline = match self.rng.range(0, 100) {
                of if of < if self.options.leaves { 90 } else { 10 } => self.rng.range(5, 300),
                ..=15 => self.rng.range(50, 3_000),
                _ => PATIENT,
            };
            let called = PendingCall::new(Entity::new(kind, format!("e{id}")), call);
            if self.uses_keys && called.kind == MessageKind::Command && self.rng_of_keys.chance(30)
            {
                let keyed = self.a_keyed_session(self.sessions[session].client, None);
                let deadline = deadline.min(self.rng_of_keys.range(50, 1_500));
                self.call_entity(keyed, called, deadline);
                self.drive(keyed);
                continue;
            }
            self.call_entity(session, called, deadline);
        }
        self.drive(session);
    }

    /// Returns the session or, if it has no open calls, perhaps a new one: many sessions are short.
    fn maybe_another(&mut self, session: usize) -> usize {
        let it = &self.sessions[session];
        let (client, used) = (it.client, it.session.admission.next_sequence() > 1);
        if !used || !it.session.unresolved.is_empty() || !self.rng.chance(30) {
            return session;
        }
        self.a_session(client)
    }

    /// Submits a message to a session; its caller waits for `deadline` milliseconds.
    pub(super) fn call_entity(&mut self, session: usize, mut called: PendingCall, deadline: u64) {
        called.sent = self.now;
        self.take_call(session, called, deadline, None);
    }

    fn take_call(
        &mut self,
        session: usize,
        mut called: PendingCall,
        deadline: u64,
        again: Option<MessageId>,
    ) {
        called.until = self.now + deadline;
        let it = &mut self.sessions[session];
        let cluster_ms = self.clients[it.client].time.at(Duration::from_millis(self.now));
        it.session.take(self.begun, cluster_ms, called, again);
    }

    /// Runs one iteration of the client's task for a session: timeouts, sending, delivering outcomes.
    pub(super) fn drive(&mut self, session: usize) {
        let now = self.instant();
        let it = &mut self.sessions[session];
        let client = it.client;
        let line = self.clients[client].connection;
        it.session.admission.stamped(it.session.ledger.highest_restamp());
        it.session.ledger.set_not_connected(line.is_none().then(|| {
            let mut absent = problem(codes::NOT_CONNECTED, "there is no connection");
            absent.retryable = true;
            absent
        }));
        it.session.ledger.tick(now);
        if let Some(line) = line {
            while let Some(envelope) =
                self.sessions[session].session.ledger.next_to_send(now).cloned()
            {
                self.count_copy(session, &envelope);
                self.put(line, session, envelope);
            }
        }
        self.hand_out(session, false);
        let it = &mut self.sessions[session];
        let stuck = line.and_then(|_| it.session.ledger.stall());
        let timer = &mut self.clients[client].switch_timer;
        let ends = stuck.map(|stuck| timer.deadline(stuck));
        let wake = it.session.ledger.next_wake().into_iter().chain(ends).min();
        let left = stuck.is_some_and(|stuck| timer.try_switch(stuck, now));
        if let Some(wake) = wake {
            let after = wake.saturating_duration_since(now).as_micros().div_ceil(1_000);
            self.arm_session(session, u64::try_from(after).unwrap_or(u64::MAX));
        }
        if left {
            self.switch_gateway(client);
        }
    }

    fn arm_session(&mut self, session: usize, after: u64) {
        let when = self.now.saturating_add(after.max(1));
        let it = &mut self.sessions[session];
        if it.armed.is_none_or(|armed| armed > when) {
            it.armed = Some(when);
            self.at(when - self.now, SimEvent::Session { session });
        }
    }

    pub(super) fn session_tick(&mut self, session: usize) {
        if self.sessions[session].armed.is_some_and(|armed| armed <= self.now) {
            self.sessions[session].armed = None;
            self.drive(session);
        }
    }

    fn count_copy(&mut self, session: usize, envelope: &Envelope) {
        let it = self.sessions[session].session.unresolved.get_mut(&envelope.sequence);
        let Some(sent) = it else { return };
        sent.copies += 1;
        let again = sent.copies > 1;
        let anew = std::mem::replace(&mut sent.created, envelope.created_ms) < envelope.created_ms;
        if again {
            self.tally.count("client: resent");
        }
        if again && anew {
            self.tally.count("client: restamped a message");
        }
    }

    /// Delivers outcomes to callers. After an unknown outcome, a caller may resend under the same id while that is
    /// possible.
    fn hand_out(&mut self, session: usize, over: bool) {
        let ended = self.sessions[session].session.take_ended();
        for (sequence, called, outcome) in ended {
            self.print(|| format!("session {session}: {sequence} ended {outcome:?}"));
            self.violations.extend(overtaken(sequence, &called, &outcome, self.forgetful));
            self.tally.count(match &outcome {
                Err(CallError::NotRun { .. }) => "client: call ended as not run",
                Err(CallError::Unknown { .. }) => "client: gave up a command",
                Err(CallError::Unanswered { .. }) => "client: gave up a query",
                _ => "client: answered",
            });
            if matches!(outcome, Ok(_) | Err(CallError::Application { .. })) {
                self.answered_at = self.now;
            }
            let it = &self.sessions[session];
            let patient = !over && called.given_up.is_none() && !self.clients[it.client].tied;
            if let Err(CallError::Unknown { id, .. }) = &outcome
                && patient
                && self.rng.chance(40)
            {
                self.tally.count("client: resent a message that was given up");
                let deadline = if self.rng.chance(50) { PATIENT } else { self.rng.range(50, 900) };
                let called = PendingCall { given_up: Some(self.now), ..called };
                if self.sessions[session].session.is_keyed {
                    self.tally.count("client: repeated a request with its key");
                    // A tied client does not change its gateway.
                    let pick = self.rng_of_keys.range(0, self.clients.len() as u64) as usize;
                    let same = self.sessions[session].client;
                    let client = if self.clients[pick].tied { same } else { pick };
                    let another = self.a_keyed_session(client, Some(session));
                    // A request over HTTP always has a deadline.
                    self.take_call(another, called, deadline.min(900), None);
                    self.arm_session(another, 1);
                    continue;
                }
                self.take_call(session, called, deadline, Some(*id));
                self.arm_session(session, 1);
                continue;
            }
            // A refusal says nothing of an earlier request with the same key.
            let outcome = match outcome {
                Err(CallError::NotRun { id, code, message, .. })
                    if self.sessions[session].session.is_keyed && called.given_up.is_some() =>
                {
                    Err(CallError::Unknown { id, code, message })
                }
                outcome => outcome,
            };
            self.sessions[session].session.seen(self.now, sequence, &called, outcome);
        }
    }

    /// Picks a gateway that clients know, usually one that is running.
    pub(super) fn a_gateway(&mut self) -> usize {
        let any = self.rng.chance(30) || self.sites.iter().all(|site| site.pid.is_none());
        let gateways: Vec<usize> = self
            .sites
            .iter()
            .enumerate()
            .filter(|(_, site)| site.roles.gateway && !site.copy && (any || site.pid.is_some()))
            .map(|(at, _)| at)
            .collect();
        match gateways.len() as u64 {
            0 => 0,
            n => gateways[self.rng.range(0, n) as usize],
        }
    }

    /// A gateway answers a request.
    pub(super) fn reply(&mut self, pid: Pid, token: ReplyToken, reply: Reply) {
        if self.between_answered(pid, token, &reply) {
            return;
        }
        let Some(open) = self.processes[pid].gateway.open.remove(&token) else {
            return self.violations.push(
                ViolationKind::SecondReply
                    .because(format!("a second answer to {token:?}: {reply:?}")),
            );
        };
        let mut reply = open.charge.admit_reply(reply);
        reply.sequence = open.sequence;
        let outcome = reply.outcome();
        match outcome {
            Outcome::Result | Outcome::ApplicationError | Outcome::ReplyDropped => {
                self.tally.count("reply: final");
                if outcome == Outcome::ApplicationError {
                    self.tally.count("reply: application error");
                }
                if outcome == Outcome::ReplyDropped {
                    self.tally.count("reply: no longer kept");
                }
                match self.sessions[open.session].session.unresolved.get(&open.sequence) {
                    Some(sent) if sent.kind == MessageKind::Query => {
                        self.tally.count("reply: query")
                    }
                    Some(_) => {}
                    None => self.tally.count("reply: recorded outcome"),
                }
            }
            Outcome::Unknown | Outcome::Unspecified => self.tally.count("reply: unknown"),
            Outcome::NotRun => {
                self.tally.count("reply: not run");
                let code = reply.problem.as_ref().map(|problem| &*problem.code);
                if code.is_some_and(|code| code.starts_with("quota-")) {
                    self.tally.count("quota: message refused");
                }
            }
        }
        self.send_reply(open.connection, open.session, reply);
    }

    /// A reply reaches its session.
    pub(super) fn replied(&mut self, session: usize, reply: Reply) {
        self.print(|| {
            let (sequence, outcome, said) = (reply.sequence, reply.outcome(), &reply.problem);
            let code = said.as_ref().map_or("", |said| &said.code);
            format!("session {session}: {sequence} {outcome:?} {code}")
        });
        let now = self.instant();
        let it = &mut self.sessions[session];
        let client = &mut self.clients[it.client];
        client.time.observe_reply(&reply, Duration::from_millis(self.now));
        it.session.ledger.on_reply(reply, now);
        client.switch_timer.record_replies(it.session.ledger.is_progressing(), now);
        self.drive(session);
    }

    /// Handles a new connection of a client: its sessions continue.
    pub(super) fn connected(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let hello = self.now.saturating_add_signed(it.skew).max(1);
        it.time.advance_to(hello, Duration::from_millis(self.now));
        for session in it.sessions.clone() {
            let window = self.window();
            self.sessions[session].session.ledger.set_limits(window);
            self.drive(session);
        }
    }

    /// Handles the loss of a client's connection.
    pub(super) fn disconnected(&mut self, client: usize) {
        self.clients[client].connection = None;
        let now = self.instant();
        for session in self.clients[client].sessions.clone() {
            self.sessions[session].session.ledger.connection_lost(now);
            self.drive(session);
        }
    }

    /// A disabled rule: when a connection falls silent, messages without an outcome are resent under another id.
    pub(super) fn resend_under_new_id(&mut self, client: usize) {
        let code = "silent".into();
        let message = "nothing was received for too long".into();
        let (now, why) = (self.instant(), Problem { code, message, ..Problem::default() });
        for session in self.clients[client].sessions.clone() {
            let it = &mut self.sessions[session];
            it.session.ledger.complete_all(&why, now);
            for (former, called, _) in it.session.take_ended() {
                let it = &mut self.sessions[session];
                it.renamed.insert(former, it.session.admission.next_sequence());
                let left = called.until.saturating_sub(self.now);
                self.take_call(session, called, left, None);
            }
        }
    }

    /// A message's id, or the one under which it was resent: see [`Self::resend_under_new_id`].
    pub(super) fn last_id(&self, mut id: MessageKey) -> MessageKey {
        let session = self.sessions.iter().find(|it| it.session.key == id.session);
        while let Some(next) = session.and_then(|it| it.renamed.get(&id.sequence)) {
            id.sequence = *next;
        }
        id
    }

    /// Closes all clients: every call without an outcome gets one.
    pub(super) fn close_clients(&mut self) {
        let (now, why) = (self.instant(), problem(codes::CLIENT_CLOSED, "the client was closed"));
        for session in 0..self.sessions.len() {
            self.sessions[session].session.ledger.complete_all(&why, now);
            self.hand_out(session, true);
        }
    }
}
