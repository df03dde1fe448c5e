//! Channels: which items a guest may emit.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use common::{command, failed, host, misbehaving, ok, prepare, query, started};
use ostraca_wasm::{
    ChannelNames, GuestTurnOutput, Instance, InstanceLimits, MessageContext, TurnRecords,
};
use serde_json::{Value, json};

#[derive(Debug)]
struct Names(BTreeSet<&'static str>);

impl ChannelNames for Names {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn contains(&self, channel: &str) -> bool {
        self.0.contains(channel)
    }
}

async fn turn(
    limits: InstanceLimits,
    before: &[&'static str],
    context: MessageContext,
    method: &str,
    body: Value,
) -> GuestTurnOutput {
    let program = prepare(&host(), misbehaving(), limits);
    let mut entity: Instance = started(&program, "e").await;
    let names: Arc<dyn ChannelNames> = Arc::new(Names(before.iter().copied().collect()));
    let channels = (!before.is_empty()).then_some(names);
    let records = TurnRecords { channels, ..TurnRecords::default() };
    let context = MessageContext { records: Some(records.into()), ..context };
    entity.message(context, method, Bytes::from(body.to_string())).await
}

async fn emit(limits: InstanceLimits, channel: &str, size: usize, count: usize) -> GuestTurnOutput {
    let body = json!({"channel": channel, "size": size, "count": count});
    turn(limits, &[], command(), "emit", body).await
}

#[tokio::test]
async fn items_leave_with_their_turn_in_order() {
    let body = json!({"on": ["b", "a", "b"], "text": "hi"});
    let output = turn(InstanceLimits::default(), &[], command(), "emit_text", body).await;
    assert_eq!(ok(&output), r#""hi""#);
    let emits = output.emits.iter().map(|emit| (&*emit.channel, &emit.data[..]));
    let hi = &br#""hi""#[..];
    assert_eq!(emits.collect::<Vec<_>>(), [("b", hi), ("a", hi), ("b", hi)]);
    let refused =
        turn(InstanceLimits::default(), &[], command(), "emit_and_refuse", json!(null)).await;
    assert_eq!(refused.emits, [], "a refused turn emits nothing");
}

#[tokio::test]
async fn r27_an_item_for_subscribers_takes_a_place_in_the_outbox() {
    let limits = InstanceLimits { outbox: 2, ..InstanceLimits::default() };
    let program = prepare(&host(), misbehaving(), limits);
    for (has_subscribers, count, full) in [(false, 3, false), (true, 2, false), (true, 3, true)] {
        let mut entity: Instance = started(&program, "e").await;
        let records = TurnRecords { has_subscribers, ..TurnRecords::default() };
        let context = MessageContext { records: Some(records.into()), ..command() };
        let body = json!({"channel": "c", "size": 1, "count": count}).to_string();
        let turn = entity.message(context, "emit", Bytes::from(body)).await;
        match full {
            true => assert_eq!(failed(&turn).code, "outbox-full"),
            false => assert_eq!(turn.emits.len(), count),
        }
    }
}

#[tokio::test]
async fn each_limit_on_channels_has_its_own_code() {
    let small = || InstanceLimits { item: 10, items: 3, channels: 2, ..InstanceLimits::default() };
    assert_eq!(emit(small(), "c", 10, 3).await.emits.len(), 3);
    let large = emit(small(), "c", 11, 1).await;
    assert_eq!(failed(&large).code, "item-too-large");
    let many = emit(small(), "c", 1, 4).await;
    assert_eq!(failed(&many).code, "turn-too-large");
    assert!(failed(&many).message.contains("`items` (3)"), "{}", failed(&many).message);
    let on = |on: &[&str]| json!({"on": on, "text": "x"});
    let both = turn(small(), &["a", "b"], command(), "emit_text", on(&["a", "b", "a"])).await;
    assert_eq!(both.emits.len(), 3, "known channels");
    let third = turn(small(), &["a", "b"], command(), "emit_text", on(&["a", "c"])).await;
    assert_eq!(failed(&third).code, "too-many-channels");
    let new = turn(small(), &["a"], command(), "emit_text", on(&["b", "b", "c"])).await;
    assert_eq!(failed(&new).code, "too-many-channels", "a turn's own channels count");
}

#[tokio::test]
async fn items_share_the_turns_bytes_with_state_and_journal() {
    let limits = || InstanceLimits { turn_bytes: 1_000, ..InstanceLimits::default() };
    // An item and an event have 100 bytes each, and so has a key, besides its name.
    let sizes = |item, key, event| json!({"item": item, "key": key, "event": event});
    let fits = turn(limits(), &[], command(), "emit_and_write", sizes(200, 200, 299)).await;
    assert_eq!(fits.emits.len(), 1, "{:?}", fits.result);
    for (item, key, event) in [(201, 200, 299), (200, 201, 299), (200, 200, 300), (901, 0, 0)] {
        let sizes = sizes(item, key, event);
        let beyond = turn(limits(), &[], command(), "emit_and_write", sizes).await;
        assert_eq!(failed(&beyond).code, "turn-too-large", "{item} {key} {event}");
    }
}

#[tokio::test]
async fn a_query_emits_nothing_and_names_are_checked() {
    let sly = turn(InstanceLimits::default(), &[], query(), "query_that_emits", json!(null)).await;
    assert_eq!(failed(&sly).code, "write-in-query");
    let long = "x".repeat(129);
    for name in ["", &long, "a\nb", "a\u{202e}b"] {
        let odd = emit(InstanceLimits::default(), name, 1, 1).await;
        assert_eq!(failed(&odd).code, "invalid-host-call", "{name:?}");
    }
    assert_eq!(emit(InstanceLimits::default(), &"x".repeat(128), 1, 1).await.emits.len(), 1);
}
