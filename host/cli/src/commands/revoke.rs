//! `ostraca revoke` and `ostraca revocations`: credentials that no node accepts any more.

use std::fs;
use std::path::Path;

use ostraca_codes::codes;
use ostraca_wire::identity::{self, CertificateChain, IdentityError, PrincipalKind};
use ostraca_wire::proto::{Revocation, RevocationsRequest};
use serde_json::{Value, json};

use super::as_node;
use crate::args::{Global, OutputFormat, Revocations, Revoke};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Revoke) -> Result<Exit, Failure> {
    let mut credentials = args.credentials.clone();
    for file in &args.certificate {
        credentials.push(certificate(file)?);
    }
    let mut change = RevocationsRequest { reason: args.reason.clone(), ..Default::default() };
    match args.undo {
        true => change.restore = credentials.clone(),
        false => change.revoke = credentials.clone(),
    }
    let all = request(global, args.node.config.as_deref(), change).await?;
    match global.output {
        OutputFormat::Table => {
            let what = if args.undo { "accepted again" } else { "revoked" };
            output::line(&format!("{what}: {}", credentials.join(", ")));
        }
        OutputFormat::Json => output::json(&listed(&all)),
    }
    Ok(Exit::Done)
}

pub(crate) async fn list(global: &Global, args: &Revocations) -> Result<Exit, Failure> {
    let all = request(global, args.node.config.as_deref(), RevocationsRequest::default()).await?;
    match global.output {
        OutputFormat::Json => output::json(&listed(&all)),
        OutputFormat::Table if all.is_empty() => output::line("nothing is revoked"),
        OutputFormat::Table => {
            let row = |it: &Revocation| {
                [it.subject.clone(), output::wall(it.unix_ms), it.by.clone(), it.reason.clone()]
            };
            output::table(["CREDENTIAL", "REVOKED", "BY", "REASON"], all.iter().map(row).collect());
        }
    }
    Ok(Exit::Done)
}

async fn request(
    global: &Global,
    node: Option<&Path>,
    request: RevocationsRequest,
) -> Result<Vec<Revocation>, Failure> {
    let client = as_node::connect(global, node).await?;
    let all = connection::with_spinner("contacting the node", client.revocations(request)).await?;
    connection::disconnect(client).await;
    Ok(all)
}

/// The certificate in a PEM file, as a revocation names it.
fn certificate(file: &Path) -> Result<String, Failure> {
    let pem = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
    let unusable = |error: IdentityError| {
        let text = format!("{}: {error}", file.display());
        Failure::usage(codes::INVALID_IDENTITY, text).help("name a file with a certificate in PEM")
    };
    let named = CertificateChain::from_pem(&pem).map_err(unusable)?;
    if named.principal().kind == PrincipalKind::Node {
        let text = format!("{} is the certificate of {}", file.display(), named.principal());
        return Err(Failure::usage(codes::INVALID_CREDENTIAL, text).help(
            "a node cannot be revoked: whoever has its key can read and write the cluster's state; rotate the authority instead",
        ));
    }
    let fingerprint = identity::fingerprint_of_pem(&pem).map_err(unusable)?;
    Ok(format!("certificate/{fingerprint}"))
}

fn listed(all: &[Revocation]) -> Value {
    let entries = all.iter().map(|it| {
        json!({
            "credential": it.subject, "unix_ms": it.unix_ms, "timestamp": output::wall(it.unix_ms),
            "by": it.by, "reason": it.reason,
        })
    });
    json!({ "revocations": entries.collect::<Vec<_>>() })
}
