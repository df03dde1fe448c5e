//! `ostraca deploy`: deploys a component with its manifest.

use std::path::{Path, PathBuf};

use ostraca_client::{Client, DeployResult, Methods, NodeIssue};
use ostraca_codes::codes;
use ostraca_node::Manifest;
use serde_json::json;

use super::deployments::hex;
use super::dry_run;
use super::methods::kind;
use crate::args::{Deploy, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::project::{Project, compile};
use crate::{connection, output, quote};

pub(crate) async fn run(global: &Global, args: &Deploy) -> Result<Exit, Failure> {
    let project = Project::load(&args.manifest)?;
    if args.build {
        compile::build(&project).await?;
    }
    let component = component(&project)?;
    if args.dry_run {
        return dry_run::run(global, args, &project, component).await;
    }
    let client = connection::connect(global).await?;
    let size = output::size(component.len() as u64);
    let deploying = async {
        match args.inactive {
            true => client.deploy_inactive(&project.text, component.into()).await,
            false => client.deploy(&project.text, component.into(), args.expect_revision).await,
        }
    };
    let deployed = connection::with_spinner(
        &format!("deploying {} ({size})", project.manifest.entity_type),
        deploying,
    )
    .await?;
    let methods = client.methods(&deployed.r#type).await.ok();
    connection::disconnect(client).await;
    show(global, &deployed, if args.inactive { "stored" } else { "deployed" });
    if let (false, OutputFormat::Table, Some(methods)) = (args.inactive, global.output, methods) {
        output::line(&hint(&methods));
    }
    Ok(Exit::Done)
}

/// Prints the result of a deployment or an activation; `what` says which.
pub(crate) fn show(global: &Global, deployed: &DeployResult, what: &str) {
    if global.output == OutputFormat::Json {
        output::json(&json!({
            "type": deployed.r#type, "revision": deployed.revision,
            "unchanged": deployed.unchanged, "digest": hex(&deployed.digest),
            "failed_hosts": hosts(&deployed.failed_hosts), "pending_hosts": hosts(&deployed.pending_hosts),
        }));
    } else {
        output::line(&summary_of(deployed, what));
    }
}

/// Deploys without printing a result, for `ostraca dev`.
pub(crate) async fn deploy_project(
    client: &Client,
    project: &Project,
) -> Result<(DeployResult, Methods), Failure> {
    let component = component(project)?;
    let deployed = client.deploy(&project.text, component.into(), None).await?;
    let methods = client.methods(&deployed.r#type).await?;
    Ok((deployed, methods))
}

fn hosts(hosts: &[NodeIssue]) -> serde_json::Value {
    hosts.iter().map(|host| json!({ "node": host.node, "reason": host.reason })).collect()
}

/// The result of a deploy in one line, with another line for each host that does not run it.
pub(crate) fn summary(it: &DeployResult) -> String {
    summary_of(it, "deployed")
}

fn summary_of(it: &DeployResult, what: &str) -> String {
    let mut text = match it.unchanged {
        true => format!("{}: unchanged, revision {}", it.r#type, it.revision),
        false => format!("{}: {what}, revision {}", it.r#type, it.revision),
    };
    for NodeIssue { node, reason: why } in &it.failed_hosts {
        text += &format!("\n  node {node} cannot run it and gets no shards: {why}");
    }
    for NodeIssue { node, reason: why } in &it.pending_hosts {
        text += &format!("\n  node {node} is not running it yet: {why}");
    }
    text
}

/// The type's methods, and the command to try next.
pub(crate) fn hint(it: &Methods) -> String {
    let names: Vec<_> =
        it.methods.iter().map(|method| format!("{} ({})", method.name, kind(method))).collect();
    format!(
        "  methods: {}\n  example: ostraca send {}/alice METHOD [JSON]",
        names.join(", "),
        quote::shell_quote(&it.r#type)
    )
}

fn component(project: &Project) -> Result<Vec<u8>, Failure> {
    let path = project.component();
    std::fs::read(&path).map_err(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            return Failure::file("read", &path, &error);
        }
        let why = format!("no component at {}", path.display());
        let name = project.file.display().to_string();
        let help = build_hint(&project.dir);
        Manifest::component_error(codes::NO_COMPONENT, &project.text, &name, why, help).into()
    })
}

fn build_hint(dir: &Path) -> String {
    let dir = if dir == Path::new("") { PathBuf::from(".") } else { dir.to_owned() };
    if dir.join("Cargo.toml").exists() {
        let dir = quote::shell_quote(&dir.display().to_string());
        return format!("run `ostraca build {dir}` first");
    }
    "build it first, or fix `component` in the manifest".into()
}
