//! A message's way on this node: from a client or another node, by the route to its owner, and its reply back.
//!
//! The core's [`Router`] decides; this carries its steps out, and tells it what came of them. What is confusing:
//! a message has two forms. As it came it is a [`Parcel`], an envelope with the right to answer it, which can be
//! sent to any node any number of times; each time that it is handed to a worker of this node it becomes a
//! [`Message`] of the core, under a token of its own.

mod links;
mod open;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_sharding::hash::shard_of;
use ostraca_sharding::ids::{Epoch, Session, ShardId};
use ostraca_sharding::message::{Hint, Kind, Message, Outcome, Token, codes};
use ostraca_sharding::route::{Load, Refusal, Router, Step, Verdict};
use ostraca_sharding::rows::Member;
use ostraca_wire::peer::messages::Forward;
use ostraca_wire::proto::{self, Envelope, Problem, Reply};
use ostraca_wire::server::{Request, Ticket};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::service::{hint_details, problem, reply};
use crate::types::{Absent, Table, Types};
use crate::worker::{Answered, Answers, Back, Delivery, Input};

pub(crate) use links::Links;
pub(crate) use open::Opener;

/// How often held messages are looked at.
const TICK: Duration = Duration::from_millis(20);

/// A message, and the right to answer it. Copies are one message.
#[derive(Clone)]
pub(crate) struct Parcel(Arc<Inner>);

struct Inner {
    shard: ShardId,
    session: Session,
    envelope: Envelope,
    received: Instant,
    ticket: Mutex<Option<Ticket>>,
}

impl Parcel {
    fn new(shard: ShardId, session: Session, request: Request) -> Self {
        let Request { envelope, received, ticket } = request;
        let ticket = Mutex::new(Some(ticket));
        Self(Arc::new(Inner { shard, session, envelope, received, ticket }))
    }

    fn answer(&self, reply: Reply) {
        // Answered once: a later answer is another copy's.
        if let Some(ticket) = lock(&self.0.ticket).take() {
            ticket.answer(reply);
        }
    }

    /// The envelope as another node gets it (R17): with what this one knows, and the time that it was held.
    fn forwarded(&self, node: &str, epoch: Epoch) -> Envelope {
        let held = u64::try_from(self.0.received.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut envelope = self.0.envelope.clone();
        envelope.session = Bytes::copy_from_slice(&self.0.session.0);
        envelope.origin = node.to_owned();
        envelope.hops = envelope.hops.saturating_add(1);
        envelope.route_epoch = epoch.0;
        envelope.age_ms = envelope.age_ms.saturating_add(held);
        if envelope.remaining_ms > 0 {
            // A deadline that has passed on the way is told by the owner, which knows whether a copy ran.
            envelope.remaining_ms = envelope.remaining_ms.saturating_sub(held).max(1);
        }
        envelope
    }
}

/// What all of a node's doors share.
pub(crate) struct Gateway {
    router: Mutex<Router<Parcel>>,
    pub(crate) opener: Opener,
    pub(crate) links: Links,
    pub(crate) clock: Arc<Clock>,
    pub(crate) types: Types,
    pub(crate) shards: u32,
    node: String,
    /// None where the node hosts nothing: then no message is taken for this node.
    workers: Vec<mpsc::UnboundedSender<Input>>,
    tokens: AtomicU64,
}

impl Gateway {
    pub(crate) fn new(
        router: Router<Parcel>,
        opener: Opener,
        links: Links,
        clock: Arc<Clock>,
        types: Types,
        shards: u32,
        workers: Vec<mpsc::UnboundedSender<Input>>,
    ) -> Arc<Self> {
        let node = links.own.to_string();
        let router = Mutex::new(router);
        let tokens = AtomicU64::new(0);
        Arc::new(Self { router, opener, links, clock, types, shards, node, workers, tokens })
    }

    fn now(&self) -> u64 {
        self.clock.now().mono
    }

    fn router(&self) -> MutexGuard<'_, Router<Parcel>> {
        lock(&self.router)
    }

    /// The worker that a shard is pinned to.
    pub(crate) fn worker_of(shard: ShardId, workers: usize) -> usize {
        shard.0 as usize % workers.max(1)
    }

    /// Whose a shard is by a newer route than the sender's, if it is another node's.
    fn elsewhere(&self, shard: ShardId, epoch: u64) -> Option<Hint> {
        let router = self.router();
        let (known, owner) = router.route_of(shard)?;
        let owner = owner.filter(|owner| *owner.node.0 != *self.node && known.0 > epoch)?;
        Some(Hint { epoch: known, owner: Some(owner.clone()) })
    }

    /// What is held and in flight.
    pub(crate) fn load(&self) -> Load {
        self.router().load()
    }

    /// Takes messages of one session, in their order; those of types that are not known yet stay in the batch.
    pub(crate) fn take(&self, session: Session, batch: &mut Vec<Request>) {
        let types = self.types.now();
        let now = self.now();
        let mut unknown = Vec::new();
        let mut parcels = Vec::with_capacity(batch.len());
        for request in batch.drain(..) {
            let envelope = &request.envelope;
            match types.get(envelope.r#type.as_str()) {
                Some(entry) => {
                    let shard = shard_of(entry.manifest.shard_key.part(&envelope.id), self.shards);
                    parcels.push(Parcel::new(shard, session, request));
                }
                None => unknown.push(request),
            }
        }
        *batch = unknown;
        let mut steps = Vec::with_capacity(parcels.len());
        let mut router = self.router();
        for parcel in parcels {
            let envelope = &parcel.0.envelope;
            let bytes = envelope.body.len() + 256;
            let deadline = (envelope.remaining_ms > 0).then(|| {
                let held = u64::try_from(parcel.0.received.elapsed().as_millis()).unwrap_or(0);
                now.saturating_add(envelope.remaining_ms.saturating_sub(held))
            });
            router.route_into(now, parcel.0.shard, parcel, bytes, deadline, &mut steps);
        }
        drop(router);
        self.carry_out(steps);
    }

    /// Takes messages that another node passed on: they are run here, or refused (S11.6).
    pub(crate) fn take_passed_on(&self, batch: &mut Vec<Request>) {
        let types = self.types.now();
        let mut out = Batches::new(self.workers.len());
        for request in batch.drain(..) {
            let session = <[u8; 16]>::try_from(&request.envelope.session[..]).map(Session);
            let Ok(session) = session else {
                request.ticket.not_run(problem(
                    "bad-message",
                    "a session of 16 bytes is missing",
                    "",
                ));
                continue;
            };
            let Some(entry) = types.get(request.envelope.r#type.as_str()) else {
                // The other node knows the type, so this one soon will: the sender tries again.
                request.ticket.not_run(bounced(codes::REBALANCING, "the type is being loaded"));
                continue;
            };
            let shard = shard_of(entry.manifest.shard_key.part(&request.envelope.id), self.shards);
            let hint = self.elsewhere(shard, request.envelope.route_epoch);
            // Where nothing is hosted, no worker would refuse it.
            if hint.is_some() || self.workers.is_empty() {
                let details = hint.as_ref().map(hint_details).unwrap_or_default();
                let text = format!("shard {shard} is not on this node");
                let problem = Problem { details, ..bounced(codes::NOT_OWNER, &text) };
                request.ticket.not_run(problem);
                continue;
            }
            let token = self.token();
            let opened =
                self.opener.open(&types, session, &request.envelope, request.received, token);
            match opened {
                Ok(_) if self.loading(&types, &request.envelope.r#type) => {
                    request.ticket.not_run(bounced(codes::REBALANCING, "the type is being loaded"));
                }
                Ok(message) => {
                    let back = Back::Ticket(request.ticket);
                    out.local(shard, Delivery { shard, message, back });
                }
                Err(problem) => request.ticket.not_run(problem),
            }
        }
        out.deliver(&self.workers);
    }

    /// Whether the type's component is still being compiled here; what is broken is refused by the worker.
    fn loading(&self, types: &Table, kind: &str) -> bool {
        // Nearly every message's type runs here, and the round's own table says so.
        !types.get(kind).is_some_and(|entry| entry.runs_here())
            && self.types.runnable(kind).is_err_and(|absent| absent == Absent::Loading)
    }

    fn token(&self) -> Token {
        Token(self.tokens.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Does what the router says. Answers that this leads to may lead to more steps.
    fn carry_out(&self, mut steps: Vec<Step<Parcel>>) {
        while !steps.is_empty() {
            let types = self.types.now();
            let mut out = Batches::new(self.workers.len());
            let mut failed: Vec<(u64, Verdict)> = Vec::new();
            let mut refused: Vec<(u64, Problem)> = Vec::new();
            for step in steps.drain(..) {
                match step {
                    Step::Local { tag, .. } if self.workers.is_empty() => {
                        failed.push((tag, Verdict::NotSent));
                    }
                    Step::Local { shard, tag, item, .. } => {
                        let Inner { session, envelope, received, .. } = &*item.0;
                        let token = self.token();
                        let opened = self.opener.open(&types, *session, envelope, *received, token);
                        match opened {
                            Ok(_) if self.loading(&types, &envelope.r#type) => {
                                failed.push((tag, Verdict::Rebalancing));
                            }
                            Ok(message) => {
                                let back = Back::Gateway(tag);
                                out.local(shard, Delivery { shard, message, back });
                            }
                            Err(problem) => refused.push((tag, problem)),
                        }
                    }
                    Step::Remote { to, epoch, tag, item } => {
                        let envelope = item.forwarded(&self.node, epoch);
                        out.remote(to, Forward { tag, envelope });
                    }
                    Step::Refuse { item, refusal } => item.answer(refused_by(refusal)),
                    Step::Held => {}
                }
            }
            for (to, mut forwards) in out.remote.drain(..) {
                refused.extend(self.links.send(&to, &mut forwards));
                failed.extend(forwards.into_iter().map(|left| (left.tag, Verdict::NotSent)));
            }
            out.deliver(&self.workers);
            if failed.is_empty() && refused.is_empty() {
                return;
            }
            let now = self.now();
            let mut answers = Vec::with_capacity(refused.len());
            let mut router = self.router();
            for (tag, verdict) in failed {
                // What was not sent is held.
                router.answered(now, tag, verdict, &mut steps);
            }
            for (tag, problem) in refused {
                // A former copy may have run elsewhere: then this refusal is not the last word (R16).
                let given = router.answered(now, tag, Verdict::Done, &mut steps);
                answers.extend(given.map(|(parcel, in_doubt)| (parcel, in_doubt, problem)));
            }
            drop(router);
            for (parcel, in_doubt, problem) in answers {
                parcel.answer(doubtful(not_run(problem), in_doubt));
            }
        }
    }

    /// Changes what the router knows.
    fn tell(&self, change: impl FnOnce(&mut Router<Parcel>, u64, &mut Vec<Step<Parcel>>)) {
        let mut steps = Vec::new();
        let now = self.now();
        change(&mut self.router(), now, &mut steps);
        self.carry_out(steps);
    }

    pub(crate) fn set_me(&self, me: Option<Member>) {
        self.tell(|router, now, steps| router.set_me(now, me, steps));
    }

    pub(crate) fn route(&self, shard: ShardId, epoch: Epoch, owner: Option<Member>, moving: bool) {
        self.tell(|router, now, steps| router.update(now, shard, epoch, owner, moving, steps));
    }

    pub(crate) fn hold(&self, shard: ShardId, epoch: Epoch) {
        self.tell(|router, now, _| router.hold(now, shard, epoch));
    }

    pub(crate) fn lost(&self, member: &Member) {
        self.tell(|router, now, steps| router.lost(now, member, steps));
    }

    fn not_sent(&self, tags: Vec<u64>) {
        self.tell(|router, now, steps| {
            for tag in tags {
                router.answered(now, tag, Verdict::NotSent, steps);
            }
        });
    }

    /// The node stops: what is held is given back to its senders at once, what is in flight as soon as it is answered, and
    /// all the rest, in doubt, after `grace`.
    pub(crate) async fn close(&self, grace: Duration) {
        let answered = async {
            loop {
                self.tell(|router, now, steps| router.turn_away(now, steps));
                let Load { held, in_flight, .. } = self.load();
                if (held, in_flight) == (0, 0) {
                    return;
                }
                tokio::time::sleep(TICK).await;
            }
        };
        // What is too late for that is told below.
        let _ = tokio::time::timeout(grace, answered).await;
        self.tell(|router, now, steps| router.close(now, steps));
    }

    /// Replies of other nodes.
    fn replies(&self, batch: &mut Vec<(u64, Reply)>) {
        let mut answers = Vec::with_capacity(batch.len());
        let mut steps = Vec::new();
        let now = self.now();
        let mut router = self.router();
        for (tag, reply) in batch.drain(..) {
            let given = router.answered(now, tag, verdict_of(&reply), &mut steps);
            answers.extend(given.map(|(parcel, in_doubt)| (parcel, doubtful(reply, in_doubt))));
        }
        drop(router);
        for (parcel, reply) in answers {
            parcel.answer(reply);
        }
        self.carry_out(steps);
    }

    /// Sees to what is held, until the gateway is gone.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self.now();
            if self.router().wake().is_some_and(|wake| wake <= now) {
                self.tell(|router, now, steps| router.tick(now, steps));
            }
        }
    }
}

impl Answers for Gateway {
    fn answered(&self, batch: &mut Vec<Answered>) {
        let mut answers = Vec::with_capacity(batch.len());
        let mut steps = Vec::new();
        let now = self.now();
        let mut router = self.router();
        for Answered { tag, outcome, kind, epoch } in batch.drain(..) {
            let verdict = match &outcome {
                Outcome::NotRun { code, hint, .. } if *code == codes::NOT_OWNER => {
                    let hint = hint.as_deref();
                    let owner = hint.and_then(|hint| hint.owner.clone());
                    Verdict::NotOwner { epoch: hint.map_or(epoch, |hint| hint.epoch), hint: owner }
                }
                Outcome::NotRun { code, .. } if *code == codes::REBALANCING => Verdict::Rebalancing,
                _ => Verdict::Done,
            };
            if let Some((parcel, in_doubt)) = router.answered(now, tag, verdict, &mut steps) {
                answers.push((parcel, in_doubt, outcome, kind, epoch));
            }
        }
        drop(router);
        for (parcel, in_doubt, outcome, kind, epoch) in answers {
            parcel.answer(doubtful(reply(outcome, kind, epoch), in_doubt));
        }
        self.carry_out(steps);
    }
}

/// Steps of one round, by where they go.
struct Batches {
    local: Vec<Vec<Delivery>>,
    remote: Vec<(Member, Vec<Forward>)>,
}

impl Batches {
    fn new(workers: usize) -> Self {
        let mut local = Vec::new();
        local.resize_with(workers, Vec::new);
        Self { local, remote: Vec::new() }
    }

    /// There is a worker: see [`Gateway::workers`].
    fn local(&mut self, shard: ShardId, delivery: Delivery) {
        let worker = Gateway::worker_of(shard, self.local.len());
        if let Some(of_worker) = self.local.get_mut(worker) {
            of_worker.push(delivery);
        }
    }

    fn remote(&mut self, to: Member, forward: Forward) {
        match self.remote.iter_mut().find(|(member, _)| *member == to) {
            Some((_, forwards)) => forwards.push(forward),
            None => self.remote.push((to, vec![forward])),
        }
    }

    fn deliver(self, workers: &[mpsc::UnboundedSender<Input>]) {
        for (worker, deliveries) in workers.iter().zip(self.local) {
            // A worker that has ended takes its tickets with it: they say `unknown`; and the node ends.
            if !deliveries.is_empty() {
                let _ = worker.send(Input::Messages(deliveries));
            }
        }
    }
}

/// A refusal by the router, as a reply.
fn refused_by(refusal: Refusal) -> Reply {
    let Refusal { code, message, retry_after, in_doubt } = refusal;
    let outcome = Outcome::NotRun { code: code.into(), message, retry_after, hint: None };
    doubtful(reply(outcome, Kind::Command, Epoch(0)), in_doubt)
}

/// An answer that this copy did not run says nothing of a former one that may have (R16).
fn doubtful(reply: Reply, in_doubt: bool) -> Reply {
    if !in_doubt || reply.outcome() != proto::Outcome::NotRun {
        return reply;
    }
    let problem = reply.problem.map(|told| Problem {
        message: format!(
            "a former copy of the message may have run; the last one did not: {}",
            told.message
        ),
        help: "send it again under the same id".into(),
        retryable: true,
        ..told
    });
    Reply { outcome: proto::Outcome::Unknown.into(), problem, ..reply }
}

pub(crate) fn not_run(problem: Problem) -> Reply {
    Reply { outcome: proto::Outcome::NotRun.into(), problem: Some(problem), ..Reply::default() }
}

/// What another node's reply means for the route.
fn verdict_of(reply: &Reply) -> Verdict {
    let Some(problem) = &reply.problem else { return Verdict::Done };
    if reply.outcome() != proto::Outcome::NotRun {
        return Verdict::Done;
    }
    match problem.code.as_str() {
        codes::NOT_OWNER => {
            let detail = |name: &str| problem.details.get(name);
            let number = |name: &str| detail(name).and_then(|text| text.parse().ok());
            let epoch = Epoch(number("epoch").unwrap_or(reply.epoch));
            let incarnation = number("incarnation").zip(number("nonce"));
            let hint = detail("owner").zip(incarnation).map(|(node, (counter, nonce))| Member {
                node: node.as_str().into(),
                incarnation: ostraca_sharding::ids::Incarnation { counter, nonce },
            });
            Verdict::NotOwner { epoch, hint }
        }
        codes::REBALANCING => Verdict::Rebalancing,
        _ => Verdict::Done,
    }
}

/// A refusal that the sender's node acts on.
fn bounced(code: &str, message: &str) -> Problem {
    Problem { retryable: true, retry_after_ms: 100, ..problem(code, message, "") }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it guards is whole at every moment a panic could come.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message that a worker may run.
pub(crate) type Opened = Result<Arc<Message>, Problem>;
