//! The journal: what a guest may append, read and remove (E16, E18).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::{ask, command, failed, host, misbehaving, ok, prepare, query, started_with};
use futures::future::BoxFuture;
use ostraca_wasm::{
    EVENT_CHARGE, GuestTurnOutput, Instance, InstanceLimits, JournalUse, MessageContext,
    StateError, StateSource, StoredEvent, StoredSnapshot, TurnRecords, TurnResult,
};
use serde_json::{Value, json};

/// What the store holds of a journal.
#[derive(Default)]
struct Stored {
    extent: JournalUse,
    events: BTreeMap<u64, StoredEvent>,
    snapshot: Option<StoredSnapshot>,
    version: u64,
    reads: usize,
}

/// A source that reads at most two events in one page. The state must not be loaded.
#[derive(Clone, Default)]
struct Source(Arc<Mutex<Stored>>);

impl Source {
    fn with<T>(&self, use_it: impl FnOnce(&mut Stored) -> T) -> T {
        use_it(&mut self.0.lock().unwrap())
    }

    /// Stores what a turn has changed.
    fn commit(&self, turn: &GuestTurnOutput) {
        self.with(|it| {
            for data in turn.journal.events.clone() {
                let (number, start) = (it.extent.next, it.extent.end);
                it.extent.end += data.len() as u64 + EVENT_CHARGE;
                it.extent.next += 1;
                it.events.insert(number, StoredEvent { number, start, data });
            }
            if let Some((first, start)) = turn.journal.keep_from {
                (it.extent.first, it.extent.start) = (first, start);
                it.events.retain(|number, _| *number >= first);
                let kept = it.events.values().next().map_or(it.extent.end, |event| event.start);
                assert_eq!(start, kept, "the bytes before the first event that is kept");
            }
            if let Some((through, data)) = turn.journal.snapshot.clone() {
                it.extent.snapshot = through;
                it.extent.snapshot_bytes = data.len() as u64 + EVENT_CHARGE;
                it.version += 1;
                it.extent.snapshot_version = it.version;
                it.snapshot = Some(StoredSnapshot { through, version: it.version, data });
            }
        });
    }
}

impl StateSource for Source {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        panic!("the state was loaded");
    }

    fn events(
        &mut self,
        from: u64,
        count: usize,
    ) -> BoxFuture<'static, Result<Vec<StoredEvent>, StateError>> {
        let events = self.with(|it| {
            it.reads += 1;
            it.events.range(from..).take(count.min(2)).map(|(_, event)| event.clone()).collect()
        });
        Box::pin(async move {
            tokio::task::yield_now().await;
            Ok(events)
        })
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Option<StoredSnapshot>, StateError>> {
        let snapshot = self.with(|it| it.snapshot.clone());
        Box::pin(async move { Ok(snapshot) })
    }
}

/// An entity whose turns are committed at once.
struct Entity(Instance, Source);

impl Entity {
    async fn new(limits: InstanceLimits) -> Entity {
        let program = prepare(&host(), misbehaving(), limits);
        let source = Source::default();
        Entity(started_with(&program, "no-state", Box::new(source.clone())).await, source)
    }

    async fn turn(
        &mut self,
        context: MessageContext,
        method: &str,
        body: Value,
    ) -> GuestTurnOutput {
        let journal = self.1.with(|it| it.extent);
        let context = MessageContext {
            records: Some(Box::new(TurnRecords { journal, ..Default::default() })),
            ..context
        };
        let turn = self.0.message(context, method, body.to_string().into()).await;
        self.1.commit(&turn);
        turn
    }

    async fn send(&mut self, method: &str, body: Value) -> Value {
        serde_json::from_str(ok(&self.turn(command(), method, body).await)).unwrap()
    }

    async fn ask(&mut self, method: &str, body: Value) -> Value {
        serde_json::from_str(ok(&self.turn(query(), method, body).await)).unwrap()
    }
}

#[tokio::test]
async fn e16_a_turn_that_appends_reads_nothing() {
    let mut entity = Entity::new(InstanceLimits::default()).await;
    assert_eq!(entity.send("append", json!(["a", "b"])).await, json!([1, 2]));
    assert_eq!(entity.send("append", json!(["c"])).await, json!([3]));
    assert_eq!(entity.ask("extent", json!(null)).await, json!([1, 4, 303, null]));
    assert_eq!(entity.1.with(|it| it.reads), 0, "and the state was never loaded");
}

#[tokio::test]
async fn events_are_read_in_order_page_by_page() {
    let mut entity = Entity::new(InstanceLimits::default()).await;
    assert_eq!(entity.ask("events", json!({ "from": 0, "limit": 9 })).await, json!([[], null]));
    entity.send("append", json!(["a", "b", "c", "d", "e"])).await;
    let page = |from, limit| json!({ "from": from, "limit": limit });
    let ab = json!([[[1, "a"], [2, "b"]], 3]);
    assert_eq!(entity.ask("events", page(0, 9)).await, ab, "the store's page was smaller");
    assert_eq!(entity.ask("events", page(5, 9)).await, json!([[[5, "e"]], null]));
    assert_eq!(entity.ask("events", page(1, 1)).await, json!([[[1, "a"]], 2]));
    assert_eq!(entity.ask("events", page(6, 9)).await, json!([[], null]));
    assert_eq!(entity.ask("events", page(99, 9)).await, json!([[], null]));
    for limit in [0, 1_001] {
        let mut entity = Entity::new(InstanceLimits::default()).await;
        let turn = entity.turn(query(), "events", page(0, limit)).await;
        assert_eq!(failed(&turn).code, "invalid-host-call");
    }
}

#[tokio::test]
async fn a_turn_sees_its_own_changes_to_the_journal() {
    let mut entity = Entity::new(InstanceLimits::default()).await;
    entity.send("append", json!(["a"])).await;
    let both = |text, before| json!({ "text": text, "before": before });
    assert_eq!(entity.send("append_and_truncate", both("b", 0)).await, json!([1, [1, 2]]));
    assert_eq!(entity.send("append_and_truncate", both("c", 2)).await, json!([2, [2, 3]]));
    assert_eq!(entity.send("append_and_truncate", both("d", 4)).await, json!([4, [4]]));
    assert_eq!(entity.send("append_and_truncate", both("e", 99)).await, json!([6, []]));
    assert_eq!(entity.ask("extent", json!(null)).await, json!([6, 6, 0, null]));
    assert_eq!(entity.send("append", json!(["f"])).await, json!([6]), "no number is reused");
}

#[tokio::test]
async fn a_snapshot_includes_all_events_so_far() {
    let mut entity = Entity::new(InstanceLimits::default()).await;
    assert_eq!(entity.ask("saved", json!(null)).await, json!(null));
    assert_eq!(entity.send("save", json!("none")).await, json!([0, "none"]));
    entity.send("append", json!(["a", "b"])).await;
    assert_eq!(entity.ask("saved", json!(null)).await, json!([0, "none"]), "the last one stays");
    assert_eq!(entity.send("save", json!("ab")).await, json!([2, "ab"]));
    assert_eq!(entity.send("truncate", json!(3)).await, json!(3));
    assert_eq!(entity.ask("saved", json!(null)).await, json!([2, "ab"]));
    assert_eq!(entity.ask("extent", json!(null)).await, json!([3, 3, 102, 2]));
}

#[tokio::test]
async fn a_query_and_a_refused_turn_append_nothing() {
    for method in ["query_that_appends", "query_that_truncates"] {
        let mut entity = Entity::new(InstanceLimits::default()).await;
        entity.send("append", json!(["a"])).await;
        let turn = ask(&mut entity.0, method, "").await;
        assert_eq!(failed(&turn).code, "write-in-query");
    }
    let mut entity = Entity::new(InstanceLimits::default()).await;
    let turn = entity.turn(command(), "append_and_refuse", json!("x")).await;
    assert!(matches!(turn.result, TurnResult::Application { .. }), "{turn:?}");
    assert_eq!(entity.ask("extent", json!(null)).await, json!([1, 1, 0, null]));
    assert_eq!(entity.send("append", json!(["a"])).await, json!([1]));
}

#[tokio::test]
async fn each_limit_on_the_journal_has_its_own_code() {
    let limits = InstanceLimits {
        journal: 5_000,
        turn_bytes: 3_000,
        turn_keys: 10,
        ..InstanceLimits::default()
    };
    for (bytes, count, expected) in [
        (0, 10, Ok(13)),
        (0, 11, Err("turn-too-large")),
        (1_400, 2, Ok(5)),
        (1_401, 2, Err("turn-too-large")),
        (2_901, 1, Err("turn-too-large")),
    ] {
        let mut entity = Entity::new(limits.clone()).await;
        entity.send("append_sized", json!({ "bytes": 0, "count": 2 })).await;
        let body = json!({ "bytes": bytes, "count": count });
        let turn = entity.turn(command(), "append_sized", body).await;
        let outcome = match &turn.result {
            TurnResult::Ok(next) => Ok(serde_json::from_slice(next).unwrap()),
            _ => Err(failed(&turn).code.as_str()),
        };
        assert_eq!(outcome, expected, "{count} events of {bytes} bytes");
    }
    let mut entity = Entity::new(limits).await;
    entity.send("append_sized", json!({ "bytes": 2_900, "count": 1 })).await;
    let turn = entity.turn(command(), "append_sized", json!({ "bytes": 1_901, "count": 1 })).await;
    assert_eq!(failed(&turn).code, "journal-too-large");
    assert!(failed(&turn).message.contains("5001 bytes, limits.journal is 5000"), "{turn:?}");
}

#[tokio::test]
async fn a_journal_that_has_changed_meanwhile_fails_the_turn() {
    let mut entity = Entity::new(InstanceLimits::default()).await;
    entity.send("append", json!(["a", "b", "c"])).await;
    // Another owner of the shard has removed an event.
    entity.1.with(|it| it.events.remove(&1));
    entity.send("save", json!("abc")).await;
    entity.1.with(|it| it.extent.snapshot_version += 1);
    let turn = entity.turn(query(), "saved", json!(null)).await;
    assert_eq!(failed(&turn).code, "state-unavailable", "another snapshot of the same events");
    let mut entity = Entity::new(InstanceLimits::default()).await;
    entity.send("append", json!(["a", "b", "c"])).await;
    entity.1.with(|it| it.events.remove(&1));
    let turn = entity.turn(query(), "events", json!({ "from": 1, "limit": 9 })).await;
    assert_eq!(failed(&turn).code, "state-unavailable");
    assert!(failed(&turn).is_retryable());
}
