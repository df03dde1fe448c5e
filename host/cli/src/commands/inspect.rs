//! `ostraca inspect TYPE/ID`: shows one entity's state.

use std::borrow::Cow;

use ostraca_client::{
    ChannelDetail, ChannelSubscriptions, DelayedTellDetail, FailedMigration, JournalDetail,
    LastFailure, NodeIssue, StateKey, SubscriptionDetail, TellDetail, TimerDetail,
};
use serde_json::{Value, json};

use super::deployments::hex;
pub(super) use super::phrases::{many, shown};
use super::{activity, entities, send};
use crate::args::{Global, Inspect, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Inspect) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let client = connection::connect(global).await?;
    let it = connection::with_spinner("contacting the node", client.inspect(&entity, args.values))
        .await?;
    connection::disconnect(client).await;
    let owner = Some(&it.owner).filter(|owner| !owner.is_empty());
    if global.output == OutputFormat::Json {
        let keys: Vec<_> = it.keys.iter().map(|key| key_json(key, args.values)).collect();
        output::json(&json!({
            "type": it.r#type, "id": it.id, "shard": it.shard, "epoch": it.epoch, "owner": owner,
            "exists": it.exists, "version": it.version, "revision": it.revision,
            "last_commit_sequence": it.last_commit_sequence, "lane_count": it.lane_count, "unsettled_replies": it.unsettled_replies,
            "state_bytes": it.state_bytes, "key_count": it.key_count, "keys": keys,
            "remembered": it.remembered, "deleted": it.deleted, "generation": it.generation,
            "expires_unix_ms": it.expires_unix_ms, "expires": it.expires_unix_ms.map(output::wall),
            "schema": it.schema, "running_revision": it.running_revision,
            "failed_migration": it.failed_migration.as_ref().map(migration_json),
            "journal": it.journal.as_ref().map(journal_json),
            "channels": it.channels.iter().map(channel_json).collect::<Vec<_>>(),
            "subscription_count": it.subscription_count,
            "channel_subscriptions": it.channel_subscriptions.iter().map(channel_subscriptions_json).collect::<Vec<_>>(),
            "subscriptions": it.subscriptions.iter().map(subscription_json).collect::<Vec<_>>(),
            "timer_count": it.timer_count, "timers": it.timers.iter().map(timer_json).collect::<Vec<_>>(),
            "delayed_tell_count": it.delayed_tell_count,
            "delayed_tells": it.delayed_tells.iter().map(delayed_json).collect::<Vec<_>>(),
            "outbox_count": it.outbox_count, "outbox": it.outbox.iter().map(tell_json).collect::<Vec<_>>(),
            "dead_letter_count": it.dead_letter_count,
            "dead_letters": it.dead_letters.iter().map(tell_json).collect::<Vec<_>>(),
            "activity": it.activity.as_ref().map(activity::json),
            "active": it.active, "mailbox_length": it.mailbox_length,
            "last_failure": it.last_failure.as_ref().map(failure_json),
            "unresponsive_owner": it.unresponsive_owner.as_ref().map(issue_json),
        }));
        return entities::check_owners(it.unresponsive_owner.as_slice());
    }
    let owner = match owner {
        Some(owner) => format!("owned by {owner}, epoch {}", it.epoch),
        None => "no owner".into(),
    };
    let mut rows = vec![
        ("entity", format!("{}/{}", it.r#type, it.id)),
        ("shard", format!("{}, {owner}", it.shard)),
    ];
    if it.deleted {
        let sessions = it.lane_count;
        let replies = many(it.unsettled_replies, "unsettled reply", "unsettled replies");
        rows.extend([
            ("version", format!("{}, deleted", it.version)),
            ("sessions", format!("{sessions}, with {replies}")),
        ]);
    } else if it.exists {
        let again = match it.generation {
            0 => String::new(),
            times => format!(", started anew after {}", many(times, "deletion", "deletions")),
        };
        let version = format!("{}, written by revision {}{again}", it.version, it.revision);
        rows.extend([
            ("version", version),
            ("last commit", format!("{} in its shard", it.last_commit_sequence)),
            (
                "sessions",
                format!(
                    "{}, with {}",
                    it.lane_count,
                    many(it.unsettled_replies, "unsettled reply", "unsettled replies")
                ),
            ),
            (
                "state",
                format!(
                    "{} in {}",
                    output::size(it.state_bytes),
                    many(it.key_count, "key", "keys")
                ),
            ),
        ]);
        if it.remembered {
            let pending = match it.active {
                Some(false) => "yes, waits to be started",
                _ => "yes",
            };
            rows.push(("remembered", pending.into()));
        }
        rows.extend(it.expires_unix_ms.map(|at| ("expires", output::wall(at))));
        rows.extend(it.journal.as_ref().map(|it| ("journal", journal_text(it))));
        rows.extend(it.channels.iter().map(|it| ("channel", channel_text(it))));
    } else {
        rows.push(("version", "nothing is stored".into()));
    }
    rows.extend(it.channel_subscriptions.iter().map(|it| ("subscribers", subscribers_text(it))));
    if it.schema > 0 {
        rows.push(("schema", it.schema.to_string()));
    }
    if let Some(it) = &it.failed_migration {
        rows.push((
            "migration",
            format!("to revision {} failed: {}", it.revision, shown(&it.reason)),
        ));
    }
    rows.push(("instance", entities::instance_state(it.active).into()));
    rows.extend(it.mailbox_length.map(|waiting| ("mailbox", many(waiting, "message", "messages"))));
    if let Some(activity) = &it.activity {
        rows.extend(activity::rows(activity));
    }
    if let Some(it) = &it.last_failure {
        rows.push(("last turn", format!("failed at {}: {}", output::wall(it.unix_ms), it.code)));
        rows.push(("", shown(&it.message)));
        let count = many(it.consecutive_failures, "turn has failed", "turns have failed in a row");
        rows.push(("failures", count));
    }
    output::pairs(&rows);
    if !it.keys.is_empty() {
        output::line("");
        if args.values {
            let rows = it.keys.iter().map(|key| {
                [shown(&key.key), output::size(key.size), bytes_text(&key.value, key.size)]
            });
            output::table(["KEY", "SIZE", "VALUE"], rows.collect());
        } else {
            let rows = it.keys.iter().map(|key| [shown(&key.key), output::size(key.size)]);
            output::table(["KEY", "SIZE"], rows.collect());
        }
        let more = it.key_count.saturating_sub(it.keys.len() as u64);
        if more > 0 {
            output::line(&format!("and {more} more"));
        }
    }
    if !it.timers.is_empty() {
        output::line("");
        let rows = it.timers.iter().map(timer_row);
        output::table(["TIMER", "NEXT", "EVERY", "LAST FAILURE"], rows.collect());
        show_rest(it.timer_count, it.timers.len());
    }
    if !it.delayed_tells.is_empty() {
        output::line("");
        let rows = it.delayed_tells.iter().map(delayed_row);
        output::table(["DELAYED TELL", "LEAVES", "TO", "METHOD", "LAST FAILURE"], rows.collect());
        show_rest(it.delayed_tell_count, it.delayed_tells.len());
    }
    if !it.subscriptions.is_empty() {
        output::line("");
        let rows = it.subscriptions.iter().map(subscription_row);
        output::table(["CHANNEL", "SUBSCRIBER", "METHOD"], rows.collect());
        show_rest(it.subscription_count, it.subscriptions.len());
    }
    for (title, tells, count) in [
        ("OUTBOX", &it.outbox, it.outbox_count),
        ("DEAD LETTER", &it.dead_letters, it.dead_letter_count),
    ] {
        if tells.is_empty() {
            continue;
        }
        output::line("");
        output::table(
            [title, "TO", "METHOD", "LAST FAILURE"],
            tells.iter().map(tell_row).collect(),
        );
        show_rest(count, tells.len());
    }
    entities::check_owners(it.unresponsive_owner.as_slice())
}

fn journal_text(it: &JournalDetail) -> String {
    let events = match it.next_number.saturating_sub(it.first_number) {
        0 => format!("no events, next number {}", it.next_number),
        1 => format!("event {}", it.first_number),
        _ => format!("events {} to {}", it.first_number, it.next_number.saturating_sub(1)),
    };
    let snapshot = match it.snapshot_through {
        Some(through) => format!(", snapshot up to event {through}"),
        None => String::new(),
    };
    format!("{events}, {}{snapshot}", output::size(it.bytes))
}

fn channel_json(it: &ChannelDetail) -> Value {
    json!({
        "name": it.name, "first_number": it.first_number, "next_number": it.next_number, "bytes": it.bytes,
        "last_version": it.last_version,
    })
}

fn channel_text(it: &ChannelDetail) -> String {
    let emitted = it.next_number.saturating_sub(1);
    let kept = match it.next_number.saturating_sub(it.first_number) {
        0 => "none kept".to_owned(),
        kept => format!("the last {kept} kept, {}", output::size(it.bytes)),
    };
    format!("{}: {} emitted, {kept}", shown(&it.name), many(emitted, "item", "items"))
}

fn channel_subscriptions_json(it: &ChannelSubscriptions) -> Value {
    json!({ "channel": it.channel, "count": it.count })
}

fn subscribers_text(it: &ChannelSubscriptions) -> String {
    format!("{}: {}", shown(&it.channel), many(it.count, "entity", "entities"))
}

fn subscription_json(it: &SubscriptionDetail) -> Value {
    json!({ "channel": it.channel, "type": it.r#type, "id": it.id, "method": it.method })
}

fn subscription_row(it: &SubscriptionDetail) -> [String; 3] {
    [shown(&it.channel), shown(&format!("{}/{}", it.r#type, it.id)), shown(&it.method)]
}

/// Prints how many entries of a list are not shown.
fn show_rest(count: u64, shown: usize) {
    let more = count.saturating_sub(shown as u64);
    if more > 0 {
        output::line(&format!("and {more} more"));
    }
}

fn delayed_row(delayed: &DelayedTellDetail) -> [String; 5] {
    let [_, to, method, failure] = tell_row(&delayed.tell.clone().unwrap_or_default());
    let leaves = match delayed.set_aside {
        true => "set aside".into(),
        false => output::wall(delayed.due_unix_ms),
    };
    [shown(&delayed.name), leaves, to, method, failure]
}

fn delayed_json(delayed: &DelayedTellDetail) -> Value {
    let mut it = tell_json(&delayed.tell.clone().unwrap_or_default());
    if let Some(fields) = it.as_object_mut() {
        fields.remove("number");
    }
    it["name"] = delayed.name.clone().into();
    it["due_unix_ms"] = delayed.due_unix_ms.into();
    it["due"] = output::wall(delayed.due_unix_ms).into();
    it["set_aside"] = delayed.set_aside.into();
    it
}

pub(super) fn tell_row(tell: &TellDetail) -> [String; 4] {
    let to = format!("{}/{}", tell.r#type, tell.id);
    let failure = failure_text(&tell.failure, tell.attempts);
    [tell.number.to_string(), shown(&to), shown(&tell.method), failure]
}

pub(super) fn tell_json(tell: &TellDetail) -> Value {
    json!({
        "number": tell.number, "type": tell.r#type, "id": tell.id, "method": tell.method,
        "body_size": tell.body_size, "attempts": tell.attempts, "failure": tell.failure,
    })
}

/// The last failure, with the number of attempts.
fn failure_text(failure: &str, attempts: u32) -> String {
    match failure.is_empty() {
        true => "-".into(),
        false => format!("{} ({})", shown(failure), many(attempts.into(), "attempt", "attempts")),
    }
}

fn timer_row(timer: &TimerDetail) -> [String; 4] {
    let next = match timer.set_aside {
        true => "set aside".into(),
        false => output::wall(timer.due_unix_ms),
    };
    let every = match timer.interval_ms {
        0 => "-".into(),
        interval => output::span(interval),
    };
    [shown(&timer.name), next, every, failure_text(&timer.failure, timer.attempts)]
}

fn timer_json(timer: &TimerDetail) -> Value {
    json!({
        "name": timer.name, "due_unix_ms": timer.due_unix_ms, "due": output::wall(timer.due_unix_ms),
        "interval_ms": timer.interval_ms, "payload_size": timer.payload_size, "attempts": timer.attempts,
        "failure": timer.failure, "set_aside": timer.set_aside,
    })
}

fn key_json(key: &StateKey, values: bool) -> Value {
    let mut it = json!({ "key": key.key, "bytes": key.size });
    if values {
        add_bytes(&mut it, "value", &key.value, key.size);
    }
    it
}

/// Adds the bytes of a value of `size` bytes, which may be truncated. Complete UTF-8 is added as JSON if it parses and
/// as text otherwise; everything else as hexadecimal digits.
pub(super) fn add_bytes(it: &mut Value, name: &str, bytes: &[u8], size: u64) {
    let complete = bytes.len() as u64 == size;
    match std::str::from_utf8(bytes).ok().filter(|_| complete) {
        Some(text) => it[name] = serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        None => it[format!("{name}_hex")] = json!(hex(bytes)),
    }
    it["truncated"] = (!complete).into();
}

/// The bytes of a value of `size` bytes, which may be truncated, in one line that is safe to print on a terminal.
fn migration_json(it: &FailedMigration) -> Value {
    json!({ "revision": it.revision, "reason": it.reason })
}

fn journal_json(it: &JournalDetail) -> Value {
    json!({
        "first_number": it.first_number, "next_number": it.next_number, "bytes": it.bytes,
        "snapshot_through": it.snapshot_through,
    })
}

fn failure_json(it: &LastFailure) -> Value {
    json!({
        "code": it.code, "message": it.message, "consecutive_failures": it.consecutive_failures,
        "unix_ms": it.unix_ms, "timestamp": output::wall(it.unix_ms),
    })
}

fn issue_json(it: &NodeIssue) -> Value {
    json!({ "node": it.node, "reason": it.reason })
}

pub(super) fn bytes_text(bytes: &[u8], size: u64) -> String {
    let complete = bytes.len() as u64 == size;
    let text = match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => shown(text),
        // The bytes were truncated within a character, or are not text.
        Cow::Owned(_) if complete => format!("0x{}", hex(bytes)),
        Cow::Owned(text) => shown(text.trim_end_matches(char::REPLACEMENT_CHARACTER)),
    };
    if complete { text } else { format!("{text}…") }
}
