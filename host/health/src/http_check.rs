//! A health check by a server of the operator.
//!
//! Only one answer says that a process has ended: status 200 with the JSON object `{"ended": true, "incarnation": …}`
//! that repeats the incarnation that was asked about. The repetition refuses answers that are about the node rather
//! than the incarnation, answers from a cache that ignores the query, and pages that say something else to everybody.
//! Redirects are not followed.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::check::{CheckOutcome, HealthCheck};
use crate::error::HealthCheckError;
use crate::suspect::Suspect;

/// Maximum size of an answer, in bytes: 64 KiB.
const MAX_ANSWER: usize = 64 << 10;
/// Maximum number of requests at the same time. Checks of further nodes wait, within their time-outs.
const MAX_REQUESTS: usize = 32;
/// What a value in a URL is escaped for: everything but RFC 3986's unreserved characters.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The settings of an [`HttpCheck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheckSettings {
    /// The URL to get, with the names of fields in braces, such as `{node}`.
    pub url: String,
    /// A file with a bearer token, read for each request. Default: none.
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificates that the server's one is checked against. Default: those of the public
    /// authorities.
    pub ca_file: Option<PathBuf>,
    /// How long a check may take.
    pub timeout: Duration,
}

impl HttpCheckSettings {
    /// Checks a URL with the names of fields in braces.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check_url(url: &str) -> Result<(), String> {
        // Which server is asked must not depend on the process that it is asked about.
        let start = url.find("://").map_or(0, |at| at + 3);
        let path = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
        if url[..path].contains(['{', '}']) {
            return Err("only the path and the query may name fields".into());
        }
        let parsed: Uri = fill(url, |_| Some("x".into()))?
            .parse()
            .map_err(|error| format!("it is no URL: {error}"))?;
        let host = parsed.host().unwrap_or_default();
        let ip: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        let is_local = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
        match parsed.scheme_str() {
            _ if host.is_empty() => Err("it names no server".into()),
            _ if parsed.authority().is_some_and(|it| it.as_str().contains('@')) => {
                Err("it has a user; use `token-file`".into())
            }
            Some("https") => Ok(()),
            Some("http") if is_local => Ok(()),
            Some("http") => Err("another machine could answer in the server's place".into()),
            _ => Err("it is neither https:// nor http://".into()),
        }
    }
}

/// Replaces the names of fields, in braces, by their values.
fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut filled, mut rest) = (String::with_capacity(template.len() + 64), template);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(at);
        let name = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let (name, after) = name.ok_or("a brace has no counterpart")?;
        if !Suspect::FIELDS.contains(&name) {
            let known = Suspect::FIELDS.map(|name| format!("{{{name}}}")).join(", ");
            return Err(format!("{{{name}}} is not a field; known are {known}"));
        }
        filled.push_str(before);
        // A field that is unknown is empty.
        let value = value(name).unwrap_or_default();
        filled.extend(utf8_percent_encode(&value, ESCAPED));
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// What a server answers.
#[derive(Deserialize)]
struct Answer {
    ended: bool,
    #[serde(default)]
    incarnation: String,
}

/// Asks a server whether a process has ended.
pub struct HttpCheck {
    settings: HttpCheckSettings,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    slots: Semaphore,
}

impl HttpCheck {
    /// Prepares checks by this server.
    ///
    /// # Errors
    /// [`HealthCheckError`] if its address or the file with certificates cannot be used.
    pub fn new(settings: HttpCheckSettings) -> Result<Self, HealthCheckError> {
        HttpCheckSettings::check_url(&settings.url)
            .map_err(|why| HealthCheckError::Url { url: settings.url.clone(), why })?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(settings.ca_file.as_deref())?)
            .https_or_http()
            .enable_http1()
            .build();
        // Checks are rare, and a connection that was kept may have been cut since.
        let client =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { settings, client, slots: Semaphore::new(MAX_REQUESTS) })
    }

    async fn ask(&self, suspect: &Suspect) -> CheckOutcome {
        let until = Instant::now() + self.settings.timeout;
        let asking = async {
            let Ok(_slot) = self.slots.acquire().await else {
                return Err("the checks have ended".to_owned());
            };
            self.get(suspect).await
        };
        match timeout_at(until, asking).await {
            Ok(Ok(body)) => judge(&body, &suspect.incarnation()),
            Ok(Err(why)) => CheckOutcome::failed(why),
            Err(_) => {
                let limit = self.settings.timeout;
                CheckOutcome::failed(format!("no answer within {limit:?} (`health-check.timeout`)"))
            }
        }
    }

    /// The body of the answer, if its status is 200.
    async fn get(&self, suspect: &Suspect) -> Result<Bytes, String> {
        let url = fill(&self.settings.url, |name| suspect.field(name))?;
        let mut request = Request::get(url)
            .header(USER_AGENT, concat!("ostraca/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json")
            .header(CACHE_CONTROL, "no-cache");
        if let Some(path) = &self.settings.token_file {
            request = request.header(AUTHORIZATION, token(path).await?);
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| chain(&error))?;
        if answer.status() != StatusCode::OK {
            return Err(format!("the server answered with status {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        Ok(body.map_err(|error| format!("cannot read the answer: {}", chain(&*error)))?.to_bytes())
    }
}

impl HealthCheck for HttpCheck {
    fn check<'a>(&'a self, suspect: &'a Suspect) -> BoxFuture<'a, CheckOutcome> {
        self.ask(suspect).boxed()
    }
}

fn judge(body: &[u8], expected: &str) -> CheckOutcome {
    match serde_json::from_slice::<Answer>(body) {
        Ok(Answer { ended: true, incarnation }) if incarnation == expected => {
            CheckOutcome::Ended { how: "the server says so".into() }
        }
        Ok(Answer { ended: true, incarnation }) => {
            let incarnation: String = incarnation.chars().take(64).collect();
            CheckOutcome::failed(format!(
                "the answer is about the incarnation {incarnation:?} instead of {expected:?}"
            ))
        }
        Ok(Answer { ended: false, .. }) => {
            CheckOutcome::NotKnown { why: "the server does not say that it has ended".into() }
        }
        Err(error) => CheckOutcome::failed(format!("the answer cannot be read: {error}")),
    }
}

async fn token(path: &Path) -> Result<HeaderValue, String> {
    let text = tokio::fs::read_to_string(path).await;
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let token = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
    let mut token = token.map_err(|_| format!("{} has no token", path.display()))?;
    token.set_sensitive(true);
    Ok(token)
}

fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, HealthCheckError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let unusable = |why: String| HealthCheckError::Certificates { path: path.into(), why };
            let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(unusable("it has no certificate".into()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let (mut text, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
