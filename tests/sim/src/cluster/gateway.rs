//! A node's gateway: messages from clients, the real router between them and the owners, and the owner's check.
//!
//! Production code decides what an answer means for the route and for the client ([`ostraca_wire::outcome`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_codes::codes;
use ostraca_core::ids::{Epoch, ScopedSessionId as SessionKey, ShardId};
use ostraca_core::message::{MessageKind, Outcome, ReplyToken};
use ostraca_core::node::Event;
use ostraca_core::route::{Action, AttemptResult, Router, Settings};
use ostraca_core::rows::Member;
use ostraca_core::shard;
use ostraca_wire::Limits;
use ostraca_wire::budget::{Budgets, Charge};
use ostraca_wire::outcome;
use ostraca_wire::proto::{Envelope, Problem, Reply};

use super::client_conns::{ClientConnId, ClientFrame};
use super::net::{ConnId, ConnKind, Frame};
use super::process::{Pid, ReplyTo};
use super::tells::Sent;
use super::{SimEvent, World};
use crate::violation::ViolationKind;

/// A message as it arrived.
#[derive(Clone, Debug)]
pub(super) struct PendingMessage {
    token: ReplyToken,
    pub(super) session: SessionKey,
    pub(super) envelope: Envelope,
    /// When the message arrived, by this node's clock.
    pub(super) received: u64,
}

impl PendingMessage {
    pub(super) fn new(
        token: ReplyToken,
        session: SessionKey,
        envelope: Envelope,
        received: u64,
    ) -> Self {
        Self { token, session, envelope, received }
    }
}

/// A client's request that has not been answered yet.
#[derive(Clone, Debug)]
pub(super) struct OpenRequest {
    pub(super) connection: ClientConnId,
    pub(super) session: usize,
    pub(super) sequence: u64,
    /// The request's charge against the sender's budget.
    pub(super) charge: Arc<Charge>,
    attempts: u32,
    buffered: bool,
}

/// The gateway of one process.
pub(super) struct Gateway {
    pub(super) router: Router<Arc<PendingMessage>>,
    /// Messages from this node's entities that have not been answered yet.
    pub(super) sent: BTreeMap<ReplyToken, Sent>,
    /// Clients' pending requests.
    pub(super) open: BTreeMap<ReplyToken, OpenRequest>,
    /// When the router's next tick is due, in the world's time.
    pub(super) armed: Option<u64>,
    pub(super) budgets: Arc<Budgets>,
    /// Charges of messages that other nodes forwarded.
    pub(super) forwarded: BTreeMap<ReplyToken, Arc<Charge>>,
    /// Whether the node has started; before that, it answers that it is starting.
    pub(super) opened: bool,
    /// If the node is stopping: the time by which everything must be answered, by the node's clock.
    pub(super) closing: Option<u64>,
}

impl Gateway {
    pub(super) fn new(settings: Settings, shards: u32, limits: &Limits) -> Self {
        Self {
            router: Router::new(settings, shards),
            sent: BTreeMap::new(),
            open: BTreeMap::new(),
            armed: None,
            budgets: Budgets::new(limits),
            forwarded: BTreeMap::new(),
            opened: false,
            closing: None,
        }
    }
}

impl World {
    /// A client's message arrives at a gateway.
    pub(super) fn arrive(&mut self, pid: Pid, post: ClientFrame) {
        let Some((envelope, charge)) = self.read_message(pid, &post) else { return };
        let ClientFrame { connection: line, session, .. } = post;
        self.tokens += 1;
        let token = ReplyToken(self.tokens);
        let shard = self.shard_of(&envelope.id);
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let sequence = envelope.sequence;
        let open = OpenRequest {
            connection: line,
            session,
            sequence,
            charge,
            attempts: 0,
            buffered: false,
        };
        it.gateway.open.insert(token, open);
        let (deadline, bytes) = (envelope.deadline(now, 0), 100 + envelope.body.len());
        let session = self.sessions[session].session.key;
        let pending = PendingMessage { token, session, envelope, received: now };
        let step = it.gateway.router.route(now, shard, Arc::new(pending), bytes, deadline);
        if matches!(step, Action::Buffered) {
            self.tally.count("route: buffered");
            if let Some(open) = self.processes[pid].gateway.open.get_mut(&token) {
                open.buffered = true;
            }
        }
        self.steps(pid, vec![step]);
    }

    /// Executes the router's actions, and schedules its next tick.
    pub(super) fn steps(&mut self, pid: Pid, steps: Vec<Action<Arc<PendingMessage>>>) {
        for step in steps {
            match step {
                Action::Buffered => {}
                Action::Local { shard, attempt_id: tag, item, .. } => {
                    self.tally.count("route: local");
                    self.attempt(pid, item.token);
                    self.run_local(pid, shard, tag, &item);
                }
                Action::Remote { to, epoch, attempt_id: tag, item } => {
                    self.tally.count("route: remote");
                    self.attempt(pid, item.token);
                    self.send_remote(pid, to, epoch, tag, &item);
                }
                Action::Refuse { item, refusal } => {
                    if refusal.code == codes::OVERLOADED {
                        self.tally.count("route: refused at its bound");
                    }
                    self.reply(pid, item.token, outcome::reply_for_refusal(refusal));
                }
            }
        }
        self.arm_router(pid);
    }

    fn attempt(&mut self, pid: Pid, token: ReplyToken) {
        if self.processes[pid].gateway.sent.contains_key(&token) {
            return;
        }
        let Some(open) = self.processes[pid].gateway.open.get_mut(&token) else {
            return self.violations.push(
                ViolationKind::SecondReply
                    .because(format!("{token:?} was forwarded after its answer")),
            );
        };
        open.attempts += 1;
        if open.attempts > 1 {
            self.tally.count("route: resent");
        }
        if std::mem::take(&mut open.buffered) {
            self.tally.count("route: released");
        }
    }

    pub(super) fn arm_router(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        let Some(wake) = it.gateway.router.next_wake() else { return };
        let when = it.world_time(wake).max(self.now + 1);
        if it.gateway.armed.is_some_and(|armed| armed <= when) {
            return;
        }
        it.gateway.armed = Some(when);
        self.at(when - self.now, SimEvent::RouterTick { pid });
    }

    pub(super) fn router_tick(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        if it.gateway.armed.is_none_or(|armed| armed > self.now) {
            return;
        }
        it.gateway.armed = None;
        let now = it.mono(self.now);
        if it.gateway.router.next_wake().is_none_or(|wake| wake > now) {
            return self.arm_router(pid);
        }
        let mut out = Vec::new();
        it.gateway.router.tick(now, &mut out);
        if it.gateway.router.next_wake().is_some_and(|wake| wake <= now) {
            let why = format!("{}: the router requests a wake-up, but nothing is due", it.node);
            self.violations.push(ViolationKind::RouterSpins.because(why));
        }
        self.steps(pid, out);
    }

    /// Hands a message to this node's own machine for the shard.
    fn run_local(&mut self, pid: Pid, shard: ShardId, tag: u64, item: &PendingMessage) {
        if !self.processes[pid].identity.is_host() {
            return self.not_sent(pid, tag);
        }
        let message = match self.accept_message(pid, item) {
            Ok(message) => message,
            Err(problem) => {
                let reply = outcome::not_run(problem);
                return self.answered(pid, tag, AttemptResult::Answered, || Some(reply));
            }
        };
        let Some(hosted) = self.processes[pid].shards.get(&shard) else {
            return self.ended(pid, tag, message.kind, not_here(shard), Epoch(0));
        };
        let asker = (ReplyTo::Gateway(ReplyToken(tag), message.kind), shard, hosted.epoch);
        self.processes[pid].askers.insert(message.reply_token, asker);
        self.handle_shard_event(pid, shard, shard::Event::Message(Arc::new(message)));
    }

    /// Sends a message to another node's incarnation, if there is a link or one can be created.
    fn send_remote(&mut self, pid: Pid, to: Member, epoch: Epoch, tag: u64, item: &PendingMessage) {
        let Some(conn) = self.link(pid, &to) else {
            let delay = self.rng.range(1, 60);
            return self.at(delay, SimEvent::NotSent { pid, tag });
        };
        let it = &self.processes[pid];
        let held = it.mono(self.now).saturating_sub(item.received);
        let envelope = item.envelope.to_forwarded(item.session, &it.node.0, epoch, held);
        self.frame(conn, 0, Frame::Forward(tag, Box::new(envelope)));
    }

    /// The link to an incarnation of a node, created if there is none. Frames sent on a broken link are lost.
    fn link(&mut self, pid: Pid, to: &Member) -> Option<ConnId> {
        if let Some((conn, member)) = self.processes[pid].links.get(&to.node)
            && member == to
        {
            return Some(*conn);
        }
        let site = self.site_of(pid, &to.node)?;
        let other = self.sites[site].pid?;
        if self.processes[other].member.as_ref() != Some(to)
            || !self.reachable(pid, other, ConnKind::Peer)
        {
            return None;
        }
        let conn = self.connect(pid, other, ConnKind::Peer);
        self.processes[pid].links.insert(to.node.clone(), (conn, to.clone()));
        Some(conn)
    }

    /// Handles a link that was given up: messages in flight on it are in doubt.
    pub(super) fn link_lost(&mut self, pid: Pid, conn: ConnId) {
        let it = &mut self.processes[pid];
        let lost: Vec<Member> = it
            .links
            .values()
            .filter(|(other, _)| *other == conn)
            .map(|(_, member)| member.clone())
            .collect();
        it.links.retain(|_, (other, _)| *other != conn);
        for member in lost {
            self.tally.count("route: link down");
            self.route_lost(pid, &member);
            if self.rng.chance(50) {
                self.tally.count("transition: a peer found unreachable");
                let node = member.node;
                self.enqueue_node_event(pid, Event::NodeUnreachable { node });
            }
        }
    }

    /// Handles a message from another node: this node runs it, or answers that it does not (S11.6).
    pub(super) fn forward_came(&mut self, pid: Pid, conn: ConnId, tag: u64, envelope: Envelope) {
        if let Err(problem) = self.run_forwarded(pid, conn, tag, envelope) {
            let reply = outcome::not_run(problem);
            self.frame(conn, 1, Frame::Forwarded(tag, Box::new(reply)));
        }
    }

    fn run_forwarded(
        &mut self,
        pid: Pid,
        conn: ConnId,
        tag: u64,
        envelope: Envelope,
    ) -> Result<(), Problem> {
        let (envelope, session, charge) = self.read_forwarded(pid, tag, envelope)?;
        let it = &self.processes[pid];
        let received = it.mono(self.now);
        let shard = self.shard_of(&envelope.id);
        let hint = it.gateway.router.redirect_hint(shard, Epoch(envelope.route_epoch), &it.node.0);
        if hint.is_some() || !it.identity.is_host() {
            return Err(outcome::not_owner("the shard is another's", hint.as_ref()));
        }
        let token = ReplyToken(0);
        let message =
            self.accept_message(pid, &PendingMessage { token, session, envelope, received })?;
        let it = &mut self.processes[pid];
        let Some(hosted) = it.shards.get(&shard) else {
            let reply = outcome::reply_for_outcome(not_here(shard), message.kind, Epoch(0));
            self.frame(conn, 1, Frame::Forwarded(tag, Box::new(reply)));
            return Ok(());
        };
        let asker = (ReplyTo::Peer(conn, tag, message.kind), shard, hosted.epoch);
        it.askers.insert(message.reply_token, asker);
        it.gateway.forwarded.insert(message.reply_token, charge);
        self.handle_shard_event(pid, shard, shard::Event::Message(Arc::new(message)));
        Ok(())
    }

    /// Handles another node's answer.
    pub(super) fn forwarded_came(&mut self, pid: Pid, tag: u64, reply: Reply) {
        self.answered(pid, tag, outcome::attempt_result_for_reply(&reply), || Some(reply));
    }

    /// Handles the outcome of an attempt at this node's own machine for the shard.
    pub(super) fn ended(
        &mut self,
        pid: Pid,
        tag: u64,
        kind: MessageKind,
        outcome: Outcome,
        epoch: Epoch,
    ) {
        let verdict = outcome::attempt_result_for_outcome(&outcome, epoch);
        self.answered(pid, tag, verdict, || Some(outcome::reply_for_outcome(outcome, kind, epoch)));
    }

    /// Handles an attempt that could not be sent.
    pub(super) fn not_sent(&mut self, pid: Pid, tag: u64) {
        self.answered(pid, tag, AttemptResult::NotSent, || None);
    }

    fn answered(
        &mut self,
        pid: Pid,
        tag: u64,
        verdict: AttemptResult,
        reply: impl FnOnce() -> Option<Reply>,
    ) {
        match &verdict {
            AttemptResult::NotOwner { .. } => self.tally.count("route: bounced, not-owner"),
            AttemptResult::Rebalancing => self.tally.count("route: bounced, rebalancing"),
            AttemptResult::Answered | AttemptResult::NotSent => {}
        }
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let mut out = Vec::new();
        if let Some((item, in_doubt)) =
            it.gateway.router.on_attempt_result(now, tag, verdict, &mut out)
            && let Some(reply) = reply()
        {
            if in_doubt {
                self.tally.count("route: resent in doubt");
            }
            self.reply(pid, item.token, outcome::unknown_if_in_doubt(reply, in_doubt));
        }
        self.steps(pid, out);
    }

    pub(super) fn route_me(&mut self, pid: Pid, me: Option<Member>) {
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let mut out = Vec::new();
        it.gateway.router.set_local(now, me, &mut out);
        self.steps(pid, out);
    }

    pub(super) fn update_route(
        &mut self,
        pid: Pid,
        shard: ShardId,
        epoch: Epoch,
        owner: Option<Member>,
        moving: bool,
    ) {
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let mut out = Vec::new();
        let router = &mut it.gateway.router;
        let epoch_of = |router: &Router<_>| router.route_for(shard).map_or(Epoch(0), |it| it.0);
        let was = epoch_of(router);
        router.update_route(now, shard, epoch, owner, moving, &mut out);
        let is = epoch_of(router);
        if is > was {
            self.tally.count("route: moved");
        } else if is < was {
            let node = self.processes[pid].node.clone();
            self.violations.push(ViolationKind::RouteBack.because(format!(
                "{node}: the route of shard {shard} went back from {was:?} to {is:?} (R13)"
            )));
        }
        self.steps(pid, out);
    }

    pub(super) fn buffer_shard(&mut self, pid: Pid, shard: ShardId, epoch: Epoch) {
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        it.gateway.router.buffer_shard(now, shard, epoch);
        self.arm_router(pid);
    }

    pub(super) fn route_lost(&mut self, pid: Pid, member: &Member) {
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let mut out = Vec::new();
        it.gateway.router.on_link_lost(now, member, &mut out);
        self.steps(pid, out);
    }
}

/// The workers' answer for a shard without a machine on the node.
fn not_here(shard: ShardId) -> Outcome {
    Outcome::not_run_retryable(codes::NOT_OWNER, format!("shard {shard} is not on this node"), 100)
}
