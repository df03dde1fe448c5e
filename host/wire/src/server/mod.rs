//! A node's side: takes connections and streams, and hands what is whole and within the limits to a
//! [`Service`].
//!
//! Everything that an unknown or broken client can do ends here, with a code, and on its own stream
//! or connection only: garbage, half frames, lengths beyond the limit, streams opened and left.
//! Each connection and each stream is a task of one tracker; one that ends, however it ends, ends
//! nothing else.

mod admin;
mod connection;
mod peers;
mod refusals;
mod session;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use ostraca_core::ids::ScopedSessionId;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use admin::{Admin, AdminAnswer, Part, Upload, UploadPlace, growing};

pub use crate::budget::{Account, Charge, Full};
pub use crate::flow::{Request, Ticket};

use connection::stopping;
use refusals::Refusals;

use crate::budget::Budgets;
use crate::code::Code;
use crate::error::Error;
use crate::hello::NodeFacts;
use crate::identity::{Identity, Principal, Trust};
use crate::limits::Limits;
use crate::peer::facts::SharedFacts;
use crate::peer::{Facts, PeerDialer, PeerService};
use crate::proto::{self, Problem};
use crate::{ALPN_CLIENT, ALPN_CONTROL, ALPN_PEER, endpoint, tls};

/// What a node does with what has come.
pub trait Service: Send + Sync + 'static {
    /// Takes messages of one session, in the order they were sent, and leaves the batch empty: what
    /// is left in it is answered as `unknown`. While it waits, nothing more of this session is read.
    fn messages(
        &self,
        session: &Arc<SessionInfo>,
        batch: &mut Vec<Request>,
    ) -> impl Future<Output = ()> + Send;

    /// Answers a request that is no message.
    fn admin(
        &self,
        peer: &Arc<Peer>,
        request: Admin,
    ) -> impl Future<Output = Result<AdminAnswer, Problem>> + Send;

    /// Cluster time in milliseconds, which clients stamp their messages with (R17); 0: not known.
    fn cluster_ms(&self) -> u64 {
        0
    }
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// From its certificate, as entities' access rules know it: `client/alice`.
    pub principal: Arc<str>,
    /// The same in parts.
    pub identity: Principal,
    /// Where it is.
    pub address: SocketAddr,
    /// What it announced to take; 0 stands for "not announced".
    pub limits: proto::Limits,
    /// What is held for it.
    pub(crate) account: Arc<Account>,
}

/// One session's stream on one connection. The same session may have others, on other connections.
#[derive(Debug)]
pub struct SessionInfo {
    /// Whose.
    pub peer: Arc<Peer>,
    /// What the client chose.
    pub id: [u8; 16],
    /// As entities know it (R17).
    pub session: ScopedSessionId,
}

/// A node among nodes.
pub struct Peers {
    /// What it says of itself to other nodes.
    pub facts: Facts,
    /// What it does with their streams.
    pub service: Arc<dyn PeerService>,
}

/// Takes clients, and other nodes, on one UDP port.
pub struct Server<S> {
    shared: Arc<Shared<S>>,
    endpoint: quinn::Endpoint,
}

struct Shared<S> {
    service: Arc<S>,
    limits: Limits,
    facts: SharedFacts,
    peers: Option<Arc<dyn PeerService>>,
    /// What is held for clients, and their connections.
    budgets: Arc<Budgets>,
    /// Connections from nodes.
    nodes: Arc<AtomicUsize>,
    refusals: Refusals,
    tasks: TaskTracker,
    /// Nothing new is taken; what was taken is answered.
    stopping: CancellationToken,
}

impl<S: Service> Server<S> {
    /// Binds the port. `setting` is the name of the setting that gave the address, for errors. Must
    /// be called within a tokio runtime; nothing is taken before [`Server::run`].
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::Bind`], [`Error::Identity`].
    pub fn bind(
        address: SocketAddr,
        setting: &'static str,
        identity: &Identity,
        trust: &Trust,
        limits: Limits,
        facts: NodeFacts,
        service: Arc<S>,
    ) -> Result<Self, Error> {
        Self::bind_as(address, setting, identity, trust, limits, facts.into(), None, service)
    }

    /// The same for a node that takes other nodes as well, and dials them from the same port.
    ///
    /// # Errors
    ///
    /// As [`Server::bind`].
    pub fn bind_with_peers(
        address: SocketAddr,
        setting: &'static str,
        identity: &Identity,
        trust: &Trust,
        limits: Limits,
        peers: Peers,
        service: Arc<S>,
    ) -> Result<(Self, PeerDialer), Error> {
        let Peers { facts, service: streams } = peers;
        let server = Self::bind_as(
            address,
            setting,
            identity,
            trust,
            limits,
            facts,
            Some(streams),
            service,
        )?;
        let (endpoint, facts) = (server.endpoint.clone(), server.shared.facts.clone());
        let dialer = PeerDialer::new(endpoint, identity, trust, &server.shared.limits, facts)?;
        Ok((server, dialer))
    }

    #[allow(clippy::too_many_arguments, reason = "what the two above have in common")]
    fn bind_as(
        address: SocketAddr,
        setting: &'static str,
        identity: &Identity,
        trust: &Trust,
        limits: Limits,
        facts: Facts,
        peers: Option<Arc<dyn PeerService>>,
        service: Arc<S>,
    ) -> Result<Self, Error> {
        let mut alpns = vec![ALPN_CLIENT];
        if peers.is_some() {
            alpns.extend([ALPN_PEER, ALPN_CONTROL]);
        }
        let config = endpoint::server_config(tls::server(identity, trust, &alpns)?, &limits)?;
        let endpoint = endpoint::bind_node(address, setting, &limits, config, identity)?;
        let shared = Arc::new(Shared {
            service,
            budgets: Budgets::new(&limits),
            limits,
            facts: SharedFacts::new(facts),
            peers,
            nodes: Arc::default(),
            refusals: Refusals::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
        });
        Ok(Self { shared, endpoint })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the system does not say.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.endpoint.local_addr().map_err(|e| Error::Lost(e.to_string()))
    }

    /// Changes what later hellos say, such as the incarnation after a re-registration. Other nodes hear it
    /// too, and the rest as before.
    pub fn set_facts(&self, facts: NodeFacts) {
        self.shared.facts.change(|all| all.node = facts);
    }

    /// Changes all that later hellos say. Connections that stand keep what they heard.
    pub fn set_peer_facts(&self, facts: Facts) {
        self.shared.facts.change(|all| *all = facts);
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Bytes that are held for clients, here and through other nodes.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.shared.budgets.held()
    }

    /// Takes connections until [`Server::shut_down`].
    pub async fn run(&self) {
        loop {
            let incoming = tokio::select! {
                () = self.shared.stopping.cancelled() => return,
                incoming = self.endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else { return };
            let open = self.endpoint.open_connections();
            let most = self.shared.most_connections();
            if open >= most {
                incoming.refuse();
            } else if open >= most / 2 && !incoming.remote_address_validated() {
                // Half full: whoever comes now shows first that its address is its own.
                if let Err(error) = incoming.retry() {
                    error.into_incoming().refuse();
                }
            } else {
                let shared = Arc::clone(&self.shared);
                self.shared.tasks.spawn(async move {
                    if let Err(error) = shared.connection(incoming).await {
                        debug!(%error, "a connection ended");
                    }
                });
            }
        }
    }

    /// Takes nothing new, waits up to `grace` until what was taken is answered and the answers have
    /// arrived, then closes every connection as `shutting-down`.
    pub async fn shut_down(&self, grace: Duration) {
        self.shared.stopping.cancel();
        self.shared.tasks.close();
        // What did not end in time is cut off by the close.
        let _ = timeout(grace, self.shared.tasks.wait()).await;
        self.endpoint.close(Code::ShuttingDown.into(), b"the node stops");
        // Draining takes three probe time-outs a connection; a node that must go does not wait for more.
        let _ = timeout(Duration::from_secs(2), async {
            self.shared.tasks.wait().await;
            self.endpoint.wait_idle().await;
        })
        .await;
    }
}
