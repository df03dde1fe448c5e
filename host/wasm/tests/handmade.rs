//! Guests written by hand, for behaviour that no compiler produces, and for WASI without a compiler.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::handmade::guest;
use common::{failed, host, identity, misbehaving, ok, prepare, send, started};
use ostraca_codes::codes;
use ostraca_wasm::{
    FailureKind, InstanceLimits, InstanceSpec, LOG_TARGET, NoState, StartReason, TurnRecords,
};

#[tokio::test]
async fn an_endless_start_ends_at_the_activation_limit() {
    let host = host();
    let limits =
        InstanceLimits { activation_time: Duration::from_millis(20), ..InstanceLimits::default() };
    let program =
        prepare(&host, &guest("", "", "(func $start (loop (br 0))) (func $message)"), limits);
    let spec = InstanceSpec {
        identity: identity("e"),
        state: Box::new(NoState),
        values: common::values(1),
        records: TurnRecords::default(),
    };
    let turn = program.instantiate(spec).await.unwrap().start(StartReason::FirstMessage).await;
    assert_eq!(
        (failed(&turn).code, failed(&turn).kind),
        (codes::ACTIVATION_TIME_LIMIT, FailureKind::Limit)
    );
    assert!(failed(&turn).message.contains("activation-time (20 ms)"), "{turn:?}");
}

#[test]
fn an_endless_instantiation_is_refused_at_deploy() {
    let limits =
        InstanceLimits { activation_time: Duration::from_millis(20), ..InstanceLimits::default() };
    let guest =
        guest("", "", "(func $start) (func $message) (func $init (loop (br 0))) (start $init)");
    let error = host().prepare_blocking(&guest, limits).err().unwrap();
    assert_eq!(error.code(), "invalid-methods");
    assert!(error.to_string().contains("activation-time"), "{error}");
}

#[tokio::test]
async fn tables_end_at_their_limit() {
    let host = host();
    let parts = "(func $start) (func $message
        (if (i32.eq (table.grow $table (ref.null func) (i32.const 15000)) (i32.const -1)) (then unreachable)))";
    let program = prepare(&host, &guest("", "", parts), InstanceLimits::default());
    let turn = send(&mut started(&program, "e").await, "grow", "").await;
    assert_eq!((failed(&turn).code, failed(&turn).kind), (codes::TABLE_LIMIT, FailureKind::Limit));
}

#[tokio::test]
async fn a_reply_with_an_invalid_pointer_fails() {
    let host = host();
    // The reply's list begins at the end of the address space.
    let parts = "(func $start) (func $message
        (i32.store offset=1028 (i32.const 0) (i32.const -1)) (i32.store offset=1032 (i32.const 0) (i32.const 99)))";
    let program = prepare(&host, &guest("", "", parts), InstanceLimits::default());
    let turn = send(&mut started(&program, "e").await, "any", "").await;
    assert_eq!(
        (failed(&turn).code, failed(&turn).kind),
        (codes::INVALID_GUEST_VALUE, FailureKind::Guest)
    );
}

fn sleeper() -> Vec<u8> {
    guest(
        "import wasi:clocks/monotonic-clock@0.2.0;",
        r#"(import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $after (param i64) (result i32)))
           (import "wasi:io/poll@0.2.0" "[method]pollable.block" (func $block (param i32)))"#,
        // One hour.
        "(func $start) (func $message (call $block (call $after (i64.const 3600000000000))))",
    )
}

#[tokio::test]
async fn a_guest_that_sleeps_in_wasi_ends_at_the_turn_limit() {
    let host = host();
    let program = prepare(&host, &sleeper(), InstanceLimits::default());
    let turn = send(&mut started(&program, "e").await, "sleep", "").await;
    assert_eq!(failed(&turn).code, "turn-time-limit");
}

#[tokio::test]
async fn a_guest_that_sleeps_is_stopped_from_outside() {
    let host = host();
    let limits =
        InstanceLimits { turn_time: Duration::from_secs(600), ..InstanceLimits::default() };
    let program = prepare(&host, &sleeper(), limits);
    let mut entity = started(&program, "e").await;
    let interrupt = entity.interrupt_handle();
    let (turn, ()) = tokio::join!(send(&mut entity, "sleep", ""), async {
        tokio::task::yield_now().await;
        interrupt.interrupt();
    });
    assert_eq!(failed(&turn).code, "interrupted");
}

/// Collects what a subscriber writes.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_panic_is_one_log_entry_of_one_line() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let turn = send(&mut started(&program, "alice").await, "panic", r#""one\n  two""#).await;
    assert_eq!(failed(&turn).code, "panicked");
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in ["one | two", "lib.rs:", "code=\"panicked\"", "id=alice", "backtrace="] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("\\n"), "{text}");
}

#[tokio::test]
async fn a_line_break_of_a_guest_forges_no_log_line() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let program = prepare(&host(), misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "a\nb\u{1b}").await;
    ok(&send(&mut entity, "control", "\"log\"").await);
    assert_eq!(failed(&send(&mut entity, "control", "\"panic\"").await).code, "panicked");
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("forged: all is well"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("2026-01-01")), "{text}");
    assert!(!text.chars().any(|c| c != '\n' && ostraca_wasm::text::is_control(c)), "{text:?}");
}

#[tokio::test]
async fn standard_output_is_logged_by_line_with_the_entity_name() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let host = host();
    let component = guest(
        "import wasi:cli/stdout@0.2.0;",
        r#"(import "wasi:cli/stdout@0.2.0" "get-stdout" (func $stdout (result i32)))
           (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
               (func $write (param i32 i32 i32 i32)))"#,
        r#"(data (i32.const 64) "one\ntwo\nthr")
           (func $start) (func $message (call $write (call $stdout) (i32.const 64) (i32.const 11) (i32.const 128)))"#,
    );
    let program = prepare(
        &host,
        &component,
        InstanceLimits { log_line_bytes: 2, ..InstanceLimits::default() },
    );
    let turn = send(&mut started(&program, "alice").await, "print", "").await;
    assert_eq!((ok(&turn), turn.logs_dropped), ("", 0));
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains(LOG_TARGET)).collect();
    assert_eq!(lines.len(), 3, "{text}");
    // Each line was cut to its first two bytes.
    for (line, expected) in lines.iter().zip([": on ", ": tw ", ": th "]) {
        assert!(
            line.contains(expected) && line.contains("id=alice") && line.contains("type=guest"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_trap_after_denied_memory_keeps_its_own_code() {
    let host = host();
    let grow = |pages: u32| format!("(drop (memory.grow (i32.const {pages})))");
    for (message, code) in [
        // The guest gives up, as allocators do.
        (format!("{} unreachable", grow(1_000)), "memory-limit"),
        (format!("{} (drop (i32.div_u (i32.const 1) (i32.const 0)))", grow(1_000)), "trap"),
        // The guest made do with less memory, and failed later.
        (format!("{} {} unreachable", grow(1_000), grow(1)), "trap"),
    ] {
        let parts = format!("(func $start) (func $message {message})");
        let program = prepare(&host, &guest("", "", &parts), InstanceLimits::default());
        let turn = send(&mut started(&program, "e").await, "grow", "").await;
        let failure = failed(&turn);
        assert_eq!(failure.code, code, "{failure}");
        assert_eq!(failure.message.contains("denied memory"), message.contains("div"), "{failure}");
    }
}

#[tokio::test]
async fn wasi_handles_end_at_their_limit() {
    let host = host();
    let component = guest(
        "import wasi:clocks/monotonic-clock@0.2.0;",
        r#"(import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $after (param i64) (result i32)))"#,
        "(func $start) (func $message (loop (drop (call $after (i64.const 1))) (br 0)))",
    );
    let limits = InstanceLimits { turn_time: Duration::from_secs(60), ..InstanceLimits::default() };
    let program = prepare(&host, &component, limits);
    let turn = send(&mut started(&program, "e").await, "hold", "").await;
    assert_eq!((failed(&turn).code, failed(&turn).kind), (codes::HANDLE_LIMIT, FailureKind::Limit));
}

#[test]
fn method_names_and_summaries_have_their_own_limit() {
    // 80 methods whose names all point to the same 60,000 bytes.
    let method = r"\00\10\00\00\60\ea\00\00\00\00\00\00\00\00\00\00\00\00\00\00".repeat(80);
    let parts = format!(
        r#"(func $start) (func $message)
        (data (i32.const 1024) "\00\08\00\00\50\00\00\00") (data (i32.const 2048) "{method}")"#
    );
    let limits = InstanceLimits { state: 64 << 20, ..InstanceLimits::default() };
    let error = host().prepare_blocking(&guest("", "", &parts), limits).err().unwrap();
    assert_eq!(error.code(), "invalid-methods");
    assert!(error.to_string().contains("4194304 bytes"), "{error}");
}
