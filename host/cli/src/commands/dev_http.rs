//! The HTTP gateway of `ostraca dev`: an address that stays, and a token for the developer.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ostraca_ca::tokens::{self, ISSUER};
use ostraca_client::Client;
use ostraca_codes::codes;
use ostraca_node::{Config, Node};
use ostraca_wire::identity::{IdentityError, TrustRoot, files};
use ostraca_wire::proto::PolicyRequest;

use super::token;
use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::output;

/// The holder of the developer's token.
const NAME: &str = "dev";
/// How long a token is valid, and when the next one is issued.
const TTL: Duration = Duration::from_secs(24 * 3_600);
const RENEWAL: Duration = Duration::from_secs(12 * 3_600);
const CHECK: Duration = Duration::from_secs(60);
/// The address of the gateway, in the data directory.
const ADDRESS: &str = "http-address";
/// The token, in the data directory.
const TOKEN: &str = "token";

/// Gives the node a gateway on a loopback address, unless its configuration has one: the address of before if it is
/// free.
pub(super) fn choose(data: &Path, config: &mut Config) {
    let before = std::fs::read_to_string(data.join(ADDRESS)).ok();
    let before = before.and_then(|text| text.trim().parse::<SocketAddr>().ok());
    // Only a probe: another process may still take the address, which the node then reports.
    let before = before.filter(|it| it.ip().is_loopback() && TcpListener::bind(it).is_ok());
    config.set_default_http_listen(before.unwrap_or(([127, 0, 0, 1], 0).into()));
}

/// The developer's token, which is issued again before it expires.
pub(super) struct DevToken {
    data: PathBuf,
    /// What the developer should know about it.
    note: Option<String>,
}

impl DevToken {
    /// Issues the token, and lets the cluster accept it if nobody has set a policy. Without it, all but HTTP works.
    pub(super) async fn prepare(data: &Path, client: &Client) -> Self {
        let mut prepared = Self { data: data.to_owned(), note: None };
        prepared.note = prepared.introduce(client).await.unwrap_or_else(|failure| {
            let why = failure.render(OutputFormat::Table, false);
            Some(format!("no token for HTTP: {}", why.trim_end()))
        });
        prepared
    }

    /// Returns what the developer should know.
    async fn introduce(&self, client: &Client) -> Result<Option<String>, Failure> {
        self.issue()?;
        let policy = client.policy(PolicyRequest::default()).await?;
        if policy.revision > 0 {
            return Ok(None);
        }
        let jwks = tokens::signing_key(&self.data.join("ca")).map_err(invalid)?.jwks();
        let text = format!(
            "{}\n[[grants]]\nprincipals = [\"token/{ISSUER}/{NAME}\"]\nroles = [\"operator\"]\n\n[issuers.{ISSUER}]\nissuer = \"{ISSUER}\"\njwks = '''{jwks}'''\n",
            policy.text
        );
        let expected_revision = Some(0);
        let change = PolicyRequest { text: Some(text), expected_revision, force: false };
        client.policy(change).await?;
        Ok(Some(format!("the policy now accepts the tokens of token/{ISSUER}/{NAME}")))
    }

    fn issue(&self) -> Result<(), Failure> {
        let ca = self.data.join("ca");
        let pem = files::read(&ca.join("ca.pem")).map_err(invalid)?;
        let cluster = TrustRoot::from_pem(&pem).map_err(invalid)?.cluster;
        let key = tokens::signing_key(&ca).map_err(invalid)?;
        let (token, _) = token::sign(&key, cluster, NAME, TTL)?;
        files::write(&self.data.join(TOKEN), &token).map_err(invalid)
    }

    /// Issues further tokens, for as long as the node runs.
    pub(super) async fn keep(&self) {
        let mut issued = SystemTime::now();
        loop {
            // Looked at often, by a clock that goes on while the machine sleeps.
            tokio::time::sleep(CHECK).await;
            if issued.elapsed().is_ok_and(|age| age < RENEWAL) {
                continue;
            }
            match self.issue() {
                Ok(()) => issued = SystemTime::now(),
                Err(failure) => {
                    tracing::warn!(?failure, "cannot issue another token for the developer");
                }
            }
        }
    }
}

fn invalid(error: IdentityError) -> Failure {
    Failure::usage(codes::INVALID_IDENTITY, error.to_string())
}

/// Saves the address of the gateway for the next start, and for other programs.
pub(super) fn remember(data: &Path, node: &Node) {
    if let Some(address) = node.http_address()
        && let Err(error) = std::fs::write(data.join(ADDRESS), format!("{address}\n"))
    {
        tracing::warn!(%error, "failed to save the address of the HTTP gateway for the next start");
    }
}

/// Prints how to use the gateway, and a link to the console.
pub(super) fn greet(data: &Path, node: &Node, token: &DevToken) {
    let Some(url) = node.http_url() else { return };
    if let Some(note) = &token.note {
        output::line(note);
    }
    let path = data.join(TOKEN);
    output::line(&format!("HTTP gateway at {url}, as in"));
    output::line(&format!(
        "  curl -H \"Authorization: Bearer $(cat {})\" {url}/v1/default/TYPE/ID/call/METHOD",
        path.display()
    ));
    let link = std::fs::read_to_string(&path).ok().and_then(|it| node.console_link(it.trim()));
    output::line(&match link {
        Some(link) => format!("console, with a link that works once: {link}"),
        None => format!("console at {url}/console/"),
    });
}
