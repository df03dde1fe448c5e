//! HTTP/3: the same requests on QUIC, at the address and port of the gateway. Browsers learn of it from the header
//! `alt-svc` of other responses.
//!
//! It is an endpoint of its own, since the one of the node asks its clients for certificates.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use h3::proto::frame::Frame as Http3Frame;
use h3::quic::{RecvStream, StreamId};
use h3::server::{RequestResolver, RequestStream};
use h3::webtransport::SessionId;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, Incoming, ServerConfig, TransportConfig, VarInt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::bounded::{Bounded, Frames};
use crate::serve::{Activity, BindError, Connections, InProgress};
use crate::settings::HttpSettings;
use crate::webtransport::{Limits, SESSIONS, Sessions};

/// The protocol's name in TLS.
const ALPN: &[u8] = b"h3";
/// Maximum number of concurrent requests on one connection, as with HTTP/2, and of streams for HTTP/3 itself.
const REQUESTS: u32 = 250;
const CONTROL: u32 = 8;
/// Bytes of datagrams that are kept: browsers require that they may send some, and nothing reads them.
const DATAGRAMS: usize = 1 << 10;
/// Bytes that a connection may have in flight for each of its streams, and in all.
const STREAM_WINDOW: u32 = 256 << 10;
const WINDOW: u32 = 2 << 20;
/// How long a client has to receive the last responses of a connection that ends, and to close it.
const FAREWELL: Duration = Duration::from_secs(1);
/// A connection is given up that is silent for so many `header-timeout`s.
const SILENCE: u32 = 3;

/// The endpoint, before it serves.
pub(crate) struct Http3 {
    endpoint: Endpoint,
    header_bytes: u64,
}

impl Http3 {
    /// Binds the UDP port of the gateway's address.
    pub(crate) fn bind(
        address: SocketAddr,
        mut tls: rustls::ServerConfig,
        settings: &HttpSettings,
    ) -> Result<Self, BindError> {
        let failed = |source| BindError::Listen { setting: "http.listen", address, source };
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let tls = QuicServerConfig::try_from(tls)
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let mut transport = TransportConfig::default();
        let silence = settings.header_timeout * SILENCE;
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(REQUESTS))
            .max_concurrent_uni_streams(VarInt::from_u32(CONTROL))
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
            .receive_window(VarInt::from_u32(WINDOW))
            .send_window(WINDOW.into())
            .datagram_receive_buffer_size(Some(DATAGRAMS))
            // A longer time than the protocol can express is none.
            .max_idle_timeout(silence.try_into().ok())
            .keep_alive_interval(Some(settings.header_timeout));
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(Arc::new(transport));
        let socket = std::net::UdpSocket::bind(address).map_err(failed)?;
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            Some(config),
            socket,
            Arc::new(quinn::TokioRuntime),
        );
        let header_bytes = settings.max_header_bytes as u64;
        Ok(Self { endpoint: endpoint.map_err(failed)?, header_bytes })
    }

    /// Accepts connections until the gateway stops. Returns those that are still open.
    pub(crate) async fn accept(self, connections: Arc<Connections>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        loop {
            let Some(place) = connections.place().await else { break };
            let incoming = tokio::select! {
                () = connections.stop.cancelled() => break,
                incoming = self.endpoint.accept() => incoming,
            };
            // The endpoint is not closed while this runs.
            let Some(incoming) = incoming else { break };
            while tasks.try_join_next().is_some() {}
            if connections.is_half_full() && !incoming.remote_address_validated() {
                // New clients must first prove their address: a forged one would take a place for a while.
                if let Err(error) = incoming.retry() {
                    error.into_incoming().refuse();
                }
                continue;
            }
            tasks.spawn(serve(incoming, Arc::clone(&connections), self.header_bytes, place));
        }
        self.endpoint.set_server_config(None);
        tasks
    }
}

async fn serve(
    incoming: Incoming,
    connections: Arc<Connections>,
    header_bytes: u64,
    _place: OwnedSemaphorePermit,
) {
    let idle = connections.idle;
    let connection = match timeout(idle, async { incoming.accept()?.await }).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a QUIC handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!("a QUIC handshake took too long");
            return;
        }
    };
    let mut builder = h3::server::builder();
    builder
        .max_field_section_size(header_bytes)
        .enable_extended_connect(true)
        .enable_datagram(true)
        .enable_webtransport(true)
        .max_webtransport_sessions(SESSIONS as u64);
    // A client that gives no credit for streams must not hold a place.
    let built = timeout(idle, builder.build(Bounded::new(connection.clone(), header_bytes))).await;
    let mut http3: h3::server::Connection<Bounded, Bytes> = match built {
        Ok(Ok(http3)) => http3,
        Ok(Err(error)) => {
            tracing::debug!(%error, "an HTTP/3 connection ended");
            return;
        }
        Err(_) => {
            tracing::debug!("HTTP/3 took too long to begin");
            return;
        }
    };
    let activity = Arc::new(Activity::default());
    let context = Arc::new(Serving {
        router: connections.router.clone(),
        limits: Limits { head_bytes: header_bytes, head_time: idle },
        sessions: Sessions::default(),
    });
    let mut requests = JoinSet::new();
    // Sessions have no requests of their own: they end with the connection.
    let mut sessions = JoinSet::new();
    let mut stopping = false;
    let mut lost = false;
    loop {
        // Nothing receives these streams.
        http3.inner.accepted_streams_mut().wt_uni_streams.clear();
        if context.sessions.is_used_up() && !stopping {
            stopping = true;
            goaway(&mut http3, idle).await;
        }
        tokio::select! {
            accepted = http3.accept() => match accepted {
                Ok(Some(resolver)) => {
                    let (guard, context) = (activity.enter(), Arc::clone(&context));
                    context.sessions.accepted();
                    requests.spawn(async move {
                        // The headers of a request, its body and its response have limits of their own.
                        let responded = context.respond(resolver, guard).await;
                        responded.unwrap_or_else(|error| {
                            tracing::debug!(%error, "a request over HTTP/3 ended");
                            None
                        })
                    });
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "an HTTP/3 connection ended");
                    lost = true;
                    break;
                }
            },
            Some(ended) = requests.join_next() => {
                if let Ok(Some(stream)) = ended {
                    sessions.spawn(Arc::clone(&context).hold(stream));
                }
            }
            Some(_) = sessions.join_next() => {}
            () = connections.stop.cancelled(), if !stopping => {
                stopping = true;
                goaway(&mut http3, idle).await;
            }
            // Nothing more is accepted then, so what is in progress is all there is.
            () = activity.idle_for(Duration::ZERO), if stopping => break,
            () = activity.idle_for(idle), if !stopping => {
                stopping = true;
                goaway(&mut http3, idle).await;
            }
        }
    }
    if lost {
        // Nobody is left to receive the responses.
        requests.shutdown().await;
    }
    while requests.join_next().await.is_some() {}
    sessions.shutdown().await;
    // Closing throws away what the client has not received yet: a client closes when it has everything.
    let farewell = async {
        // Refuses what comes too late.
        while let Ok(Some(_)) = http3.accept().await {}
        connection.closed().await
    };
    let _ = timeout(FAREWELL, farewell).await;
    connection.close(Code::H3_NO_ERROR.value().try_into().unwrap_or(VarInt::MAX), b"");
}

/// Says that nothing more is accepted. The client may be gone already, or give no credit for it.
async fn goaway(http3: &mut h3::server::Connection<Bounded, Bytes>, limit: Duration) {
    let _ = timeout(limit, http3.shutdown(0)).await;
}

/// The stream on which a WebTransport session was opened.
type SessionStream = RequestStream<Frames<h3_quinn::BidiStream<Bytes>>, Bytes>;

/// The id of the session that was opened on a stream: the stream's own.
fn session_id(stream: StreamId) -> Option<SessionId> {
    SessionId::try_from(stream.into_inner()).ok()
}

/// What the requests of a connection have in common.
struct Serving {
    router: Router,
    limits: Limits,
    sessions: Sessions,
}

impl Serving {
    /// Serves one request, or one stream of a session. Returns the stream of a session that it opened.
    async fn respond(
        &self,
        mut resolver: RequestResolver<Bounded, Bytes>,
        _guard: InProgress,
    ) -> Result<Option<SessionStream>, StreamError> {
        // A stream on which no request comes must not keep its connection open.
        let first = poll_fn(|context| resolver.frame_stream.poll_next(context));
        let Ok(first) = timeout(self.limits.head_time, first).await else { return Ok(None) };
        if let Ok(Some(Http3Frame::WebTransportStream(session))) = first {
            let stream = resolver.frame_stream.into_inner();
            let (limits, router) = (self.limits, self.router.clone());
            if let Err(error) = self.sessions.serve(session, stream, limits, router).await {
                tracing::debug!(%error, "a request over WebTransport ended");
            }
            return Ok(None);
        }
        let resolved = resolver.accept_with_frame(first)?;
        // From here on, the library forgets the stream with its end.
        self.sessions.resolved();
        let (request, mut stream) = resolved.resolve().await?;
        if !Sessions::is_asked_for(&request) {
            let (sender, receiver) = stream.split();
            let request = request
                .map(|()| Body::new(Received { stream: receiver, ended: false, waits: false }));
            let Ok(response) = self.router.clone().oneshot(request).await;
            send(sender, response).await?;
            return Ok(None);
        }
        let response = match self.sessions.check_room() {
            Ok(()) => {
                let asked = request.clone().map(|()| Body::empty());
                let Ok(response) = self.router.clone().oneshot(asked).await;
                response
            }
            Err(refused) => refused.into_response(),
        };
        if response.status() != StatusCode::OK {
            let (sender, _receiver) = stream.split();
            send(sender, response).await?;
            return Ok(None);
        }
        stream.send_response(response.map(|_| ())).await?;
        if let Some(id) = session_id(stream.id()) {
            self.sessions.open(id, &request);
        }
        Ok(Some(stream))
    }

    /// Keeps a session until its client closes it. What the client sends for the session itself is not used.
    async fn hold(self: Arc<Self>, mut stream: SessionStream) {
        while let Ok(Some(_)) = stream.recv_data().await {}
        if let Some(id) = session_id(stream.id()) {
            self.sessions.close(id);
        }
        // It may be gone already.
        let _ = stream.finish().await;
    }
}

/// Sends a response.
async fn send<S: h3::quic::SendStream<Bytes>>(
    mut sender: RequestStream<S, Bytes>,
    response: Response<Body>,
) -> Result<(), StreamError> {
    let (head, mut body) = response.into_parts();
    sender.send_response(Response::from_parts(head, ())).await?;
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => sender.send_data(data).await?,
            // Responses have no trailers.
            Ok(Err(_)) => {}
            Err(_) => {
                sender.stop_stream(Code::H3_INTERNAL_ERROR);
                return Ok(());
            }
        }
    }
    sender.finish().await
}

/// The body of a request.
struct Received<S: RecvStream> {
    stream: RequestStream<S, Bytes>,
    ended: bool,
    /// Whether it waits for data: the library has no stream to stop then.
    waits: bool,
}

/// A response may be complete before its request is. The client must know that this is no error: otherwise, a browser
/// that is still sending drops the response (RFC 9114, section 4.1).
impl<S: RecvStream> Drop for Received<S> {
    fn drop(&mut self) {
        if !self.ended && !self.waits {
            self.stream.stop_sending(Code::H3_NO_ERROR);
        }
    }
}

impl<S: RecvStream + Unpin> http_body::Body for Received<S> {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.waits = true;
        let received = ready!(self.stream.poll_recv_data(context));
        self.waits = false;
        Poll::Ready(match received {
            Ok(Some(mut data)) => Some(Ok(Frame::data(data.copy_to_bytes(data.remaining())))),
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
