//! A message's way on this node: from a client or another node, by the route to its owner, and its reply back.
//!
//! The core's [`Router`] decides; this carries its steps out, and tells it what came of them. What is confusing:
//! a message has two forms. As it came it is a [`Parcel`], an envelope with the right to answer it, which can be
//! sent to any node any number of times; each time that it is handed to a worker of this node it becomes a
//! [`Message`](ostraca_core::message::Message) of the core, under a token of its own.

mod forwarded;
mod links;
mod pending_message;
mod resolve;
mod steps;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostraca_core::hash::shard_of;
use ostraca_core::ids::{Epoch, ScopedSessionId, ShardId};
use ostraca_core::route::{Action, AttemptResult, Router, RouterStats};
use ostraca_core::rows::Member;
use ostraca_wire::outcome::{
    attempt_result_for_outcome, attempt_result_for_reply, reply_for_outcome, unknown_if_in_doubt,
};
use ostraca_wire::proto::Reply;
use ostraca_wire::server::IncomingMessage;
use tokio::sync::mpsc;

use crate::clock::ClusterClock;
use crate::types::TypeRegistry;
use crate::worker::{Input, ReplySink, WorkerReply};
pub(crate) use links::MessageLinks;
pub(crate) use pending_message::PendingMessage;
pub(crate) use resolve::EnvelopeResolver;

/// How often held messages are looked at.
const TICK: Duration = Duration::from_millis(20);

/// What all of a node's doors share.
pub(crate) struct Gateway {
    router: Mutex<Router<PendingMessage>>,
    pub(crate) resolver: EnvelopeResolver,
    pub(crate) links: MessageLinks,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) types: TypeRegistry,
    pub(crate) shard_count: u32,
    node: String,
    /// None where the node hosts nothing: then no message is taken for this node.
    workers: Vec<mpsc::UnboundedSender<Input>>,
    tokens: AtomicU64,
}

impl Gateway {
    pub(crate) fn new(
        router: Router<PendingMessage>,
        opener: EnvelopeResolver,
        links: MessageLinks,
        clock: Arc<ClusterClock>,
        types: TypeRegistry,
        shards: u32,
        workers: Vec<mpsc::UnboundedSender<Input>>,
    ) -> Arc<Self> {
        let node = links.local_node.to_string();
        let router = Mutex::new(router);
        let tokens = AtomicU64::new(0);
        Arc::new(Self {
            router,
            resolver: opener,
            links,
            clock,
            types,
            shard_count: shards,
            node,
            workers,
            tokens,
        })
    }

    fn now(&self) -> u64 {
        self.clock.now().mono
    }

    /// The router, unless it panicked: then nothing that it knows can be relied on. Messages that need it are dropped, which
    /// tells their senders `unknown`, and [`Gateway::run`] ends, which ends the node (decision 0052).
    fn router(&self) -> Option<MutexGuard<'_, Router<PendingMessage>>> {
        self.router.lock().ok()
    }

    /// The worker that a shard is pinned to.
    pub(crate) fn worker_of(shard: ShardId, workers: usize) -> usize {
        shard.0 as usize % workers.max(1)
    }

    /// What is held and in flight.
    pub(crate) fn router_stats(&self) -> RouterStats {
        self.router().map_or_else(RouterStats::default, |router| router.stats())
    }

    /// Takes messages of one session, in their order; those of types that are not known yet stay in the batch.
    pub(crate) fn accept(&self, session: ScopedSessionId, batch: &mut Vec<IncomingMessage>) {
        let types = self.types.snapshot();
        let now = self.now();
        let mut unknown = Vec::new();
        let mut parcels = Vec::with_capacity(batch.len());
        for mut request in batch.drain(..) {
            self.resolver.timeout_limits.apply(&mut request.envelope);
            let envelope = &request.envelope;
            match types.get(envelope.r#type.as_str()) {
                Some(entry) => {
                    let shard = shard_of(
                        entry.manifest.shard_key.shard_key(&envelope.id),
                        self.shard_count,
                    );
                    parcels.push(PendingMessage::new(shard, session, request));
                }
                None => unknown.push(request),
            }
        }
        *batch = unknown;
        let mut steps = Vec::with_capacity(parcels.len());
        let Some(mut router) = self.router() else { return };
        for parcel in parcels {
            let envelope = &parcel.0.envelope;
            let bytes = envelope.body.len() + 256;
            let deadline = envelope.deadline(now, parcel.elapsed_ms());
            router.route_into(now, parcel.0.shard, parcel, bytes, deadline, &mut steps);
        }
        drop(router);
        self.execute_steps(steps);
    }

    /// Changes what the router knows.
    fn with_router(
        &self,
        change: impl FnOnce(&mut Router<PendingMessage>, u64, &mut Vec<Action<PendingMessage>>),
    ) {
        let mut steps = Vec::new();
        let now = self.now();
        let Some(mut router) = self.router() else { return };
        change(&mut router, now, &mut steps);
        drop(router);
        self.execute_steps(steps);
    }

    pub(crate) fn set_local_member(&self, me: Option<Member>) {
        self.with_router(|router, now, steps| router.set_local(now, me, steps));
    }

    pub(crate) fn update_route(
        &self,
        shard: ShardId,
        epoch: Epoch,
        owner: Option<Member>,
        moving: bool,
    ) {
        self.with_router(|router, now, steps| {
            router.update_route(now, shard, epoch, owner, moving, steps)
        });
    }

    pub(crate) fn buffer_shard(&self, shard: ShardId, epoch: Epoch) {
        self.with_router(|router, now, _| router.buffer_shard(now, shard, epoch));
    }

    pub(crate) fn on_member_lost(&self, member: &Member) {
        self.with_router(|router, now, steps| router.on_link_lost(now, member, steps));
    }

    fn not_sent(&self, tags: Vec<u64>) {
        self.with_router(|router, now, steps| {
            for tag in tags {
                router.on_attempt_result(now, tag, AttemptResult::NotSent, steps);
            }
        });
    }

    /// The node stops: what is held is given back to its senders at once, what is in flight as soon as it is answered, and
    /// all the rest, in doubt, after `grace`.
    pub(crate) async fn close(&self, grace: Duration) {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let until = self.now().saturating_add(grace);
        let mut done = false;
        while !self.router.is_poisoned() {
            self.with_router(|router, now, steps| done = router.shut_down_step(now, until, steps));
            if done {
                return;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Replies of other nodes.
    fn handle_peer_replies(&self, batch: &mut Vec<(u64, Reply)>) {
        let mut answers = Vec::with_capacity(batch.len());
        let mut steps = Vec::new();
        let now = self.now();
        let Some(mut router) = self.router() else { return };
        for (tag, reply) in batch.drain(..) {
            let given =
                router.on_attempt_result(now, tag, attempt_result_for_reply(&reply), &mut steps);
            answers.extend(
                given.map(|(parcel, in_doubt)| (parcel, unknown_if_in_doubt(reply, in_doubt))),
            );
        }
        drop(router);
        for (parcel, reply) in answers {
            parcel.reply(reply);
        }
        self.execute_steps(steps);
    }

    /// Has the router panic.
    #[cfg(test)]
    pub(crate) fn panic(&self) {
        self.with_router(|_, _, _| panic!("as the test wants it"));
    }

    /// Sees to what is held, until the router panics.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self.now();
            let Some(wake) = self.router().map(|router| router.next_wake()) else { return };
            if wake.is_some_and(|wake| wake <= now) {
                self.with_router(|router, now, steps| router.tick(now, steps));
            }
        }
    }
}

impl ReplySink for Gateway {
    fn deliver_replies(&self, batch: &mut Vec<WorkerReply>) {
        let mut answers = Vec::with_capacity(batch.len());
        let mut steps = Vec::new();
        let now = self.now();
        let Some(mut router) = self.router() else { return };
        for WorkerReply { tag, outcome, kind, epoch } in batch.drain(..) {
            if let Some((parcel, in_doubt)) = router.on_attempt_result(
                now,
                tag,
                attempt_result_for_outcome(&outcome, epoch),
                &mut steps,
            ) {
                answers.push((parcel, in_doubt, outcome, kind, epoch));
            }
        }
        drop(router);
        for (parcel, in_doubt, outcome, kind, epoch) in answers {
            parcel.reply(unknown_if_in_doubt(reply_for_outcome(outcome, kind, epoch), in_doubt));
        }
        self.execute_steps(steps);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it guards is whole at every moment a panic could come.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
