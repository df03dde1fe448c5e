//! The path of a message on this node: from a client or another node, along its route to the owner, and the reply
//! back.
//!
//! The core's [`Router`] decides; the [`Gateway`] executes its steps and reports the results. It has no thread of its
//! own: it runs on the threads of its callers. Client streams call [`Gateway::accept`], streams from other nodes
//! [`Gateway::accept_forwarded`], workers the [`ReplySink`], the control thread [`Gateway::update_route`] and the
//! methods below it; the task [`Gateway::run`] only checks buffered messages. The gateway keeps a link to each live
//! node, and requests in-memory state from other nodes ([`Gateway::inspect`]). It does not handle operators' requests.
//!
//! Confusing at first: a message has two forms here. As received, it is a `PendingMessage`: an envelope with the path
//! for its reply, which can be sent to any node any number of times. Each time it is handed to a worker of this node,
//! it becomes a [`Message`](ostraca_core::message::Message) of the core, with its own token.

mod channel_query;
mod entity_messages;
mod entity_ticket;
mod feeds;
mod forwarded;
mod links;
mod pauses;
mod pending_message;
mod resolve;
mod spans;
mod steps;
mod subscriptions;
mod usage;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca_core::ids::{Epoch, NodeId, ScopedSessionId, ShardId};
use ostraca_core::pools::{DEFAULT_POOL, Pools};
use ostraca_core::route::{Action, AttemptResult, Router, RouterStats, Settings};
use ostraca_core::rows::Member;
use ostraca_wire::envelope::{TimeoutLimits, UtcLimits};
use ostraca_wire::flags::SENT_ONCE;
use ostraca_wire::outcome::{
    attempt_result_for_outcome, attempt_result_for_reply, reply_for_outcome, unknown_if_in_doubt,
};
use ostraca_wire::peer::PeerDialer;
use ostraca_wire::proto::{Envelope, NodeFigures, RebalancePlan, Reply};
use ostraca_wire::server::IncomingMessage;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use feeds::Feeds;
use links::MessageLinks;
pub use links::{InspectTargets, failure_to_wire, migration_to_wire};
use pauses::{RouteState, ShardPauses};
use pending_message::PendingMessage;
use resolve::EnvelopeResolver;
pub use usage::{NamespaceUsages, NodeUsage};

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::pool::{self, KnownPools};
use ostraca_catalog::types::{TypeRegistry, TypeTable};
use ostraca_stats::Stats;
use ostraca_trace::Tracer;
use ostraca_workers::{EntityMessage, Input, ReplySink, WorkerReply};

/// Interval at which buffered messages are checked.
const TICK: Duration = Duration::from_millis(20);

/// Called with a node that has been unreachable for a long time, each time this is detected; must not block.
pub type UnreachableSink = Arc<dyn Fn(NodeId) + Send + Sync>;

/// Returns what this node has done since it started; `None` if it is stopping.
pub type FiguresSource = Box<dyn Fn() -> Option<NodeFigures> + Send + Sync>;

/// Returns the moves that a rebalance would make now; `None` if this node is not the manager, or is stopping.
pub type PlanSource = Box<dyn Fn() -> BoxFuture<'static, Option<RebalancePlan>> + Send + Sync>;

/// The parts and settings of a gateway.
pub struct GatewayDeps {
    /// This node.
    pub node: NodeId,
    /// The cluster's pools.
    pub pools: KnownPools,
    /// Settings of the router.
    pub route_settings: Settings,
    /// The default and the maximum timeout of messages.
    pub timeout_limits: TimeoutLimits,
    /// Maximum number of channels that the node follows for its subscribers.
    pub max_channel_feeds: usize,
    /// How far the time stamp of a client's message may be from this node's time.
    pub utc_limits: UtcLimits,
    /// The node's clock.
    pub clock: Arc<ClusterClock>,
    /// The deployed types.
    pub types: TypeRegistry,
    /// The workers' inputs, in the order of their indexes. Empty on a node without the role `host`: then no message
    /// is accepted for this node.
    pub workers: Vec<mpsc::UnboundedSender<Input>>,
    /// Connects to other nodes.
    pub dialer: PeerDialer,
    /// The runtime of the links' tasks.
    pub runtime: Handle,
    /// Is notified of nodes that the links cannot reach (S12).
    pub unreachable: UnreachableSink,
    /// The node's counters.
    pub stats: Arc<Stats>,
    /// Starts the spans of messages.
    pub tracer: Tracer,
}

/// The part of the gateway that all connections of a node share.
pub struct Gateway {
    router: Mutex<Router<PendingMessage>>,
    resolver: EnvelopeResolver,
    links: MessageLinks,
    feeds: Feeds,
    pauses: ShardPauses,
    own_figures: OnceLock<FiguresSource>,
    own_plan: OnceLock<PlanSource>,
    tracer: Tracer,
    /// What the entities of namespaces use.
    pub usage: NamespaceUsages,
    /// The node's clock.
    pub clock: Arc<ClusterClock>,
    /// The deployed types, which determine the routing.
    pub types: TypeRegistry,
    /// The cluster's pools, as this node knows them.
    pub pools: KnownPools,
    node: String,
    /// Empty on a node without the role `host`: then no message is accepted for this node.
    workers: Vec<mpsc::UnboundedSender<Input>>,
    tokens: AtomicU64,
}

impl Gateway {
    /// Creates a gateway without routes or links; those come from rows.
    #[must_use]
    pub fn new(parts: GatewayDeps) -> Arc<Self> {
        let node = parts.node.to_string();
        let shards = parts.pools.get().shard_count();
        let gateway = Arc::new(Self {
            router: Mutex::new(Router::new(parts.route_settings.clone(), shards)),
            resolver: EnvelopeResolver::new(
                parts.node.0.clone(),
                parts.clock.clone(),
                parts.timeout_limits,
                parts.utc_limits,
            ),
            links: MessageLinks::new(parts.node, parts.dialer, parts.runtime, parts.unreachable),
            feeds: Feeds::new(parts.max_channel_feeds),
            pauses: ShardPauses::new(
                shards,
                Duration::from_millis(parts.route_settings.buffer_timeout),
                parts.stats,
            ),
            own_figures: OnceLock::new(),
            own_plan: OnceLock::new(),
            usage: NamespaceUsages::default(),
            tracer: parts.tracer,
            clock: parts.clock,
            types: parts.types,
            pools: parts.pools,
            node,
            workers: parts.workers,
            tokens: AtomicU64::new(0),
        });
        gateway.links.set_gateway(&gateway);
        gateway
    }

    /// Learns the cluster's pools, before any of their shards has a route. Buffered messages to entities of a pool that
    /// was copied go to their new shards.
    pub fn learn_pools(&self, pools: &Pools) {
        if let Some(mut router) = self.router() {
            router.grow(pools.shard_count());
        }
        self.pauses.grow(pools.shard_count());
        if !self.pools.learn(pools) {
            return;
        }
        let types = self.types.snapshot();
        for pool in pools.iter().filter(|pool| pool.is_left()) {
            let place = |item: &PendingMessage| self.likely_shard(&types, &item.0.envelope);
            let shards = pool.first..=pool.last();
            self.with_router(|router, now, steps| router.move_buffered(now, shards, place, steps));
        }
    }

    /// The shard of an entity, as far as this node knows its type. Otherwise the whole id is hashed, in the pool
    /// `default`: whoever gets the message checks the type.
    fn likely_shard(&self, types: &TypeTable, envelope: &Envelope) -> ShardId {
        let pools = self.pools.get();
        let of_type = types.get(envelope.r#type.as_str());
        let shard = of_type.and_then(|it| pool::shard_of(&pools, &it.manifest, &envelope.id));
        let default = || pools.home(DEFAULT_POOL).map(|pool| pool.shard_of(&envelope.id));
        shard.or_else(default).unwrap_or(ShardId(1))
    }

    /// Whether an entity's shard, as this node knows its type now, is another one.
    fn belongs_elsewhere(&self, types: &TypeTable, shard: ShardId, envelope: &Envelope) -> bool {
        types.get(envelope.r#type.as_str()).is_some_and(|it| {
            pool::shard_of(&self.pools.get(), &it.manifest, &envelope.id) != Some(shard)
        })
    }

    /// Sets where this node's figures come from, which other nodes may ask for.
    pub fn set_figures_source(&self, source: FiguresSource) {
        // It is set once, at the start.
        let _ = self.own_figures.set(source);
    }

    /// Sets where this node's plan of a rebalance comes from, which other nodes ask for if it is the manager.
    pub fn set_plan_source(&self, source: PlanSource) {
        // It is set once, at the start.
        let _ = self.own_plan.set(source);
    }

    fn now(&self) -> u64 {
        self.clock.now().mono
    }

    /// Locks the router. Returns `None` if the router has panicked: its state can no longer be trusted. Messages that
    /// need the router are then dropped, so their senders get `unknown`, and [`Gateway::run`] returns, which ends the
    /// node (decision 0052).
    fn router(&self) -> Option<MutexGuard<'_, Router<PendingMessage>>> {
        self.router.lock().ok()
    }

    /// Counts of buffered and in-flight messages.
    #[must_use]
    pub fn router_stats(&self) -> RouterStats {
        self.router().map_or_else(RouterStats::default, |router| router.stats())
    }

    /// Accepts messages of one session, in order. Messages of types that are not in `types` remain in the batch: these
    /// are the types for which the caller has checked what the client may send.
    pub fn accept(
        &self,
        session: ScopedSessionId,
        types: &TypeTable,
        batch: &mut Vec<IncomingMessage>,
    ) {
        let (now, utc) = (self.now(), self.clock.utc_ms());
        let mut unknown = Vec::new();
        let mut accepted = Vec::with_capacity(batch.len());
        let pools = self.pools.get();
        for mut request in batch.drain(..) {
            self.resolver.apply_limits(&mut request.envelope, utc);
            let envelope = &request.envelope;
            match types.get(envelope.r#type.as_str()) {
                Some(entry) => {
                    let Some(shard) = pool::shard_of(&pools, &entry.manifest, &envelope.id) else {
                        request.ticket.not_run(forwarded::loading());
                        continue;
                    };
                    let is_known = |method: &str| entry.methods_by_name().contains_key(method);
                    let span = spans::begin_received(&self.tracer, &mut request.envelope, is_known);
                    accepted.push(PendingMessage::new(shard, session, request, span));
                }
                None => unknown.push(request),
            }
        }
        *batch = unknown;
        let mut steps = Vec::with_capacity(accepted.len());
        let Some(mut router) = self.router() else { return };
        for pending in accepted {
            let envelope = &pending.0.envelope;
            let bytes = envelope.body.len() + 256;
            let deadline = envelope.deadline(now, pending.elapsed_ms());
            let shard = pending.0.shard;
            match envelope.flags & SENT_ONCE {
                0 => router.route_into(now, shard, pending, bytes, deadline, &mut steps),
                _ => router.route_once_into(now, shard, pending, bytes, deadline, &mut steps),
            }
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

    /// Sets the incarnation under which this node owns shards; `None` while it has none. Then messages for its
    /// shards wait.
    pub fn set_local_member(&self, me: Option<Member>) {
        self.with_router(|router, now, steps| router.set_local(now, me, steps));
    }

    /// Updates a shard's route from its row: its epoch, its owner, and whether a hand-off is in progress. Older rows
    /// are ignored.
    pub fn update_route(&self, shard: ShardId, epoch: Epoch, owner: Option<Member>, moving: bool) {
        let route = match (&owner, moving) {
            (None, _) => RouteState::Ownerless,
            (Some(_), true) => RouteState::Moving,
            (Some(_), false) => RouteState::Served,
        };
        self.pauses.set_route(shard, route);
        self.with_router(|router, now, steps| {
            router.update_route(now, shard, epoch, owner, moving, steps)
        });
    }

    /// Buffers messages for a shard that is about to move, until a higher epoch is known or the timeout has passed.
    pub fn buffer_shard(&self, shard: ShardId, epoch: Epoch) {
        self.pauses.set_buffered(shard);
        self.with_router(|router, now, _| router.buffer_shard(now, shard, epoch));
    }

    /// Updates a node's addresses and whether it is live, from its row. A repeated update does not disturb an
    /// established link.
    pub fn update_node(&self, member: &Member, alive: bool, addresses: &[String]) {
        self.links.update_node(member, alive, addresses);
    }

    /// Nodes with an established link.
    #[must_use]
    pub fn connected_nodes(&self) -> Vec<NodeId> {
        self.links.connected_nodes()
    }

    /// Nodes that are live according to their rows but have had no link for longer than the limit.
    #[must_use]
    pub fn unreachable_nodes(&self) -> Vec<NodeId> {
        self.links.unreachable_nodes()
    }

    /// Handles the end of a node's incarnation, or the loss of the link to it: messages in flight to it are in doubt.
    pub fn on_member_lost(&self, member: &Member) {
        self.with_router(|router, now, steps| router.on_link_lost(now, member, steps));
    }

    fn not_sent(&self, tags: Vec<u64>) {
        self.with_router(|router, now, steps| {
            for tag in tags {
                router.on_attempt_result(now, tag, AttemptResult::NotSent, steps);
            }
        });
    }

    /// Closes the gateway when the node stops. Buffered messages are returned to their senders immediately,
    /// in-flight ones are answered as their replies arrive, and those left after `grace` are answered as in doubt.
    pub async fn close(&self, grace: Duration) {
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

    /// Handles replies from other nodes.
    fn handle_peer_replies(&self, batch: &mut Vec<(u64, Reply)>) {
        let mut replies = Vec::with_capacity(batch.len());
        let mut steps = Vec::new();
        let now = self.now();
        let Some(mut router) = self.router() else { return };
        for (tag, reply) in batch.drain(..) {
            let answered =
                router.on_attempt_result(now, tag, attempt_result_for_reply(&reply), &mut steps);
            replies.extend(
                answered.map(|(pending, in_doubt)| (pending, unknown_if_in_doubt(reply, in_doubt))),
            );
        }
        drop(router);
        for (pending, reply) in replies {
            pending.reply(reply);
        }
        self.execute_steps(steps);
    }

    /// Makes the router panic.
    #[cfg(feature = "testing")]
    pub fn panic(&self) {
        self.with_router(|_, _, _| panic!("panic requested by the test"));
    }

    /// Sends or refuses buffered messages when they are due, until the router panics.
    pub async fn run(self: Arc<Self>) {
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
    fn send_messages(&self, messages: &mut Vec<EntityMessage>) {
        self.send_entity_messages(messages);
    }

    fn deliver_replies(&self, batch: &mut Vec<WorkerReply>) {
        let mut replies = Vec::with_capacity(batch.len());
        let mut steps = Vec::new();
        let now = self.now();
        let Some(mut router) = self.router() else { return };
        for WorkerReply { tag, outcome, kind, epoch } in batch.drain(..) {
            if let Some((pending, in_doubt)) = router.on_attempt_result(
                now,
                tag,
                attempt_result_for_outcome(&outcome, epoch),
                &mut steps,
            ) {
                replies.push((pending, in_doubt, outcome, kind, epoch));
            }
        }
        drop(router);
        for (pending, in_doubt, outcome, kind, epoch) in replies {
            pending.reply(unknown_if_in_doubt(reply_for_outcome(outcome, kind, epoch), in_doubt));
        }
        self.execute_steps(steps);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is harmless here: its data is consistent wherever a panic can occur.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
