//! Makes HTTP calls through the imports of `wasi:http`.

use crate::bindings::http::wasi::clocks::monotonic_clock::Duration;
use crate::bindings::http::wasi::http::outgoing_handler;
use crate::bindings::http::wasi::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingResponse, Method, OutgoingBody,
    OutgoingRequest, RequestOptions, Scheme,
};
use crate::bindings::http::wasi::io::streams::{InputStream, StreamError};
use crate::http_error::HttpError;
use crate::types::{HttpRequest, HttpResponse};

/// Bytes that one call writes; the most that `blocking-write-and-flush` takes.
const WRITE: usize = 4_096;
/// Bytes that one call reads at most.
const READ: u64 = 16 << 10;

/// The host's handle of a started call.
pub(crate) type CallHandle = FutureIncomingResponse;

pub(crate) fn start_call(request: &HttpRequest) -> Result<CallHandle, HttpError> {
    let invalid = |what: &str| HttpError::NotSent {
        code: "invalid-request".to_owned(),
        message: format!("the request's {what} is invalid"),
    };
    let (scheme, authority, path) = split_url(&request.url).ok_or_else(|| invalid("URL"))?;
    let headers = Fields::new();
    for (name, value) in &request.headers {
        headers.append(name, value).map_err(|error| HttpError::NotSent {
            code: "invalid-request".to_owned(),
            message: format!("the request cannot have the header `{name}`: {error:?}"),
        })?;
    }
    let outgoing = OutgoingRequest::new(headers);
    outgoing.set_method(&method(&request.method)).map_err(|()| invalid("method"))?;
    outgoing.set_scheme(Some(&scheme)).map_err(|()| invalid("URL"))?;
    outgoing.set_authority(Some(authority)).map_err(|()| invalid("URL"))?;
    outgoing.set_path_with_query(Some(&path)).map_err(|()| invalid("URL"))?;
    let body = match request.body.is_empty() {
        true => None,
        false => Some(outgoing.body().map_err(|()| invalid("content length"))?),
    };
    let options = request.timeout.map(|timeout| {
        let options = RequestOptions::new();
        let timeout = Duration::try_from(timeout.as_nanos()).unwrap_or(Duration::MAX);
        // The host supports both.
        let _ = options.set_connect_timeout(Some(timeout));
        let _ = options.set_first_byte_timeout(Some(timeout));
        options
    });
    let pending = outgoing_handler::handle(outgoing, options).map_err(|error| failed(&error))?;
    if let Some(body) = body {
        write(body, &request.body);
    }
    Ok(pending)
}

/// Writes the body. If the call has ended, its result tells why.
fn write(body: OutgoingBody, bytes: &[u8]) {
    let Ok(stream) = body.write() else { return };
    for chunk in bytes.chunks(WRITE) {
        if stream.blocking_write_and_flush(chunk).is_err() {
            return;
        }
    }
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}

pub(crate) fn wait_call(pending: CallHandle) -> Result<HttpResponse, HttpError> {
    let result = loop {
        match pending.get() {
            Some(result) => break result,
            None => pending.subscribe().block(),
        }
    };
    // The outer error would be a second call of `get` after a result.
    match result {
        Ok(Ok(response)) => read(&response),
        Ok(Err(error)) => Err(failed(&error)),
        Err(()) => Err(failed(&ErrorCode::InternalError(None))),
    }
}

fn read(response: &IncomingResponse) -> Result<HttpResponse, HttpError> {
    let status = response.status();
    let headers = response.headers().entries();
    let incomplete = || failed(&ErrorCode::HttpResponseIncomplete);
    let incoming = response.consume().map_err(|()| incomplete())?;
    let stream: InputStream = incoming.stream().map_err(|()| incomplete())?;
    let mut body = Vec::new();
    loop {
        match stream.blocking_read(READ) {
            Ok(bytes) => body.extend(bytes),
            Err(StreamError::Closed) => return Ok(HttpResponse { status, headers, body }),
            Err(StreamError::LastOperationFailed(_)) => return Err(incomplete()),
        }
    }
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        other => Method::Other(other.to_owned()),
    }
}

/// The scheme, authority, and path with query of a URL.
fn split_url(url: &str) -> Option<(Scheme, &str, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = match scheme {
        "https" => Scheme::Https,
        "http" => Scheme::Http,
        _ => return None,
    };
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    (!authority.is_empty()).then_some((scheme, authority, path))
}

fn failed(error: &ErrorCode) -> HttpError {
    let (sent, code, message) = describe(error);
    let (code, message) = (code.to_owned(), message.to_owned());
    match sent {
        false => HttpError::NotSent { code, message },
        true => HttpError::Unknown { code, message },
    }
}

/// Whether the request may have been sent, the error's name in WIT, and what happened.
fn describe(error: &ErrorCode) -> (bool, &'static str, &'static str) {
    match error {
        ErrorCode::DnsTimeout => (false, "DNS-timeout", "the host's name was not resolved in time"),
        ErrorCode::DnsError(_) => (false, "DNS-error", "the host's name cannot be resolved"),
        ErrorCode::DestinationNotFound => {
            (false, "destination-not-found", "the host's name has no address")
        }
        ErrorCode::DestinationUnavailable => {
            (false, "destination-unavailable", "the host cannot be reached")
        }
        ErrorCode::DestinationIpProhibited => {
            (false, "destination-IP-prohibited", "the node does not allow the host's address")
        }
        ErrorCode::DestinationIpUnroutable => {
            (false, "destination-IP-unroutable", "there is no route to the host")
        }
        ErrorCode::ConnectionRefused => {
            (false, "connection-refused", "the host refused the connection")
        }
        ErrorCode::ConnectionTimeout => {
            (false, "connection-timeout", "there was no connection in time")
        }
        ErrorCode::ConnectionLimitReached => {
            (false, "connection-limit-reached", "the node has too many connections")
        }
        ErrorCode::ConnectionWriteTimeout => {
            (false, "connection-write-timeout", "the request was not complete in time")
        }
        ErrorCode::TlsProtocolError => (false, "TLS-protocol-error", "the TLS handshake failed"),
        ErrorCode::TlsCertificateError => {
            (false, "TLS-certificate-error", "the host's certificate is not trusted")
        }
        ErrorCode::TlsAlertReceived(_) => {
            (false, "TLS-alert-received", "the host ended the TLS handshake")
        }
        ErrorCode::HttpRequestDenied => {
            (false, "HTTP-request-denied", "the request is not allowed")
        }
        ErrorCode::HttpRequestBodySize(_) => {
            (false, "HTTP-request-body-size", "the request's body is too large")
        }
        ErrorCode::HttpRequestMethodInvalid => {
            (false, "HTTP-request-method-invalid", "the request's method is invalid")
        }
        ErrorCode::HttpRequestUriInvalid => {
            (false, "HTTP-request-URI-invalid", "the request's URL is invalid")
        }
        ErrorCode::ConnectionTerminated => {
            (true, "connection-terminated", "the connection was closed")
        }
        ErrorCode::ConnectionReadTimeout => {
            (true, "connection-read-timeout", "the response did not continue in time")
        }
        ErrorCode::HttpResponseTimeout => {
            (true, "HTTP-response-timeout", "there was no complete response in time")
        }
        ErrorCode::HttpResponseIncomplete => {
            (true, "HTTP-response-incomplete", "the response is incomplete")
        }
        ErrorCode::HttpResponseHeaderSectionSize(_) => {
            (true, "HTTP-response-header-section-size", "the response's headers are too large")
        }
        ErrorCode::HttpResponseBodySize(_) => (
            true,
            "HTTP-response-body-size",
            "the response is larger than limits.http-bytes allows",
        ),
        ErrorCode::HttpUpgradeFailed => {
            (true, "HTTP-upgrade-failed", "the host switched to another protocol")
        }
        ErrorCode::HttpProtocolError => {
            (true, "HTTP-protocol-error", "the host did not follow the protocol")
        }
        _ => (true, "internal-error", "the call failed"),
    }
}
