//! `ostraca ca rotate`: replaces the authority while the cluster runs.

use std::time::Duration;

use ostraca_ca::Rotation;
use ostraca_client::{Client, Profile};
use ostraca_codes::codes;
use ostraca_wire::identity::{CertificateChain, TrustRoot};
use ostraca_wire::proto::{AuthoritiesRequest, NodeCertificate, NodeStatus};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::as_node;
use super::authority::{invalid_identity, not_an_authority};
use crate::args::{Global, OutputFormat, Rotate};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// The time between two looks at what the nodes present.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn run(global: &Global, args: &Rotate) -> Result<Exit, Failure> {
    match args.finish {
        true => finish(global, args).await,
        false => rotate(global, args).await,
    }
}

/// Lets the cluster trust both authorities, and gives every node a certificate of the new one.
async fn rotate(global: &Global, args: &Rotate) -> Result<Exit, Failure> {
    let profile = as_node::profile(global, args.node.config.as_deref())?;
    let rotation = Rotation::begin(&args.ca).map_err(not_an_authority)?;
    let next = rotation.next.trust().map_err(invalid_identity)?;
    let client = connection::connect_to(profile.clone()).await?;
    let trusted = Some(rotation.both());
    client.authorities(AuthoritiesRequest { trusted, ..Default::default() }).await?;
    let renewal = renew_nodes(&client, &rotation, &next, args.timeout);
    let renewed = connection::with_spinner("waiting for the nodes", renewal).await;
    connection::disconnect(client).await;
    let Renewed { nodes, stopped } = renewed?;
    rotation.promote().map_err(invalid_identity)?;
    let own = is_renewed(&profile, &next);
    match global.output {
        OutputFormat::Json => output::json(&json!({
            "renewed": nodes, "stopped": stopped, "finished": false, "own_certificate_renewed": own,
        })),
        OutputFormat::Table => {
            output::line(&format!(
                "{} has the new authority, which every node trusts",
                args.ca.display()
            ));
            output::line(&format!("new certificates: {}", nodes.join(", ")));
            if !stopped.is_empty() {
                let stopped = stopped.join(", ");
                output::line(&format!("not running, renewed when they start: {stopped}"));
            }
            output::line(
                "Now issue new certificates to clients (`ostraca ca issue client NAME`). Those that they have are",
            );
            output::line("accepted until `ostraca ca rotate --finish`.");
        }
    }
    Ok(Exit::Done)
}

/// The nodes with certificates of the new authority.
struct Renewed {
    nodes: Vec<String>,
    /// Those that do not run, and have no such certificate yet.
    stopped: Vec<String>,
}

/// Issues a certificate to every node, and waits until those that run present it.
async fn renew_nodes(
    client: &Client,
    rotation: &Rotation,
    next: &TrustRoot,
    timeout: Duration,
) -> Result<Renewed, Failure> {
    let since = Instant::now();
    let mut issued = Vec::new();
    loop {
        let presented = client.authorities(AuthoritiesRequest::default()).await?.presented;
        let all = client.nodes().await?.nodes;
        let mut nodes = Vec::new();
        for NodeCertificate { node, certificate } in presented {
            // Whatever else is in the rows gets no certificate.
            if !all.iter().any(|it| it.name == node) {
                continue;
            }
            let chain = CertificateChain::from_pem(&certificate).map_err(invalid_identity)?;
            if chain.is_trusted(next) {
                nodes.push(node);
            } else if !issued.contains(&node) {
                let certificate = rotation.renew_node(&chain).map_err(|error| {
                    invalid_identity(error)
                        .help(format!("this concerns the certificate of node {node}"))
                })?;
                let issue = Some(NodeCertificate { node: node.clone(), certificate });
                client.authorities(AuthoritiesRequest { issue, ..Default::default() }).await?;
                issued.push(node);
            }
        }
        let others = all.into_iter().filter(|it| !nodes.contains(&it.name));
        let (stopped, waiting): (Vec<_>, Vec<_>) =
            others.partition(|it| matches!(it.status(), NodeStatus::Dead | NodeStatus::Left));
        let names = |all: Vec<_>| {
            all.into_iter().map(|it: ostraca_wire::proto::NodeState| it.name).collect::<Vec<_>>()
        };
        if waiting.is_empty() {
            return Ok(Renewed { nodes, stopped: names(stopped) });
        }
        if since.elapsed() > timeout {
            let text = format!(
                "these nodes have not taken over their new certificates within {timeout:?}: {}",
                names(waiting).join(", ")
            );
            let help =
                "see `ostraca status` on them, then run the command again: it goes on from here";
            return Err(Failure::unexpected(codes::AUTHORITY_IN_USE, text).help(help));
        }
        sleep(PAUSE).await;
    }
}

/// Lets the cluster trust only the new authority.
async fn finish(global: &Global, args: &Rotate) -> Result<Exit, Failure> {
    let Some(rotation) = Rotation::promoted(&args.ca).map_err(not_an_authority)? else {
        let text = format!("the authority in {} has replaced no other one", args.ca.display());
        return Err(Failure::usage(codes::USAGE, text)
            .help("run `ostraca ca rotate` without --finish first"));
    };
    let profile = as_node::profile(global, args.node.config.as_deref())?;
    let next = rotation.next.trust().map_err(invalid_identity)?;
    if !args.force && !is_renewed(&profile, &next) {
        let text = "your own certificate is from the former authority";
        return Err(Failure::usage(codes::AUTHORITY_IN_USE, text).help(
            "issue a new one (`ostraca ca issue client NAME --ca DIR`) and use its profile, or add `--force`",
        ));
    }
    let client = connection::connect_to(profile).await?;
    let trusted = Some(rotation.next.certificate_pem().to_owned());
    let request = AuthoritiesRequest { trusted, force: args.force, ..Default::default() };
    let done = connection::with_spinner("contacting the node", client.authorities(request)).await;
    connection::disconnect(client).await;
    done?;
    rotation.end().map_err(invalid_identity)?;
    match global.output {
        OutputFormat::Json => output::json(&json!({ "finished": true })),
        OutputFormat::Table => {
            output::line("the former authority is no longer trusted, and its files are removed");
        }
    }
    Ok(Exit::Done)
}

/// Whether a profile's certificate is from the new authority. A token is from none.
fn is_renewed(profile: &Profile, next: &TrustRoot) -> bool {
    let chain = CertificateChain::from_pem(&profile.certificate);
    profile.certificate.is_empty() || chain.is_ok_and(|chain| chain.is_trusted(next))
}
