//! Message links to other nodes: one per node, created as soon as the node's row shows that it is live.

mod inspect;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::ids::NodeId;
use ostraca_core::rows::Member;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::peer::forwarding::{Forward, MessageLink, ReplyHandler, UnansweredMessages};
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink};
use ostraca_wire::proto::{Problem, Reply};
use ostraca_wire::reconnect::{BackoffPolicy, Reconnect, connect_first, keep_up};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Gateway, UnreachableSink, lock};
pub use inspect::{InspectTargets, failure_to_wire, migration_to_wire};

/// How long a node may be unreachable before it is reported to the manager (S12).
const UNREACHABLE_AFTER: Duration = Duration::from_secs(3);

/// A live node, and the route to it.
struct PeerRoute {
    member: Member,
    state: Arc<PeerState>,
    /// Ends the task that maintains the link.
    _keeper: DropGuard,
}

/// State that a route shares with the task that maintains its link.
struct PeerState {
    addresses: Mutex<Vec<String>>,
    link: Mutex<Option<ActiveLink>>,
    /// When the link was last lost; if no link has been lost yet, when the route was created.
    down: Mutex<Instant>,
}

/// An established link: its message stream, and the connection for other requests.
struct ActiveLink {
    messages: Arc<MessageLink>,
    peer: PeerLink,
}

/// All message links of a node.
pub(crate) struct MessageLinks {
    /// This node.
    pub(super) local_node: NodeId,
    routes: RwLock<HashMap<NodeId, PeerRoute>>,
    dialer: PeerDialer,
    runtime: Handle,
    unreachable: UnreachableSink,
    gateway: OnceLock<Weak<Gateway>>,
}

impl MessageLinks {
    /// Creates the set of links of the node `own`, which tasks on `runtime` maintain. Nodes that remain unreachable are
    /// reported to `unreachable`.
    pub(crate) fn new(
        own: NodeId,
        dialer: PeerDialer,
        runtime: Handle,
        unreachable: UnreachableSink,
    ) -> Self {
        let (routes, gateway) = (RwLock::default(), OnceLock::new());
        Self { local_node: own, routes, dialer, runtime, unreachable, gateway }
    }

    /// Sets where replies are delivered. No link is created before that.
    pub(crate) fn set_gateway(&self, gateway: &Arc<Gateway>) {
        // A second call would be a bug in this program: the first gateway is kept.
        let _ = self.gateway.set(Arc::downgrade(gateway));
    }

    /// Sends messages without waiting. Those that are not sent remain in the batch; those that are too large for any
    /// link to that node are removed and returned.
    pub(crate) fn send(&self, to: &Member, batch: &mut Vec<Forward>) -> Vec<(u64, Problem)> {
        let link = {
            let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
            let route = routes.get(&to.node).filter(|route| route.member == *to);
            route.and_then(|route| lock(&route.state.link).as_ref().map(|up| up.messages.clone()))
        };
        let Some(link) = link else { return Vec::new() };
        let mut refused = Vec::new();
        while let Err(error) = link.send(batch) {
            // The error concerns only the first of the remaining messages; those behind it must not fail with it.
            if !matches!(error, ostraca_wire::Error::TooLarge { .. }) || batch.is_empty() {
                tracing::debug!(%error, node = %to, left = batch.len(), "failed to send messages");
                break;
            }
            let help = "send a smaller message, or raise the limit on every node";
            refused.push((
                batch.remove(0).tag,
                problem(codes::MESSAGE_TOO_LARGE, error.to_string(), help),
            ));
        }
        refused
    }

    /// Updates a node's addresses and whether it is live, from its row. A repeated update does not disturb an
    /// established link.
    pub(crate) fn update_node(&self, member: &Member, alive: bool, addresses: &[String]) {
        if member.node == self.local_node {
            return;
        }
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        let known = routes.get(&member.node);
        if !alive {
            // The end of an incarnation implies the end of earlier ones, which may be known only from the cache.
            let ends =
                |route: &PeerRoute| route.member.incarnation.counter <= member.incarnation.counter;
            if known.is_some_and(ends) {
                routes.remove(&member.node);
            }
            return;
        }
        if let Some(route) = known.filter(|route| route.member == *member) {
            *lock(&route.state.addresses) = addresses.to_vec();
            return;
        }
        let Some(gateway) = self.gateway.get().cloned() else { return };
        let state = Arc::new(PeerState {
            addresses: Mutex::new(addresses.to_vec()),
            link: Mutex::new(None),
            down: Mutex::new(Instant::now()),
        });
        let stop = CancellationToken::new();
        let keeper = Keeper {
            member: member.clone(),
            dialer: self.dialer.clone(),
            state: state.clone(),
            gateway,
            unreachable: self.unreachable.clone(),
            down_since: Instant::now(),
        };
        let kept = keep_up(None, BackoffPolicy::PEERS, keeper);
        self.runtime.spawn(stop.clone().run_until_cancelled_owned(kept));
        let route = PeerRoute { member: member.clone(), state, _keeper: stop.drop_guard() };
        routes.insert(member.node.clone(), route);
    }

    /// Nodes with an established link.
    pub(crate) fn connected_nodes(&self) -> Vec<NodeId> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let up = |route: &PeerRoute| lock(&route.state.link).is_some();
        routes.iter().filter(|(_, route)| up(route)).map(|(node, _)| node.clone()).collect()
    }

    /// Nodes that are live according to their rows but have had no link for longer than the limit.
    pub(crate) fn unreachable_nodes(&self) -> Vec<NodeId> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let away = |route: &PeerRoute| {
            lock(&route.state.link).is_none()
                && lock(&route.state.down).elapsed() >= UNREACHABLE_AFTER
        };
        routes.iter().filter(|(_, route)| away(route)).map(|(node, _)| node.clone()).collect()
    }
}

/// Maintains one link.
struct Keeper {
    member: Member,
    dialer: PeerDialer,
    state: Arc<PeerState>,
    gateway: Weak<Gateway>,
    unreachable: UnreachableSink,
    /// When the link broke, or when the manager was last notified of it.
    down_since: Instant,
}

impl Reconnect for Keeper {
    type Link = (Arc<MessageLink>, PeerLink);
    type Error = String;

    async fn connect(&mut self) -> Result<Self::Link, String> {
        let addresses = lock(&self.state.addresses).clone();
        connect_first(&addresses, async |address| {
            let node = Some(self.member.node.clone());
            let peer = self.dialer.connect(address, Alpn::Bulk, node).await?;
            let sink = Sink { member: self.member.clone(), gateway: self.gateway.clone() };
            let link = peer.open_forwarding(Arc::new(sink)).await?;
            Ok((Arc::new(link), peer))
        })
        .await
    }

    async fn serve(&mut self, (link, peer): Self::Link) {
        tracing::debug!(node = %self.member, "linked");
        *lock(&self.state.link) = Some(ActiveLink { messages: link.clone(), peer: peer.clone() });
        // The stream may end while the connection stays up.
        tokio::select! {
            _ = peer.closed() => {}
            () = link.closed() => {}
        }
        *lock(&self.state.down) = Instant::now();
        *lock(&self.state.link) = None;
        peer.close();
        // In-flight messages are reported as lost before the next link accepts anything.
        link.closed().await;
        self.down_since = Instant::now();
    }

    fn failed(&mut self, error: String) {
        tracing::debug!(%error, node = %self.member, "no link");
        if self.down_since.elapsed() >= UNREACHABLE_AFTER {
            self.down_since = Instant::now();
            (self.unreachable)(self.member.node.clone());
        }
    }
}

/// Delivers a link's replies to the gateway.
struct Sink {
    member: Member,
    gateway: Weak<Gateway>,
}

impl ReplyHandler for Sink {
    fn on_replies(&self, batch: &mut Vec<(u64, Reply)>) {
        if let Some(gateway) = self.gateway.upgrade() {
            gateway.handle_peer_replies(batch);
        }
    }

    fn on_closed(&self, lost: UnansweredMessages) {
        if let Some(gateway) = self.gateway.upgrade() {
            tracing::debug!(node = %self.member, why = lost.reason, "link lost");
            gateway.not_sent(lost.not_sent);
            gateway.on_member_lost(&self.member);
        }
    }
}
