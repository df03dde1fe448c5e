//! `ostraca namespace`: lists the cluster's namespaces, creates more of them, and sets their quotas.

use ostraca_client::{NamespaceInfo, NamespaceQuotas, NamespaceUsage, NewLimit, QuotaChanges};
use serde_json::{Value, json};

use crate::args::{Global, Limit, NamespaceArgs, NamespaceCommand, OutputFormat, SetQuotas};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &NamespaceArgs) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let request = async {
        match &args.what {
            NamespaceCommand::List => client.namespaces(None).await,
            NamespaceCommand::Create { name } => client.namespaces(Some(name)).await,
            NamespaceCommand::Quota(new) => client.change_quotas(changes(new)).await,
        }
    };
    let all = connection::with_spinner("contacting the node", request).await?;
    connection::disconnect(client).await;
    let changed = match &args.what {
        NamespaceCommand::List => None,
        NamespaceCommand::Create { name } => Some(name),
        NamespaceCommand::Quota(new) => Some(&new.name),
    };
    let changed = all.iter().find(|it| Some(&it.name) == changed);
    if global.output == OutputFormat::Json {
        output::json(&match changed {
            Some(namespace) => to_json(namespace),
            None => json!({ "namespaces": all.iter().map(to_json).collect::<Vec<_>>() }),
        });
        return Ok(Exit::Done);
    }
    if let Some(it) = changed {
        output::line(&match &args.what {
            NamespaceCommand::Quota(_) => format!("the namespace {} has {}", it.name, quotas(it)),
            _ => format!("the cluster has the namespace {}", it.name),
        });
        return Ok(Exit::Done);
    }
    let titles = ["NAMESPACE", "TYPES", "ENTITIES", "STATE", "TURNS/S", "CREATED BY"];
    output::table(titles, all.iter().map(row).collect());
    Ok(Exit::Done)
}

fn changes(new: &SetQuotas) -> QuotaChanges {
    let limit = |set: Option<Limit>| set.map(|set| NewLimit { limit: set.0 });
    QuotaChanges {
        namespace: new.name.clone(),
        entities: limit(new.entities),
        state_bytes: limit(new.state),
        turns_per_second: limit(new.turns),
    }
}

/// A namespace's quotas in words.
fn quotas(it: &NamespaceInfo) -> String {
    let Some(NamespaceQuotas { namespace: _, entities, state_bytes, turns_per_second }) =
        &it.quotas
    else {
        return "no quotas".into();
    };
    let entities = entities.map(|limit| format!("{limit} entities"));
    let state = state_bytes.map(|limit| format!("{} of state", output::size(limit)));
    let turns = turns_per_second.map(|limit| format!("{limit} turns a second"));
    let all: Vec<_> = [entities, state, turns].into_iter().flatten().collect();
    format!("at most {}", all.join(", "))
}

/// What is used, what may be used, or both.
fn used(usage: Option<String>, limit: Option<String>) -> String {
    match (usage, limit) {
        (Some(usage), Some(limit)) => format!("{usage} of {limit}"),
        (None, Some(limit)) => format!("? of {limit}"),
        (Some(usage), None) => usage,
        (None, None) => "-".into(),
    }
}

fn row(it: &NamespaceInfo) -> [String; 6] {
    let limits = it.quotas.clone().unwrap_or_default();
    // Entities are counted only while their number or their size is limited.
    let counts = limits.entities.is_some() || limits.state_bytes.is_some();
    let stored = |of: fn(&NamespaceUsage) -> String| {
        let usage = it.usage.as_ref().filter(|_| counts)?;
        Some(of(usage) + if usage.is_complete { "" } else { "+" })
    };
    let turns = it.usage.as_ref().filter(|_| limits.turns_per_second.is_some());
    [
        it.name.clone(),
        it.types.to_string(),
        used(stored(|it| it.entities.to_string()), limits.entities.map(|it| it.to_string())),
        used(stored(|it| output::size(it.state_bytes)), limits.state_bytes.map(output::size)),
        used(
            turns.map(|it| it.turns_per_second.to_string()),
            limits.turns_per_second.map(|it| it.to_string()),
        ),
        it.created_by.clone(),
    ]
}

fn to_json(it: &NamespaceInfo) -> Value {
    let quotas = it.quotas.as_ref().map(|limits| {
        json!({
            "entities": limits.entities, "state_bytes": limits.state_bytes,
            "turns_per_second": limits.turns_per_second,
        })
    });
    let usage = it.usage.as_ref().map(|usage| {
        json!({
            "entities": usage.entities, "state_bytes": usage.state_bytes,
            "turns_per_second": usage.turns_per_second, "is_complete": usage.is_complete,
        })
    });
    json!({
        "name": it.name, "types": it.types,
        "created_unix_ms": Some(it.created_unix_ms).filter(|at| *at > 0),
        "created_by": Some(&it.created_by).filter(|by| !by.is_empty()),
        "quotas": quotas, "usage": usage,
    })
}
