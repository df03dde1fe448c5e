//! Server side of a node: accepts connections and streams, validates frames against the limits, and passes them
//! to a [`Service`].
//!
//! Whatever an unknown or faulty client does ends here, with a code, and affects only the client's own stream or
//! connection: garbage, partial frames, lengths beyond the limit, abandoned streams. Each connection and each stream is
//! a task of the same tracker. For whatever reason a task ends, the others continue.

mod admin;
mod connection;
mod connection_guard;
pub mod json;
mod local;
mod log_throttle;
mod peers;
mod session;
mod subscription;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::ids::ScopedSessionId;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use subscription::SubscriptionEvent;

pub use admin::{
    AdminOperation, AdminOutput, AdminUpdate, LocalAnswer, Upload, UploadPermit, update_channel,
};

pub use crate::budget::{Account, BudgetExceeded, Charge};
pub use crate::message_stream::{IncomingMessage, LocalReceiver, LocalReply, Ticket};
pub use local::LocalSession;

use log_throttle::LogThrottle;

use crate::budget::Budgets;
use crate::close_code::CloseCode;
use crate::endpoint;
use crate::error::{Error, problem};
use crate::framed::{FrameReader, FrameWriter};
use crate::hello::NodeDescriptor;
use crate::identity::{Identity, TrustRoot};
use crate::limits::Limits;
use crate::peer::descriptor::SharedDescriptor;
use crate::peer::{PeerDescriptor, PeerDialer, PeerService};
use crate::proto::{self, Problem};

/// Handles what clients send to a node.
pub trait Service: Send + Sync + 'static {
    /// Takes messages of one session in the order in which they were sent, and leaves the batch empty: a message that
    /// is left in it is answered with `unknown`. Until this returns, nothing more is read from the session's stream.
    fn handle_messages(
        &self,
        session: &Arc<SessionInfo>,
        batch: &mut Vec<IncomingMessage>,
    ) -> impl Future<Output = ()> + Send;

    /// Handles an administrative request.
    fn handle_admin(
        &self,
        peer: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> impl Future<Output = Result<AdminOutput, Problem>> + Send;

    /// Checks the token of a client.
    ///
    /// # Errors
    ///
    /// The refusal, with which the connection is closed.
    fn check_token(&self, token: &str) -> Result<TokenHolder, TokenRefused> {
        let _ = token;
        Err(TokenRefused::Invalid("this node accepts no tokens".into()))
    }

    /// Checks whether a client may have a connection: when it opens one, and whenever
    /// [`Service::access_changes`] reports a change.
    ///
    /// # Errors
    ///
    /// The reason, with which the connection is closed as [`CloseCode::Revoked`].
    fn check_connection(&self, peer: &ClientInfo) -> Result<(), String> {
        let _ = peer;
        Ok(())
    }

    /// Whether clients without a certificate or a token are served, over protocols that allow that.
    ///
    /// # Errors
    ///
    /// The refusal, if that is not known.
    fn admits_anonymous(&self) -> Result<bool, Problem> {
        Ok(false)
    }

    /// Whether web pages of this origin may send requests.
    ///
    /// # Errors
    ///
    /// The refusal, if that is not known.
    fn admits_origin(&self, origin: &str) -> Result<bool, Problem> {
        let _ = origin;
        Ok(false)
    }

    /// The methods of those types that a client may use: of all types, or of the one with this name.
    ///
    /// # Errors
    ///
    /// The refusal.
    fn describe_types(
        &self,
        peer: &ClientInfo,
        name: Option<&str>,
    ) -> Result<Vec<proto::Methods>, Problem> {
        let _ = (peer, name);
        Ok(Vec::new())
    }

    /// Changes whenever clients must be checked again; `None` if they never must.
    fn access_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Checks whether a client may do something in the namespace of a type that is not deployed: if not, it must not
    /// learn that it is not.
    ///
    /// # Errors
    ///
    /// The refusal.
    fn check_namespace(
        &self,
        principal: &str,
        subjects: &[String],
        entity_type: &str,
    ) -> Result<(), Problem> {
        let _ = (principal, subjects, entity_type);
        Ok(())
    }

    /// Checks whether a client may get the next items of a subscription.
    ///
    /// # Errors
    ///
    /// The refusal, which ends the subscription.
    fn check_subscription(&self, peer: &ClientInfo, entity_type: &str) -> Result<(), Problem> {
        let _ = (peer, entity_type);
        Ok(())
    }

    /// Checks whether a client may deploy under this manifest, before its component is received.
    ///
    /// # Errors
    ///
    /// The refusal.
    fn check_upload(&self, peer: &ClientInfo, manifest: &str) -> Result<(), Problem> {
        let _ = (peer, manifest);
        Ok(())
    }

    /// Handles a subscription. The frames are sent as they come; the response ends with a problem, or when the sender is
    /// dropped. The sender is [closed](tokio::sync::mpsc::Sender::closed) when nobody reads the response any more.
    fn handle_subscription(
        &self,
        peer: &Arc<ClientInfo>,
        request: proto::Subscribe,
    ) -> impl Future<Output = Result<mpsc::Receiver<SubscriptionEvent>, Problem>> + Send {
        let _ = (peer, request);
        let text = "this node serves no subscriptions";
        std::future::ready(Err(problem(codes::UNKNOWN_REQUEST, text)))
    }

    /// Cluster time in milliseconds, with which clients stamp their messages (R17); 0 if unknown.
    fn cluster_time_ms(&self) -> u64 {
        0
    }

    /// The cluster's UTC in milliseconds since 1970, with which clients stamp their messages; 0 if unknown.
    fn utc_ms(&self) -> u64 {
        0
    }
}

/// The client at the other end of a connection.
#[derive(Debug)]
pub struct ClientInfo {
    /// The principal in its certificate or token, in the form that access rules use: `client/alice`.
    pub principal_name: Arc<str>,
    /// What a revocation may name: the principal, and its certificate (`certificate/` and the SHA-256 of its
    /// TBSCertificate in hexadecimal) or its token (`token-id/ISSUER/ID`).
    pub subjects: Vec<String>,
    /// The client's address.
    pub address: SocketAddr,
    /// The limits that the client announced; 0 stands for "not announced".
    pub limits: proto::Limits,
    /// The token that the client has shown; `None` for a certificate.
    pub token: Option<Token>,
    /// The budgets to which the client's traffic is charged.
    pub(crate) account: Arc<Account>,
}

impl ClientInfo {
    /// The budgets to which the client's traffic is charged.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

/// A client's token: a secret.
#[derive(Clone)]
pub struct Token(pub Arc<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The holder of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenHolder {
    /// The principal: `token/ISSUER/SUBJECT`.
    pub principal: String,
    /// What a revocation may name.
    pub subjects: Vec<String>,
    /// The time until the token expires.
    pub valid_for: Duration,
}

/// Why a node does not accept a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRefused {
    /// It is not valid, for this reason ([`CloseCode::InvalidToken`]).
    Invalid(String),
    /// The node cannot check it now, for this reason ([`CloseCode::NotReady`]).
    NotReady(String),
}

/// One session's stream on one connection. A session may have several streams, on several connections.
#[derive(Debug)]
pub struct SessionInfo {
    /// The client that sends on it.
    pub client: Arc<ClientInfo>,
    /// The id that the client chose.
    pub client_session_id: [u8; 16],
    /// The id under which entities know the session (R17).
    pub session: ScopedSessionId,
}

/// What a node needs to accept other nodes.
pub struct PeerConfig {
    /// What the node announces about itself.
    pub descriptor: PeerDescriptor,
    /// Serves the streams of other nodes.
    pub service: Arc<dyn PeerService>,
}

/// Accepts clients, and other nodes, on one UDP port.
pub struct Server<S> {
    shared: Arc<Inner<S>>,
    endpoint: quinn::Endpoint,
}

/// What [`Server::network_stats`] returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Open QUIC connections, of clients and nodes, in both directions.
    pub connections: u64,
    /// Those that other nodes have opened to this one.
    pub node_connections: u64,
    /// Handshakes that were accepted.
    pub accepted_handshakes: u64,
    /// Handshakes that were refused: there are too many connections.
    pub refused_handshakes: u64,
    /// Handshakes that were ignored: packets that are no beginning of a connection.
    pub ignored_handshakes: u64,
    /// Handshakes that this node has begun.
    pub outgoing_handshakes: u64,
    /// Bytes that are charged for clients now.
    pub charged_bytes: u64,
}

struct Inner<S> {
    service: Arc<S>,
    limits: Limits,
    descriptor: SharedDescriptor,
    peers: Option<Arc<dyn PeerService>>,
    /// Budgets and connection counts of clients.
    budgets: Arc<Budgets>,
    /// Number of connections from nodes.
    nodes: Arc<AtomicUsize>,
    /// The authorities of the cluster.
    trust: watch::Sender<Arc<TrustRoot>>,
    refusals: LogThrottle,
    tasks: TaskTracker,
    /// Once cancelled, nothing new is accepted; what was accepted is answered.
    stopping: CancellationToken,
}

impl<S: Service> Server<S> {
    /// Binds the port. `setting` names the setting that holds the address, for errors. Must be called within a
    /// tokio runtime. Nothing is accepted before [`Server::run`].
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
        descriptor: NodeDescriptor,
        service: Arc<S>,
    ) -> Result<Self, Error> {
        Self::bind_as(address, setting, identity, trust, limits, descriptor.into(), None, service)
    }

    /// Like [`Server::bind`], for a node that also accepts connections from other nodes, and dials them from the same
    /// port.
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
        let PeerConfig { descriptor, service: streams } = peers;
        let server = Self::bind_as(
            address,
            setting,
            identity,
            trust,
            limits,
            descriptor,
            Some(streams),
            service,
        )?;
        let (endpoint, descriptor) = (server.endpoint.clone(), server.shared.descriptor.clone());
        let (limits, changes) = (&server.shared.limits, server.shared.trust.subscribe());
        let dialer = PeerDialer::new(endpoint, identity, changes, limits, descriptor)?;
        Ok((server, dialer))
    }

    /// Presents another certificate of the same key from now on, and trusts other authorities. Established connections
    /// go on, except those whose certificates come from an authority that is no longer trusted: these are closed as
    /// [`CloseCode::Revoked`]. The dialer of this server must be given the same.
    ///
    /// # Errors
    ///
    /// [`Error::Identity`] if key and certificate do not match; then nothing has changed.
    pub fn replace_identity(&self, identity: &Identity, trust: &TrustRoot) -> Result<(), Error> {
        let config = self.shared.tls_config(identity, trust)?;
        self.endpoint.set_server_config(Some(config));
        self.shared.trust.send_if_modified(|current| {
            let changed = **current != *trust;
            if changed {
                *current = Arc::new(trust.clone());
            }
            changed
        });
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what the two above have in common")]
    fn bind_as(
        address: SocketAddr,
        setting: &'static str,
        identity: &Identity,
        trust: &TrustRoot,
        limits: Limits,
        descriptor: PeerDescriptor,
        peers: Option<Arc<dyn PeerService>>,
        service: Arc<S>,
    ) -> Result<Self, Error> {
        let inner = Inner {
            service,
            budgets: Budgets::new(&limits),
            limits,
            descriptor: SharedDescriptor::new(descriptor),
            peers,
            nodes: Arc::default(),
            trust: watch::Sender::new(Arc::new(trust.clone())),
            refusals: LogThrottle::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
        };
        let config = inner.tls_config(identity, trust)?;
        let endpoint = endpoint::bind_node(address, setting, &inner.limits, config, identity)?;
        Ok(Self { shared: Arc::new(inner), endpoint })
    }

    /// The address that the server listens on.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectionLost`] if the system does not report it.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.endpoint.local_addr().map_err(|e| Error::ConnectionLost(e.to_string()))
    }

    /// Changes what later hellos announce, such as the incarnation after a re-registration. This includes hellos to
    /// nodes, but not the rest of the peer descriptor.
    pub fn set_node_descriptor(&self, descriptor: NodeDescriptor) {
        self.shared.descriptor.change(|all| all.node = descriptor);
    }

    /// Changes everything that later hellos announce. Established connections are not affected.
    pub fn set_peer_descriptor(&self, descriptor: PeerDescriptor) {
        self.shared.descriptor.change(|all| *all = descriptor);
    }

    /// Number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.endpoint.open_connections()
    }

    /// Bytes charged for clients, whether they are connected to this node or to one that forwards their messages.
    #[must_use]
    pub fn charged_bytes(&self) -> u64 {
        self.shared.budgets.charged_bytes()
    }

    /// Figures of the endpoint since it was bound.
    #[must_use]
    pub fn network_stats(&self) -> NetworkStats {
        let stats = self.endpoint.stats();
        NetworkStats {
            connections: self.endpoint.open_connections() as u64,
            node_connections: self.shared.nodes.load(Ordering::Relaxed) as u64,
            accepted_handshakes: stats.accepted_handshakes,
            refused_handshakes: stats.refused_handshakes,
            ignored_handshakes: stats.ignored_handshakes,
            outgoing_handshakes: stats.outgoing_handshakes,
            charged_bytes: self.charged_bytes(),
        }
    }

    /// Accepts connections until [`Server::shut_down`].
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
                // Half full: new clients must first prove their address (by a QUIC retry).
                if let Err(error) = incoming.retry() {
                    error.into_incoming().refuse();
                }
            } else {
                let shared = Arc::clone(&self.shared);
                self.shared.tasks.spawn(async move {
                    if let Err(error) = shared.connection(incoming).await {
                        debug!(%error, "connection closed");
                    }
                });
            }
        }
    }

    /// Stops accepting anything new, waits up to `grace` until accepted requests are answered and the replies have
    /// arrived, then closes every connection with `shutting-down`.
    pub async fn shut_down(&self, grace: Duration) {
        self.shared.stopping.cancel();
        self.shared.tasks.close();
        // Closing the endpoint ends whatever has not finished in time.
        let _ = timeout(grace, self.shared.tasks.wait()).await;
        self.endpoint.close(CloseCode::ShuttingDown.into(), b"the node is shutting down");
        // Draining takes three probe timeouts per connection; do not wait longer when shutting down.
        let _ = timeout(Duration::from_secs(2), async {
            self.shared.tasks.wait().await;
            self.endpoint.wait_idle().await;
        })
        .await;
    }
}

fn stopping() -> Error {
    Error::violation(CloseCode::ShuttingDown, "the node is shutting down")
}

/// Resets a stream with the error's code.
fn give_up(error: &Error, reader: &mut FrameReader, writer: &mut FrameWriter) {
    debug!(%error, "stream closed with an error");
    reader.stop(error.close_code());
    writer.reset(error.close_code());
}
