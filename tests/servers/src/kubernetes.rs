//! A Kubernetes API server for tests, as far as the cluster's rows need one: leases and pods of namespaces.
//!
//! It keeps its objects in memory and follows the public documents that its rules name; `docs/stores.md` says against
//! which real server it was compared. It can be throttled, cut off, restarted, compacted and restored from a backup,
//! and injects faults at random.

mod faults;
mod http;
mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use faults::Faults;
pub use faults::Rates;
pub use objects::Objects;

/// A running API server. It ends with the value.
#[derive(Debug)]
pub struct ApiServer {
    server: Arc<Server>,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    running: Option<(watch::Sender<()>, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Server {
    state: Mutex<State>,
    /// Wakes the watches.
    changed: watch::Sender<()>,
    bookmark_interval: Duration,
}

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    faults: Option<Faults>,
    /// Tokens with what they may do, each `VERB RESOURCE`. `None`: everybody may do everything.
    users: Option<BTreeMap<String, BTreeSet<String>>>,
    /// The number of requests by verb and resource.
    requests: BTreeMap<String, u64>,
    /// Whether watches stay open and show nothing, like those of a server that is cut off.
    watches_are_silent: bool,
    /// Whether the versions of lists are no numbers, as "Kubernetes API Concepts" allowed before KEP-5504.
    versions_are_opaque: bool,
    bookmarks: u64,
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiServer {
    /// Starts a server with the namespace `default`.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at(0, None)
    }

    /// Starts a server on this port, 0 for any.
    #[must_use]
    pub fn start_on(port: u16) -> Self {
        Self::start_at(port, None)
    }

    /// Starts a server with this certificate and key, in PEM form.
    #[must_use]
    pub fn start_tls(certificate: &str, key: &str) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificate =
            CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a certificate with its key");
        Self::start_at(0, Some(Arc::new(config)))
    }

    fn start_at(port: u16, tls: Option<Arc<ServerConfig>>) -> Self {
        let server = Arc::new(Server {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
            bookmark_interval: Duration::from_millis(200),
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut started = Self { server, address, tls, running: None };
        started.resume();
        started
    }

    /// The address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        match self.tls {
            Some(_) => format!("https://localhost:{}", self.address.port()),
            None => format!("http://127.0.0.1:{}", self.address.port()),
        }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes all connections, and accepts no more until [`ApiServer::resume`].
    pub fn stop(&mut self) {
        if let Some((open, thread)) = self.running.take() {
            drop(open);
            thread.join().expect("the server ends");
        }
    }

    /// Serves again, on the same port.
    pub fn resume(&mut self) {
        let listener = std::net::TcpListener::bind(self.address).expect("a port");
        self.address = listener.local_addr().expect("its address");
        listener.set_nonblocking(true).expect("a listener");
        let (open, mut until) = watch::channel(());
        let (server, tls) = (self.server.clone(), self.tls.clone().map(TlsAcceptor::from));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = serve(server, listener, tls) => {}
                    _ = until.changed() => {}
                }
            });
            // The runtime ends here with all connections.
        });
        self.running = Some((open, thread));
    }

    /// Injects faults at these rates, chosen by the seed; `None` ends them.
    pub fn inject(&self, rates: Option<Rates>, seed: u64) {
        self.server.lock().faults = rates.map(|rates| Faults::new(rates, seed));
    }

    /// Accepts only these tokens, each with what it may do: `VERB RESOURCE`, such as `list leases`.
    pub fn restrict(&self, users: &[(&str, &[&str])]) {
        let user = |(token, verbs): &(&str, &[&str])| {
            ((*token).to_owned(), verbs.iter().map(|verb| (*verb).to_owned()).collect())
        };
        self.server.lock().users = Some(users.iter().map(user).collect());
    }

    /// Lets watches stay open without showing anything, or lets those that are opened now show everything.
    pub fn silence_watches(&self, silent: bool) {
        self.server.lock().watches_are_silent = silent;
    }

    /// Lets lists have versions that are no numbers.
    pub fn hide_versions(&self) {
        self.server.lock().versions_are_opaque = true;
    }

    /// The number of bookmarks that were sent.
    #[must_use]
    pub fn bookmarks(&self) -> u64 {
        self.server.lock().bookmarks
    }

    /// The number of requests with this verb and resource, such as `update leases`.
    #[must_use]
    pub fn requests(&self, verb: &str) -> u64 {
        self.server.lock().requests.get(verb).copied().unwrap_or_default()
    }

    /// Looks at the objects, or changes them past all rules.
    pub fn objects<T>(&self, change: impl FnOnce(&mut Objects) -> T) -> T {
        let result = change(&mut self.server.lock().objects);
        self.server.changed.send_modify(|()| {});
        result
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(server: Arc<Server>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (server, tls) = (server.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve_connection(server, stream).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve_connection(server, stream).await;
                    }
                }
            }
        });
    }
}

async fn serve_connection<T>(server: Arc<Server>, stream: T)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| http::answer(server.clone(), request));
    // An error closes the connection: that is how it is cut.
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}
