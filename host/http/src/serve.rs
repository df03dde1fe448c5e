//! Accepts connections, with TLS where it is configured, and serves requests on them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use http::header::ALT_SVC;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::sent::Guarded;
use crate::settings::{HttpSettings, TlsFiles};

/// The pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of concurrent requests on one connection of HTTP/2.
const STREAMS: u32 = 250;
/// How often HTTP/2 checks whether a silent client is still there, and how long it waits.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Why the gateway cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be used.
    #[error("cannot listen on {address} (`{setting}`): {source}")]
    Listen {
        /// `http.listen` or `metrics.listen`.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// The underlying I/O error.
        source: std::io::Error,
    },
    /// Without TLS, tokens would be sent in clear.
    #[error(
        "`http.listen` is {0}, which others can reach, but there is no `http.certificate` and `http.key`: set both, or listen on a loopback address behind a proxy with TLS"
    )]
    NoTls(SocketAddr),
    /// A certificate or key cannot be used.
    #[error("cannot use {path} ({setting}): {why}")]
    Tls {
        /// `http.certificate` or `http.key`.
        setting: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Listens on an address, which `setting` names.
///
/// # Errors
/// [`BindError::Listen`].
pub(crate) async fn listen(
    address: SocketAddr,
    setting: &'static str,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError::Listen { setting, address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// How connections are served.
pub(crate) struct Connections {
    builder: auto::Builder<TokioExecutor>,
    pub(crate) router: Router,
    tls: Option<TlsAcceptor>,
    /// Tells browsers that there is HTTP/3 too.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// A connection that waits for a place is not accepted yet.
    places: Arc<Semaphore>,
    most: usize,
    pub(crate) stop: CancellationToken,
    /// How long a connection may have no request in progress.
    pub(crate) idle: Duration,
    /// How long a connection may last; `None` for no limit.
    lifetime: Option<Duration>,
}

impl Connections {
    pub(crate) fn new(
        settings: &HttpSettings,
        router: Router,
        tls: Option<TlsAcceptor>,
        stop: CancellationToken,
    ) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_buf_size(settings.max_header_bytes.max(8 << 10));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(settings.max_header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let places = Arc::new(Semaphore::new(settings.max_connections));
        let idle = settings.header_timeout;
        let most = settings.max_connections;
        Self { builder, router, tls, alt_svc: None, places, most, stop, idle, lifetime: None }
    }

    /// The same for few clients that need no HTTP/2, each for a limited time.
    pub(crate) fn for_metrics(self, lifetime: Duration) -> Self {
        Self { builder: self.builder.http1_only(), lifetime: Some(lifetime), ..self }
    }

    /// Whether half of the places for connections are taken.
    pub(crate) fn is_half_full(&self) -> bool {
        self.places.available_permits() < self.most / 2
    }

    /// Waits for a place for one more connection; `None` if the gateway stops.
    pub(crate) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            () = self.stop.cancelled() => None,
            // The semaphore is never closed.
            place = Arc::clone(&self.places).acquire_owned() => place.ok(),
        }
    }

    /// Accepts connections until the gateway stops. Returns those that are still open.
    pub(crate) async fn accept(self: Arc<Self>, listener: TcpListener) -> JoinSet<()> {
        let connections = self;
        let mut tasks = JoinSet::new();
        loop {
            let Some(place) = connections.place().await else { return tasks };
            let stream = tokio::select! {
                () = connections.stop.cancelled() => return tasks,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an HTTP connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            while tasks.try_join_next().is_some() {}
            let connections = Arc::clone(&connections);
            tasks.spawn(async move {
                let serving = connections.serve(stream, place);
                match connections.lifetime {
                    Some(limit) => drop(timeout(limit, serving).await),
                    None => serving.await,
                }
            });
        }
    }

    async fn serve(&self, stream: TcpStream, _place: OwnedSemaphorePermit) {
        // Small answers should not wait for others.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.serve_on(stream).await,
            Some(tls) => match timeout(self.idle, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.serve_on(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            },
        }
    }

    async fn serve_on(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let activity = Arc::new(Activity::default());
        let service = service_fn(|request: Request<Incoming>| {
            let (router, guard) = (self.router.clone(), activity.enter());
            let alt_svc = self.alt_svc.clone();
            async move {
                let Ok(mut response) = router.oneshot(request).await;
                if let Some(value) = alt_svc {
                    response.headers_mut().insert(ALT_SVC, value);
                }
                Ok::<_, Infallible>(response.map(|body| Guarded { body, _guard: guard }))
            }
        });
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        let mut stopping = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "an HTTP connection ended");
                    }
                    return;
                }
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                // The library's own limit counts only once the version is known, and only for HTTP/1.1.
                () = activity.idle_for(self.idle) => {
                    if stopping {
                        return;
                    }
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// How many requests a connection has in progress, and since when it has none.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<(usize, Instant)>);

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new((0, Instant::now())))
    }
}

impl Activity {
    pub(crate) fn enter(self: &Arc<Self>) -> InProgress {
        self.lock().0 += 1;
        InProgress(Arc::clone(self))
    }

    /// Waits until there has been no request for this long.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let since = match *self.lock() {
                (0, since) => since,
                _ => Instant::now(),
            };
            if since.elapsed() >= limit {
                return;
            }
            sleep_until(since + limit).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in progress, until its response has been sent.
pub(crate) struct InProgress(Arc<Activity>);

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut activity = self.0.lock();
        activity.0 -= 1;
        activity.1 = Instant::now();
    }
}

/// The settings of TLS with these files, without HTTP/3.
///
/// # Errors
/// [`BindError::Tls`].
pub(crate) fn tls_config(files: &TlsFiles) -> Result<ServerConfig, BindError> {
    let unusable =
        |setting, path: &PathBuf, why: String| BindError::Tls { setting, path: path.clone(), why };
    let certificate = |why: String| unusable("http.certificate", &files.certificate, why);
    let key = |why: String| unusable("http.key", &files.key, why);
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| certificate(error.to_string()))?;
    if chain.is_empty() {
        return Err(certificate("it has no certificate in PEM".into()));
    }
    let private =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| key(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| certificate(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| key(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
