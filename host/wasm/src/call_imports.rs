//! The import `wasi:http/outgoing-handler`, with `wasi:http/types`.
//!
//! wasmtime implements the types. This module implements starting a call: what may be called, by whom and how often. It
//! also implements the functions that pass strings of unlimited length, and the one that returns a call's result.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::p2::bindings::http::types::{self, ErrorCode, Scheme};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{RequestOptions, WasiHttp, WasiHttpCtxView, WasiHttpView};

use crate::MessageKind;
use crate::call_sink::GuestCall;
use crate::calls::NewCall;
use crate::http_client::{CallRequest, CallTarget};
use crate::instance_data::{InstanceData, Phase};
use crate::trap::HostTrap;

type Cx<'a> = StoreContextMut<'a, InstanceData>;
type Future = Resource<HostFutureIncomingResponse>;

/// The version whose interfaces are linked; every 0.2.x matches it.
const VERSION: &str = "0.2.12";
/// Maximum lengths in bytes of a method, of an authority, and of a path with its query.
const METHOD_LIMIT: usize = 32;
const AUTHORITY_LIMIT: usize = 512;
const PATH_LIMIT: usize = 8 << 10;

impl WasiHttpView for InstanceData {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.wasi().http()
    }
}

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let options = types::LinkOptions::default();
    types::add_to_linker::<_, WasiHttp>(linker, &options, WasiHttpView::http)?;
    let mut handler = linker.instance(&format!("wasi:http/outgoing-handler@{VERSION}"))?;
    handler.func_wrap(
        "handle",
        |mut cx: Cx<'_>,
         (request, options): (
            Resource<HostOutgoingRequest>,
            Option<Resource<RequestOptions>>,
        )| { Ok((handle(cx.data_mut(), request, options)?,)) },
    )?;
    linker.allow_shadowing(true);
    bound_strings(linker)?;
    let mut types = linker.instance(&format!("wasi:http/types@{VERSION}"))?;
    types.func_wrap(
        "[method]future-incoming-response.get",
        |mut cx: Cx<'_>, (future,): (Future,)| {
            let entity = cx.data_mut();
            entity.calls.check_size(&entity.limits)?;
            let result = types::HostFutureIncomingResponse::get(&mut entity.http(), future)?;
            Ok((result,))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Bounds what a request keeps in the host's memory.
fn bound_strings(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    type Request = Resource<HostOutgoingRequest>;
    let mut types = linker.instance(&format!("wasi:http/types@{VERSION}"))?;
    types.func_wrap(
        "[method]outgoing-request.set-method",
        |mut cx: Cx<'_>, (request, method): (Request, types::Method)| {
            if matches!(&method, types::Method::Other(name) if name.len() > METHOD_LIMIT) {
                return Ok((Err(()),));
            }
            let mut http = cx.data_mut().http();
            Ok((types::HostOutgoingRequest::set_method(&mut http, request, method)?,))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-request.set-authority",
        |mut cx: Cx<'_>, (request, authority): (Request, Option<String>)| {
            if authority.as_ref().is_some_and(|authority| authority.len() > AUTHORITY_LIMIT) {
                return Ok((Err(()),));
            }
            let mut http = cx.data_mut().http();
            Ok((types::HostOutgoingRequest::set_authority(&mut http, request, authority)?,))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-request.set-path-with-query",
        |mut cx: Cx<'_>, (request, path): (Request, Option<String>)| {
            if path.as_ref().is_some_and(|path| path.len() > PATH_LIMIT) {
                return Ok((Err(()),));
            }
            let mut http = cx.data_mut().http();
            Ok((types::HostOutgoingRequest::set_path_with_query(&mut http, request, path)?,))
        },
    )?;
    Ok(())
}

/// Starts a call. The guest gets an error for a request that is malformed; the turn fails if the guest may not make it.
fn handle(
    entity: &mut InstanceData,
    request: Resource<HostOutgoingRequest>,
    options: Option<Resource<RequestOptions>>,
) -> wasmtime::Result<Result<Future, ErrorCode>> {
    let limits = entity.limits.clone();
    let WasiHttpCtxView { table, .. } = entity.http();
    let request = table.delete(request)?;
    let options = options.map(|options| table.delete(options)).transpose()?;
    let (target, authority) = match target(&request) {
        Ok(target) => target,
        Err(error) => return Ok(Err(error)),
    };
    if !is_granted(&limits.http, &target) {
        return Err(HostTrap::HttpNotGranted(target.authority()).into());
    }
    if let Phase::Message(message) = &entity.phase
        && message.kind == MessageKind::Query
    {
        return Err(HostTrap::HttpInQuery.into());
    }
    entity.calls.check_allowed()?;
    let new = match new_call(request, target, authority, options.unwrap_or_default()) {
        Ok(new) => new,
        Err(error) => return Ok(Err(error)),
    };
    let call = entity.calls.start(entity.places, new, &limits)?;
    entity.places += 1;
    Ok(Ok(entity.http().table.push(HostFutureIncomingResponse::Pending(call))?))
}

/// The server that a request names, and the value of its `host` header.
fn target(request: &HostOutgoingRequest) -> Result<(CallTarget, String), ErrorCode> {
    let tls = match request.scheme {
        Some(Scheme::Https) | None => true,
        Some(Scheme::Http) => false,
        Some(Scheme::Other(_)) => return Err(ErrorCode::HttpProtocolError),
    };
    let invalid = || ErrorCode::HttpRequestUriInvalid;
    let authority = request.authority.as_deref().ok_or_else(invalid)?.to_ascii_lowercase();
    let parsed: Authority = authority.parse().map_err(|_| invalid())?;
    // An authority may contain the name of a user, which is neither sent nor granted.
    if authority.contains('@') || parsed.host().is_empty() {
        return Err(invalid());
    }
    let port = match (parsed.port(), tls) {
        (Some(port), _) => port.as_str().parse().map_err(|_| invalid())?,
        (None, true) => 443,
        (None, false) => 80,
    };
    let host = parsed.host();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok((CallTarget { tls, host: host.into(), port }, authority))
}

/// Whether the manifest grants a host: `example.com` on the scheme's default port, `example.com:8443` on that port.
fn is_granted(granted: &[String], target: &CallTarget) -> bool {
    let standard = target.port == if target.tls { 443 } else { 80 };
    let (host, authority) = (target.bracketed_host(), target.authority());
    granted.iter().any(|granted| *granted == authority || (standard && *granted == host))
}

fn new_call(
    request: HostOutgoingRequest,
    target: CallTarget,
    authority: String,
    options: RequestOptions,
) -> Result<NewCall, ErrorCode> {
    let method: Method =
        request.method.try_into().map_err(|_| ErrorCode::HttpRequestMethodInvalid)?;
    if method == Method::CONNECT {
        return Err(ErrorCode::HttpRequestMethodInvalid);
    }
    let path = request.path_with_query.as_deref().unwrap_or("/");
    // A query alone is a valid path with query, but no valid request target.
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let path = path.parse::<PathAndQuery>().map_err(|_| ErrorCode::HttpRequestUriInvalid)?;
    let host = HeaderValue::try_from(&authority).map_err(|_| ErrorCode::HttpRequestUriInvalid)?;
    let mut headers = HeaderMap::from(request.headers);
    if request.body.is_none() && headers.get(header::CONTENT_LENGTH).is_some_and(|it| it != "0") {
        return Err(ErrorCode::HttpRequestBodySize(Some(0)));
    }
    // The client derives it from the body, whose length wasmtime has checked.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::HOST, host);
    let size = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    let head_bytes = path.as_str().len() + headers.iter().map(size).sum::<usize>();
    let call = GuestCall {
        method: method.as_str().to_owned(),
        scheme: if target.tls { "https" } else { "http" },
        authority: target.authority(),
        path: path.as_str().to_owned(),
    };
    let body = request.body;
    let request = CallRequest { method, target, path, headers, body: Bytes::new() };
    Ok(NewCall { request, body, options, call, head_bytes: head_bytes as u64 })
}
