//! The connection to the collector.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::{TraceError, TraceSettings};

/// Maximum size of an answer of the collector, which nobody reads.
const MAX_ANSWER: usize = 64 << 10;

/// Sends requests on the node's runtime: the thread that sends spans has none.
#[derive(Clone, Debug)]
pub(crate) struct CollectorClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    headers: HeaderMap,
    limit: Duration,
    runtime: Handle,
}

/// Whether a request can have this header.
#[must_use]
pub fn is_valid_header(name: &str, value: &str) -> bool {
    header(name, value).is_some()
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
}

impl CollectorClient {
    pub(crate) fn new(settings: &TraceSettings, runtime: Handle) -> Result<Self, TraceError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            headers
                .extend(Some(header(name, value).ok_or_else(|| TraceError::Header(name.clone()))?));
        }
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, headers, limit: settings.timeout, runtime })
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        request.headers_mut().extend(self.headers.clone());
        let client = self.client.clone();
        let sending = async move {
            let answer = client.request(request.map(Full::new)).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        let limit = self.limit;
        // The timer, too, is the runtime's.
        self.runtime.spawn(async move { timeout(limit, sending).await }).await??
    }
}
