//! Connects a node to other nodes. It dials from the node's own endpoint, so others see the address that the
//! node listens on.
//!
//! A connection's packets are built and timed by a task of the runtime on which [`PeerDialer::connect`] is called. That
//! may be a different runtime from the endpoint's, so the control thread's links do not wait for bulk traffic.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use ostraca_codes::codes;
use ostraca_core::ids::NodeId;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::descriptor::{SharedDescriptor, node_id_of};
use super::forwarding::{MessageLink, ReplyHandler};
use super::rpc_client::RpcClient;
use super::{Alpn, PeerInfo, StreamKind};
use crate::budget::Budgets;
use crate::close_code::CloseCode;
use crate::dial::{exchange_hello, refuse};
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::identity::{Identity, TrustRoot};
use crate::limits::Limits;
use crate::proto::{PeerOpen, peer_open};
use crate::trust::{Trust, distrusted, lost};
use crate::{endpoint, tls};

/// Connects to other nodes. Clones share everything.
#[derive(Clone)]
pub struct PeerDialer {
    endpoint: quinn::Endpoint,
    configs: Arc<RwLock<TlsConfigs>>,
    /// The authorities of the cluster.
    trust: Trust,
    limits: Limits,
    descriptor: SharedDescriptor,
}

/// A node's side of a handshake that it begins, for both protocols.
struct TlsConfigs {
    bulk: quinn::ClientConfig,
    control: quinn::ClientConfig,
}

impl TlsConfigs {
    fn new(identity: &Identity, trust: &TrustRoot, limits: &Limits) -> Result<Self, Error> {
        let config = |alpn: Alpn| {
            endpoint::peer_config(tls::client(Some(identity), trust, alpn.name())?, limits)
        };
        Ok(Self { bulk: config(Alpn::Bulk)?, control: config(Alpn::Control)? })
    }
}

impl PeerDialer {
    pub(crate) fn new(
        endpoint: quinn::Endpoint,
        identity: &Identity,
        trust: Trust,
        limits: &Limits,
        descriptor: SharedDescriptor,
    ) -> Result<Self, Error> {
        let configs = TlsConfigs::new(identity, &trust.borrow(), limits)?;
        let configs = Arc::new(RwLock::new(configs));
        Ok(Self { endpoint, configs, trust, limits: limits.clone(), descriptor })
    }

    /// Presents another certificate from now on, and trusts other authorities. Established connections go on.
    ///
    /// # Errors
    ///
    /// [`Error::Identity`] if key and certificate do not match; then nothing has changed.
    pub fn replace_identity(&self, identity: &Identity, trust: &TrustRoot) -> Result<(), Error> {
        let configs = TlsConfigs::new(identity, trust, &self.limits)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Connects and exchanges hellos, within `hello_timeout`. With `expect`, any other node is refused. Must be called
    /// within a tokio runtime. That runtime and the endpoint's must outlive the link.
    ///
    /// # Errors
    ///
    /// [`Error::CertificateRejected`], [`Error::Violation`] (this side refused) and [`Error::Closed`] (the peer
    /// did) say why this node cannot be used; [`Error::ConnectionLost`] means that it does not respond.
    pub async fn connect(
        &self,
        address: SocketAddr,
        alpn: Alpn,
        expect: Option<NodeId>,
    ) -> Result<PeerLink, Error> {
        let deadline = self.limits.hello_timeout;
        match timeout(deadline, self.handshake(address, alpn, expect)).await {
            Ok(done) => done.map_err(|error| for_nodes(error, address)),
            Err(_) => Err(Error::ConnectionLost(format!(
                "no hello from {address} within {deadline:?} (`network.hello-timeout`)"
            ))),
        }
    }

    async fn handshake(
        &self,
        address: SocketAddr,
        alpn: Alpn,
        expect: Option<NodeId>,
    ) -> Result<PeerLink, Error> {
        let config = {
            let configs = self.configs.read().unwrap_or_else(PoisonError::into_inner);
            match alpn {
                Alpn::Bulk => configs.bulk.clone(),
                Alpn::Control => configs.control.clone(),
            }
        };
        let connection = self
            .endpoint
            .connect_with(config, address, tls::SERVER_NAME)
            .map_err(|e| Error::ConnectionLost(e.to_string()))?
            .await?;
        let refused = |(code, text)| refuse(&connection, code, text);
        let certificate = tls::peer(&connection)?;
        let found = node_id_of(&certificate).map_err(refused)?;
        if let Some(expected) = expect.filter(|expected| *expected != found) {
            let text = format!("expected node {expected} at {address}, found node {found}");
            return Err(refused((CloseCode::NodeMismatch, text)));
        }
        let descriptor = self.descriptor.now();
        let hello = descriptor.hello(&self.limits);
        let open = PeerOpen { stream: Some(peer_open::Stream::Hello(hello)) };
        let theirs = exchange_hello(&connection, &open, &self.limits).await?;
        // A dialled connection accepts no messages.
        let (budgets, never) = (Budgets::new(&self.limits), CancellationToken::new());
        let info = descriptor
            .negotiate(theirs, &certificate, address, &budgets, never)
            .map_err(refused)?;
        let limits = Arc::new(self.limits.clone());
        let trust = self.trust.clone();
        Ok(PeerLink { info: Arc::new(info), connection, trust, limits })
    }
}

/// Help texts about certificates are written for clients. Replaces them with texts for a node's operator.
fn for_nodes(error: Error, address: SocketAddr) -> Error {
    let Error::CertificateRejected { code, message: text, help } = error else { return error };
    let help = match code {
        codes::UNKNOWN_CA => {
            "both nodes need certificates from the same authority: check the address in `join`, and `[identity]` of both nodes".into()
        }
        codes::UNKNOWN_PROTOCOL => {
            "the server there does not accept nodes: check the address in `join`, and the versions".into()
        }
        _ => help,
    };
    Error::CertificateRejected { code, message: format!("{text}, at {address}"), help }
}

/// A connection to another node, after a successful exchange of hellos. Clones share one connection, which ends when
/// all clones and all streams are dropped.
#[derive(Clone, Debug)]
pub struct PeerLink {
    /// The identity of the peer.
    pub info: Arc<PeerInfo>,
    connection: quinn::Connection,
    trust: Trust,
    limits: Arc<Limits>,
}

impl PeerLink {
    /// Opens a stream of this kind. Waits while as many streams are open as the node's `max_streams` allows.
    ///
    /// # Errors
    ///
    /// How the connection ended.
    pub async fn open(&self, kind: StreamKind) -> Result<(FrameWriter, FrameReader), Error> {
        let (send, recv) = self.connection.open_bi().await?;
        let mut writer = FrameWriter::new(send);
        writer.put(&PeerOpen { stream: Some(kind.open()) });
        writer.flush().await?;
        let (frame, deadline) = (self.limits.peers.max_frame, self.limits.frame_timeout);
        Ok((writer, FrameReader::new(recv, frame, deadline)))
    }

    /// Opens a stream for requests.
    ///
    /// # Errors
    ///
    /// As [`PeerLink::open`].
    pub async fn open_rpc(&self, kind: StreamKind) -> Result<RpcClient, Error> {
        let (writer, reader) = self.open(kind).await?;
        Ok(RpcClient::new(writer, reader, &self.info.limits))
    }

    /// Opens a stream for forwarded messages.
    ///
    /// # Errors
    ///
    /// As [`PeerLink::open`].
    pub async fn open_forwarding(&self, sink: Arc<dyn ReplyHandler>) -> Result<MessageLink, Error> {
        let bounds = &self.info.limits;
        let (messages, bytes) = (bounds.in_flight_messages, bounds.in_flight_message_bytes);
        let (writer, reader) = self
            .open(StreamKind::Forwarding {
                max_in_flight_messages: messages,
                max_in_flight_bytes: bytes,
            })
            .await?;
        Ok(MessageLink::new(writer, reader, bounds, sink))
    }

    /// Waits until the connection is closed, and returns why. Closes it if the peer's authority is no longer trusted.
    pub async fn closed(&self) -> Error {
        let chain = tls::peer_certificates(&self.connection);
        tokio::select! {
            why = self.connection.closed() => why.into(),
            () = lost(self.trust.clone(), &chain) => distrusted(&self.connection),
        }
    }

    /// Closes the connection; unsent data is discarded.
    pub fn close(&self) {
        self.connection.close(CloseCode::Done.into(), b"");
    }
}
