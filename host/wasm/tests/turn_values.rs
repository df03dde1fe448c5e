//! Clock and randomness: the values that a guest reads belong to its turn (R20).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::handmade::guest;
use common::{WASI, build, failed, host, misbehaving, ok, prepare, query, started, values};
use ostraca_wasm::{
    Instance, InstanceLimits, MessageContext, StopReason, TurnRecords, TurnResult, TurnValues,
};

/// Runs one turn with these values, and returns the reply.
async fn turn(instance: &mut Instance, values: TurnValues, method: &str, body: &str) -> Vec<u8> {
    let context = MessageContext { values, ..query() };
    let turn = instance.message(context, method, body.to_owned().into()).await;
    match turn.result {
        TurnResult::Ok(reply) => reply.to_vec(),
        other => panic!("{method}: {other:?}"),
    }
}

#[tokio::test]
async fn r20_a_turn_run_again_reads_the_same_values() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut first = started(&program, "e").await;
    let reply = turn(&mut first, values(7), "values", "40").await;
    let (utc_ms, _, drawn): (u64, u64, Vec<u8>) = serde_json::from_slice(&reply).unwrap();
    assert_eq!((utc_ms, drawn.len()), (values(7).utc_ms, 40));
    assert!(drawn.iter().any(|byte| *byte != 0));
    // Another turn reads other values; the same turn reads the same ones, on this instance and on a new one.
    assert_ne!(turn(&mut first, values(8), "values", "40").await, reply);
    assert_eq!(turn(&mut first, values(7), "values", "40").await, reply);
    first.stop(StopReason::HandedOff, values(9), TurnRecords::default()).await;
    assert_eq!(turn(&mut started(&program, "e").await, values(7), "values", "40").await, reply);
}

#[tokio::test]
async fn many_random_bytes_come_in_several_calls() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let reply = turn(&mut entity, values(7), "values", "70000").await;
    let (_, _, drawn): (u64, u64, Vec<u8>) = serde_json::from_slice(&reply).unwrap();
    assert_eq!(drawn.len(), 70_000);
    assert_ne!(drawn[..4_000], drawn[66_000..]);
}

#[tokio::test]
async fn one_call_returns_at_most_65536_random_bytes() {
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let turn = entity.message(query(), "random_bytes", "65536".into()).await;
    assert_eq!(ok(&turn), "65536");
    let turn = entity.message(query(), "random_bytes", "65537".into()).await;
    assert_eq!(failed(&turn).code, "invalid-host-call");
    assert!(failed(&turn).message.contains("65537"), "{turn:?}");
}

#[tokio::test]
async fn the_standard_librarys_clock_is_that_of_the_turn() {
    let component = build("misbehaving", WASI);
    let program = prepare(&host(), &component, InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let reply = turn(&mut entity, values(7), "values", "0").await;
    let (utc_ms, by_std, _): (u64, u64, Vec<u8>) = serde_json::from_slice(&reply).unwrap();
    assert_eq!((utc_ms, by_std), (values(7).utc_ms, values(7).utc_ms));
}

#[tokio::test]
async fn r20_wasi_gives_the_values_of_the_turn() {
    for (import, interface, function) in [
        ("wasi:random/random@0.2.0", "random", "get-random-u64"),
        ("wasi:random/insecure@0.2.0", "insecure", "get-insecure-random-u64"),
        ("wasi:clocks/monotonic-clock@0.2.0", "clock", "now"),
    ] {
        let component = guest(
            &format!("import {import};"),
            &format!(r#"(import "{import}" "{function}" (func $read (result i64)))"#),
            // The reply is the number's eight bytes.
            "(func $start) (func $message
                (i64.store (i32.const 2048) (call $read))
                (i32.store offset=1028 (i32.const 0) (i32.const 2048))
                (i32.store offset=1032 (i32.const 0) (i32.const 8)))",
        );
        let program = prepare(&host(), &component, InstanceLimits::default());
        let mut entity = started(&program, "e").await;
        let first = turn(&mut entity, values(7), "read", "").await;
        let mut again = started(&program, "e").await;
        assert_eq!(turn(&mut again, values(7), "read", "").await, first, "{interface}");
        if interface == "clock" {
            let nanos = u64::from_le_bytes(first[..].try_into().unwrap());
            assert_eq!(nanos, values(7).utc_ms * 1_000_000);
        } else {
            assert_ne!(turn(&mut again, values(8), "read", "").await, first, "{interface}");
        }
    }
}
