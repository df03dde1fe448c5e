//! `ostraca deploy --dry-run`: what a deployment would do to entities.

use ostraca_client::{DryRun, DryRunEntity, DryRunResult, StateChange};
use serde_json::{Value, json};

use super::inspect::{bytes_text, many, shown};
use crate::args::{Deploy, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::project::Project;
use crate::{connection, output};

/// Ends with [`Exit::Unhealthy`] if a copy failed.
pub(crate) async fn run(
    global: &Global,
    args: &Deploy,
    project: &Project,
    component: Vec<u8>,
) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let (ids, query) = (args.ids.clone(), args.query.clone().unwrap_or_default());
    let entities = DryRun { ids, sample: args.sample, query };
    let trying = client.dry_run(&project.text, component.into(), entities);
    let spinner = format!("trying {}", project.manifest.entity_type);
    let result = connection::with_spinner(&spinner, trying).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        output::json(&to_json(&result));
    } else {
        output::text(&(text(&result) + "\n"));
    }
    let failed = result.entities.iter().any(|it| !it.failed_in.is_empty());
    Ok(if failed { Exit::Unhealthy } else { Exit::Done })
}

fn text(it: &DryRunResult) -> String {
    if it.current_revision == 0 {
        return format!("{}: not deployed yet; the component is accepted", it.r#type);
    }
    let schema = match it.current_schema == it.schema {
        true => format!("schema {}", it.schema),
        false => format!("schema {} instead of {}", it.schema, it.current_schema),
    };
    let mut text = format!("{}: replaces revision {}, {schema}", it.r#type, it.current_revision);
    for (what, methods) in [("adds", &it.added_methods), ("removes", &it.removed_methods)] {
        if !methods.is_empty() {
            text += &format!("\n  {what} the methods {}", methods.join(", "));
        }
    }
    let failed = it.entities.iter().filter(|it| !it.failed_in.is_empty()).count();
    let tried = many(it.entities.len() as u64, "entity", "entities");
    text += &format!("\n  tried on copies of {tried}: {failed} failed");
    if it.not_tried > 0 {
        text += &format!(", {} not tried within the time", it.not_tried);
    }
    text += &match it.query.as_str() {
        "" => "\n  not queried: no query is known to take no arguments (--query METHOD)".to_owned(),
        query => format!("\n  asked each the query {query}"),
    };
    let lines = it.entities.iter().map(entity);
    text + &lines.collect::<String>()
}

fn entity(it: &DryRunEntity) -> String {
    let result = || bytes_text(&it.result, it.result.len() as u64);
    let outcome = match it.failed_in.as_str() {
        "" if it.result.is_empty() => "ok".to_owned(),
        "" => format!("ok, returns {}", result()),
        step => format!("{step} fails: {}", shown(&it.failure)),
    };
    let mut text = format!("\n{} (version {}, schema {}): {outcome}", it.id, it.version, it.schema);
    for change in &it.changes {
        text += &format!("\n  {}", change_text(change));
    }
    let more = it.change_count.saturating_sub(it.changes.len() as u64);
    if more > 0 {
        text += &format!("\n  and {more} more");
    }
    text
}

fn change_text(it: &StateChange) -> String {
    let key = shown(&String::from_utf8_lossy(&it.key));
    let value = |value: Option<&[u8]>, size: Option<u64>| match (value, size) {
        (_, None) => "nothing".to_owned(),
        (Some(value), Some(size)) => bytes_text(value, size),
        (None, Some(size)) => output::size(size),
    };
    let before = value(it.before.as_deref(), it.before_size);
    format!("{key}: {before} becomes {}", value(it.after.as_deref(), it.after_size))
}

fn to_json(it: &DryRunResult) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let changes = |of: &DryRunEntity| -> Vec<_> {
        let change = |of: &StateChange| {
            json!({
                "key": text(&of.key), "before": of.before.as_deref().map(text),
                "after": of.after.as_deref().map(text), "before_size": of.before_size,
                "after_size": of.after_size,
            })
        };
        of.changes.iter().map(change).collect()
    };
    let entities = it.entities.iter().map(|of| {
        json!({
            "id": of.id, "version": of.version, "schema": of.schema, "failed_in": of.failed_in,
            "failure": of.failure, "changes": changes(of), "change_count": of.change_count,
            "result": text(&of.result),
        })
    });
    json!({
        "type": it.r#type, "current_revision": it.current_revision,
        "current_schema": it.current_schema, "schema": it.schema,
        "added_methods": it.added_methods, "removed_methods": it.removed_methods,
        "query": it.query, "entities": entities.collect::<Vec<_>>(), "not_tried": it.not_tried,
    })
}
