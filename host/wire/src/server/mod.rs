//! A node's side: takes connections and streams, and hands what is whole and within the limits to a
//! [`Service`].
//!
//! Everything that an unknown or broken client can do ends here, with a code, and on its own stream
//! or connection only: garbage, half frames, lengths beyond the limit, streams opened and left.
//! Each connection and each stream is a task of one tracker; one that ends, however it ends, ends
//! nothing else.

mod admin;
mod connection;
mod log_throttle;
mod peers;
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

pub use admin::{AdminOperation, AdminOutput, AdminUpdate, Upload, UploadPermit, update_channel};

pub use crate::budget::{Account, BudgetExceeded, Charge};
pub use crate::message_stream::{IncomingMessage, Ticket};

use connection::stopping;
use log_throttle::LogThrottle;

use crate::budget::Budgets;
use crate::close_code::CloseCode;
use crate::error::Error;
use crate::hello::NodeDescriptor;
use crate::identity::{Identity, Principal, TrustRoot};
use crate::limits::Limits;
use crate::peer::descriptor::SharedDescriptor;
use crate::peer::{PeerDescriptor, PeerDialer, PeerService};
use crate::proto::{self, Problem};
use crate::{ALPN_CLIENT, ALPN_CONTROL, ALPN_PEER, endpoint, tls};

/// What a node does with what has come.
pub trait Service: Send + Sync + 'static {
    /// Takes messages of one session, in the order they were sent, and leaves the batch empty: what
    /// is left in it is answered as `unknown`. While it waits, nothing more of this session is read.
    fn handle_messages(
        &self,
        session: &Arc<SessionInfo>,
        batch: &mut Vec<IncomingMessage>,
    ) -> impl Future<Output = ()> + Send;

    /// Answers a request that is no message.
    fn handle_admin(
        &self,
        peer: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> impl Future<Output = Result<AdminOutput, Problem>> + Send;

    /// Cluster time in milliseconds, which clients stamp their messages with (R17); 0: not known.
    fn cluster_time_ms(&self) -> u64 {
        0
    }
}

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct ClientInfo {
    /// From its certificate, as entities' access rules know it: `client/alice`.
    pub principal_name: Arc<str>,
    /// The same in parts.
    pub principal: Principal,
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
    pub client: Arc<ClientInfo>,
    /// What the client chose.
    pub client_session_id: [u8; 16],
    /// As entities know it (R17).
    pub session: ScopedSessionId,
}

/// A node among nodes.
pub struct PeerConfig {
    /// What it says of itself to other nodes.
    pub descriptor: PeerDescriptor,
    /// What it does with their streams.
    pub service: Arc<dyn PeerService>,
}

/// Takes clients, and other nodes, on one UDP port.
pub struct Server<S> {
    shared: Arc<Inner<S>>,
    endpoint: quinn::Endpoint,
}

struct Inner<S> {
    service: Arc<S>,
    limits: Limits,
    descriptor: SharedDescriptor,
    peers: Option<Arc<dyn PeerService>>,
    /// What is held for clients, and their connections.
    budgets: Arc<Budgets>,
    /// Connections from nodes.
    nodes: Arc<AtomicUsize>,
    refusals: LogThrottle,
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
        trust: &TrustRoot,
        limits: Limits,
        facts: NodeDescriptor,
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
        trust: &TrustRoot,
        limits: Limits,
        peers: PeerConfig,
        service: Arc<S>,
    ) -> Result<(Self, PeerDialer), Error> {
        let PeerConfig { descriptor: facts, service: streams } = peers;
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
        let (endpoint, facts) = (server.endpoint.clone(), server.shared.descriptor.clone());
        let dialer = PeerDialer::new(endpoint, identity, trust, &server.shared.limits, facts)?;
        Ok((server, dialer))
    }

    #[allow(clippy::too_many_arguments, reason = "what the two above have in common")]
    fn bind_as(
        address: SocketAddr,
        setting: &'static str,
        identity: &Identity,
        trust: &TrustRoot,
        limits: Limits,
        facts: PeerDescriptor,
        peers: Option<Arc<dyn PeerService>>,
        service: Arc<S>,
    ) -> Result<Self, Error> {
        let mut alpns = vec![ALPN_CLIENT];
        if peers.is_some() {
            alpns.extend([ALPN_PEER, ALPN_CONTROL]);
        }
        let config = endpoint::server_config(tls::server(identity, trust, &alpns)?, &limits)?;
        let endpoint = endpoint::bind_node(address, setting, &limits, config, identity)?;
        let shared = Arc::new(Inner {
            service,
            budgets: Budgets::new(&limits),
            limits,
            descriptor: SharedDescriptor::new(facts),
            peers,
            nodes: Arc::default(),
            refusals: LogThrottle::default(),
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
        self.endpoint.local_addr().map_err(|e| Error::ConnectionLost(e.to_string()))
    }

    /// Changes what later hellos say, such as the incarnation after a re-registration. Other nodes hear it
    /// too, and the rest as before.
    pub fn set_node_descriptor(&self, facts: NodeDescriptor) {
        self.shared.descriptor.change(|all| all.node = facts);
    }

    /// Changes all that later hellos say. Connections that stand keep what they heard.
    pub fn set_peer_descriptor(&self, facts: PeerDescriptor) {
        self.shared.descriptor.change(|all| *all = facts);
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Bytes that are held for clients, here and through other nodes.
    #[must_use]
    pub fn charged_bytes(&self) -> u64 {
        self.shared.budgets.charged_bytes()
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
        self.endpoint.close(CloseCode::ShuttingDown.into(), b"the node stops");
        // Draining takes three probe time-outs a connection; a node that must go does not wait for more.
        let _ = timeout(Duration::from_secs(2), async {
            self.shared.tasks.wait().await;
            self.endpoint.wait_idle().await;
        })
        .await;
    }
}
