//! A node's side: takes connections and streams, and hands what is whole and within the limits to a
//! [`Service`].
//!
//! Everything that an unknown or broken client can do ends here, with a code, and on its own stream
//! or connection only: garbage, half frames, lengths beyond the limit, streams opened and left.
//! Each connection and each stream is a task of one tracker; one that ends, however it ends, ends
//! nothing else.

mod admin;
mod check;
mod session;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ostraca_sharding::ids::Session;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

pub use admin::{Admin, AdminAnswer, Part, Upload, growing};
pub use session::{Request, Ticket};

use crate::code::Code;
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::hello::{self, NodeFacts};
use crate::identity::{Identity, Principal, Trust};
use crate::limits::Limits;
use crate::proto::{self, Open, Problem, open};
use crate::{ALPN_CLIENT, endpoint, tls};

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

/// Takes clients on one UDP port.
pub struct Server<S> {
    shared: Arc<Shared<S>>,
    endpoint: quinn::Endpoint,
}

struct Shared<S> {
    service: Arc<S>,
    limits: Limits,
    facts: RwLock<NodeFacts>,
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
        let tls = tls::server(identity, trust, ALPN_CLIENT)?;
        let config = endpoint::server_config(tls, &limits)?;
        let endpoint = endpoint::bind_node(address, setting, &limits, config, identity)?;
        let uploads = Semaphore::new(limits.max_uploads);
        let shared = Arc::new(Shared {
            service,
            limits,
            facts: RwLock::new(facts),
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

    /// Changes what later hellos say, such as the incarnation after a re-registration.
    pub fn set_facts(&self, facts: NodeFacts) {
        *self.shared.facts.write().unwrap_or_else(PoisonError::into_inner) = facts;
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
            let most = self.shared.limits.max_connections;
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

impl<S: Service> Shared<S> {
    async fn connection(self: &Arc<Self>, incoming: quinn::Incoming) -> Result<(), Error> {
        let deadline = self.limits.hello_deadline;
        let connecting = incoming.accept()?;
        let connection = timeout(deadline, connecting)
            .await
            .map_err(|_| Error::Lost("the handshake was not done in time".into()))??;
        let peer = match timeout(deadline, self.hello(&connection)).await {
            Ok(Ok(peer)) => peer,
            Ok(Err(error)) => {
                let code = match &error {
                    Error::Violation { code, .. } => *code,
                    _ => Code::BadHello,
                };
                connection.close(code.into(), error.to_string().as_bytes());
                return Err(error);
            }
            Err(_) => {
                let text = format!("no hello within {deadline:?} (`hello_deadline`)");
                connection.close(Code::HelloDeadline.into(), text.as_bytes());
                return Err(Error::violation(Code::HelloDeadline, text));
            }
        };
        debug!(principal = %peer.principal, address = %peer.address, "a connection began");
        let streams = TaskTracker::new();
        let ended = loop {
            let stream = tokio::select! {
                () = self.stopping.cancelled() => break None,
                stream = connection.accept_bi() => stream,
            };
            match stream {
                Ok((send, recv)) => {
                    let (shared, peer) = (Arc::clone(self), Arc::clone(&peer));
                    let stream = async move { shared.stream(&peer, send, recv).await };
                    streams.spawn(self.tasks.track_future(stream));
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

    /// Hears the client's hello and answers it.
    async fn hello(&self, connection: &quinn::Connection) -> Result<Arc<Peer>, Error> {
        let identity = tls::peer(connection)?;
        let (send, recv) = connection.accept_bi().await?;
        let mut reader = FrameReader::new(recv, self.limits.max_frame, self.limits.frame_deadline);
        let bad = |text: &str| Error::violation(Code::BadHello, text);
        let frame = reader.next().await?.ok_or_else(|| bad("the first stream was empty"))?;
        let open = Open::decode(frame).map_err(|e| bad(&format!("unreadable: {e}")))?;
        let Some(open::Stream::Hello(theirs)) = open.stream else {
            return Err(bad("the first stream is for the hello"));
        };
        let own = self.facts.read().unwrap_or_else(PoisonError::into_inner).clone();
        hello::agree(Some(own.cluster), &theirs)
            .map_err(|(code, text)| Error::violation(code, text))?;
        let mut writer = FrameWriter::new(send);
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
            debug!(%error, principal = %peer.principal, "a stream ended");
            let code = match error {
                Error::Violation { code, .. } => code,
                _ => Code::Done,
            };
            reader.stop(code);
            writer.reset(code);
        }
    }

    async fn serve(
        &self,
        peer: &Arc<Peer>,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
    ) -> Result<(), Error> {
        let deadline = self.limits.open_deadline;
        let first = tokio::select! {
            () = self.stopping.cancelled() => return Err(stopping()),
            first = timeout(deadline, reader.next()) => first,
        };
        let first = first.map_err(|_| {
            let text = format!("a stream said nothing for {deadline:?} (`open_deadline`)");
            Error::violation(Code::OpenDeadline, text)
        })?;
        let Some(frame) = first? else {
            return Err(Error::violation(Code::HalfFrame, "an empty stream"));
        };
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
