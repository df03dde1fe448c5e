//! `ostraca ca rotate`: replaces the authority while the cluster runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
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
    let renewed = renew_nodes(&client, &rotation, &next, args).await;
    connection::disconnect(client).await;
    let Renewed { nodes, keys, stopped } = renewed?;
    rotation.promote().map_err(invalid_identity)?;
    let own = is_renewed(&profile, &next);
    match global.output {
        OutputFormat::Json => output::json(&json!({
            "renewed": nodes, "keys": keys, "stopped": stopped, "finished": false,
            "own_certificate_renewed": own,
        })),
        OutputFormat::Table => {
            output::line(&format!(
                "{} has the new authority, which every running node trusts",
                args.ca.display()
            ));
            output::line(&format!("new certificates: {}", nodes.join(", ")));
            if !stopped.is_empty() {
                let stopped = stopped.join(", ");
                output::line(&format!("not running, renewed when they start: {stopped}"));
            }
            output::line("SHA-256 of their public keys:");
            output::pairs(
                &keys.iter().map(|(node, key)| (node.as_str(), key.clone())).collect::<Vec<_>>(),
            );
            output::line(
                "Now issue new certificates to clients (`ostraca ca issue client NAME --ca DIR`). Their present certificates are",
            );
            output::line("accepted until `ostraca ca rotate --finish`.");
            if !own {
                output::line("You need a new certificate too.");
            }
        }
    }
    Ok(Exit::Done)
}

/// The nodes with certificates of the new authority.
struct Renewed {
    nodes: Vec<String>,
    /// The digests of the certified keys, by node.
    keys: BTreeMap<String, String>,
    /// Those that do not run, and have no such certificate yet.
    stopped: Vec<String>,
}

/// Issues a certificate to every node, and waits until those that run present it.
async fn renew_nodes(
    client: &Client,
    rotation: &Rotation,
    next: &TrustRoot,
    args: &Rotate,
) -> Result<Renewed, Failure> {
    let (timeout, mut since) = (args.timeout, Instant::now());
    let (mut issued, mut keys) = (BTreeSet::new(), BTreeMap::new());
    loop {
        let asking = async {
            let presented = client.authorities(AuthoritiesRequest::default()).await?.presented;
            Ok::<_, Failure>((presented, client.nodes().await?.nodes))
        };
        let (presented, all) = connection::with_spinner("waiting for the nodes", asking).await?;
        let (mut nodes, mut others) = (Vec::new(), Vec::new());
        for NodeCertificate { node, certificate } in presented {
            // Whatever else is in the rows gets no certificate.
            if !all.iter().any(|it| it.name == node) {
                continue;
            }
            let chain = CertificateChain::from_pem(&certificate).map_err(invalid_identity)?;
            let key = chain.key_fingerprint();
            let first = keys.entry(node.clone()).or_insert_with(|| key.clone());
            if *first != key {
                let text = format!("the key of node {node} has changed: {first} before, {key} now");
                let help = format!(
                    "nodes never change their keys: find out who wrote the row `certificates/{node}`"
                );
                return Err(Failure::unexpected(codes::INVALID_IDENTITY, text).help(help));
            }
            if chain.is_trusted(next) {
                nodes.push(node);
            } else if !issued.contains(&node) {
                others.push((node, chain));
            }
        }
        if !args.yes && !others.is_empty() {
            confirm(others.iter().map(|(node, _)| (node.as_str(), keys[node].clone())).collect())?;
            since = Instant::now();
        }
        for (node, chain) in others {
            let certificate = rotation.renew_node(&chain).map_err(|error| {
                invalid_identity(error)
                    .help(format!("this concerns the certificate of node {node}"))
            })?;
            let issue = Some(NodeCertificate { node: node.clone(), certificate });
            client.authorities(AuthoritiesRequest { issue, ..Default::default() }).await?;
            issued.insert(node);
        }
        let others = all.into_iter().filter(|it| !nodes.contains(&it.name));
        let (stopped, waiting): (Vec<_>, Vec<_>) =
            others.partition(|it| matches!(it.status(), NodeStatus::Dead | NodeStatus::Left));
        let names = |all: Vec<_>| {
            all.into_iter().map(|it: ostraca_wire::proto::NodeState| it.name).collect::<Vec<_>>()
        };
        if waiting.is_empty() {
            return Ok(Renewed { nodes, keys, stopped: names(stopped) });
        }
        if since.elapsed() > timeout {
            let text = format!(
                "these nodes did not start to use their new certificates within {timeout:?}: {}",
                names(waiting).join(", ")
            );
            let help = "see `ostraca status` on them, then run the command again: it continues";
            return Err(Failure::unexpected(codes::AUTHORITY_IN_USE, text).help(help));
        }
        sleep(PAUSE).await;
    }
}

/// Asks the operator to confirm the nodes' keys, which this command cannot verify.
fn confirm(keys: Vec<(&str, String)>) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        let text = "the nodes' keys must be confirmed, and standard input is not a terminal";
        return Err(
            Failure::usage(codes::USAGE, text).help("compare the keys first, then add `--yes`")
        );
    }
    let mut question = "Nodes to certify, with the SHA-256 of each node's public key:\n".to_owned();
    for (node, key) in keys {
        question.push_str(&format!("{node}  {key}\n"));
    }
    question.push_str("Do these match the keys on the nodes' machines? (yes/no) ");
    // Not on standard output, which may be read by a program. Whether anybody sees it shows in the answer.
    let _ = std::io::stderr().write_all(question.as_bytes());
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    match read.is_ok() && matches!(answer.trim(), "y" | "yes") {
        true => Ok(()),
        false => Err(Failure::usage(codes::USAGE, "not confirmed: these nodes got no certificates")
            .help("the cluster trusts both authorities already; see \"Replacing the authority\" in docs/access.md, and run the command again to continue")),
    }
}

/// Lets the cluster trust only the new authority.
async fn finish(global: &Global, args: &Rotate) -> Result<Exit, Failure> {
    let Some(rotation) = Rotation::promoted(&args.ca).map_err(not_an_authority)? else {
        let text = format!("no rotation is in progress in {}", args.ca.display());
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
            output::line(
                "The former authority's files are removed. Each node stops trusting it within 5 s, or when it can next",
            );
            output::line("read the cluster's rows.");
        }
    }
    Ok(Exit::Done)
}

/// Whether a profile's certificate is from the new authority. A token is from none.
fn is_renewed(profile: &Profile, next: &TrustRoot) -> bool {
    let chain = CertificateChain::from_pem(&profile.certificate);
    profile.certificate.is_empty() || chain.is_ok_and(|chain| chain.is_trusted(next))
}
