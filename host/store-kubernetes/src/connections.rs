//! HTTP connections to the API server: one request on each at a time, kept for the next one.
//!
//! What matters to the callers is whether a request that failed may have been carried out. It was not if no connection
//! was opened, or if the connection ended before the request was written to it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::error::{OpenError, chain};
use crate::options::Options;

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 << 20;
/// How long an unused connection is kept. API servers and load balancers close theirs later.
const IDLE: Duration = Duration::from_secs(20);
/// How often the token is read again. Kubernetes replaces the tokens of service accounts before they expire.
const TOKEN_AGE: Duration = Duration::from_secs(60);

type Sender = SendRequest<Full<Bytes>>;

/// The connections of one process.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Shared>);

struct Shared {
    options: Arc<Options>,
    target: Target,
    idle: Mutex<Vec<(Sender, Instant)>>,
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

/// The parts of the API server's address.
struct Target {
    tls: bool,
    host: String,
    port: u16,
    authority: HeaderValue,
    /// What all paths start with.
    path: String,
}

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The request was not carried out.
    NotSent(OpenError),
    /// It may have been carried out.
    InDoubt(String),
}

impl Target {
    fn new(url: &str) -> Result<Self, OpenError> {
        let invalid = |why: String| OpenError::Url { url: url.into(), why };
        Options::check_url(url).map_err(invalid)?;
        let parsed: Uri = url.parse().map_err(|_| invalid("it is no URL".into()))?;
        let tls = parsed.scheme_str() == Some("https");
        let authority = parsed.authority().map(|it| it.as_str()).unwrap_or_default();
        let authority =
            HeaderValue::from_str(authority).map_err(|error| invalid(error.to_string()))?;
        let host = parsed.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = parsed.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = parsed.path().trim_end_matches('/').to_owned();
        Ok(Self { tls, host, port, authority, path })
    }
}

impl Connections {
    pub(crate) fn new(options: Arc<Options>) -> Result<Self, OpenError> {
        let target = Target::new(&options.url)?;
        let (idle, token) = (Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(Shared { options, target, idle, token })))
    }

    /// Sends a request, and reads the whole answer.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Answer, SendError> {
        let (mut sender, request) = self.prepare(method, path, body).await?;
        let until = Instant::now() + self.0.options.attempt_timeout;
        let response = self.send(&mut sender, request, until).await?;
        let (head, body) = response.into_parts();
        let body = timeout_at(until, read(body)).await.map_err(|_| self.late())??;
        self.keep(sender);
        if head.status == StatusCode::UNAUTHORIZED {
            self.forget_token();
        }
        Ok(Answer { status: head.status, retry_after: retry_after(&head.headers), body })
    }

    /// Sends a request whose answer has no end.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response<Incoming>, SendError> {
        let (mut sender, request) = self.prepare(Method::GET, path, None).await?;
        let until = Instant::now() + self.0.options.attempt_timeout;
        let response = self.send(&mut sender, request, until).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.forget_token();
        }
        Ok(response)
    }

    /// Opens a connection, or takes one that is unused, and makes the request.
    async fn prepare(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(Sender, Request<Full<Bytes>>), SendError> {
        let request = self.request(method, path, body).await.map_err(SendError::NotSent)?;
        while let Some(mut sender) = self.unused() {
            // It is ready as soon as the connection has noticed the end of the last answer.
            if matches!(timeout(self.0.options.connect_timeout, sender.ready()).await, Ok(Ok(()))) {
                return Ok((sender, request));
            }
        }
        let sender = self.connect().await.map_err(SendError::NotSent)?;
        Ok((sender, request))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, OpenError> {
        let target = &self.0.target;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", target.path))
            .header(HOST, target.authority.clone())
            .header(USER_AGENT, concat!("ostraca/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = self.token().await? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body.unwrap_or_default()));
        request.map_err(|error| OpenError::Refused(error.to_string()))
    }

    async fn send(
        &self,
        sender: &mut Sender,
        request: Request<Full<Bytes>>,
        until: Instant,
    ) -> Result<Response<Incoming>, SendError> {
        match timeout_at(until, sender.try_send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let why = chain(error.error());
                Err(match error.message() {
                    Some(_) => SendError::NotSent(OpenError::Unreachable(why)),
                    None => SendError::InDoubt(why),
                })
            }
            Err(_) => Err(self.late()),
        }
    }

    fn late(&self) -> SendError {
        SendError::InDoubt(format!("no answer within {:?}", self.0.options.attempt_timeout))
    }

    fn unused(&self) -> Option<Sender> {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = Instant::now().checked_sub(IDLE);
        idle.retain(|(sender, since)| !sender.is_closed() && oldest.is_none_or(|it| *since > it));
        idle.pop().map(|(sender, _)| sender)
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !sender.is_closed() && idle.len() < self.0.options.connections {
            idle.push((sender, Instant::now()));
        }
    }

    async fn connect(&self) -> Result<Sender, OpenError> {
        let options = &self.0.options;
        let opening = timeout(options.connect_timeout, self.open());
        let late =
            || OpenError::Unreachable(format!("no answer within {:?}", options.connect_timeout));
        opening.await.map_err(|_| late())?
    }

    async fn open(&self) -> Result<Sender, OpenError> {
        let Target { tls, host, port, .. } = &self.0.target;
        let unreachable = |error: &dyn std::error::Error| {
            OpenError::Unreachable(format!("{host}:{port}: {}", chain(error)))
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        let stream = stream.map_err(|error| unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
        if !tls {
            return handshake(stream).await;
        }
        let config = tls_config(&self.0.options).await?;
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|error| OpenError::Url {
            url: self.0.options.url.clone(),
            why: error.to_string(),
        })?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        handshake(stream.map_err(|error| unreachable(&error))?).await
    }

    async fn token(&self) -> Result<Option<HeaderValue>, OpenError> {
        let Some(path) = &self.0.options.token_file else { return Ok(None) };
        let known = self.0.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((token, _)) = known.filter(|(_, read)| read.elapsed() < TOKEN_AGE) {
            return Ok(Some(token));
        }
        let text = read_file(path).await?;
        let text = String::from_utf8_lossy(&text);
        let invalid = |_| OpenError::Login(format!("{} has no token", path.display()));
        let mut token =
            HeaderValue::from_str(&format!("Bearer {}", text.trim())).map_err(invalid)?;
        token.set_sensitive(true);
        let mut known = self.0.token.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((token.clone(), Instant::now()));
        Ok(Some(token))
    }

    fn forget_token(&self) {
        *self.0.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

async fn handshake<T>(stream: T) -> Result<Sender, OpenError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let opened = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|error| OpenError::Unreachable(chain(&error)))?;
    // It ends with its sender or its server; the sender then reports the error.
    tokio::spawn(connection);
    Ok(sender)
}

async fn read(mut body: Incoming) -> Result<Bytes, SendError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| SendError::InDoubt(chain(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_ANSWER {
            return Err(SendError::InDoubt(format!("the answer has more than {MAX_ANSWER} bytes")));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// The pause that the server asks for, if it does so in seconds.
pub(crate) fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn tls_config(options: &Options) -> Result<ClientConfig, OpenError> {
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates(path).await? {
                roots.add(certificate).map_err(|error| unusable(path, &error))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| OpenError::Unreachable(error.to_string()))?;
    let config = versions.with_root_certificates(roots);
    let Some((certificate, key)) = &options.identity else {
        return Ok(config.with_no_client_auth());
    };
    let pem = read_file(key).await?;
    let own = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unusable(key, &error))?;
    let config = config.with_client_auth_cert(certificates(certificate).await?, own);
    config.map_err(|error| unusable(certificate, &error))
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let pem = read_file(path).await?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let all = all.map_err(|error| unusable(path, &error))?;
    match all.is_empty() {
        true => {
            Err(OpenError::Certificate { path: path.into(), why: "it has no certificate".into() })
        }
        false => Ok(all),
    }
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> OpenError {
    OpenError::Certificate { path: path.into(), why: chain(error) }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, OpenError> {
    let bytes = tokio::fs::read(path).await;
    bytes.map_err(|source| OpenError::File { path: path.into(), source })
}
