//! A collector of traces, which keeps the spans that it gets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// A span as the collector got it.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    /// The node that sent it.
    pub node: String,
    /// The span.
    pub span: Span,
}

impl CollectedSpan {
    /// The text of an attribute; empty if it is absent or no text.
    #[must_use]
    pub fn attribute(&self, name: &str) -> String {
        text_of(&self.span.attributes, name)
    }
}

fn text_of(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|it| it.key == name);
    match found.and_then(|it| it.value.as_ref()?.value.clone()) {
        Some(Value::StringValue(text)) => text,
        _ => String::new(),
    }
}

type Spans = Arc<Mutex<Vec<CollectedSpan>>>;

/// A running collector. It ends with its runtime.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Spans,
}

impl Collector {
    /// Starts it on a port of its own. Requests without the header `x-key: secret` are refused.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let spans = Spans::default();
        let kept = Arc::clone(&spans);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let service = service_fn(move |request| collect(request, Arc::clone(&kept)));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { address, spans })
    }

    /// The settings of a node that sends its traces here.
    #[must_use]
    pub fn settings(&self) -> String {
        let endpoint = format!("http://{}/v1/traces", self.address);
        format!(
            "[traces]\nendpoint = {endpoint:?}\ninterval = \"50 ms\"\nheaders = {{ x-key = \"secret\" }}\n"
        )
    }

    /// The spans of a trace so far, by their ids.
    #[must_use]
    pub fn trace(&self, id: &str) -> BTreeMap<Vec<u8>, CollectedSpan> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let of_trace = spans.iter().filter(|it| hex(&it.span.trace_id) == id);
        of_trace.map(|it| (it.span.span_id.clone(), it.clone())).collect()
    }

    /// The number of all spans so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until a trace has this many spans, and returns them.
    ///
    /// # Errors
    /// If it has fewer, or more, after the time.
    pub async fn wait(
        &self,
        id: &str,
        count: usize,
        limit: Duration,
    ) -> Result<BTreeMap<Vec<u8>, CollectedSpan>> {
        let until = Instant::now() + limit;
        loop {
            let trace = self.trace(id);
            if trace.len() == count {
                return Ok(trace);
            }
            let names: Vec<_> = trace.values().map(|it| (&it.node, &it.span.name)).collect();
            let late = Instant::now() >= until;
            anyhow::ensure!(!late && trace.len() < count, "{} spans: {names:?}", trace.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn collect(
    request: Request<Incoming>,
    spans: Spans,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_known = request.headers().get("x-key").is_some_and(|key| key == "secret")
        && request.uri().path() == "/v1/traces";
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let decoded = ExportTraceServiceRequest::decode(body).ok().filter(|_| is_known);
    let mut response = Response::new(Full::default());
    let Some(decoded) = decoded else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    };
    let mut spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
    for resource in decoded.resource_spans {
        let attributes = resource.resource.map(|it| it.attributes).unwrap_or_default();
        let node = text_of(&attributes, "service.instance.id");
        let of_scopes = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.extend(of_scopes.map(|span| CollectedSpan { node: node.clone(), span }));
    }
    Ok(response)
}
