//! The client side of a connection: handshake, hello, and both kinds of streams.
//!
//! This module keeps no state beyond the connection: `ostraca-client` handles sessions, retries and reconnects.

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message;
use tokio::time::timeout;

use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{FrameReader, FrameWriter};
use crate::identity::{Identity, TrustRoot};
use crate::limits::Limits;
use crate::proto::{self, Hello, Open, SessionOpen, open};
use crate::{ALPN_CLIENT, endpoint, hello, tls};

/// Connects to the nodes of one cluster.
#[derive(Clone)]
pub struct Dialer {
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
    limits: Limits,
    trust: TrustRoot,
}

impl Dialer {
    /// Creates a dialer with its own socket. Must be called within a tokio runtime. A client without an `identity` needs
    /// a token to connect.
    ///
    /// # Errors
    ///
    /// [`Error::Identity`], [`Error::Bind`].
    pub fn new(
        identity: Option<&Identity>,
        trust: &TrustRoot,
        remote: SocketAddr,
        limits: Limits,
    ) -> Result<Self, Error> {
        let config = endpoint::client_config(tls::client(identity, trust, ALPN_CLIENT)?, &limits)?;
        let any = match remote {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
        };
        let endpoint = endpoint::bind(any, "client", &limits, None)?;
        Ok(Self { endpoint, config, limits, trust: trust.clone() })
    }

    /// Connects and exchanges hellos, within `hello_timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::CertificateRejected`] and [`Error::Closed`] say why this node cannot be used;
    /// [`Error::ConnectionLost`] means that it does not respond.
    pub async fn connect(&self, address: SocketAddr) -> Result<ClientConnection, Error> {
        self.connect_with_token(address, "").await
    }

    /// Like [`Dialer::connect`], as the holder of a token; an empty one stands for none.
    ///
    /// # Errors
    ///
    /// As [`Dialer::connect`].
    pub async fn connect_with_token(
        &self,
        address: SocketAddr,
        token: &str,
    ) -> Result<ClientConnection, Error> {
        match timeout(self.limits.hello_timeout, self.handshake(address, token)).await {
            Ok(done) => done,
            Err(_) => Err(Error::ConnectionLost(format!(
                "no hello from {address} within {:?} (`network.hello-timeout`)",
                self.limits.hello_timeout
            ))),
        }
    }

    async fn handshake(&self, address: SocketAddr, token: &str) -> Result<ClientConnection, Error> {
        let connection = self
            .endpoint
            .connect_with(self.config.clone(), address, tls::SERVER_NAME)
            .map_err(|e| Error::ConnectionLost(e.to_string()))?
            .await?;
        let hello = hello::client_hello(Some(self.trust.cluster), &self.limits);
        let own = Hello { token: token.into(), ..hello };
        let open = Open { stream: Some(open::Stream::Hello(own)) };
        let theirs = exchange_hello(&connection, &open, &self.limits).await?;
        hello::negotiate(hello::CLIENT_PROTOCOL_VERSIONS, Some(self.trust.cluster), &theirs)
            .map_err(|(code, reason)| refuse(&connection, code, reason))?;
        Ok(ClientConnection { connection, hello: theirs, limits: self.limits.clone() })
    }

    /// Closes all connections, and waits at most a few round trips until the peers have been notified.
    pub async fn close(&self) {
        self.endpoint.close(CloseCode::Done.into(), b"");
        self.endpoint.wait_idle().await;
    }
}

/// Sends the hello and receives the peer's.
pub(crate) async fn exchange_hello<M: Message>(
    connection: &quinn::Connection,
    own: &M,
    limits: &Limits,
) -> Result<Hello, Error> {
    let (send, recv) = connection.open_bi().await?;
    let mut writer = FrameWriter::new(send);
    writer.put(own);
    writer.flush().await?;
    writer.finish();
    let mut reader = FrameReader::new(recv, limits.max_frame, limits.frame_timeout);
    // If the stream broke because the connection broke, the connection's reason says more.
    let frame = match reader.next().await {
        Ok(frame) => frame,
        Err(error) => return Err(connection.close_reason().map_or(error, Error::from)),
    };
    let bad = |reason| refuse(connection, CloseCode::InvalidHello, reason);
    let frame = frame.ok_or_else(|| bad("no hello received".into()))?;
    Hello::decode(frame).map_err(|e| bad(format!("the hello is {}", decode_error_message(&e))))
}

/// Closes a connection with the reason, and returns the reason as an error.
pub(crate) fn refuse(connection: &quinn::Connection, code: CloseCode, reason: String) -> Error {
    connection.close(code.into(), reason.as_bytes());
    Error::violation(code, reason)
}

/// Closes a connection whose hello failed, with the reason, and returns the error.
#[cfg(feature = "server")]
pub(crate) fn close_for(connection: &quinn::Connection, error: Error) -> Error {
    let (code, text) = match &error {
        Error::Violation { code, message } => (*code, message.clone()),
        other => (CloseCode::InvalidHello, other.to_string()),
    };
    connection.close(code.into(), text.as_bytes());
    error
}

/// A connection after a successful exchange of hellos.
#[derive(Clone, Debug)]
pub struct ClientConnection {
    connection: quinn::Connection,
    hello: Hello,
    limits: Limits,
}

impl ClientConnection {
    /// The node's hello.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The limits that the node announced; 0 stands for "not announced".
    #[must_use]
    pub fn node_limits(&self) -> proto::Limits {
        self.hello.limits.unwrap_or_default()
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Waits until the connection is closed, and returns why.
    pub async fn closed(&self) -> Error {
        self.connection.closed().await.into()
    }

    /// Closes the connection; unsent data is discarded.
    pub fn close(&self) {
        self.connection.close(CloseCode::Done.into(), b"");
    }

    /// Opens a stream for one session. The stream's first frame is sent with the first flush. Waits while as many
    /// streams are open as the node's `max_streams` allows.
    ///
    /// # Errors
    ///
    /// How the connection ended.
    pub async fn session(&self, id: [u8; 16]) -> Result<(FrameWriter, FrameReader), Error> {
        let session = SessionOpen { session: Bytes::copy_from_slice(&id) };
        self.open(open::Stream::Session(session)).await
    }

    /// Opens a stream for one request. The stream's first frame is sent with the first flush.
    ///
    /// # Errors
    ///
    /// As [`ClientConnection::session`].
    pub async fn admin(
        &self,
        request: proto::AdminRequest,
    ) -> Result<(FrameWriter, FrameReader), Error> {
        self.open(open::Stream::Admin(request)).await
    }

    /// Opens a stream for one subscription. The stream's first frame is sent with the first flush.
    ///
    /// # Errors
    ///
    /// As [`ClientConnection::session`].
    pub async fn subscribe(
        &self,
        request: proto::Subscribe,
    ) -> Result<(FrameWriter, FrameReader), Error> {
        self.open(open::Stream::Subscribe(request)).await
    }

    async fn open(&self, stream: open::Stream) -> Result<(FrameWriter, FrameReader), Error> {
        let (send, recv) = self.connection.open_bi().await?;
        let mut writer = FrameWriter::new(send);
        writer.put(&Open { stream: Some(stream) });
        Ok((writer, FrameReader::new(recv, self.limits.max_frame, self.limits.frame_timeout)))
    }
}
