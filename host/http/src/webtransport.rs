//! WebTransport: requests of web pages on streams of their own, beside HTTP/3 and at the same port.
//!
//! A page opens a session with a CONNECT request to [`PATH`] (`draft-ietf-webtrans-http3`, as browsers have it). Each
//! bidirectional stream that it opens then is one request: a line of JSON with its head, then its body. The response
//! has the same form. A request is served as over HTTP/3; the session says for which host and of which page it is.
//!
//! `h3-webtransport` would begin to read one stream after the other, so that a silent one stopped the rest.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use h3::ext::Protocol;
use h3::quic::{BidiStream, SendStream};
use h3::stream::BufRecvStream;
use h3::webtransport::SessionId;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use ostraca_codes::codes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;
use tower::ServiceExt;

use crate::problem::{Problem, wrong_method};

/// Where sessions are opened.
pub(crate) const PATH: &str = "/v1/webtransport";
/// Maximum number of sessions on one connection: browsers open one.
pub(crate) const SESSIONS: usize = 16;
/// Requests of one connection, after which it takes no more: the library remembers each one's stream to the end.
const REQUESTS: usize = 10_000;
/// Says which draft is spoken.
const DRAFT: (&str, &str) = ("sec-webtransport-http3-draft", "draft02");
/// A stream of a session that is not open (`WEBTRANSPORT_BUFFERED_STREAM_REJECTED`).
const NO_SESSION: u64 = 0x3994_bd84;

/// How a request begins: a line of JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestHead {
    method: String,
    /// The path, and the query string if there is one.
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// How a response begins: a line of JSON.
#[derive(Debug, Serialize)]
struct ResponseHead<'a> {
    status: u16,
    headers: BTreeMap<&'a str, &'a str>,
}

/// What the requests of a session have in common.
#[derive(Clone, Debug)]
struct Session {
    host: Authority,
    origin: Option<HeaderValue>,
}

/// The sessions of one connection.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: watch::Sender<HashMap<SessionId, Session>>,
    /// How many streams the library remembers.
    remembered: AtomicUsize,
}

impl Sessions {
    /// Whether a request asks for a session.
    pub(crate) fn is_asked_for<B>(request: &Request<B>) -> bool {
        request.method() == Method::CONNECT
            && request.extensions().get() == Some(&Protocol::WEB_TRANSPORT)
    }

    /// Refuses a session that would be one too many.
    ///
    /// # Errors
    /// `too-many-requests`.
    pub(crate) fn check_room(&self) -> Result<(), Problem> {
        if self.open.borrow().len() < SESSIONS {
            return Ok(());
        }
        let text = format!("this connection has {SESSIONS} WebTransport sessions, the maximum");
        Err(Problem::refused(StatusCode::TOO_MANY_REQUESTS, codes::TOO_MANY_REQUESTS, text)
            .help("close a session, or open one on another connection"))
    }

    /// A session that was admitted is open from now on.
    pub(crate) fn open<B>(&self, id: SessionId, request: &Request<B>) {
        let Some(host) = request.uri().authority().cloned() else { return };
        let session = Session { host, origin: request.headers().get(ORIGIN).cloned() };
        self.open.send_modify(|open| {
            open.insert(id, session);
        });
    }

    pub(crate) fn close(&self, id: SessionId) {
        self.open.send_modify(|open| {
            open.remove(&id);
        });
    }

    /// A stream was accepted, which the library remembers unless it is a request of HTTP.
    pub(crate) fn accepted(&self) {
        self.remembered.fetch_add(1, Ordering::Relaxed);
    }

    /// A stream has turned out to be a request of HTTP.
    pub(crate) fn resolved(&self) {
        self.remembered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the connection has had as many streams as it may.
    pub(crate) fn is_used_up(&self) -> bool {
        self.remembered.load(Ordering::Relaxed) >= REQUESTS
    }

    /// Serves a stream of a session, which may be known only a little later: packets overtake each other.
    pub(crate) async fn serve<S>(
        &self,
        id: SessionId,
        stream: BufRecvStream<S, Bytes>,
        limits: Limits,
        router: Router,
    ) -> io::Result<()>
    where
        S: BidiStream<Bytes>,
        S::RecvStream: Send + 'static,
        BufRecvStream<S::SendStream, Bytes>: tokio::io::AsyncWrite + SendStream<Bytes> + Unpin,
        BufRecvStream<S::RecvStream, Bytes>: tokio::io::AsyncRead + Unpin,
    {
        let (mut sender, receiver) = stream.split();
        let mut open = self.open.subscribe();
        let session =
            match timeout(limits.head_time, open.wait_for(|it| it.contains_key(&id))).await {
                Ok(Ok(open)) => open.get(&id).cloned(),
                _ => None,
            };
        let Some(session) = session else {
            sender.reset(NO_SESSION);
            return Ok(());
        };
        let mut reader = BufReader::new(receiver);
        let mut line = Vec::new();
        let mut head = (&mut reader).take(limits.head_bytes);
        // A stream on which no request comes must not keep its connection open.
        let Ok(read) = timeout(limits.head_time, head.read_until(b'\n', &mut line)).await else {
            return Ok(());
        };
        read?;
        let response = match session.request(&line, limits.head_bytes) {
            Ok(head) => {
                let body = Body::from_stream(ReaderStream::new(reader));
                let Ok(response) = router.oneshot(head.map(|()| body)).await;
                response
            }
            Err(refused) => refused.into_response(),
        };
        respond(&mut sender, response).await
    }
}

/// What a stream may do before it is a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) head_bytes: u64,
    pub(crate) head_time: Duration,
}

impl Session {
    /// The request with this head.
    fn request(&self, line: &[u8], most: u64) -> Result<Request<()>, Problem> {
        let invalid = |text: String| {
            Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_HEADER, text)
                .help("begin each stream with a line such as {\"method\":\"POST\",\"path\":\"/v1/…\",\"headers\":{\"authorization\":\"Bearer …\"}}, then send the body")
        };
        if line.last() != Some(&b'\n') {
            return Err(invalid(match line.len() as u64 >= most {
                true => format!(
                    "the stream's first line is longer than `http.max-header-bytes`, {most} bytes"
                ),
                false => "the stream ended within its first line".into(),
            }));
        }
        let head: RequestHead = serde_json::from_slice(line).map_err(|error| {
            invalid(format!("the stream's first line is not a request's head: {error}"))
        })?;
        let method = Method::from_bytes(head.method.as_bytes())
            .map_err(|_| invalid(format!("{:?} is not a method", head.method)))?;
        let uri =
            Uri::builder().scheme("https").authority(self.host.clone()).path_and_query(&*head.path);
        let uri = uri.build().ok().filter(|_| head.path.starts_with('/'));
        let uri = uri.ok_or_else(|| invalid(format!("{:?} is not a path", head.path)))?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(())
            .map_err(|error| invalid(error.to_string()))?;
        for (name, value) in head.headers {
            let name: HeaderName =
                name.parse().map_err(|_| invalid(format!("{name:?} is not a header's name")))?;
            if name == HOST || name == ORIGIN {
                return Err(invalid(format!(
                    "a request cannot set the header `{name}`: it comes from the session"
                )));
            }
            let value = value
                .parse::<HeaderValue>()
                .map_err(|_| invalid(format!("the header `{name}` has an invalid value")))?;
            request.headers_mut().append(name, value);
        }
        if let Some(origin) = &self.origin {
            request.headers_mut().insert(ORIGIN, origin.clone());
        }
        Ok(request)
    }
}

/// Sends a response.
async fn respond(
    sender: &mut (impl tokio::io::AsyncWrite + SendStream<Bytes> + Unpin),
    response: Response,
) -> io::Result<()> {
    let (head, mut body) = response.into_parts();
    let headers =
        head.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let line = ResponseHead { status: head.status.as_u16(), headers: headers.collect() };
    let mut line = serde_json::to_vec(&line).map_err(io::Error::other)?;
    line.push(b'\n');
    sender.write_all(&line).await?;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                // Responses have no trailers.
                if let Ok(data) = frame.into_data() {
                    sender.write_all(&data).await?;
                }
            }
            Err(_) => {
                sender.reset(h3::error::Code::H3_INTERNAL_ERROR.value());
                return Ok(());
            }
        }
    }
    sender.shutdown().await
}

/// Admits a session; the layers before this have checked its host and its origin.
pub(crate) async fn admit(request: axum::extract::Request) -> Response {
    if Sessions::is_asked_for(&request) { [DRAFT].into_response() } else { refuse().await }
}

/// Answers any other request to [`PATH`].
pub(crate) async fn refuse() -> Response {
    wrong_method("CONNECT", "this path only opens WebTransport sessions, over HTTP/3".into())
}
