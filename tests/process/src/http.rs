//! A caller over HTTP, with one connection: it opens another when that one breaks.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use ostraca_client::Client;
use ostraca_wire::proto::PolicyRequest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::artifacts;
use crate::node_dir::NodeDir;

/// How long one attempt may take, with its connection.
const ATTEMPT: Duration = Duration::from_secs(30);

/// An answer over HTTP.
#[derive(Clone, Debug)]
pub struct HttpReply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl HttpReply {
    /// A header's text; empty if it has none.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Who calls methods of entities by POST.
pub trait CallsEntities {
    /// Calls a method of an entity.
    ///
    /// # Errors
    /// If there is no answer; the call may have run.
    fn call(
        &mut self,
        call: (&str, &str, &str),
        body: String,
        key: Option<&str>,
    ) -> impl Future<Output = Result<HttpReply>> + Send;
}

/// A caller with a token.
#[derive(Debug)]
pub struct HttpCaller {
    address: SocketAddr,
    authorization: HeaderValue,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl HttpCaller {
    /// A caller of the gateway at this address.
    ///
    /// # Errors
    /// If the token cannot be in a header.
    pub fn new(address: SocketAddr, token: &str) -> Result<Self> {
        let authorization = format!("Bearer {token}").parse()?;
        Ok(Self { address, authorization, connection: None })
    }

    /// Uses another gateway from now on.
    pub fn turn_to(&mut self, address: SocketAddr) {
        if self.address != address {
            self.address = address;
            self.connection = None;
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<HttpReply> {
        let usable = self.connection.take().filter(|connection| !connection.is_closed());
        let mut connection = match usable {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                let (connection, task) = handshake(TokioIo::new(stream)).await?;
                // It ends with its connection; requests report why.
                tokio::spawn(task);
                connection
            }
        };
        connection.ready().await?;
        let (head, body) = connection.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        self.connection = Some(connection);
        Ok(HttpReply { status: head.status, headers: head.headers, body })
    }
}

impl CallsEntities for HttpCaller {
    async fn call(
        &mut self,
        call: (&str, &str, &str),
        body: String,
        key: Option<&str>,
    ) -> Result<HttpReply> {
        let request = post("", call, &self.authorization, key)
            .header(header::HOST, self.address.to_string())
            .body(Full::new(Bytes::from(body)))?;
        let answered = timeout(ATTEMPT, self.send(request)).await;
        let answered = answered.unwrap_or_else(|_| bail!("no answer within {ATTEMPT:?}"));
        if answered.is_err() {
            self.connection = None;
        }
        answered
    }
}

/// A call of an entity's method. `origin` is empty, or `https://` and the host.
pub(crate) fn post(
    origin: &str,
    (entity_type, id, method): (&str, &str, &str),
    authorization: &HeaderValue,
    key: Option<&str>,
) -> http::request::Builder {
    let request = Request::post(format!("{origin}/v1/default/{entity_type}/{id}/call/{method}"))
        .header(header::AUTHORIZATION, authorization)
        .header(header::CONTENT_TYPE, "application/json");
    match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    }
}

/// Sets a policy by which the holder of the returned token, `web`, may call entities.
///
/// # Errors
/// The program's or the node's error.
pub async fn web_token(admin: &Client, home: &NodeDir) -> Result<String> {
    let (issuer, token) = issue_token(home, "web")?;
    let grant = |principal: &str, role: &str| {
        format!("[[grants]]\nprincipals = [\"{principal}\"]\nroles = [\"{role}\"]\n")
    };
    let admins = grant("client/admin", "operator");
    let text = format!("{admins}{}{issuer}", grant("token/ostraca/web", "client"));
    let request = PolicyRequest { text: Some(text), ..PolicyRequest::default() };
    admin.policy(request).await.context("set the policy")?;
    Ok(token)
}

/// The section of the policy with the cluster's own issuer, and a token of it for this holder. `home` has the cluster's
/// authority.
///
/// # Errors
/// The program's error.
pub fn issue_token(home: &NodeDir, holder: &str) -> Result<(String, String)> {
    let authority = home.dir().join("ca");
    let issuer = output(&["token", "key", "--ca"], &authority)?;
    let token = output(&["token", "issue", holder, "--ca"], &authority)?;
    Ok((issuer, token.trim().to_owned()))
}

fn output(arguments: &[&str], last: &Path) -> Result<String> {
    let output = Command::new(artifacts::ostraca()?).args(arguments).arg(last).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?} failed: {stderr}");
    Ok(String::from_utf8(output.stdout)?)
}
