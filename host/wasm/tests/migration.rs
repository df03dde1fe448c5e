//! The export `migration`: what a component says about its schemas, and how it migrates an entity (R24).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{BARE, build, counter, failed, host, identity, misbehaving, prepare, values};
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_wasm::{
    GuestTurnOutput, InstanceLimits, InstanceSpec, Program, SchemaSupport, StateError, StateSource,
    StoredEvent, StoredSnapshot, TurnRecords, TurnResult,
};

/// The state of an entity that `evolving` wrote.
struct Old;

impl StateSource for Old {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        async { Ok(vec![(Bytes::from_static(b"n"), Bytes::from_static(b"7"))]) }.boxed()
    }

    fn events(
        &mut self,
        _: u64,
        _: usize,
    ) -> BoxFuture<'static, Result<Vec<StoredEvent>, StateError>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Option<StoredSnapshot>, StateError>> {
        async { Ok(None) }.boxed()
    }
}

async fn migrate(program: &Arc<Program>, id: &str, from: u32) -> GuestTurnOutput {
    let spec = InstanceSpec {
        identity: identity(id),
        state: Box::new(Old),
        values: values(1),
        records: TurnRecords::default(),
    };
    program.instantiate(spec).await.unwrap().migrate(from).await
}

#[tokio::test]
async fn r24_a_component_says_which_schemas_it_handles() {
    let host = host();
    let evolved = prepare(&host, &build("evolved", BARE), InstanceLimits::default());
    assert_eq!(evolved.schema(), SchemaSupport { version: 2, newest: 2 });
    for without in [counter(), misbehaving()] {
        let program = prepare(&host, without, InstanceLimits::default());
        assert_eq!(program.schema(), SchemaSupport::default());
    }
}

#[tokio::test]
async fn r24_a_migration_reads_and_writes_the_state() {
    let evolved = prepare(&host(), &build("evolved", BARE), InstanceLimits::default());
    let turn = migrate(&evolved, "a", 0).await;
    assert!(matches!(turn.result, TurnResult::Ok(_)), "{turn:?}");
    let mut writes = turn.writes;
    writes.sort();
    let count = (Bytes::from_static(b"count"), Some(Bytes::from_static(b"7")));
    assert_eq!(writes, [count, (Bytes::from_static(b"n"), None)]);
}

#[tokio::test]
async fn r24_a_failed_migration_writes_nothing() {
    let evolved = prepare(&host(), &build("evolved", BARE), InstanceLimits::default());
    for (id, from, code, text) in [
        ("stuck", 0, "panicked", "this id traps"),
        ("a", 1, "panicked", "the only earlier schema"),
        ("refused", 0, "migration-refused", "no: this id is refused"),
    ] {
        let turn = migrate(&evolved, id, from).await;
        assert!(turn.writes.is_empty());
        let failure = failed(&turn);
        assert_eq!(failure.code, code);
        assert!(failure.message.contains(text) && !failure.is_retryable(), "{failure:?}");
    }
}

#[tokio::test]
async fn a_component_without_migration_refuses_to_migrate() {
    let program = prepare(&host(), counter(), InstanceLimits::default());
    assert_eq!(failed(&migrate(&program, "a", 3).await).code, "migration-refused");
}
