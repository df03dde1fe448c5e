//! The gateway: bound to its address, then serving until the node stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use ostraca_stats::Stats;
use ostraca_wire::server::{Server, Service};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::auth::Authenticator;
use crate::guard::Hosts;
use crate::health::{Readiness, TypeWait};
use crate::http3::Http3;
use crate::links::LoginLinks;
use crate::login::cookie_name;
use crate::openapi::DOCUMENTS;
use crate::router::router;
use crate::serve::{BindError, Connections, listen, tls_config};
use crate::sessions::Sessions;
use crate::settings::HttpSettings;

/// What the gateway asks the node.
#[derive(Clone)]
pub struct Probes {
    /// Whether the node is ready.
    pub readiness: Readiness,
    /// Waits for a type.
    pub type_wait: TypeWait,
    /// Where responses are counted.
    pub stats: Arc<Stats>,
}

/// A gateway that is bound to its address. Connections wait until [`HttpGateway::run`].
pub struct HttpGateway {
    listener: TcpListener,
    http3: Option<Http3>,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    links: Arc<LoginLinks>,
    settings: HttpSettings,
}

impl std::fmt::Debug for HttpGateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpGateway").field("address", &self.address).finish_non_exhaustive()
    }
}

impl HttpGateway {
    /// Binds the address.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(settings: HttpSettings) -> Result<Self, BindError> {
        let address = settings.listen;
        let tls = match &settings.tls {
            Some(files) => Some(tls_config(files)?),
            None if address.ip().is_loopback() => None,
            None => return Err(BindError::NoTls(address)),
        };
        let (listener, address) = listen(address, "http.listen").await?;
        let http3 = match &tls {
            Some(tls) if settings.http3 => Some(Http3::bind(address, tls.clone(), &settings)?),
            _ => None,
        };
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        Ok(Self { listener, http3, address, tls, links: Arc::default(), settings })
    }

    /// The address that is listened on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for people, as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Links with which people log in to the console.
    #[must_use]
    pub fn login_links(&self) -> &Arc<LoginLinks> {
        &self.links
    }

    /// Serves until `stop`. Then nothing more is accepted; requests in progress may end within `grace`, after half of
    /// which calls end with what is known about them.
    pub async fn run<S: Service>(
        self,
        server: Arc<Server<S>>,
        probes: Probes,
        stop: CancellationToken,
        grace: Duration,
    ) {
        let Self { listener, http3, address, tls, links, settings } = self;
        let ending = CancellationToken::new();
        let sessions = Sessions::new(Arc::clone(&server), settings.clone(), ending.clone());
        let app = Arc::new(App {
            server: Arc::clone(&server),
            auth: Authenticator::new(Arc::clone(&server)),
            stop: stop.clone(),
            sessions,
            hosts: Hosts::new(address, &settings.hosts),
            cookie: cookie_name(&server.cluster().to_string()),
            links,
            readiness: probes.readiness,
            type_wait: probes.type_wait,
            stats: probes.stats,
            max_message: server.limits().max_message,
            bodies: Arc::new(Semaphore::new(settings.max_body_bytes as usize)),
            documents: Arc::new(Semaphore::new(DOCUMENTS)),
            settings,
        });
        let mut connections = Connections::new(&app.settings, router(&app), tls, stop);
        drop(app);
        if http3.is_some() {
            connections.alt_svc =
                HeaderValue::from_str(&format!("h3=\":{}\"; ma=86400", address.port())).ok();
        }
        let connections = Arc::new(connections);
        let quic = async {
            match http3 {
                Some(http3) => http3.accept(Arc::clone(&connections)).await,
                None => JoinSet::new(),
            }
        };
        let (mut tasks, mut more) = tokio::join!(Arc::clone(&connections).accept(listener), quic);
        let mut all = async || {
            while tasks.join_next().await.is_some() {}
            while more.join_next().await.is_some() {}
        };
        if timeout(grace / 2, all()).await.is_err() {
            ending.cancel();
            if timeout(grace / 2, all()).await.is_err() {
                tracing::warn!("HTTP requests were still in progress");
            }
        }
        ending.cancel();
        // Dropped: ends what is left.
    }
}
