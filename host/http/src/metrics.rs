//! Serves the metrics of a node, on an address of their own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{StatusCode, Uri};
use ostraca_codes::codes;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::guard::Hosts;
use crate::problem::{Problem, wrong_method};
use crate::serve::{BindError, Connections, listen};
use crate::settings::HttpSettings;

/// Connections at the same time: there are few who read metrics, and each for a moment.
const CONNECTIONS: usize = 16;
/// How long a connection may last, so that readers that do not read make room for others.
const LIFETIME: Duration = Duration::from_secs(60);
/// The format of the metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes the metrics, in the text format of OpenMetrics 1.0. May block for a moment.
pub type MetricsSource = Arc<dyn Fn() -> Result<String, std::fmt::Error> + Send + Sync>;

/// A server that is bound to its address. Connections wait until [`MetricsServer::run`].
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsServer {
    /// Binds the address.
    ///
    /// # Errors
    /// [`BindError::Listen`].
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let (listener, address) = listen(address, "metrics.listen").await?;
        Ok(Self { listener, address })
    }

    /// The address that is listened on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`.
    pub async fn run(self, source: MetricsSource, stop: CancellationToken) {
        let settings =
            HttpSettings { max_connections: CONNECTIONS, ..HttpSettings::new(self.address) };
        let hosts = Arc::new(Hosts::new(self.address, &[]));
        let turn = Arc::new(Semaphore::new(1));
        let source = Source { source, turn: Arc::clone(&turn) };
        let router = Router::new()
            .route("/metrics", get(show).fallback(not_a_get))
            .fallback(unknown_path)
            .layer(middleware::from_fn_with_state(hosts, check_host))
            .with_state(source);
        let connections = Connections::new(&settings, router, None, stop).for_metrics(LIFETIME);
        Arc::new(connections).accept(self.listener).await.shutdown().await;
        // What the source holds is free now, also if it was just asked. The semaphore is never closed.
        let _ = turn.acquire().await;
    }
}

#[derive(Clone)]
struct Source {
    source: MetricsSource,
    /// One page is written at a time: each takes a thread and some memory.
    turn: Arc<Semaphore>,
}

async fn show(State(Source { source, turn }): State<Source>) -> Response {
    // The semaphore is never closed.
    let Ok(turn) = turn.acquire_owned().await else { return failed(&"stopping") };
    let write = move || {
        let page = source();
        drop((source, turn));
        page
    };
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "cannot write the metrics");
    (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n").into_response()
}

/// On a loopback address, a page in a browser could reach them by a name of its own. Elsewhere, monitoring may use any
/// name of the node.
async fn check_host(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check_local(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

async fn unknown_path(uri: Uri) -> Problem {
    let text = format!("there is nothing at {:?}", uri.path());
    Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_PATH, text)
        .help("the metrics are at /metrics")
}

async fn not_a_get(method: http::Method) -> Response {
    wrong_method("GET", format!("this is read with GET, not with {method}"))
}
