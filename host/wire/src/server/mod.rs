//! A node's side: takes connections and streams, and hands what is whole and within the limits to a
//! [`Service`].
//!
//! Everything that an unknown or broken client can do ends here, with a code, and on its own stream
//! or connection only: garbage, half frames, lengths beyond the limit, streams opened and left.
//! Each connection and each stream is a task of one tracker; one that ends, however it ends, ends
//! nothing else.

mod admin;
mod peers;
mod session;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ostraca_sharding::ids::Session;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use crate::flow::{Request, Ticket};
pub use admin::{Admin, AdminAnswer, Part, Upload, growing};

use crate::code::Code;
use crate::dial;
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::hello::{self, NodeFacts};
use crate::identity::{Identity, Principal, Trust};
use crate::limits::Limits;
use crate::peer::facts::SharedFacts;
use crate::peer::{Alpn, Facts, PeerDialer, PeerService};
use crate::proto::{self, Open, Problem, open};
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
}

/// One session's stream on one connection. The same session may have others, on other connections.
#[derive(Debug)]
pub struct SessionInfo {
    /// Whose.
    pub peer: Arc<Peer>,
    /// What the client chose.
    pub id: [u8; 16],
    /// As entities know it (R17).
    pub session: Session,
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
    /// Connections by what they are, since the endpoint counts all of them, and those that were dialled.
    clients: Arc<AtomicUsize>,
    nodes: Arc<AtomicUsize>,
    uploads: Semaphore,
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
        let uploads = Semaphore::new(limits.max_uploads);
        let shared = Arc::new(Shared {
            service,
            limits,
            facts: SharedFacts::new(facts),
            peers,
            clients: Arc::default(),
            nodes: Arc::default(),
            uploads,
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

/// One connection more, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// `None` if there are `most` already.
    fn one_more(of: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let counted = Self(Arc::clone(of));
        (of.fetch_add(1, Ordering::Relaxed) < most).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Service> Shared<S> {
    /// All connections that there may be. Which of them are nodes' is known after their handshakes; as
    /// many as are taken may be dialled.
    fn most_connections(&self) -> usize {
        let nodes = self.peers.as_ref().map_or(0, |_| 2 * self.limits.peers.connections);
        self.limits.max_connections.saturating_add(nodes)
    }

    async fn connection(self: &Arc<Self>, incoming: quinn::Incoming) -> Result<(), Error> {
        let connecting = incoming.accept()?;
        let connection = timeout(self.limits.hello_deadline, connecting)
            .await
            .map_err(|_| Error::Lost("the handshake was not done in time".into()))??;
        let alpn = Alpn::from_name(&tls::alpn(&connection));
        let (counter, most, setting) = match alpn {
            None => (&self.clients, self.limits.max_connections, "max_connections"),
            Some(_) => (&self.nodes, self.limits.peers.connections, "peer_connections"),
        };
        let Some(counted) = Counted::one_more(counter, most) else {
            let text = format!("the node takes no more connections now (`{setting}`)");
            return Err(dial::refuse(&connection, Code::TooManyConnections, text));
        };
        if let (Some(alpn), Some(service)) = (alpn, &self.peers) {
            let (runtime, service) = (service.runtime(alpn), Arc::clone(service));
            let serving = peers::connection(Arc::clone(self), service, alpn, connection, counted);
            self.tasks.spawn_on(serving, &runtime);
            return Ok(());
        }
        let peer = self.greet(&connection, self.hello(&connection)).await?;
        debug!(principal = %peer.principal, address = %peer.address, "a connection began");
        self.streams(&connection, |send, recv| {
            let (shared, peer) = (Arc::clone(self), Arc::clone(&peer));
            async move { shared.stream(&peer, send, recv).await }
        })
        .await
    }

    /// Gives a hello its time, and closes the connection if it is none.
    async fn greet<P>(
        &self,
        connection: &quinn::Connection,
        hello: impl Future<Output = Result<P, Error>>,
    ) -> Result<P, Error> {
        let deadline = self.limits.hello_deadline;
        match timeout(deadline, hello).await {
            Ok(Ok(peer)) => Ok(peer),
            Ok(Err(error)) => {
                let (code, text) = match &error {
                    Error::Violation { code, text } => (*code, text.clone()),
                    other => (Code::BadHello, other.to_string()),
                };
                connection.close(code.into(), text.as_bytes());
                Err(error)
            }
            Err(_) => {
                let text = format!("no hello within {deadline:?} (`hello_deadline`)");
                Err(dial::refuse(connection, Code::HelloDeadline, text))
            }
        }
    }

    /// Serves a connection's streams until it or the node ends.
    async fn streams<F: Future<Output = ()> + Send + 'static>(
        &self,
        connection: &quinn::Connection,
        serve: impl Fn(quinn::SendStream, quinn::RecvStream) -> F,
    ) -> Result<(), Error> {
        let streams = TaskTracker::new();
        let ended = loop {
            let stream = tokio::select! {
                () = self.stopping.cancelled() => break None,
                stream = connection.accept_bi() => stream,
            };
            match stream {
                Ok((send, recv)) => {
                    streams.spawn(self.tasks.track_future(serve(send, recv)));
                }
                Err(error) => break Some(error),
            }
        };
        streams.close();
        match ended {
            Some(error) => Err(error.into()),
            None => {
                // The answers on their way arrive before the close does.
                streams.wait().await;
                connection.close(Code::ShuttingDown.into(), b"the node stops");
                Ok(())
            }
        }
    }

    /// The first frame of a connection, and the way to answer it.
    async fn hear(&self, connection: &quinn::Connection) -> Result<(Bytes, FrameWriter), Error> {
        let (send, recv) = connection.accept_bi().await?;
        let mut reader = FrameReader::new(recv, self.limits.max_frame, self.limits.frame_deadline);
        let empty = || Error::violation(Code::BadHello, "the first stream was empty");
        Ok((reader.next().await?.ok_or_else(empty)?, FrameWriter::new(send)))
    }

    /// Hears the client's hello and answers it.
    async fn hello(&self, connection: &quinn::Connection) -> Result<Arc<Peer>, Error> {
        let identity = tls::peer(connection)?;
        let (frame, mut writer) = self.hear(connection).await?;
        let bad = |text: &str| Error::violation(Code::BadHello, text);
        let open = Open::decode(frame).map_err(|e| bad(&format!("unreadable: {e}")))?;
        let Some(open::Stream::Hello(theirs)) = open.stream else {
            return Err(bad("the first stream is for the hello"));
        };
        let own = self.facts.now().node;
        hello::agree(Some(own.cluster), &theirs)
            .map_err(|(code, text)| Error::violation(code, text))?;
        writer.put(&own.hello(&self.limits));
        writer.flush().await?;
        writer.finish();
        Ok(Arc::new(Peer {
            principal: identity.to_string().into(),
            identity,
            address: connection.remote_address(),
            limits: theirs.limits.unwrap_or_default(),
        }))
    }

    /// Finds out what a stream is for, and serves it to its end.
    async fn stream(&self, peer: &Arc<Peer>, send: quinn::SendStream, recv: quinn::RecvStream) {
        let mut reader = FrameReader::new(recv, self.limits.max_frame, self.limits.frame_deadline);
        let mut writer = FrameWriter::new(send);
        if let Err(error) = self.serve(peer, &mut reader, &mut writer).await {
            give_up(&error, &mut reader, &mut writer);
        }
    }

    /// The first frame of a stream, which says what it is for.
    async fn first(&self, reader: &mut FrameReader) -> Result<Bytes, Error> {
        let deadline = self.limits.open_deadline;
        let first = tokio::select! {
            () = self.stopping.cancelled() => return Err(stopping()),
            first = timeout(deadline, reader.next()) => first,
        };
        let first = first.map_err(|_| {
            let text = format!("a stream said nothing for {deadline:?} (`open_deadline`)");
            Error::violation(Code::OpenDeadline, text)
        })?;
        first?.ok_or_else(|| Error::violation(Code::HalfFrame, "an empty stream"))
    }

    async fn serve(
        &self,
        peer: &Arc<Peer>,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
    ) -> Result<(), Error> {
        let frame = self.first(reader).await?;
        let open = Open::decode(frame)
            .map_err(|e| Error::violation(Code::BadFrame, format!("unreadable: {e}")))?;
        match open.stream {
            Some(open::Stream::Session(open)) => {
                let Ok(id) = <[u8; 16]>::try_from(&open.session[..]) else {
                    let text = format!("a session id of {} bytes", open.session.len());
                    return Err(Error::violation(Code::UnexpectedFrame, text));
                };
                let session = Session::of(&peer.principal, &id);
                let info = Arc::new(SessionInfo { peer: Arc::clone(peer), id, session });
                session::serve(self, &info, reader, writer).await
            }
            Some(open::Stream::Admin(request)) => {
                admin::serve(self, peer, request, reader, writer).await
            }
            Some(open::Stream::Hello(_)) => {
                Err(Error::violation(Code::UnexpectedFrame, "a second hello"))
            }
            None => Err(Error::violation(Code::BadFrame, "a stream for nothing that is known")),
        }
    }
}

fn stopping() -> Error {
    Error::violation(Code::ShuttingDown, "the node stops")
}

/// Resets a stream with the error's code.
fn give_up(error: &Error, reader: &mut FrameReader, writer: &mut FrameWriter) {
    debug!(%error, "a stream ended");
    reader.stop(error.reset_code());
    writer.reset(error.reset_code());
}
