//! The connection: established, kept up, and re-established to whichever of the profile's addresses responds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ostraca_codes::{Code, codes};
use ostraca_wire::dial::{ClientConnection, Dialer};
use ostraca_wire::identity::TrustRoot;
use ostraca_wire::reconnect::{BackoffPolicy, Reconnect, keep_up};
use ostraca_wire::{Error, Limits};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use crate::call::SessionId;
use crate::cluster_clock::ClusterClock;
use crate::connection_state::ConnectionState;
use crate::driver;
use crate::gateway_switch::SharedSwitchTimer;
use crate::profile::{Credential, Profile, ProfileError};
use crate::session::{Session, Shared};

/// The pauses before a reconnect.
const RECONNECT: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(50), longest: Duration::from_secs(2) };

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A node responded, but it or this side refused the connection. A retry does not help.
    #[error("{address}: {error}")]
    Refused {
        /// The node's address.
        address: String,
        /// Why, and how to fix it.
        error: Error,
    },
    /// No address responds. A retry may succeed.
    #[error(
        "no node responds at {addresses} ({last}): start one with `ostraca run` or `ostraca dev`, or fix the addresses in the profile"
    )]
    NoNodeReachable {
        /// The addresses that were tried.
        addresses: String,
        /// The error of the last one.
        last: String,
    },
}

impl ConnectError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Profile(_) => codes::INVALID_PROFILE,
            Self::Refused { error, .. } => error.code(),
            Self::NoNodeReachable { .. } => codes::NO_NODE_REACHABLE,
        }
    }
}

/// Options of a client's connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Timeout per address. Default 3 s.
    pub connect_timeout: Duration,
    /// How long the client goes without progress before it switches to another of the profile's addresses, because its
    /// gateway may be cut off from the cluster. No progress means that messages only wait, or that the gateway itself
    /// refuses them. The time is randomised between three and five quarters of this value, so that not all clients
    /// switch at once, and doubled, up to a factor of 16, while switching does not help. Default 6 s, longer than a
    /// fail-over.
    pub stall_timeout: Duration,
    /// The limits of this side; see [`Limits`]. Here `max_frame` defaults to 64 MiB, `keep_alive_interval` to 1 s and
    /// `idle_timeout` to 5 s, so that users do not wait for a client that notices a dead node later than the cluster
    /// does.
    pub limits: Limits,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        // A client accepts frames of any size that a node is configured to send.
        let limits = Limits {
            max_frame: 64 << 20,
            keep_alive_interval: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(5),
            ..Limits::default()
        };
        Self {
            connect_timeout: Duration::from_secs(3),
            stall_timeout: Duration::from_secs(6),
            limits,
        }
    }
}

/// A client of one cluster: a connection that is re-established whenever it breaks, and sessions on it.
pub struct Client {
    profile: Profile,
    pub(crate) connection: watch::Receiver<ConnectionState>,
    tasks: TaskTracker,
    cancel: CancellationToken,
    dialers: Dialers,
    clock: Arc<ClusterClock>,
    switch_timer: Arc<SharedSwitchTimer>,
}

impl Client {
    /// Connects to the first address that responds. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], whose messages say how to fix the problem.
    pub async fn connect(profile: Profile) -> Result<Self, ConnectError> {
        Self::connect_with(profile, ConnectOptions::default()).await
    }

    /// Connects with the given options.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`].
    pub async fn connect_with(
        profile: Profile,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let (credential, trust) = profile.credentials()?;
        let mut dialers = Dialers { credential, trust, options, v4: None, v6: None };
        let link = dialers.connect_any(&profile.addresses, None).await?;
        let clock = Arc::new(ClusterClock::default());
        let (publish, links) = watch::channel(ConnectionState::default());
        let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
        let switch_timer = Arc::new(SharedSwitchTimer::new(dialers.options.stall_timeout));
        let keeper = ConnectionKeeper {
            dialers: dialers.clone(),
            addresses: profile.addresses.clone(),
            clock: Arc::clone(&clock),
            switch_timer: Arc::clone(&switch_timer),
            publish,
        };
        keeper.connected(&link);
        let kept = keep_up(Some(link), RECONNECT, keeper);
        tasks.spawn(cancel.clone().run_until_cancelled_owned(kept));
        Ok(Self { profile, connection: links, tasks, cancel, dialers, clock, switch_timer })
    }

    /// A new session, with a random id.
    #[must_use]
    pub fn session(&self) -> Session {
        self.session_with_id(SessionId::random(), 1)
    }

    /// Continues a session that an earlier process of the application began; `next` must be higher than every sequence
    /// that was used. If two processes used the session at the same time, or a sequence was reused, two messages would
    /// get the same id, and the second would be refused with `id-reused`.
    #[must_use]
    pub fn session_with_id(&self, id: SessionId, next: u64) -> Session {
        let shared = Shared::new(id, next, self.namespace(), Arc::clone(&self.clock));
        let shared = Arc::new(shared);
        let cancel = self.cancel.child_token();
        let switch_timer = Arc::clone(&self.switch_timer);
        let links = self.connection.clone();
        self.tasks.spawn(driver::drive(Arc::clone(&shared), next, links, switch_timer, cancel));
        Session::new(shared)
    }

    /// The namespace, as it is written on the wire: there, an empty name stands for the default namespace.
    pub(crate) fn namespace(&self) -> String {
        match self.profile.namespace.as_str() {
            "default" => String::new(),
            other => other.to_owned(),
        }
    }

    /// The name and address of the connected node.
    #[must_use]
    pub fn connected_to(&self) -> Option<(String, SocketAddr)> {
        let state = self.connection.borrow();
        state.connection.as_ref().map(|link| (link.hello().node.clone(), link.address()))
    }

    /// Ends all sessions and closes the connection. Calls without an outcome end as `not-run` if no copy can have run,
    /// else as `unknown`, or as unanswered for a query.
    pub async fn close(self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        // Notify the nodes if possible; do not wait for one that is gone.
        let _ = timeout(Duration::from_secs(2), self.dialers.close()).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Without `close` nobody waits for the tasks, but they still end.
        self.cancel.cancel();
    }
}

/// Keeps a client's connection up. Publishes each new connection, and `None` in between.
struct ConnectionKeeper {
    dialers: Dialers,
    addresses: Vec<String>,
    clock: Arc<ClusterClock>,
    switch_timer: Arc<SharedSwitchTimer>,
    publish: watch::Sender<ConnectionState>,
}

impl Reconnect for ConnectionKeeper {
    type Link = ClientConnection;
    type Error = ConnectError;

    async fn connect(&mut self) -> Result<ClientConnection, ConnectError> {
        let link = self.dialers.connect_any(&self.addresses, None).await?;
        self.connected(&link);
        Ok(link)
    }

    async fn serve(&mut self, mut link: ClientConnection) {
        let why = loop {
            tokio::select! {
                why = link.closed() => break why,
                () = self.switch_timer.switch_due.notified() => {
                    if let Some(other) = self.other_gateway(&link).await {
                        self.connected(&other);
                        std::mem::replace(&mut link, other).close();
                    }
                }
            }
        };
        info!(node = %link.hello().node, error = %why, "the connection was closed");
        self.not_connected(why.to_string());
    }

    fn failed(&mut self, error: ConnectError) {
        debug!(%error, "not connected");
        self.not_connected(error.to_string());
    }
}

impl ConnectionKeeper {
    fn connected(&self, link: &ClientConnection) {
        info!(node = %link.hello().node, address = %link.address(), "connected");
        self.clock.advance_to(link.hello());
        let state = ConnectionState { connection: Some(link.clone()), last: None };
        self.publish.send_replace(state);
    }

    fn not_connected(&self, why: String) {
        self.publish.send_replace(ConnectionState { connection: None, last: Some(why.into()) });
    }

    /// Another node that accepts this client, if there is one.
    async fn other_gateway(&mut self, link: &ClientConnection) -> Option<ClientConnection> {
        match self.dialers.connect_any(&self.addresses, Some(link.address())).await {
            Ok(other) => {
                let (node, to) = (&link.hello().node, &other.hello().node);
                info!(%node, %to, "gateway makes no progress, switching to another one");
                Some(other)
            }
            Err(error) => {
                debug!(%error, "no other gateway reachable, keeping the connection");
                None
            }
        }
    }
}

/// One socket per address family, created when it is first needed.
#[derive(Clone)]
struct Dialers {
    credential: Credential,
    trust: TrustRoot,
    options: ConnectOptions,
    v4: Option<Dialer>,
    v6: Option<Dialer>,
}

impl Dialers {
    /// Connects to the first address that responds, except `except`.
    async fn connect_any(
        &mut self,
        addresses: &[String],
        except: Option<SocketAddr>,
    ) -> Result<ClientConnection, ConnectError> {
        let token = self.credential.token()?;
        let mut last = String::from("the profile has no addresses");
        let mut refused = None;
        for address in addresses {
            let resolved = match tokio::net::lookup_host(address).await {
                Ok(resolved) => resolved.collect::<Vec<_>>(),
                Err(error) => {
                    last = format!("{address}: {error}");
                    continue;
                }
            };
            for socket in resolved.into_iter().filter(|socket| Some(*socket) != except) {
                let limit = self.options.connect_timeout;
                let attempt = match self.dialer(socket) {
                    Ok(dialer) => timeout(limit, dialer.connect_with_token(socket, &token)).await,
                    Err(error) => Ok(Err(error)),
                };
                match attempt {
                    Ok(Ok(link)) => return Ok(link),
                    Ok(Err(error)) if error.is_retryable() => {
                        info!(%address, %error, "no connection");
                        last = error.to_string();
                    }
                    // A node at another address may still accept this client.
                    Ok(Err(error)) => {
                        info!(%address, %error, "refused");
                        refused = Some(ConnectError::Refused { address: address.clone(), error });
                    }
                    Err(_) => {
                        info!(%address, within = ?limit, "no answer");
                        last = format!("no response within {limit:?}");
                    }
                }
            }
        }
        Err(refused
            .unwrap_or(ConnectError::NoNodeReachable { addresses: addresses.join(", "), last }))
    }

    fn dialer(&mut self, address: SocketAddr) -> Result<&Dialer, Error> {
        let slot = if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        let dialer = match slot.take() {
            Some(dialer) => dialer,
            None => {
                let limits = self.options.limits.clone();
                Dialer::new(self.credential.identity(), &self.trust, address, limits)?
            }
        };
        Ok(slot.insert(dialer))
    }

    async fn close(&self) {
        for dialer in self.v4.iter().chain(&self.v6) {
            dialer.close().await;
        }
    }
}
