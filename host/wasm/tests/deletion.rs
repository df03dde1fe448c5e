//! Deletions by a guest: where `deletion.delete` may be called, and what it does to the turn (E17).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use bytes::Bytes;
use common::{command, failed, host, misbehaving, ok, prepare, query, started, values};
use ostraca_wasm::{
    GuestTurnOutput, Instance, InstanceLimits, InstanceSpec, MessageContext, NoState, StartReason,
    TurnRecords,
};

async fn turn(
    entity: &mut Instance,
    context: MessageContext,
    method: &str,
    body: &str,
) -> GuestTurnOutput {
    entity.message(context, method, Bytes::copy_from_slice(body.as_bytes())).await
}

#[tokio::test]
async fn e17_a_turn_deletes_its_entity_unless_it_fails() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let deleted = turn(&mut entity, command(), "delete", "\"x\"").await;
    assert_eq!((ok(&deleted), deleted.delete), ("\"x\"", true));
    let refused = turn(&mut entity, command(), "delete_and_refuse", "").await;
    assert!(!refused.delete, "a refused turn deletes nothing");
    let next = turn(&mut entity, command(), "note", "\"x\"").await;
    assert!(!next.delete, "the request ends with its turn");
}

#[tokio::test]
async fn e17_a_turn_sets_when_its_entity_expires() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let set = turn(&mut entity, command(), "expire_after", "500").await;
    assert_eq!((ok(&set), set.expiry), ("true", Some(Some(values(7).utc_ms + 500))));
    let records = TurnRecords { expires_at: Some(7), ..TurnRecords::default() };
    let later = MessageContext { records: Some(records.into()), ..query() };
    let seen = turn(&mut entity, later, "expires_at", "").await;
    assert_eq!((ok(&seen), seen.expiry), ("7", None));
    let refused = turn(&mut entity, command(), "expire_and_refuse", "").await;
    assert_eq!(refused.expiry, None);
}

#[tokio::test]
async fn e17_a_query_and_a_start_hook_delete_nothing() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let sly = turn(&mut entity, query(), "query_that_ends", "").await;
    assert_eq!((failed(&sly).code.as_str(), sly.delete), ("write-in-query", false));
    let spec = InstanceSpec {
        identity: common::identity("delete-start"),
        state: Box::new(NoState),
        values: values(1),
        records: TurnRecords::default(),
    };
    let mut entity = program.instantiate(spec).await.unwrap();
    let start = entity.start(StartReason::FirstMessage).await;
    assert_eq!((failed(&start).code.as_str(), start.delete), ("invalid-host-call", false));
}
