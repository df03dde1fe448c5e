//! `ostraca deploy`: a component with its manifest.

use std::path::{Path, PathBuf};

use ostraca_client::{Client, Deployed, Methods, Unanswered};
use ostraca_node::Manifest;
use serde_json::json;

use super::deployments::hex;
use super::methods::kind;
use crate::args::{Deploy, Format, Global};
use crate::failure::{Exit, Failure};
use crate::project::{Project, compile};
use crate::{dial, output, quote};

pub(crate) async fn run(global: &Global, args: &Deploy) -> Result<Exit, Failure> {
    let project = Project::load(&args.manifest)?;
    if args.build {
        compile::build(&project).await?;
    }
    let component = component(&project)?;
    let client = dial::connect(global).await?;
    let size = output::size(component.len() as u64);
    let deploying = client.deploy(&project.text, component.into(), args.expect_revision);
    let deployed =
        dial::patiently(&format!("deploying {} ({size})", project.manifest.kind), deploying)
            .await?;
    let methods = client.methods(&deployed.r#type).await.ok();
    dial::part(client).await;
    if global.output == Format::Json {
        output::json(&json!({
            "type": deployed.r#type, "revision": deployed.revision,
            "unchanged": deployed.unchanged, "digest": hex(&deployed.digest),
            "failed": hosts(&deployed.failed), "waiting": hosts(&deployed.waiting),
        }));
    } else {
        output::line(&said(&deployed));
        if let Some(methods) = methods {
            output::line(&hint(&methods));
        }
    }
    Ok(Exit::Done)
}

/// Deploys without printing a result, for `ostraca dev`.
pub(crate) async fn quietly(
    client: &Client,
    project: &Project,
) -> Result<(Deployed, Methods), Failure> {
    let component = component(project)?;
    let deployed = client.deploy(&project.text, component.into(), None).await?;
    let methods = client.methods(&deployed.r#type).await?;
    Ok((deployed, methods))
}

fn hosts(hosts: &[Unanswered]) -> serde_json::Value {
    hosts.iter().map(|host| json!({ "node": host.node, "why": host.why })).collect()
}

/// What a deploy did.
pub(crate) fn said(it: &Deployed) -> String {
    let mut text = match it.unchanged {
        true => format!("{}: unchanged, revision {}", it.r#type, it.revision),
        false => format!("{}: deployed, revision {}", it.r#type, it.revision),
    };
    for Unanswered { node, why } in &it.failed {
        text += &format!("\n  node {node} cannot run it, and is given no shards: {why}");
    }
    for Unanswered { node, why } in &it.waiting {
        text += &format!("\n  node {node} does not run it yet: {why}");
    }
    text
}

/// What to type next.
pub(crate) fn hint(it: &Methods) -> String {
    let names: Vec<_> =
        it.methods.iter().map(|method| format!("{} ({})", method.name, kind(method))).collect();
    format!(
        "  its methods: {}\n  as in: ostraca send {}/alice METHOD [JSON]",
        names.join(", "),
        quote::word(&it.r#type)
    )
}

fn component(project: &Project) -> Result<Vec<u8>, Failure> {
    let path = project.component();
    std::fs::read(&path).map_err(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            return Failure::file("read", &path, &error);
        }
        let why = format!("there is no component at {}", path.display());
        let name = project.file.display().to_string();
        let help = build_hint(&project.dir);
        Manifest::component_error("no-component", &project.text, &name, why, help).into()
    })
}

fn build_hint(dir: &Path) -> String {
    let dir = if dir == Path::new("") { PathBuf::from(".") } else { dir.to_owned() };
    if dir.join("Cargo.toml").exists() {
        let dir = quote::word(&dir.display().to_string());
        return format!("run `ostraca build {dir}` first");
    }
    "build it first, or correct `component` in the manifest".into()
}
