//! Real guests, built from this repository, and a way to run their turns.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod handmade;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use ostraca_wasm::{
    CompilerProgram, CompilerSettings, EntityIdentity, Failure, GuestTurnOutput, Instance,
    InstanceLimits, InstanceSpec, MessageContext, MessageKind, NoState, Program, RuntimeSettings,
    StartReason, StateSource, TurnRecords, TurnResult, TurnValues, WasmRuntime,
};

/// `wasm32-unknown-unknown`, encoded by this crate.
pub(crate) const BARE: &str = "wasm32-unknown-unknown";
/// A component as it comes out of rustc.
pub(crate) const WASI: &str = "wasm32-wasip2";

/// The body for `add` of the misbehaving guest: adds one to the number under `k`.
pub(crate) const ADD: &str = r#"{"key":"k","by":1}"#;

static COUNTER: LazyLock<Vec<u8>> = LazyLock::new(|| build("counter", BARE));
static ACCOUNT: LazyLock<Vec<u8>> = LazyLock::new(|| build("account", BARE));
static MISBEHAVING: LazyLock<Vec<u8>> = LazyLock::new(|| build("misbehaving", BARE));
static RUBBISH: LazyLock<Vec<u8>> = LazyLock::new(|| build("rubbish", BARE));

pub(crate) fn counter() -> &'static [u8] {
    &COUNTER
}

pub(crate) fn account() -> &'static [u8] {
    &ACCOUNT
}

pub(crate) fn misbehaving() -> &'static [u8] {
    &MISBEHAVING
}

pub(crate) fn rubbish() -> &'static [u8] {
    &RUBBISH
}

/// Builds a guest into a separate target directory, so that it never waits for the build that runs this test.
pub(crate) fn build(package: &str, target: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let out = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("guests");
    install(target);
    let built = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["build", "--quiet", "--release", "-p", package, "--target", target, "--target-dir"])
        .arg(&out)
        // This test's build flags must not leak into the build of the guest.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .unwrap();
    assert!(built.success(), "{package} did not build for {target}");
    let module =
        std::fs::read(out.join(target).join("release").join(format!("{package}.wasm"))).unwrap();
    ostraca_wasm::encode(&module).unwrap()
}

fn install(target: &str) {
    let installed =
        Command::new("rustup").args(["target", "list", "--installed"]).output().unwrap();
    if !String::from_utf8_lossy(&installed.stdout).lines().any(|line| line == target) {
        assert!(Command::new("rustup").args(["target", "add", target]).status().unwrap().success());
    }
}

/// The defaults, with this crate's own compiler.
pub(crate) fn settings() -> RuntimeSettings {
    let program = CompilerProgram::Executable(env!("CARGO_BIN_EXE_ostraca-compiler").into());
    let compiler = CompilerSettings { program, ..CompilerSettings::default() };
    RuntimeSettings { compiler, ..RuntimeSettings::default() }
}

pub(crate) fn host() -> WasmRuntime {
    WasmRuntime::new(&RuntimeSettings { max_live_instances: Some(50), ..settings() }).unwrap()
}

pub(crate) fn prepare(
    host: &WasmRuntime,
    component: &[u8],
    limits: InstanceLimits,
) -> Arc<Program> {
    host.prepare_blocking(component, limits).unwrap()
}

pub(crate) fn identity(id: &str) -> EntityIdentity {
    EntityIdentity {
        namespace: "test".into(),
        entity_type: "guest".into(),
        id: id.into(),
        revision: 7,
    }
}

pub(crate) fn command() -> MessageContext {
    context(MessageKind::Command)
}

pub(crate) fn query() -> MessageContext {
    context(MessageKind::Query)
}

fn context(kind: MessageKind) -> MessageContext {
    MessageContext {
        session: 0xfeed,
        sequence: 3,
        kind,
        principal: "alice".into(),
        content_type: "application/json".into(),
        traceparent: "".into(),
        tracestate: "".into(),
        origin: "".into(),
        remaining: None,
        version: 11,
        values: values(7),
        records: None,
    }
}

/// The clock and randomness of a turn.
pub(crate) fn values(seed: u8) -> TurnValues {
    TurnValues { utc_ms: 1_700_000_000_000, seed: [seed; 32] }
}

/// Starts an instance without state.
pub(crate) async fn started(program: &Arc<Program>, id: &str) -> Instance {
    started_with(program, id, Box::new(NoState)).await
}

pub(crate) async fn started_with(
    program: &Arc<Program>,
    id: &str,
    state: Box<dyn StateSource>,
) -> Instance {
    let mut instance = program
        .instantiate(InstanceSpec {
            identity: identity(id),
            state,
            values: values(1),
            records: TurnRecords::default(),
        })
        .await
        .unwrap();
    let turn = instance.start(StartReason::FirstMessage).await;
    assert!(matches!(turn.result, TurnResult::Ok(_)), "{turn:?}");
    instance
}

pub(crate) async fn send(instance: &mut Instance, method: &str, body: &str) -> GuestTurnOutput {
    instance.message(command(), method, Bytes::copy_from_slice(body.as_bytes())).await
}

pub(crate) async fn ask(instance: &mut Instance, method: &str, body: &str) -> GuestTurnOutput {
    instance.message(query(), method, Bytes::copy_from_slice(body.as_bytes())).await
}

pub(crate) fn ok(turn: &GuestTurnOutput) -> &str {
    match &turn.result {
        TurnResult::Ok(reply) => std::str::from_utf8(reply).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn failed(turn: &GuestTurnOutput) -> &Failure {
    match &turn.result {
        TurnResult::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn refused(turn: &GuestTurnOutput) -> (&str, &str) {
    match &turn.result {
        TurnResult::Application { code, message } => (code, message),
        other => panic!("{other:?}"),
    }
}
