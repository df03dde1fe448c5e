//! Remembered entities: what a guest may mark (K31).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use bytes::Bytes;
use common::{command, failed, host, misbehaving, ok, prepare, query, started};
use ostraca_wasm::{GuestTurnOutput, Instance, InstanceLimits, MessageContext, TurnRecords};

async fn turn(
    entity: &mut Instance,
    context: MessageContext,
    remembered: bool,
    method: &str,
    body: &str,
) -> GuestTurnOutput {
    let records = TurnRecords { remembered, ..TurnRecords::default() };
    let context = MessageContext { records: Some(records.into()), ..context };
    entity.message(context, method, Bytes::copy_from_slice(body.as_bytes())).await
}

#[tokio::test]
async fn k31_a_turn_marks_its_entity_unless_it_fails() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let marked = turn(&mut entity, command(), false, "remember", "true").await;
    assert_eq!((ok(&marked), marked.remember), ("true", Some(true)));
    let forgotten = turn(&mut entity, command(), true, "remember", "false").await;
    assert_eq!((ok(&forgotten), forgotten.remember), ("false", Some(false)));
    let refused = turn(&mut entity, command(), false, "remember_and_refuse", "").await;
    assert_eq!(refused.remember, None);
    let unchanged = turn(&mut entity, command(), true, "note", "\"x\"").await;
    assert_eq!(unchanged.remember, None);
}

#[tokio::test]
async fn k31_a_query_reads_the_mark_and_may_not_change_it() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    for remembered in [true, false] {
        let read = turn(&mut entity, query(), remembered, "is_remembered", "").await;
        assert_eq!(ok(&read), remembered.to_string());
    }
    let sly = turn(&mut entity, query(), false, "query_that_remembers", "").await;
    assert_eq!(failed(&sly).code, "write-in-query");
}
