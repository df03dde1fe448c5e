//! What a gateway decides about a message before the router sees it, and about its answer. The checks, budgets, bounds
//! and types are production code ([`ostraca_wire`]'s `validate`, `budget` and `envelope`). This module stands in for
//! the sockets: a gateway stops reading from a full connection, and from every connection once the node stops.

use std::sync::Arc;

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::ScopedSessionId as SessionKey;
use ostraca_core::message::{Message, MessageKind, ReplyToken};
use ostraca_core::route::Action;
use ostraca_wire::budget::{Account, Charge, OVERHEAD, Permit};
use ostraca_wire::envelope::{TimeoutLimits, TypeInfo, UtcLimits, check_namespace, resolve_method};
use ostraca_wire::outcome::{node_starting, not_run};
use ostraca_wire::proto::{self, Envelope, Problem};
use ostraca_wire::validate::{self, InvalidFrame};
use ostraca_wire::{Limits, problem};
use prost::Message as _;

use super::client_conns::{ClientConnId, ClientFrame};
use super::client_cuts::Endpoint;
use super::faults::Fault;
use super::gateway::PendingMessage;
use super::plan::{FROM, TO};
use super::process::Pid;
use super::{SimEvent, World};
use crate::rng::Rng;
use crate::session::named_kind;
use crate::violation::ViolationKind;
use crate::{asks, deletion, subscriptions, tells};

/// The principal of all clients, for budgets and types.
pub(super) const PRINCIPAL: &str = "client/any";
/// The principal of subscribers. Reads that wait would use up the small budgets of the other clients.
pub(super) const SUBSCRIBER: &str = "client/subscriber";
/// Maximum size in bytes of a body.
const BODY: u64 = 64;
/// Interval at which a stopping node checks whether everything is answered.
const ROUND: u64 = 5;
/// The time within which the last answers arrive, before the gateway closes.
const LINGER: u64 = 25;

/// A rule of gateways that a test can disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Messages are accepted beyond the budget (K19).
    TakeWithoutRoom,
    /// A message's deadline is what its sender requests, however late (R22).
    UnboundDeadlines,
    /// Messages are accepted without validation (S11.6).
    DontCheck,
    /// The gateway of each copy sets the copy's time (R20).
    StampAtGateway,
}

/// A client's state at its gateway.
#[derive(Debug)]
pub(super) struct GatewayAccount {
    account: Arc<Account>,
    _place: Permit,
}

/// The bounds of all gateways in a run.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) limits: Limits,
    pub(super) timeout_limits: TimeoutLimits,
    pub(super) utc_limits: UtcLimits,
}

impl Bounds {
    pub(super) fn wide() -> Self {
        let limits = Limits { max_message: 4 << 10, ..Limits::default() };
        Self {
            limits,
            timeout_limits: TimeoutLimits { default_ms: 60_000, max_ms: 600_000 },
            // Unlimited: the clients' clocks are far from those of the nodes.
            utc_limits: UtcLimits { past_ms: u64::MAX, future_ms: u64::MAX },
        }
    }
}

/// A deployed type.
pub(super) struct SimType {
    name: Arc<str>,
    methods: [(Arc<str>, MessageKind); 7],
}

impl SimType {
    pub(super) fn new(name: &str) -> Self {
        let methods = [
            ("add".into(), MessageKind::Command),
            ("take".into(), MessageKind::Command),
            (deletion::METHOD.into(), MessageKind::Command),
            (tells::METHOD.into(), MessageKind::Command),
            (asks::METHOD.into(), MessageKind::Command),
            (subscriptions::METHOD.into(), MessageKind::Command),
            ("get".into(), MessageKind::Query),
        ];
        Self { name: name.into(), methods }
    }
}

impl TypeInfo for SimType {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn admits(&self, principal: &str) -> bool {
        principal == PRINCIPAL || principal == SUBSCRIBER || principal.starts_with("entity/")
    }

    fn method(&self, name: &str) -> Option<&(Arc<str>, MessageKind)> {
        self.methods.iter().find(|(known, _)| **known == *name)
    }

    fn unknown_method(&self, name: &str) -> Problem {
        problem(codes::UNKNOWN_METHOD, format!("`{}` has no method `{name}`", self.name))
    }

    fn max_message(&self) -> u64 {
        BODY
    }
}

impl World {
    /// Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn plan_gateways(&mut self, seed: u64) {
        let mut dice = Rng::new(seed ^ 0x6a7e_3a75);
        if self.options.has_one_fault() {
            return;
        }
        if self.options.tight || dice.chance(25) {
            let limits = &mut self.bounds.limits;
            limits.connection_bytes = dice.range(3 << 10, 12 << 10);
            limits.principal_bytes = dice.range(3 << 10, 12 << 10);
            limits.node_bytes = dice.range(4 << 10, 16 << 10);
            self.small_gateways = true;
        }
        if self.options.tight || dice.chance(25) {
            self.bounds.timeout_limits.max_ms = dice.range(100, 3_000);
        }
        for _ in 0..if self.options.leaves { 6 } else { 0 } {
            let when = dice.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::Leave { now: true }));
        }
        if dice.chance(40) {
            for _ in 0..dice.range(4, 20) {
                let fault = Fault::InvalidMessage { which: dice.range(0, 11), pick: dice.draw() };
                let when = dice.range(FROM, TO);
                self.at(when, SimEvent::InjectFault(fault));
            }
        }
    }

    fn has_mutation(&self, mutation: Mutation) -> bool {
        self.options.gateway_mutations.contains(&mutation)
    }

    /// The state of a connecting client at the node. `None` if the node accepts no more connections.
    pub(super) fn take_connection(&self, pid: Pid) -> Option<GatewayAccount> {
        let (place, account, _) =
            self.processes[pid].gateway.budgets.admit_connection(PRINCIPAL).ok()?;
        Some(GatewayAccount { account, _place: place })
    }

    /// Whether a message is left unread because its connection is full.
    pub(super) fn left_unread(&mut self, pid: Pid, post: &ClientFrame) -> bool {
        let Some(taken) = &self.client_conns[post.connection].taken else { return false };
        let full =
            taken.account.connection_is_full() && !self.has_mutation(Mutation::TakeWithoutRoom);
        if full && self.processes[pid].gateway.closing.is_none() {
            self.tally.count("gateway: left a full connection unread for a while");
        }
        full
    }

    /// Reads a client's message. `None` if the message was refused, or if its frame reset the stream.
    pub(super) fn read_message(
        &mut self,
        pid: Pid,
        post: &ClientFrame,
    ) -> Option<(Envelope, Arc<Charge>)> {
        let session = &self.sessions[post.session];
        let id = session.session.id.0;
        let frame = Bytes::from(post.envelope.encode_to_vec());
        let mut envelope = match validate::decode_client_message(&frame, &id, &self.bounds.limits) {
            Ok(envelope) => envelope,
            Err(_) if self.has_mutation(Mutation::DontCheck) => post.envelope.clone(),
            Err(InvalidFrame::Message { problem, .. }) => {
                self.refuse(post, *problem);
                return None;
            }
            Err(InvalidFrame::Stream) => {
                self.tally.count("gateway: reset a stream for a frame that is not a message");
                return None;
            }
        };
        let bytes = frame.len() as u64;
        let charge = match &self.client_conns[post.connection].taken {
            Some(taken) => taken.account.admit(bytes),
            // The connection is closed: late messages are charged like forwarded ones.
            None => self.processes[pid].gateway.budgets.forwarded_account(PRINCIPAL).admit(bytes),
        };
        let charge = self.admitted(pid, bytes, charge);
        let charge = charge.map_err(|full| self.refuse(post, full)).ok()?;
        if !self.processes[pid].gateway.opened {
            self.tally.count("gateway: refused, its node starts");
            self.reply_to_frame(post, not_run(node_starting()));
            return None;
        }
        // The certificate names the principal.
        envelope.principal = PRINCIPAL.into();
        self.bound(&mut envelope);
        Some((envelope, charge))
    }

    /// Returns the charge if there is capacity for a message of this size. Checks that the node's budget is respected.
    fn admitted(
        &mut self,
        pid: Pid,
        bytes: u64,
        (charge, full): (Arc<Charge>, Option<Problem>),
    ) -> Result<Arc<Charge>, Problem> {
        if let Some(full) = full.filter(|_| !self.has_mutation(Mutation::TakeWithoutRoom)) {
            return Err(full);
        }
        let held = self.processes[pid].gateway.budgets.charged_bytes() - bytes - OVERHEAD;
        let most = self.bounds.limits.node_bytes;
        if held >= most {
            let node = &self.processes[pid].node;
            let why = format!("{node} accepted a message while it held {held} of {most} bytes");
            self.violations.push(ViolationKind::OverBudget.because(why));
        }
        Ok(charge)
    }

    fn bound(&mut self, envelope: &mut Envelope) {
        let named = envelope.remaining_ms;
        if !self.has_mutation(Mutation::UnboundDeadlines) {
            self.bounds.timeout_limits.apply(envelope);
        }
        match self.has_mutation(Mutation::StampAtGateway) {
            true => envelope.utc_ms = self.now,
            false => self.bounds.utc_limits.apply(envelope, self.now),
        }
        if envelope.remaining_ms < named {
            self.tally.count("gateway: cut a deadline to its bound");
        }
    }

    fn refuse(&mut self, post: &ClientFrame, problem: Problem) {
        self.count_refusal(&problem.code);
        self.reply_to_frame(post, not_run(problem));
    }

    fn count_refusal(&mut self, code: &str) {
        let known =
            super::KINDS.iter().find(|kind| kind.strip_prefix("gateway: refused, ") == Some(code));
        self.tally.count(known.copied().unwrap_or("gateway: refused, for another reason"));
    }

    fn reply_to_frame(&mut self, post: &ClientFrame, reply: proto::Reply) {
        let reply = proto::Reply { sequence: post.envelope.sequence, ..reply };
        self.send_reply(post.connection, post.session, reply);
    }

    /// Reads a message that another node forwarded.
    pub(super) fn read_forwarded(
        &mut self,
        pid: Pid,
        tag: u64,
        envelope: Envelope,
    ) -> Result<(Envelope, SessionKey, Arc<Charge>), Problem> {
        let frame = proto::ForwardedMessage { tag, envelope: Some(envelope) }.encode_to_vec();
        let bytes = frame.len() as u64;
        let read =
            validate::decode_forwarded_message(&Bytes::from(frame), self.bounds.limits.max_message);
        let (_, mut envelope) = read.map_err(|refused| match refused {
            InvalidFrame::Message { problem, .. } => *problem,
            InvalidFrame::Stream => {
                problem(codes::INVALID_MESSAGE, "a node sent what is no message")
            }
        })?;
        let account = self.processes[pid].gateway.budgets.forwarded_account(&envelope.principal);
        let charge = self.admitted(pid, bytes, account.admit(bytes));
        let charge = charge.inspect_err(|_| {
            self.tally.count("owner: refused a forwarded message, overloaded");
        })?;
        self.bound(&mut envelope);
        let session = <[u8; 16]>::try_from(&envelope.session[..]).map(SessionKey);
        let session =
            session.map_err(|_| problem(codes::INVALID_MESSAGE, "a session is missing"))?;
        Ok((envelope, session, charge))
    }

    /// Converts a pending message to the core's message, if its type accepts it.
    pub(super) fn accept_message(
        &mut self,
        pid: Pid,
        pending: &PendingMessage,
    ) -> Result<Message, Problem> {
        let envelope = &pending.envelope;
        self.tokens += 1;
        let token = ReplyToken(self.tokens);
        let resolved = check_namespace(envelope, &envelope.principal).and_then(|()| {
            let entry = self.types.iter().find(|it| *it.name == *envelope.r#type);
            let entry = entry.ok_or_else(|| problem(codes::UNKNOWN_TYPE, "no such type"))?;
            let (method, kind) = resolve_method(entry, &envelope.principal, envelope)?;
            Ok((entry.name.clone(), method, kind))
        });
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(problem) if self.has_mutation(Mutation::DontCheck) => {
                let kind = named_kind(envelope);
                drop(problem);
                (envelope.r#type.as_str().into(), envelope.method.as_str().into(), kind)
            }
            Err(problem) => {
                self.count_refusal(&problem.code);
                return Err(problem);
            }
        };
        let now = self.processes[pid].mono(self.now);
        let held = now.saturating_sub(pending.received);
        let context = ostraca_core::message::MessageMetadata {
            principal: envelope.principal.as_str().into(),
            utc_ms: envelope.utc_ms,
            ..Default::default()
        };
        Ok(envelope.to_message(token, pending.session, resolved, (now, held), context))
    }

    /// Checks a message whose turn starts: no gateway should have refused it, all its copies have the same time, and
    /// its deadline is within the bounds.
    pub(super) fn check_message(&mut self, pid: Pid, message: &Message) {
        let id = message.id;
        let known = self.types.iter().find(|it| *it.name == *message.target.entity_type);
        let method = known.and_then(|it| it.method(&message.method));
        let fits = message.after < id.sequence && message.settled <= id.sequence;
        let small = message.body.len() as u64 <= BODY && !message.target.id.is_empty();
        if !fits
            || !small
            || message.created_ms == 0
            || method.is_none_or(|(_, k)| *k != message.kind)
        {
            self.violations.push(ViolationKind::InvalidMessageRan.because(format!("{message:?}")));
        }
        let key = (message.target.clone(), id, message.digest);
        let time = message.context.utc_ms;
        let first = *self.turn_times.entry(key).or_insert(time);
        // A request that repeats another one's key has a time of its own, and so have the asks of its turn.
        let may_differ = message.is_keyed || (self.uses_keys && message.asked_by.is_some());
        if first != time && !may_differ {
            let why = format!("{id:?} ran with time {first}, then with time {time}");
            self.violations.push(ViolationKind::TurnTimeChanged.because(why));
        }
        let longest = self.processes[pid].mono(self.now) + self.bounds.timeout_limits.max_ms;
        if message.deadline.is_none_or(|deadline| deadline > longest) {
            let why = format!("{id:?} has the deadline {:?}, beyond {longest}", message.deadline);
            self.violations.push(ViolationKind::DeadlineUnbound.because(why));
        }
    }

    /// Sends an invalid message, or one that its type refuses, from a client, on a separate stream.
    pub(super) fn send_bad(&mut self, which: u64, pick: u64) {
        let standing = |line: &ClientConnId| {
            let it = &self.client_conns[*line];
            it.taken.is_some() && !it.broken && !it.ended(Endpoint::Gateway)
        };
        let standing: Vec<ClientConnId> = (0..self.client_conns.len()).filter(standing).collect();
        let Some(line) = standing.get(pick as usize % standing.len().max(1)).copied() else {
            return;
        };
        let session = self.a_session(self.client_conns[line].client);
        let good = Envelope {
            r#type: "counter".into(),
            id: "e0".into(),
            sequence: 5,
            created_ms: self.now,
            kind: proto::MessageKind::Command.into(),
            method: "add".into(),
            body: 777_u64.to_le_bytes().to_vec().into(),
            remaining_ms: 1_000,
            ..Envelope::default()
        };
        let envelope = match which {
            0 => Envelope { after: 5, ..good },
            1 => Envelope { settled: 6, ..good },
            2 => Envelope { created_ms: 0, ..good },
            3 => Envelope { id: String::new(), ..good },
            4 => Envelope { method: "x".repeat(300), ..good },
            5 => Envelope { session: vec![7; 16].into(), ..good },
            6 => Envelope { body: vec![1; 5 << 10].into(), ..good },
            7 => Envelope { method: "drop".into(), ..good },
            8 => Envelope { kind: proto::MessageKind::Query.into(), ..good },
            9 => Envelope { namespace: "other".into(), ..good },
            _ => Envelope { sequence: 0, ..good },
        };
        self.put(line, session, envelope);
    }

    /// Closes the gateway of a node that left. The gateway accepts nothing new, and closes once everything is answered,
    /// or after a timeout.
    pub(super) fn close_gateway(&mut self, pid: Pid) {
        let grace = self.rng.range(1, if self.options.leaves { 2 * ROUND } else { 160 });
        let it = &mut self.processes[pid];
        it.gateway.closing = Some(it.mono(self.now) + grace);
        self.wind_down(pid);
    }

    /// Performs one step of closing the gateway.
    pub(super) fn wind_down(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let Some(until) = it.gateway.closing else { return };
        let mut out = Vec::new();
        let done = it.gateway.router.shut_down_step(now, until, &mut out);
        for step in &out {
            if let Action::Refuse { refusal, .. } = step {
                self.tally.count(match refusal.in_doubt {
                    true => "gateway: gave up in doubt, its node stops",
                    false => "gateway: refused, its node stops",
                });
            }
        }
        self.steps(pid, out);
        match done {
            true => self.at(LINGER, SimEvent::Closed { pid }),
            false => self.at(ROUND, SimEvent::WindDown { pid }),
        }
    }
}
