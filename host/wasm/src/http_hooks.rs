//! What wasmtime's implementation of `wasi:http/types` asks the host.

use std::sync::Arc;

use http::{HeaderName, Request, Response};
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody,
    WasiHttpHooks,
};

/// The header whose value the host sets.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum size in bytes of one write to a request's body. Each request that is not sent yet may hold two of them.
const CHUNK: usize = 16 << 10;

type BoxFuture<T> = Box<dyn Future<Output = T> + Send>;

pub(crate) struct HttpHooks;

impl WasiHttpHooks for HttpHooks {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::new(|name| *name == IDEMPOTENCY_KEY || DEFAULT_FORBIDDEN_HEADERS.contains(name))
    }

    /// Not called: the host's own `outgoing-handler` starts calls.
    fn send_request(
        &mut self,
        _: Request<WasiBody>,
        _: Option<RequestOptions>,
        _: BoxFuture<Result<(), Error>>,
    ) -> BoxFuture<Result<(Response<WasiBody>, BoxFuture<Result<(), Error>>), Error>> {
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }
}
