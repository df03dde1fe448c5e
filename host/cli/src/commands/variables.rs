//! `ostraca secret` and `ostraca setting`: values that a type's entities may read.

use std::io::{IsTerminal, Read};
use std::path::Path;

use ostraca_ca::secrets::{SECRET_KEYS, create_secret_key};
use ostraca_codes::codes;
use ostraca_wire::proto::{self, Variable, VariableKind, Variables, VariablesRequest};
use serde_json::json;

use super::as_node;
use super::authority::not_an_authority;
use crate::args::{
    self, Global, ListVariables, OutputFormat, SecretCommand, SettingCommand, VariableName,
};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// How much of standard input is read at most: more than fits into the cluster's row.
const MAX_INPUT_BYTES: u64 = 128 << 10;

pub(crate) async fn secret(global: &Global, args: &args::Secret) -> Result<Exit, Failure> {
    let kind = VariableKind::Secret;
    match &args.what {
        SecretCommand::Set { name, raw, node } => {
            let value = read_secret(*raw)?;
            set(global, kind, name, value, node.config.as_deref()).await
        }
        SecretCommand::List { list } => show(global, kind, list).await,
        SecretCommand::Remove { name, node } => {
            remove(global, kind, name, node.config.as_deref()).await
        }
        SecretCommand::Key { ca } => create_key(global, ca),
    }
}

pub(crate) async fn setting(global: &Global, args: &args::Setting) -> Result<Exit, Failure> {
    let kind = VariableKind::Setting;
    match &args.what {
        SettingCommand::Set { name, value, node } => {
            set(global, kind, name, value.clone(), node.config.as_deref()).await
        }
        SettingCommand::List { list } => show(global, kind, list).await,
        SettingCommand::Remove { name, node } => {
            remove(global, kind, name, node.config.as_deref()).await
        }
    }
}

fn word(kind: VariableKind) -> &'static str {
    match kind {
        VariableKind::Secret => "secret",
        _ => "setting",
    }
}

/// Reads the text of a secret from standard input, where neither the shell's history nor other users see it.
fn read_secret(raw: bool) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let text = "a secret is read from standard input, and a terminal would show it";
        return Err(Failure::usage(codes::USAGE, text)
            .help("redirect it, as in `ostraca secret set TYPE NAME < FILE`"));
    }
    let mut text = String::new();
    let read = stdin.lock().take(MAX_INPUT_BYTES + 1).read_to_string(&mut text);
    if let Err(error) = read {
        let text = format!("cannot read the secret from standard input: {error}");
        return Err(Failure::usage(codes::INVALID_VARIABLE, text)
            .help("a secret is text in UTF-8: encode other bytes, for example in base64"));
    }
    if text.len() as u64 > MAX_INPUT_BYTES {
        let text = format!("standard input has more than {MAX_INPUT_BYTES} bytes");
        return Err(Failure::usage(codes::VARIABLES_TOO_LARGE, text)
            .help("keep large values elsewhere, and only their keys here"));
    }
    if !raw && text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

async fn set(
    global: &Global,
    kind: VariableKind,
    name: &VariableName,
    value: String,
    node: Option<&Path>,
) -> Result<Exit, Failure> {
    let VariableName { entity_type, name } = name;
    let set = Variable { kind: kind.into(), name: name.clone(), value, ..Variable::default() };
    let change =
        VariablesRequest { r#type: entity_type.clone(), set: Some(set), ..Default::default() };
    let all = request(global, node, change).await?;
    let set = all.variables.iter().find(|it| it.kind() == kind && it.name == *name);
    let granted = set.is_some_and(|it| it.granted);
    match global.output {
        OutputFormat::Json => {
            output::json(&json!({ "set": name, "deployed": all.deployed, "granted": granted }));
        }
        OutputFormat::Table => {
            output::line(&format!("{} {name} of {entity_type} is set", word(kind)));
            if !all.deployed {
                output::line(&format!("note: no type {entity_type} is deployed yet"));
            } else if !granted {
                output::line(&format!(
                    "note: the manifest of {entity_type} does not grant it: add it to `[grants] {}s` and deploy",
                    word(kind)
                ));
            }
        }
    }
    Ok(Exit::Done)
}

async fn remove(
    global: &Global,
    kind: VariableKind,
    name: &VariableName,
    node: Option<&Path>,
) -> Result<Exit, Failure> {
    let VariableName { entity_type, name } = name;
    let removed = proto::VariableName { kind: kind.into(), name: name.clone() };
    let mut change = VariablesRequest { r#type: entity_type.clone(), ..Default::default() };
    let before = request(global, node, change.clone()).await?;
    if !before.variables.iter().any(|it| it.kind() == kind && it.name == *name) {
        let text = format!("{entity_type} has no {} {name}", word(kind));
        return Err(Failure::usage(codes::INVALID_VARIABLE, text)
            .help(format!("`ostraca {} list {entity_type}` lists them", word(kind))));
    }
    change.remove = Some(removed);
    request(global, node, change).await?;
    match global.output {
        OutputFormat::Json => output::json(&json!({ "removed": name })),
        OutputFormat::Table => {
            output::line(&format!("{} {name} of {entity_type} is removed", word(kind)));
        }
    }
    Ok(Exit::Done)
}

async fn show(global: &Global, kind: VariableKind, args: &ListVariables) -> Result<Exit, Failure> {
    let entity_type = args.entity_type.clone().unwrap_or_default();
    let list = VariablesRequest { r#type: entity_type.clone(), ..Default::default() };
    let mut all = request(global, args.node.config.as_deref(), list).await?.variables;
    all.retain(|it| it.kind() == kind);
    let granted = |it: &Variable| if it.granted { "yes" } else { "no" }.to_owned();
    match (global.output, kind) {
        (OutputFormat::Json, _) => {
            let entries = all.iter().map(|it| {
                let mut entry = json!({
                    "type": it.r#type, "name": it.name, "unix_ms": it.unix_ms,
                    "timestamp": output::wall(it.unix_ms), "by": it.by, "granted": it.granted,
                });
                match kind {
                    VariableKind::Secret => entry["key"] = it.key.clone().into(),
                    _ => entry["value"] = it.value.clone().into(),
                }
                entry
            });
            let entries = entries.collect::<Vec<_>>();
            output::json(&json!({ format!("{}s", word(kind)): entries }));
        }
        _ if all.is_empty() => {
            let whose = if entity_type.is_empty() { "the cluster" } else { &entity_type };
            output::line(&format!("{whose} has no {}s", word(kind)));
        }
        (OutputFormat::Table, VariableKind::Secret) => {
            let row = |it: &Variable| {
                let set = output::wall(it.unix_ms);
                let (entity_type, name) = (it.r#type.clone(), it.name.clone());
                [entity_type, name, it.key.clone(), set, it.by.clone(), granted(it)]
            };
            let headers = ["TYPE", "SECRET", "KEY", "SET", "BY", "GRANTED"];
            output::table(headers, all.iter().map(row).collect());
        }
        (OutputFormat::Table, _) => {
            let row = |it: &Variable| {
                let set = output::wall(it.unix_ms);
                let (entity_type, name) = (it.r#type.clone(), it.name.clone());
                [entity_type, name, it.value.clone(), set, it.by.clone(), granted(it)]
            };
            let headers = ["TYPE", "SETTING", "VALUE", "SET", "BY", "GRANTED"];
            output::table(headers, all.iter().map(row).collect());
        }
    }
    Ok(Exit::Done)
}

/// Creates the key that seals secrets.
fn create_key(global: &Global, ca: &Path) -> Result<Exit, Failure> {
    // A node's directory of the same name has no key, and nodes must not have keys of their own.
    if !ca.join("ca.key").exists() {
        let text = format!("{} has no ca.key", ca.display());
        return Err(Failure::usage(codes::INVALID_IDENTITY, text)
            .help("--ca is the directory `ca` that the first node's `ostraca init` created"));
    }
    let created = create_secret_key(ca).map_err(not_an_authority)?;
    let file = ca.join(SECRET_KEYS);
    match global.output {
        OutputFormat::Json => output::json(&json!({ "file": file, "created": created })),
        OutputFormat::Table => {
            let what = if created { "created" } else { "exists already" };
            output::line(&format!("{} {what}", file.display()));
            output::line(
                "Copy it to `ca/secret.key` on each node, readable by its owner only, and restart the nodes one by one.",
            );
        }
    }
    Ok(Exit::Done)
}

async fn request(
    global: &Global,
    node: Option<&Path>,
    request: VariablesRequest,
) -> Result<Variables, Failure> {
    let client = as_node::connect(global, node).await?;
    let all = connection::with_spinner("contacting the node", client.variables(request)).await?;
    connection::disconnect(client).await;
    Ok(all)
}
