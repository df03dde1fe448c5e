//! `ostraca policy`: who may do what.

use std::fs;
use std::path::Path;

use ostraca_node::policy::{Permission, Permissions, Policy};
use ostraca_wire::proto::{PolicyRequest, PolicyState};
use serde_json::json;

use super::as_node;
use crate::args::{self, Global, OutputFormat, PolicyCommand};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &args::Policy) -> Result<Exit, Failure> {
    match &args.what {
        PolicyCommand::Show { node } => {
            let state = request(global, node.config.as_deref(), PolicyRequest::default()).await?;
            show(global, &state);
        }
        PolicyCommand::Check { file, principal } => {
            check(global, file.as_deref(), principal.as_deref()).await?;
        }
        PolicyCommand::Set { file, expect_revision, force, node } => {
            let (text, _) = read(file)?;
            let change = PolicyRequest {
                text: Some(text),
                expected_revision: *expect_revision,
                force: *force,
            };
            let state = request(global, node.config.as_deref(), change).await?;
            match global.output {
                OutputFormat::Table => {
                    output::line(&format!("the policy now has revision {}", state.revision));
                }
                OutputFormat::Json => output::json(&json!({ "revision": state.revision })),
            }
        }
    }
    Ok(Exit::Done)
}

async fn request(
    global: &Global,
    node: Option<&Path>,
    request: PolicyRequest,
) -> Result<PolicyState, Failure> {
    let client = as_node::connect(global, node).await?;
    let state = connection::with_spinner("contacting the node", client.policy(request)).await?;
    connection::disconnect(client).await;
    Ok(state)
}

/// Reads and checks a file with a policy.
fn read(file: &Path) -> Result<(String, Policy), Failure> {
    let text = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
    let policy = Policy::parse(&text, &file.display().to_string())?;
    Ok((text, policy))
}

fn show(global: &Global, state: &PolicyState) {
    if global.output == OutputFormat::Json {
        output::json(&json!({ "revision": state.revision, "policy": state.text }));
        return;
    }
    // A comment, so that the output is a policy too.
    output::line(&match state.revision {
        0 => "# default policy; none was set yet".into(),
        revision => format!("# revision {revision}"),
    });
    output::text(&state.text);
}

async fn check(
    global: &Global,
    file: Option<&Path>,
    principal: Option<&str>,
) -> Result<(), Failure> {
    let (name, policy) = match file {
        Some(file) => (file.display().to_string(), read(file)?.1),
        None => {
            let state = request(global, None, PolicyRequest::default()).await?;
            ("the policy in force".into(), Policy::parse(&state.text, "policy")?)
        }
    };
    let permissions = principal.map(|principal| policy.permissions(principal));
    if global.output == OutputFormat::Json {
        output::json(&json!({
            "valid": true, "principal": principal,
            "roles": permissions.as_ref().map(Permissions::roles),
            "permissions": permissions.as_ref().map(|permissions| {
                permissions.listed().into_iter().map(|(types, granted)| json!({
                    "types": types, "permissions": names(&granted),
                })).collect::<Vec<_>>()
            }),
        }));
        return Ok(());
    }
    output::line(&format!("{name}: valid"));
    if !policy.has_administrator() {
        output::line("note: only a node can change this policy (`--as-node`)");
    }
    let (Some(principal), Some(permissions)) = (principal, permissions) else { return Ok(()) };
    if permissions.is_empty() {
        output::line(&format!("{principal} has no role and may do nothing"));
        return Ok(());
    }
    output::line(&format!("{principal} has the roles: {}", permissions.roles().join(", ")));
    for (types, granted) in permissions.listed() {
        output::line(&format!("  on {types}: {}", names(&granted).join(", ")));
    }
    Ok(())
}

fn names(permissions: &[Permission]) -> Vec<&'static str> {
    permissions.iter().map(|it| it.name()).collect()
}
