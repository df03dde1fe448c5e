//! The path of a message on this node: from a client or another node, by the route to its owner, and its reply
//! back.
//!
//! The core's [`Router`] decides; this module executes its steps and reports the results. Two forms of a
//! message are easy to confuse. As received, it is a [`PendingMessage`]: an envelope with the right to answer
//! it, which can be sent to any node any number of times. Each time that it is handed to a worker of this node,
//! it becomes a [`Message`](ostraca_core::message::Message) of the core, under a token of its own.

mod forwarded;
mod links;
mod pending_message;
mod resolve;
mod steps;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::types::TypeRegistry;
use ostraca_core::hash::shard_of;
use ostraca_core::ids::{Epoch, ScopedSessionId, ShardId};
use ostraca_core::route::{Action, AttemptResult, Router, RouterStats};
use ostraca_core::rows::Member;
use ostraca_wire::outcome::{
    attempt_result_for_outcome, attempt_result_for_reply, reply_for_outcome, unknown_if_in_doubt,
};
use ostraca_wire::proto::Reply;
use ostraca_wire::server::IncomingMessage;
use ostraca_workers::{Input, ReplySink, WorkerReply};
use tokio::sync::mpsc;

pub(crate) use links::MessageLinks;
pub(crate) use pending_message::PendingMessage;
pub(crate) use resolve::EnvelopeResolver;

/// Interval at which buffered messages are checked.
const TICK: Duration = Duration::from_millis(20);

/// The part of the gateway that all connections of a node share.
pub(crate) struct Gateway {
    router: Mutex<Router<PendingMessage>>,
    pub(crate) resolver: EnvelopeResolver,
    pub(crate) links: MessageLinks,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) types: TypeRegistry,
    pub(crate) shard_count: u32,
    node: String,
    /// Empty on a node that is no host: then no message is accepted for this node.
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

    /// Locks the router. `None` if it panicked: then its state cannot be trusted. Messages that need it are
    /// dropped, which answers their senders `unknown`, and [`Gateway::run`] ends, which ends the node (decision
    /// 0052).
    fn router(&self) -> Option<MutexGuard<'_, Router<PendingMessage>>> {
        self.router.lock().ok()
    }

    /// Counts of buffered and in-flight messages.
    pub(crate) fn router_stats(&self) -> RouterStats {
        self.router().map_or_else(RouterStats::default, |router| router.stats())
    }

    /// Accepts messages of one session, in order. Those of types that are not known yet stay in the batch.
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

    /// Changes the router's state, and executes the steps that follow.
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

    /// Closes the gateway when the node stops. Buffered messages are returned to their senders at once,
    /// in-flight ones are answered as their replies arrive, and what is left after `grace` is answered as in
    /// doubt.
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

    /// Handles replies of other nodes.
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

    /// Makes the router panic.
    #[cfg(test)]
    pub(crate) fn panic(&self) {
        self.with_router(|_, _, _| panic!("as the test wants it"));
    }

    /// Drives buffered messages, until the router panics.
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
    // A poisoned lock is harmless here: its data is consistent wherever a panic can occur.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
