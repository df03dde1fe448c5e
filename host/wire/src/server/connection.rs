//! Connections and their streams: the end of the handshake, the hello, and a task per stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ostraca_core::ids::ScopedSessionId;
use prost::Message;
use quinn::VarInt;
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::connection_guard::ConnectionGuard;
use super::{
    ClientInfo, Inner, Service, SessionInfo, Token, TokenRefused, admin, give_up, peers, session,
    stopping, subscription,
};
use crate::budget::{Account, LimitReached, Permit};
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{FrameReader, FrameWriter};
use crate::identity::{self, Identity, Principal, TrustRoot};
use crate::peer::Alpn;
use crate::proto::{self, Open, open};
use crate::trust::{distrusted, lost};
use crate::{ALPN_CLIENT, ALPN_CONTROL, ALPN_PEER, dial, endpoint, hello, tls};

/// Extra connections allowed during the handshake, or just after a refusal, so that a principal at its limit
/// cannot block others.
const HANDSHAKES: usize = 256;

/// Maximum size of a client's or a node's hello in bytes. Whoever sends it may not have proved who it is yet.
const MAX_HELLO: u32 = 64 << 10;

/// The smallest frame limit that a client may announce, in bytes: a complete refusal must fit.
const MIN_CLIENT_MAX_FRAME: u32 = 4 << 10;

/// Who is at the other end of a connection, with its place among the connections.
struct Holder {
    /// What a revocation may name.
    subjects: Vec<String>,
    account: Arc<Account>,
    /// Its token, and how long it is valid; `None` for a certificate.
    token: Option<(Token, Duration)>,
    /// The connection's send window in bytes.
    send_window: u64,
    /// Held until it is dropped.
    _place: Permit,
}

/// A client after the exchange of hellos.
struct Admitted {
    peer: Arc<ClientInfo>,
    /// How long its token is valid; `None` for a certificate.
    valid_for: Option<Duration>,
    /// Its place among the connections, held until it is dropped.
    _place: Permit,
}

fn limit_reached(setting: &str, most: usize) -> Error {
    let text = format!("connection limit reached (`{setting}` = {most})");
    Error::violation(CloseCode::TooManyConnections, text)
}

/// Waits until a token expires.
async fn expiry(valid_for: Option<Duration>) {
    match valid_for {
        Some(rest) => tokio::time::sleep(rest).await,
        None => std::future::pending().await,
    }
}

impl<S: Service> Inner<S> {
    /// Maximum number of connections of all kinds. Whether a connection belongs to a node, and to which principal, is
    /// known only after its handshake. Allows as many outgoing connections to nodes as incoming ones.
    pub(super) fn most_connections(&self) -> usize {
        let nodes = self.peers.as_ref().map_or(0, |_| 2 * self.limits.peers.max_connections);
        self.limits.max_connections.saturating_add(nodes).saturating_add(HANDSHAKES)
    }

    /// What a handshake needs: the node's certificate, and the authorities of clients and nodes.
    pub(super) fn tls_config(
        &self,
        identity: &Identity,
        trust: &TrustRoot,
    ) -> Result<quinn::ServerConfig, Error> {
        let mut alpns = vec![ALPN_CLIENT];
        if self.peers.is_some() {
            alpns.extend([ALPN_PEER, ALPN_CONTROL]);
        }
        let tls = tls::server(identity, trust, &alpns)?;
        Ok(endpoint::server_config(tls, &self.limits)?)
    }

    pub(super) async fn connection(
        self: &Arc<Self>,
        incoming: quinn::Incoming,
    ) -> Result<(), Error> {
        let connecting = incoming.accept()?;
        let connection = timeout(self.limits.hello_timeout, connecting)
            .await
            .map_err(|_| Error::ConnectionLost("handshake timed out".into()))??;
        let alpn = Alpn::from_name(&tls::alpn(&connection));
        if let (Some(alpn), Some(service)) = (alpn, &self.peers) {
            let most = self.limits.peers.max_connections;
            let Some(counted) = ConnectionGuard::one_more(&self.nodes, most) else {
                return Err(dial::close_for(
                    &connection,
                    limit_reached("peers.max-connections", most),
                ));
            };
            let (runtime, service) = (service.runtime(alpn), Arc::clone(service));
            let serving = peers::connection(Arc::clone(self), service, alpn, connection, counted);
            self.tasks.spawn_on(serving, &runtime);
            return Ok(());
        }
        // Who has a certificate counts from now on, whether it sends a hello or not.
        let chain = tls::peer_certificates(&connection);
        let holder = chain.first().map(|certificate| self.holder_of(certificate)).transpose();
        let holder = holder.map_err(|error| dial::close_for(&connection, error))?;
        let hello = async |frame, writer: &mut _| {
            self.answer_hello(&connection, holder, frame, writer).await
        };
        let Admitted { peer, valid_for, _place } = self.exchange_hello(&connection, hello).await?;
        debug!(principal = %peer.principal_name, address = %peer.address, "connection opened");
        let streams = self.streams(&connection, |send, recv| {
            let (shared, peer) = (Arc::clone(self), Arc::clone(&peer));
            async move { shared.stream(&peer, send, recv).await }
        });
        tokio::select! {
            ended = streams => ended,
            reason = self.revocation(&peer) => {
                Err(dial::refuse(&connection, CloseCode::Revoked, reason))
            }
            () = lost(self.trust.subscribe(), &chain) => Err(distrusted(&connection)),
            () = expiry(valid_for) => {
                let text = "the token has expired".into();
                Err(dial::refuse(&connection, CloseCode::TokenExpired, text))
            }
        }
    }

    /// Receives the first frame of a connection and lets `answer` write the response, within
    /// `hello_timeout`; closes the connection if either fails.
    pub(super) async fn exchange_hello<P>(
        &self,
        connection: &quinn::Connection,
        answer: impl AsyncFnOnce(Bytes, &mut FrameWriter) -> Result<P, Error>,
    ) -> Result<P, Error> {
        let deadline = self.limits.hello_timeout;
        // Dropped only after the close: a stream that ends first would hide the reason from the peer.
        let mut writer = None;
        let exchange = async {
            let (send, recv) = connection.accept_bi().await?;
            let writer = writer.insert(FrameWriter::new(send));
            let most = self.limits.max_frame.min(MAX_HELLO);
            let mut reader = FrameReader::new(recv, most, self.limits.frame_timeout);
            let empty = || Error::violation(CloseCode::InvalidHello, "the first stream was empty");
            answer(reader.next().await?.ok_or_else(empty)?, writer).await
        };
        match timeout(deadline, exchange).await {
            Ok(Ok(peer)) => {
                let window = VarInt::from_u32(self.limits.connection_receive_window);
                connection.set_receive_window(window);
                Ok(peer)
            }
            Ok(Err(error)) => Err(dial::close_for(connection, error)),
            Err(_) => {
                let text = format!("no hello within {deadline:?} (`network.hello-timeout`)");
                Err(dial::refuse(connection, CloseCode::HelloTimeout, text))
            }
        }
    }

    /// Serves a connection's streams until the connection or the node ends.
    pub(super) async fn streams<F: Future<Output = ()> + Send + 'static>(
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
                // Replies in flight must arrive before the close does.
                streams.wait().await;
                connection.close(CloseCode::ShuttingDown.into(), b"the node is shutting down");
                Ok(())
            }
        }
    }

    /// Answers the client's hello, which is the connection's first frame, and admits the client.
    async fn answer_hello(
        &self,
        connection: &quinn::Connection,
        holder: Option<Holder>,
        frame: Bytes,
        writer: &mut FrameWriter,
    ) -> Result<Admitted, Error> {
        let bad = |text: &str| Error::violation(CloseCode::InvalidHello, text);
        let open = Open::decode(frame).map_err(|e| bad(&decode_error_message(&e)))?;
        let Some(open::Stream::Hello(theirs)) = open.stream else {
            return Err(bad("the first stream must carry the hello"));
        };
        let most = theirs.limits.as_ref().map_or(0, |limits| limits.max_frame);
        if (1..MIN_CLIENT_MAX_FRAME).contains(&most) {
            return Err(bad(&format!(
                "`max_frame` is {most} bytes, minimum is {MIN_CLIENT_MAX_FRAME}"
            )));
        }
        let own = self.descriptor.now().node;
        hello::negotiate(hello::CLIENT_PROTOCOL_VERSIONS, Some(own.cluster), &theirs)
            .map_err(|(code, text)| Error::violation(code, text))?;
        let Holder { subjects, account, token, send_window, _place } = match holder {
            _ if !theirs.token.is_empty() => self.holder_of_token(&theirs.token)?,
            Some(holder) => holder,
            None => {
                let text = "the client shows neither a certificate nor a token";
                return Err(Error::violation(CloseCode::Unauthenticated, text));
            }
        };
        connection.set_send_window(send_window);
        let (token, valid_for) = token.unzip();
        let peer = Arc::new(ClientInfo {
            principal_name: Arc::clone(account.principal()),
            subjects,
            address: connection.remote_address(),
            limits: theirs.limits.unwrap_or_default(),
            token,
            account,
        });
        self.service
            .check_connection(&peer)
            .map_err(|reason| Error::violation(CloseCode::Revoked, reason))?;
        writer.put(&proto::Hello {
            cluster_time_ms: self.service.cluster_time_ms(),
            utc_ms: self.service.utc_ms(),
            ..own.hello(&self.limits)
        });
        writer.flush().await?;
        writer.finish();
        Ok(Admitted { peer, valid_for, _place })
    }

    /// Admits the holder of a certificate.
    fn holder_of(&self, certificate: &CertificateDer<'_>) -> Result<Holder, Error> {
        let principal = Principal::of(certificate)?.to_string();
        let fingerprint = format!("certificate/{}", identity::fingerprint(certificate)?);
        self.admit(&principal, vec![principal.clone(), fingerprint], None)
    }

    /// Admits the holder of a token.
    fn holder_of_token(&self, token: &str) -> Result<Holder, Error> {
        let holder = self.service.check_token(token).map_err(|refused| match refused {
            TokenRefused::Invalid(reason) => Error::violation(CloseCode::InvalidToken, reason),
            TokenRefused::NotReady(reason) => Error::violation(CloseCode::NotReady, reason),
        })?;
        let token = Some((Token(token.into()), holder.valid_for));
        self.admit(&holder.principal, holder.subjects, token)
    }

    fn admit(
        &self,
        principal: &str,
        subjects: Vec<String>,
        token: Option<(Token, Duration)>,
    ) -> Result<Holder, Error> {
        let (_place, account, send_window) = self
            .budgets
            .admit_connection(principal)
            .map_err(|full| limit_reached(full.setting, full.limit))?;
        Ok(Holder { subjects, account, token, send_window, _place })
    }

    /// Waits until the client may no longer have a connection, and returns the reason.
    async fn revocation(&self, peer: &ClientInfo) -> String {
        let Some(mut changes) = self.service.access_changes() else {
            return std::future::pending().await;
        };
        loop {
            changes.mark_unchanged();
            if let Err(reason) = self.service.check_connection(peer) {
                return reason;
            }
            if changes.changed().await.is_err() {
                // Nothing changes any more: the node is stopping.
                return std::future::pending().await;
            }
        }
    }

    /// Determines the kind of a stream, and serves it to its end.
    async fn stream(
        &self,
        peer: &Arc<ClientInfo>,
        send: quinn::SendStream,
        recv: quinn::RecvStream,
    ) {
        let mut reader = FrameReader::new(recv, self.limits.max_frame, self.limits.frame_timeout);
        let mut writer = FrameWriter::new(send);
        let served = match self.budgets.admit_stream(&peer.account) {
            Ok(_place) => self.serve(peer, &mut reader, &mut writer).await,
            Err(LimitReached { setting, limit: most }) => {
                let text = format!(
                    "{} has reached the stream limit (`{setting}` = {most})",
                    peer.principal_name
                );
                Err(Error::violation(CloseCode::TooManyStreams, text))
            }
        };
        if let Err(error) = served {
            give_up(&error, &mut reader, &mut writer);
        }
    }

    /// Waits for the first frame of a stream, which names the stream's kind.
    pub(super) async fn first(&self, reader: &mut FrameReader) -> Result<Bytes, Error> {
        let deadline = self.limits.open_timeout;
        let first = tokio::select! {
            () = self.stopping.cancelled() => return Err(stopping()),
            first = timeout(deadline, reader.next()) => first,
        };
        let first = first.map_err(|_| {
            let text = format!("no first frame within {deadline:?} (`network.open-timeout`)");
            Error::violation(CloseCode::OpenTimeout, text)
        })?;
        first?.ok_or_else(|| Error::violation(CloseCode::TruncatedFrame, "an empty stream"))
    }

    async fn serve(
        &self,
        peer: &Arc<ClientInfo>,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
    ) -> Result<(), Error> {
        let frame = self.first(reader).await?;
        let open = Open::decode(frame)
            .map_err(|e| Error::violation(CloseCode::InvalidFrame, decode_error_message(&e)))?;
        match open.stream {
            Some(open::Stream::Session(open)) => {
                let Ok(id) = <[u8; 16]>::try_from(&open.session[..]) else {
                    let text = format!("session id is {} bytes, expected 16", open.session.len());
                    return Err(Error::violation(CloseCode::UnexpectedFrame, text));
                };
                let session = ScopedSessionId::derive(&peer.principal_name, &id);
                let info = Arc::new(SessionInfo {
                    client: Arc::clone(peer),
                    client_session_id: id,
                    session,
                });
                session::serve(self, &info, reader, writer).await
            }
            Some(open::Stream::Admin(request)) => {
                admin::serve(self, peer, request, reader, writer).await
            }
            Some(open::Stream::Subscribe(request)) => {
                subscription::serve(self, peer, request, reader, writer).await
            }
            Some(open::Stream::Hello(_)) => {
                Err(Error::violation(CloseCode::UnexpectedFrame, "a second hello"))
            }
            None => Err(Error::violation(CloseCode::InvalidFrame, "unknown stream type")),
        }
    }
}
