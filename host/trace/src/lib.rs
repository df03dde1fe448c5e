//! Traces of messages, sent to an OpenTelemetry collector (OTLP over HTTP).
//!
//! The caller decides: a message is traced if its W3C `traceparent` says that it is sampled. Then the node records a
//! span for each step, and hands the span's own context on, so that what follows is below it. Without a collector,
//! [`Tracer::default`] starts no spans, and contexts are handed on unchanged.
//!
//! Spans are sent by a thread of their own, from a bounded queue. If the collector is slow or unreachable, spans are
//! dropped; nothing waits for them.

mod collector;
mod context;
mod settings;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use opentelemetry::trace::{
    Span as _, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider,
};
use tokio::runtime::Handle;

use collector::CollectorClient;
pub use collector::is_valid_header;
pub use context::unsampled;
pub use settings::TraceSettings;

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The collector's address cannot be used.
    #[error("cannot send traces to {endpoint} (`traces.endpoint`): {source}")]
    Exporter {
        /// The address.
        endpoint: String,
        /// The underlying error.
        source: ExporterBuildError,
    },
    /// A header cannot be used.
    #[error("the header {0:?} (`traces.headers`) is not valid")]
    Header(String),
    /// TLS cannot be used.
    #[error("cannot use TLS for traces: {0}")]
    Tls(#[from] rustls::Error),
}

/// The kind of a span, as OpenTelemetry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Answers a request that came from outside the cluster.
    Server,
    /// Waits for an answer from elsewhere.
    Client,
    /// Sends something that nobody waits for.
    Producer,
    /// A step within a node.
    Internal,
}

impl From<Role> for SpanKind {
    fn from(role: Role) -> Self {
        match role {
            Role::Server => Self::Server,
            Role::Client => Self::Client,
            Role::Producer => Self::Producer,
            Role::Internal => Self::Internal,
        }
    }
}

/// Starts spans. Clones are the same tracer.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// Bounds the traced messages.
    rate: DefaultDirectRateLimiter,
}

impl Tracer {
    /// A tracer that sends spans to a collector. `node` is the node's name and `cluster` the cluster's id: both become
    /// resource attributes. `runtime` makes the connections.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn start(
        settings: &TraceSettings,
        node: &str,
        cluster: &str,
        runtime: Handle,
    ) -> Result<Self, TraceError> {
        let endpoint = settings.endpoint.clone();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient::new(settings, runtime)?)
            .with_endpoint(&endpoint)
            .with_timeout(settings.timeout)
            .build()
            .map_err(|source| TraceError::Exporter { endpoint, source })?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(settings.max_queued_spans)
            .with_max_export_batch_size(settings.max_queued_spans.min(MAX_BATCH))
            .with_scheduled_delay(settings.interval)
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let resource = Resource::builder_empty()
            .with_service_name("ostraca")
            .with_attribute(KeyValue::new("service.namespace", cluster.to_owned()))
            .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Spans are started below those of callers only.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)))
            .with_span_processor(processor)
            .build();
        let tracer = provider.tracer("ostraca");
        let rate = RateLimiter::direct(Quota::per_second(settings.max_rate));
        Ok(Self(Some(Arc::new(Inner { provider, tracer, rate }))))
    }

    /// Starts a span below the one that this context names. `None` if its caller does not want a trace, or if there is
    /// no collector.
    pub fn span(
        &self,
        traceparent: &str,
        tracestate: &str,
        role: Role,
        name: impl FnOnce() -> Cow<'static, str>,
    ) -> Option<Span> {
        let inner = self.0.as_ref()?;
        let parent = context::sampled(traceparent, tracestate)?;
        let parent = Context::new().with_remote_span_context(parent);
        let builder = inner.tracer.span_builder(name()).with_kind(role.into());
        let span = inner.tracer.build_with_context(builder, &parent);
        let traceparent = context::traceparent(span.span_context());
        Some(Span(Box::new(Started { span, traceparent })))
    }

    /// Whether one more message from outside the cluster may be traced now. Beyond the rate, its sender's wish is
    /// ignored on its whole way: [`unsampled`] is the context to go on with.
    #[must_use]
    pub fn admits(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.rate.check().is_ok())
    }

    /// Whether a span would be started for this context.
    #[must_use]
    pub fn wants(&self, traceparent: &str) -> bool {
        self.0.is_some() && context::sampled(traceparent, "").is_some()
    }

    /// Sends the spans that have ended, for at most this long. Later ones are dropped. Blocks.
    pub fn shut_down(&self, limit: Duration) {
        let Some(inner) = &self.0 else { return };
        if let Err(error) = inner.provider.shutdown_with_timeout(limit) {
            tracing::debug!(%error, "not all spans were sent");
        }
    }
}

/// Maximum number of spans in one request to the collector.
const MAX_BATCH: usize = 512;

/// A step that has started. It ends when it is dropped. It is one pointer, since most messages have none and yet carry
/// the room for it.
#[derive(Debug)]
pub struct Span(Box<Started>);

#[derive(Debug)]
struct Started {
    span: opentelemetry_sdk::trace::Span,
    traceparent: Arc<str>,
}

impl Span {
    /// The context for what follows from this step, as a W3C `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> &Arc<str> {
        &self.0.traceparent
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.0.span.set_attribute(KeyValue::new(key, value));
    }

    /// Names the entity that this step concerns.
    pub fn set_entity(&mut self, entity_type: &str, id: &str) {
        self.set("ostraca.type", entity_type.to_owned());
        self.set("ostraca.id", id.to_owned());
    }

    /// Marks the step as failed, with the reason in a word.
    pub fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        self.0.span.set_status(Status::error(why));
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail("panic");
        }
    }
}
