//! What an entity's owner has in memory about it: why the entity is awake, and what follows its failures.

use ostraca_client::{AwakeReason, EntityActivity};
use serde_json::{Value, json};

use super::phrases::{many, shown};
use crate::output;

pub(super) fn json(activity: &EntityActivity) -> Value {
    let awake = activity
        .awake
        .iter()
        .map(|it| json!({ "reason": it.reason, "count": it.count, "ends_in_ms": it.ends_in_ms }));
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    json!({
        "awake": awake.collect::<Vec<_>>(), "on_failure": text(&activity.on_failure),
        "stopped_by": text(&activity.stopped_by), "start_pause_ms": activity.start_pause_ms,
        "failed_starts": activity.failed_starts,
    })
}

pub(super) fn rows(activity: &EntityActivity) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !activity.awake.is_empty() {
        let reasons: Vec<_> = activity.awake.iter().map(reason_text).collect();
        rows.push(("awake", reasons.join("; ")));
    }
    if !activity.on_failure.is_empty() {
        rows.push(("on failure", activity.on_failure.clone()));
    }
    if !activity.stopped_by.is_empty() {
        rows.push(("stopped", shown(&activity.stopped_by)));
    }
    if let Some(pause) = activity.start_pause_ms {
        let failed = many(activity.failed_starts.into(), "failed start", "failed starts");
        rows.push(("restarts", format!("in {}, after {failed}", output::span(pause))));
    }
    rows
}

fn reason_text(it: &AwakeReason) -> String {
    let count = it.count.unwrap_or_default();
    let time = output::span(it.ends_in_ms.unwrap_or_default());
    match &*it.reason {
        "awaits-slot" => "waits for an instance slot".into(),
        "starting" => "starts".into(),
        "runs-message" => "runs a message".into(),
        "runs-timer" => "runs a timer".into(),
        "stopping" => "runs its stop hook".into(),
        "asks" => format!("waits for {}", many(count, "ask", "asks")),
        "http-calls" => format!("waits for {}", many(count, "HTTP call", "HTTP calls")),
        "messages" => format!("{} in its mailbox", many(count, "message", "messages")),
        "commits" => format!("{} to be committed", many(count, "turn", "turns")),
        "timer-due" => format!("a timer is due in {time}"),
        "remembered" => "remembered".into(),
        "idle" => format!("idle, dropped in {time}"),
        "passivates" => format!("idle, passivates in {time}"),
        // A later release has more reasons.
        other => shown(other),
    }
}
