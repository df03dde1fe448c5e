//! Guests that do what no guest should: each attack gets its error code, and a neighbour still answers right after it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{ADD, ask, failed, host, misbehaving, ok, prepare, refused, rubbish, send, started};
use ostraca_codes::codes;
use ostraca_wasm::{
    Failure, FailureKind, Instance, InstanceLimits, InstanceSpec, NoState, Program, StartReason,
    StopReason, TurnRecords, WasmRuntime,
};

/// Sends one message that must fail, and checks that the instance is poisoned and a neighbour is not.
async fn attack(program: &Arc<Program>, method: &str, body: &str) -> Failure {
    let mut neighbour = started(program, "neighbour").await;
    let mut entity = started(program, "e").await;
    let turn = if method.contains("query") || ["reply", "list"].contains(&method) {
        ask(&mut entity, method, body).await
    } else {
        send(&mut entity, method, body).await
    };
    assert!(turn.writes.is_empty());
    assert_eq!(failed(&send(&mut entity, "add", ADD).await).code, "instance-dropped");
    assert_eq!(ok(&send(&mut neighbour, "add", ADD).await), "1");
    failed(&turn).clone()
}

fn program(host: &WasmRuntime) -> Arc<Program> {
    prepare(host, misbehaving(), InstanceLimits::default())
}

#[tokio::test]
async fn a_panic_reaches_the_caller_with_message_file_and_line() {
    let failure = attack(&program(&host()), "panic", "\"oh no\"").await;
    assert_eq!((failure.code, failure.kind), (codes::PANICKED, FailureKind::Guest));
    assert!(failure.message.contains("oh no") && failure.message.contains("lib.rs:"), "{failure}");
}

#[tokio::test]
async fn state_that_does_not_fit_has_codes_of_its_own() {
    let program = program(&host());
    // A message of the SDK itself: the key holds a string, and `add` reads a number.
    let body = r#"{"key": "start-reason", "by": 1}"#;
    let failure = attack(&program, "add", body).await;
    assert_eq!((failure.code, failure.kind), (codes::STATE_DOES_NOT_DECODE, FailureKind::Guest));
    assert!(failure.message.contains("start-reason"), "{failure}");
    for (message, code) in [
        ("state-does-not-encode: it is NaN", "state-does-not-encode"),
        ("state-does-not-decode", "panicked"),
        ("turn-time-limit: as I say", "panicked"),
    ] {
        let failure = attack(&program, "panic", &format!("{message:?}")).await;
        assert_eq!(failure.code, code, "{failure}");
    }
}

#[tokio::test]
async fn a_trap_message_names_its_export() {
    let failure = attack(&program(&host()), "trap", "").await;
    assert_eq!((failure.code, failure.kind), (codes::TRAP, FailureKind::Guest));
    assert!(failure.message.starts_with("message "), "{failure}");
}

#[tokio::test]
async fn a_loop_ends_at_the_turn_limit() {
    let host = host();
    let program = program(&host);
    for method in ["spin_for_ever", "spin_for_ever_in_a_query"] {
        let failure = attack(&program, method, "").await;
        assert_eq!((failure.code, failure.kind), (codes::TURN_TIME_LIMIT, FailureKind::Limit));
        assert!(failure.message.contains("turn-time (100 ms)"), "{failure}");
    }
}

#[tokio::test]
async fn a_loop_lets_others_run_on_the_same_thread() {
    let host = host();
    let limits =
        InstanceLimits { turn_time: Duration::from_millis(300), ..InstanceLimits::default() };
    let program = prepare(&host, misbehaving(), limits);
    let (mut loops, mut works) =
        (started(&program, "loops").await, started(&program, "works").await);
    let looping = send(&mut loops, "spin_for_ever", "");
    let working = async {
        for sum in 1..=3 {
            assert_eq!(ok(&send(&mut works, "add", ADD).await), sum.to_string());
        }
    };
    tokio::pin!(looping, working);
    // The working guest finishes first although both share this thread.
    tokio::select! {
        biased;
        turn = &mut looping => panic!("{turn:?}"),
        () = &mut working => {}
    }
    assert_eq!(failed(&looping.await).code, "turn-time-limit");
}

#[tokio::test]
async fn a_turn_below_its_limit_may_be_long() {
    let host = host();
    let limits = InstanceLimits { turn_time: Duration::from_secs(30), ..InstanceLimits::default() };
    let program = prepare(&host, misbehaving(), limits);
    let mut entity = started(&program, "e").await;
    let turn = send(&mut entity, "spin", "100").await;
    assert_eq!(ok(&turn), "4999999950000000");
    assert!(turn.guest_time > Duration::ZERO);
}

#[tokio::test]
async fn memory_ends_at_its_limit() {
    let host = host();
    let limits = InstanceLimits { turn_time: Duration::from_secs(30), ..InstanceLimits::default() };
    let failure = attack(&prepare(&host, misbehaving(), limits), "allocate", "").await;
    assert_eq!((failure.code, failure.kind), (codes::MEMORY_LIMIT, FailureKind::Limit));
    assert!(failure.message.contains("16777216"), "{failure}");
}

#[tokio::test]
async fn a_type_with_more_memory_than_the_pool_runs_outside_it() {
    let host = host();
    let limits = InstanceLimits {
        memory: 64 << 20,
        turn_time: Duration::from_secs(30),
        ..InstanceLimits::default()
    };
    let program = prepare(&host, misbehaving(), limits);
    assert!(host.status().large);
    let failure = attack(&program, "allocate", "").await;
    assert_eq!(failure.code, "memory-limit");
    assert!(failure.message.contains("67108864"), "{failure}");
}

#[tokio::test]
async fn recursion_ends_at_the_stack_limit() {
    let failure = attack(&program(&host()), "recurse", "").await;
    assert_eq!((failure.code, failure.kind), (codes::STACK_OVERFLOW, FailureKind::Limit));
}

#[tokio::test]
async fn a_query_that_writes_fails() {
    let host = host();
    for method in ["query_that_sets", "query_that_deletes"] {
        let failure = attack(&program(&host), method, "").await;
        assert_eq!((failure.code, failure.kind), (codes::WRITE_IN_QUERY, FailureKind::Guest));
    }
}

#[tokio::test]
async fn state_ends_at_its_limit() {
    let host = host();
    for body in [r#"{"keys":200,"bytes":8192}"#, r#"{"keys":1,"bytes":2000000}"#] {
        let failure = attack(&program(&host), "fill", body).await;
        assert_eq!((failure.code, failure.kind), (codes::STATE_TOO_LARGE, FailureKind::Limit));
        assert!(failure.message.contains("1048576"), "{failure}");
    }
}

#[tokio::test]
async fn keys_per_entity_and_per_turn_are_limited() {
    let host = host();
    let failure = attack(&program(&host), "many_keys", r#"{"from":0,"keys":60000}"#).await;
    assert_eq!((failure.code, failure.kind), (codes::TURN_TOO_LARGE, FailureKind::Limit));
    assert!(failure.message.contains("`turn-keys` (1000)"), "{failure}");
    let limits = InstanceLimits { keys: 5, ..InstanceLimits::default() };
    let few = prepare(&host, misbehaving(), limits);
    let failure = attack(&few, "many_keys", r#"{"from":0,"keys":6}"#).await;
    assert_eq!((failure.code, failure.kind), (codes::TOO_MANY_KEYS, FailureKind::Limit));
    let limits = InstanceLimits { turn_bytes: 10_000, ..InstanceLimits::default() };
    let failure =
        attack(&prepare(&host, misbehaving(), limits), "fill", r#"{"keys":2,"bytes":8192}"#).await;
    assert_eq!((failure.code, failure.kind), (codes::TURN_TOO_LARGE, FailureKind::Limit));
    assert!(failure.message.contains("`turn-bytes` (10000)"), "{failure}");
}

#[tokio::test]
async fn a_reply_ends_at_its_limit() {
    let failure = attack(&program(&host()), "reply", "2000000").await;
    assert_eq!((failure.code, failure.kind), (codes::REPLY_TOO_LARGE, FailureKind::Limit));
}

#[tokio::test]
async fn keys_and_pages_out_of_bounds_fail_with_a_reason() {
    let host = host();
    for (method, body) in
        [("set_key_of", "0"), ("set_key_of", "513"), ("list", "0"), ("list", "1001")]
    {
        let failure = attack(&program(&host), method, body).await;
        assert_eq!((failure.code, failure.kind), (codes::INVALID_HOST_CALL, FailureKind::Guest));
        assert!(failure.message.contains("must be 1 to"), "{failure}");
    }
    let mut entity = started(&program(&host), "e").await;
    ok(&send(&mut entity, "set_key_of", "512").await);
    ok(&ask(&mut entity, "list", "1000").await);
}

#[tokio::test]
async fn excess_log_lines_are_dropped_and_counted() {
    let host = host();
    let mut entity = started(&program(&host), "e").await;
    let turn = send(&mut entity, "log", r#"{"lines":1000,"bytes":10000}"#).await;
    ok(&turn);
    assert!((500..=900).contains(&turn.logs_dropped), "{}", turn.logs_dropped);
    assert_eq!(send(&mut entity, "add", ADD).await.logs_dropped, 0);
}

#[tokio::test]
async fn a_failing_start_and_an_endless_stop_end_in_a_failure() {
    let host = host();
    let program = program(&host);
    let spec = InstanceSpec {
        identity: common::identity("no-start"),
        state: Box::new(NoState),
        values: common::values(1),
        records: TurnRecords::default(),
    };
    let mut entity = program.instantiate(spec).await.unwrap();
    let turn = entity.start(StartReason::FirstMessage).await;
    assert_eq!(failed(&turn).code, "start-failed");
    assert!(turn.writes.is_empty());
    let mut entity = started(&program, "no-stop").await;
    assert_eq!(
        failed(&entity.stop(StopReason::Idle, common::values(2), TurnRecords::default()).await)
            .code,
        "turn-time-limit"
    );
}

#[tokio::test]
async fn an_error_code_of_invalid_length_fails_the_turn() {
    let host = host();
    let program = prepare(&host, rubbish(), InstanceLimits::default());
    for length in [0, 129] {
        let mut entity = started(&program, "e").await;
        assert_eq!(
            failed(&send(&mut entity, "code", &"x".repeat(length)).await).code,
            "invalid-error-code"
        );
    }
    let mut entity = started(&program, "e").await;
    assert_eq!(refused(&send(&mut entity, "code", &"x".repeat(128)).await).0.len(), 128);
}

#[tokio::test]
async fn a_running_turn_is_stopped_from_outside() {
    let host = host();
    let limits =
        InstanceLimits { turn_time: Duration::from_secs(600), ..InstanceLimits::default() };
    let program = prepare(&host, misbehaving(), limits);
    let mut entity = started(&program, "e").await;
    let interrupt = entity.interrupt_handle();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        interrupt.interrupt();
    });
    let turn = send(&mut entity, "spin_for_ever", "").await;
    assert_eq!(failed(&turn).code, "interrupted");
    assert!(failed(&turn).is_retryable());
}

#[tokio::test]
async fn an_abandoned_turn_poisons_its_instance_and_frees_its_slot() {
    let host = host();
    let limits =
        InstanceLimits { turn_time: Duration::from_secs(600), ..InstanceLimits::default() };
    let program = prepare(&host, misbehaving(), limits);
    let mut entity: Instance = started(&program, "e").await;
    let given_up =
        tokio::time::timeout(Duration::from_millis(20), send(&mut entity, "spin_for_ever", ""))
            .await;
    assert!(given_up.is_err());
    assert_eq!(failed(&send(&mut entity, "add", ADD).await).code, "instance-dropped");
    assert_eq!(host.status().live_instances, 1);
    drop(entity);
    assert_eq!(host.status().live_instances, 0);
    ok(&send(&mut started(&program, "e").await, "add", ADD).await);
}

/// Returns the failure of a start that must fail.
async fn failed_start(program: &Arc<Program>, id: &str) -> Failure {
    let spec = InstanceSpec {
        identity: common::identity(id),
        state: Box::new(NoState),
        values: common::values(1),
        records: TurnRecords::default(),
    };
    let mut entity = program.instantiate(spec).await.unwrap();
    failed(&entity.start(StartReason::FirstMessage).await).clone()
}

#[tokio::test]
async fn the_text_of_a_failure_is_cut_at_4_kib() {
    let host = host();
    let limits = InstanceLimits {
        memory: 64 << 20,
        activation_time: Duration::from_secs(60),
        ..InstanceLimits::default()
    };
    let program = prepare(&host, misbehaving(), limits);
    let failure = failed_start(&program, "long-start").await;
    assert_eq!(failure.code, "start-failed");
    assert!(failure.message.len() <= 4 << 10, "{} bytes", failure.message.len());
    assert!(failure.message.contains("ööö") && failure.message.ends_with(" bytes more)"));
    // A message of 8 MiB is not even copied.
    let failure = failed_start(&program, "huge-start").await;
    assert_eq!((failure.code, failure.kind), (codes::VALUE_TOO_LARGE, FailureKind::Limit));
    assert!(failure.message.contains("4259840 bytes"), "{failure}");
}

#[tokio::test]
async fn failures_escape_control_characters_and_codes_refuse_them() {
    let host = host();
    let program = program(&host);
    let forged = "a | 2026-01-01T00:00:00Z  INFO forged";
    for failure in [
        failed_start(&program, "control-start").await,
        attack(&program, "control", "\"panic\"").await,
    ] {
        assert!(failure.message.contains(forged), "{failure}");
        assert!(!failure.message.chars().any(ostraca_wasm::text::is_control), "{failure}");
    }
    let failure = attack(&program, "control", "\"code\"").await;
    assert_eq!(failure.code, "invalid-error-code");
    assert!(!failure.message.chars().any(ostraca_wasm::text::is_control), "{failure}");
}
