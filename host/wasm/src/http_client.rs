//! Makes the HTTP calls of guests: one connection for each call, to an address that was checked.
//!
//! Calls share nothing: no connections and no cookies. Redirects are not followed, and no proxy is used. Whatever a
//! server sends ends in a response within the limits, or in an error.
//!
//! The calls run on threads of their own, which start with the first call, since workers have no network. Resolving a
//! name blocks a thread of the same runtime.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::Error as CallError;
use wasmtime_wasi_http::io::TokioIo;

use crate::address_policy::AddressPolicy;
use crate::http_answers::HttpAnswers;
use crate::{Error, OutgoingHttpSettings};

/// Threads on which calls run.
const THREADS: usize = 2;
/// Maximum number of names that are resolved at the same time; others wait.
const RESOLVERS: usize = 64;
/// Maximum size in bytes of a response's status line and headers, and maximum number of its headers.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 100;

/// A request that is complete.
#[derive(Debug)]
pub(crate) struct CallRequest {
    pub(crate) method: Method,
    pub(crate) target: CallTarget,
    /// The path with its query.
    pub(crate) path: http::uri::PathAndQuery,
    /// All headers, `host` included.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl CallRequest {
    /// The request with its whole URL.
    fn into_whole(self) -> Result<http::Request<Bytes>, CallError> {
        let CallRequest { method, target, path, headers, body } = self;
        let scheme = if target.tls { "https" } else { "http" };
        let url = http::Uri::builder().scheme(scheme).authority(target.authority());
        let mut request = http::Request::new(body);
        *request.method_mut() = method;
        let url = url.path_and_query(path).build();
        *request.uri_mut() = url.map_err(|_| CallError::HttpRequestUriInvalid)?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// The server of a call.
#[derive(Debug, Clone)]
pub(crate) struct CallTarget {
    pub(crate) tls: bool,
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl CallTarget {
    /// The host, in brackets if it is an IPv6 address.
    pub(crate) fn bracketed_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// The host and the port.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.bracketed_host(), self.port)
    }
}

/// When the parts of a call must be complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallDeadlines {
    pub(crate) connected: Instant,
    pub(crate) head: Instant,
    pub(crate) whole: Instant,
    /// The longest pause within the body.
    pub(crate) pause: Duration,
}

/// Decides whether a turn may receive that many more bytes.
pub(crate) type Charge<'a> = &'a (dyn Fn(usize) -> Result<(), CallError> + Sync);

/// The node's HTTP client, and the threads on which it runs.
pub(crate) struct OutgoingHttp {
    pub(crate) client: Arc<HttpClient>,
    runtime: Mutex<Option<Runtime>>,
}

impl OutgoingHttp {
    pub(crate) fn new(settings: &OutgoingHttpSettings) -> Result<OutgoingHttp, Error> {
        Ok(OutgoingHttp { client: Arc::new(HttpClient::new(settings)?), runtime: Mutex::default() })
    }

    /// Runs a future on the client's threads.
    pub(crate) fn spawn<F>(&self, future: F) -> io::Result<JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match runtime.take() {
            Some(running) => running,
            None => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(THREADS)
                .max_blocking_threads(RESOLVERS)
                .thread_name("ostraca-http")
                .enable_all()
                .build()?,
        };
        Ok(runtime.insert(running).spawn(future))
    }
}

impl Drop for OutgoingHttp {
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.take() {
            // May be called where blocking is not allowed, and while a name is still being resolved.
            runtime.shutdown_background();
        }
    }
}

pub(crate) struct HttpClient {
    policy: AddressPolicy,
    tls: TlsConnector,
    connections: Semaphore,
    answers: Option<HttpAnswers>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl HttpClient {
    fn new(settings: &OutgoingHttpSettings) -> Result<HttpClient, Error> {
        let connections = settings.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        Ok(HttpClient {
            policy: AddressPolicy::new(settings.allow_addresses.clone()),
            tls: TlsConnector::from(Arc::new(tls_config(settings)?)),
            connections: Semaphore::new(connections),
            answers: settings.answers.clone(),
        })
    }

    /// Makes a call, and returns the whole response.
    pub(crate) async fn call(
        &self,
        request: CallRequest,
        deadlines: CallDeadlines,
        charge: Charge<'_>,
    ) -> Result<Response<Bytes>, CallError> {
        if let Some(answers) = &self.answers {
            let response = answers.call(request.into_whole()?)?;
            charge(response.body().len())?;
            return Ok(response);
        }
        let connecting = async {
            let permit = self.connections.acquire().await;
            let permit = permit.map_err(|_| CallError::ConnectionLimitReached)?;
            Ok::<_, CallError>((self.connect(&request.target).await?, permit))
        };
        let connected = timeout_at(deadlines.connected, connecting).await;
        let (stream, _permit) = connected.map_err(|_| CallError::ConnectionTimeout)??;
        let exchange = exchange(stream, request, deadlines, charge);
        let exchanged = timeout_at(deadlines.whole, exchange).await;
        exchanged.map_err(|_| CallError::HttpResponseTimeout)?
    }

    async fn connect(&self, target: &CallTarget) -> Result<Box<dyn Stream>, CallError> {
        let stream = self.connect_tcp(&self.resolve(target).await?).await?;
        // An optimisation only: if it fails, the call is slower.
        let _ = stream.set_nodelay(true);
        if !target.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(target.host.clone());
        let name = name.map_err(|_| CallError::HttpRequestUriInvalid)?;
        Ok(Box::new(self.tls.connect(name, stream).await.map_err(tls_error)?))
    }

    /// The target's addresses that may be connected to.
    async fn resolve(&self, target: &CallTarget) -> Result<Vec<SocketAddr>, CallError> {
        let all: Vec<SocketAddr> = match target.host.parse::<IpAddr>() {
            Ok(address) => vec![(address, target.port).into()],
            Err(_) => {
                let found = tokio::net::lookup_host((&*target.host, target.port)).await;
                found.map_err(|error| dns_error(&error))?.collect()
            }
        };
        if all.is_empty() {
            return Err(CallError::DestinationNotFound);
        }
        let permitted: Vec<_> =
            all.into_iter().filter(|address| self.policy.permits(address.ip())).collect();
        if permitted.is_empty() {
            return Err(CallError::DestinationIpProhibited);
        }
        Ok(permitted)
    }

    /// Connects to the first of these checked addresses that accepts.
    async fn connect_tcp(&self, addresses: &[SocketAddr]) -> Result<TcpStream, CallError> {
        let mut last = CallError::DestinationUnavailable;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = connect_error(&error),
            }
        }
        Err(last)
    }
}

/// Sends the request, and receives the whole response.
async fn exchange(
    stream: Box<dyn Stream>,
    request: CallRequest,
    deadlines: CallDeadlines,
    charge: Charge<'_>,
) -> Result<Response<Bytes>, CallError> {
    let CallRequest { method, target: _, path, headers, body } = request;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| http_error(&error))?;
    let mut request = http::Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = path.into();
    *request.headers_mut() = headers;
    let exchange = async move {
        let head = timeout_at(deadlines.head, sender.send_request(request)).await;
        let head = head.map_err(|_| CallError::HttpResponseTimeout)?;
        let (head, body) = head.map_err(|error| http_error(&error))?.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(CallError::HttpUpgradeFailed);
        }
        let size = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len()
        };
        charge(head.headers.iter().map(size).sum())?;
        let body = receive(body, deadlines.pause, charge).await?;
        Ok(Response::from_parts(head, body))
    };
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    tokio::select! {
        biased;
        done = &mut exchange => done,
        // The connection has delivered all it received, or its error, to the exchange.
        _ = &mut connection => exchange.await,
    }
}

/// Receives a body. Trailers are dropped.
async fn receive(
    mut body: Incoming,
    pause: Duration,
    charge: Charge<'_>,
) -> Result<Bytes, CallError> {
    let mut received = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(pause, body.frame()).await;
        let Some(frame) = frame.map_err(|_| CallError::ConnectionReadTimeout)? else {
            return Ok(received.freeze());
        };
        if let Ok(data) = frame.map_err(|error| http_error(&error))?.into_data() {
            charge(data.len())?;
            received.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            return Ok(received.freeze());
        }
    }
}

fn tls_config(settings: &OutgoingHttpSettings) -> Result<ClientConfig, Error> {
    let invalid = |reason: String| Error::Setting { setting: "outgoing-http.ca-file", reason };
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = &settings.ca_file {
        let failed = |why: &dyn std::fmt::Display| invalid(format!("{}: {why}", path.display()));
        let before = roots.len();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
            let certificate = certificate.map_err(|error| failed(&error))?;
            roots.add(certificate).map_err(|error| failed(&error))?;
        }
        if roots.len() == before {
            return Err(failed(&"it contains no certificate"));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Error::EngineFailed(error.to_string()))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would tell a server which calls come from the same node.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

fn dns_error(error: &io::Error) -> CallError {
    tracing::debug!(%error, "cannot resolve the host of an outgoing call");
    CallError::DnsError { rcode: Some("the name cannot be resolved".into()), info_code: None }
}

fn connect_error(error: &io::Error) -> CallError {
    tracing::debug!(%error, "cannot connect for an outgoing call");
    match error.kind() {
        io::ErrorKind::ConnectionRefused => CallError::ConnectionRefused,
        io::ErrorKind::TimedOut => CallError::ConnectionTimeout,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            CallError::DestinationIpUnroutable
        }
        _ => CallError::DestinationUnavailable,
    }
}

fn tls_error(error: io::Error) -> CallError {
    tracing::debug!(%error, "the TLS handshake of an outgoing call failed");
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            CallError::TlsCertificateError
        }
        Some(rustls::Error::AlertReceived(alert)) => CallError::TlsAlertReceived {
            alert_id: Some(u8::from(*alert)),
            alert_message: Some(format!("{alert:?}")),
        },
        Some(_) => CallError::TlsProtocolError,
        None => CallError::ConnectionTerminated,
    }
}

fn http_error(error: &hyper::Error) -> CallError {
    tracing::debug!(%error, "the HTTP exchange of an outgoing call failed");
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    let io = source.map(io::Error::kind);
    if error.is_parse_too_large() {
        CallError::HttpResponseHeaderSectionSize(u32::try_from(HEAD_BYTES).ok())
    } else if error.is_incomplete_message() || io == Some(io::ErrorKind::UnexpectedEof) {
        CallError::HttpResponseIncomplete
    } else if error.is_closed() || error.is_canceled() || io.is_some() {
        CallError::ConnectionTerminated
    } else if error.is_timeout() {
        CallError::HttpResponseTimeout
    } else {
        CallError::HttpProtocolError
    }
}
