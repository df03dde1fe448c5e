//! Links to other nodes for messages: one a node, made as soon as its row says that it lives.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use ostraca_sharding::ids::NodeId;
use ostraca_sharding::rows::Member;
use ostraca_wire::peer::messages::{Forward, Lost, MessageLink, Replies};
use ostraca_wire::peer::{Alpn, PeerDialer};
use ostraca_wire::proto::Reply;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Gateway, lock};

/// The pause before a broken link is made again, and the longest of them.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long a node may be out of reach before the manager is told (S12).
const PATIENCE: Duration = Duration::from_secs(3);

/// A node that lives, and the way to it.
struct Way {
    member: Member,
    link: Arc<std::sync::Mutex<Option<MessageLink>>>,
    /// Ends the task that keeps the link.
    _keeper: DropGuard,
}

/// All links of a node.
pub(crate) struct Links {
    own: NodeId,
    ways: RwLock<HashMap<NodeId, Way>>,
    dialer: PeerDialer,
    runtime: Handle,
    unreachable: mpsc::UnboundedSender<NodeId>,
    gateway: OnceLock<Weak<Gateway>>,
}

impl Links {
    /// Links from the node `own`, kept by tasks of `runtime`. Nodes that stay out of reach are told.
    pub(crate) fn new(
        own: NodeId,
        dialer: PeerDialer,
        runtime: Handle,
        unreachable: mpsc::UnboundedSender<NodeId>,
    ) -> Self {
        let (ways, gateway) = (RwLock::default(), OnceLock::new());
        Self { own, ways, dialer, runtime, unreachable, gateway }
    }

    /// Where replies go. Before it no link is made.
    pub(crate) fn serve(&self, gateway: &Arc<Gateway>) {
        // A second gateway is a fault of this program: the first one stays.
        let _ = self.gateway.set(Arc::downgrade(gateway));
    }

    /// Sends messages, never waiting; those that are not sent stay in the batch.
    pub(crate) fn send(&self, to: &Member, batch: &mut Vec<Forward>) {
        let ways = self.ways.read().unwrap_or_else(PoisonError::into_inner);
        let Some(way) = ways.get(&to.node).filter(|way| way.member == *to) else { return };
        if let Some(link) = &*lock(&way.link)
            && let Err(error) = link.send(batch)
        {
            tracing::debug!(%error, node = %to, left = batch.len(), "messages were not sent");
        }
    }

    /// A node's row says where it is, and whether it lives.
    pub(crate) fn node(&self, member: &Member, alive: bool, addresses: &[String]) {
        if member.node == self.own {
            return;
        }
        let mut ways = self.ways.write().unwrap_or_else(PoisonError::into_inner);
        if alive {
            let Some(gateway) = self.gateway.get().cloned() else { return };
            let link = Arc::new(std::sync::Mutex::new(None));
            let stop = CancellationToken::new();
            let keeper = Keeper {
                member: member.clone(),
                addresses: addresses.to_vec(),
                dialer: self.dialer.clone(),
                link: link.clone(),
                gateway,
                unreachable: self.unreachable.clone(),
            };
            let stopped = stop.clone();
            self.runtime.spawn(async move {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = keeper.keep() => {}
                }
            });
            let way = Way { member: member.clone(), link, _keeper: stop.drop_guard() };
            ways.insert(member.node.clone(), way);
        } else if ways.get(&member.node).is_some_and(|way| way.member == *member) {
            ways.remove(&member.node);
        }
    }

    /// Nodes to which a link stands.
    pub(crate) fn reached(&self) -> Vec<NodeId> {
        let ways = self.ways.read().unwrap_or_else(PoisonError::into_inner);
        let up = |way: &Way| lock(&way.link).is_some();
        ways.iter().filter(|(_, way)| up(way)).map(|(node, _)| node.clone()).collect()
    }
}

/// Keeps one link.
struct Keeper {
    member: Member,
    addresses: Vec<String>,
    dialer: PeerDialer,
    link: Arc<std::sync::Mutex<Option<MessageLink>>>,
    gateway: Weak<Gateway>,
    unreachable: mpsc::UnboundedSender<NodeId>,
}

impl Keeper {
    async fn keep(self) {
        let mut pause = PAUSE.0;
        let mut since = tokio::time::Instant::now();
        loop {
            match self.connect().await {
                Ok(closed) => {
                    pause = PAUSE.0;
                    tracing::debug!(node = %self.member, "linked");
                    closed.await;
                    *lock(&self.link) = None;
                    since = tokio::time::Instant::now();
                }
                Err(error) => {
                    tracing::debug!(%error, node = %self.member, "no link");
                    if since.elapsed() >= PATIENCE {
                        since = tokio::time::Instant::now();
                        // Nobody to hear it: the node stops.
                        let _ = self.unreachable.send(self.member.node.clone());
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Makes the link; the future that is given ends with it.
    async fn connect(&self) -> Result<impl Future<Output = ()> + use<>, String> {
        let mut last = "it announces no address".to_owned();
        for address in &self.addresses {
            let attempt = tokio::time::timeout(ATTEMPT, self.attempt(address)).await;
            match attempt.unwrap_or_else(|_| Err(format!("no answer within {ATTEMPT:?}"))) {
                Ok((link, peer)) => {
                    *lock(&self.link) = Some(link);
                    return Ok(async move {
                        peer.closed().await;
                    });
                }
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        Err(last)
    }

    async fn attempt(
        &self,
        address: &str,
    ) -> Result<(MessageLink, ostraca_wire::peer::PeerLink), String> {
        let address: SocketAddr = crate::resolve(address).await?;
        let node = self.member.node.clone();
        let peer = self
            .dialer
            .connect(address, Alpn::Bulk, Some(node))
            .await
            .map_err(|error| error.to_string())?;
        let sink = Sink { member: self.member.clone(), gateway: self.gateway.clone() };
        let link = peer.messages(Arc::new(sink)).await.map_err(|error| error.to_string())?;
        Ok((link, peer))
    }
}

/// Where a link's replies go.
struct Sink {
    member: Member,
    gateway: Weak<Gateway>,
}

impl Replies for Sink {
    fn replies(&self, batch: &mut Vec<(u64, Reply)>) {
        if let Some(gateway) = self.gateway.upgrade() {
            gateway.replies(batch);
        }
    }

    fn lost(&self, lost: Lost) {
        if let Some(gateway) = self.gateway.upgrade() {
            tracing::debug!(node = %self.member, why = lost.why, "a link broke");
            gateway.not_sent(lost.not_sent);
            gateway.lost(&self.member);
        }
    }
}
