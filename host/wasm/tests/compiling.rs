//! Components that are refused before they are compiled, and the limits of the compiler process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::handmade::{doubling, guest, nested_loops, with_nested};
use common::{counter, ok, prepare, send, started};
use ostraca_wasm::{
    Allocator, CompilerProgram, CompilerSettings, ComponentLimits, Error, InstanceLimits,
    RuntimeSettings, WasmRuntime,
};

fn host(compiler: CompilerSettings) -> WasmRuntime {
    WasmRuntime::new(&RuntimeSettings {
        max_live_instances: Some(5),
        compiler,
        ..common::settings()
    })
    .unwrap()
}

fn compiler() -> CompilerSettings {
    common::settings().compiler
}

fn program(path: impl Into<PathBuf>) -> CompilerSettings {
    CompilerSettings { program: CompilerProgram::Executable(path.into()), ..compiler() }
}

fn refusal(host: &WasmRuntime, component: &[u8]) -> Error {
    host.prepare_blocking(component, InstanceLimits::default()).err().unwrap()
}

#[test]
fn doubling_instances_are_refused_before_compiling() {
    // A compiler that does not exist: starting it would fail.
    let host = host(program("/nonexistent"));
    let component = with_nested(&doubling(26));
    assert!(component.len() < 8_000, "{} bytes", component.len());
    let error = refusal(&host, &component);
    assert_eq!(error.code(), "too-many-core-instances");
    assert!(error.to_string().contains("6710886"), "{error}");
    assert!(error.to_string().contains("core-instances in [components]"), "{error}");
    assert_eq!(refusal(&host, counter()).code(), "compiler-unavailable");
}

#[test]
fn imports_and_exports_are_refused_before_compiling() {
    let host = host(program("/nonexistent"));
    let forbidden = wat::parse_str(
        "(component (import \"wasi:http/handler@0.2.0\" (instance)) (component (core module)))",
    );
    assert_eq!(refusal(&host, &forbidden.unwrap()).code(), "import-not-granted");
    let hollow = wat::parse_str("(component)").unwrap();
    assert_eq!(refusal(&host, &hollow).code(), "missing-export");
}

#[test]
fn excess_initial_memory_is_refused_before_compiling() {
    let host = host(program("/nonexistent"));
    let component =
        with_nested("(component (core module $m (memory 1024)) (core instance (instantiate $m)))");
    let error = refusal(&host, &component);
    assert_eq!(error.code(), "memory-limit");
    assert!(error.to_string().contains("memory in the manifest's [limits]"), "{error}");
    let component = with_nested(
        "(component (core module $m (table 10001 funcref)) (core instance (instantiate $m)))",
    );
    assert_eq!(refusal(&host, &component).code(), "table-limit");
}

/// An entity that creates this many core instances, in addition to those in every component of `wit-component`.
fn instances(count: usize) -> Vec<u8> {
    let more = "(core instance (instantiate $m))".repeat(count);
    with_nested(&format!("(component (core module $m) {more})"))
}

#[tokio::test]
async fn components_of_64_instances_run_in_and_outside_the_pool() {
    let host = host(compiler());
    let own = (0..=64).find(|count| too_many(&instances(*count))).unwrap() - 1;
    let program = prepare(&host, &instances(own), InstanceLimits::default());
    assert_eq!(ok(&send(&mut started(&program, "a").await, "any", "").await), "");
    assert!(!host.status().large, "it fits into the pool");
    let large = InstanceLimits { memory: 32 << 20, ..InstanceLimits::default() };
    let program = prepare(&host, &instances(own), large);
    assert_eq!(ok(&send(&mut started(&program, "a").await, "any", "").await), "");
    assert!(host.status().large);
}

/// Whether the survey alone refuses the component: nothing is compiled.
fn too_many(component: &[u8]) -> bool {
    let settings = RuntimeSettings {
        max_live_instances: Some(1),
        allocator: Allocator::OnDemand,
        compiler: program("/nonexistent"),
        ..common::settings()
    };
    let error = refusal(&WasmRuntime::new(&settings).unwrap(), component);
    error.code() == "too-many-core-instances"
}

#[tokio::test]
async fn a_component_of_two_memories_runs_outside_the_pool() {
    let host = host(compiler());
    let two = "(component (core module $m (memory 1)) (core instance (instantiate $m)))";
    let program = prepare(&host, &with_nested(two), InstanceLimits::default());
    assert_eq!(ok(&send(&mut started(&program, "a").await, "any", "").await), "");
    assert!(host.status().large);
}

#[test]
fn a_raised_component_limit_admits_larger_components() {
    let component = ComponentLimits { core_instances: 200, ..ComponentLimits::default() };
    let settings = RuntimeSettings { component, max_live_instances: Some(5), ..common::settings() };
    let host = WasmRuntime::new(&settings).unwrap();
    prepare(&host, &instances(100), InstanceLimits::default());
}

#[tokio::test]
async fn tables_may_grow_beyond_the_slots_of_the_pool() {
    let host = host(compiler());
    let parts = "(func $start) (func $message
        (if (i32.eq (table.grow $table (ref.null func) (i32.const 30000)) (i32.const -1)) (then unreachable)))";
    let limits = InstanceLimits { table_elements: 50_000, ..InstanceLimits::default() };
    let program = prepare(&host, &guest("", "", parts), limits);
    assert_eq!(ok(&send(&mut started(&program, "e").await, "grow", "").await), "");
}

#[test]
fn a_compilation_ends_at_its_time_limit() {
    let time = Duration::from_millis(500);
    let host = host(CompilerSettings { timeout: time, ..compiler() });
    let error = refusal(&host, &nested_loops(20_000));
    assert_eq!(error.code(), "compile-time-limit");
    assert!(error.to_string().contains("500ms (timeout in [compiler])"), "{error}");
}

#[test]
fn a_compilation_ends_at_its_memory_limit() {
    for mib in [24, 40, 64, 96] {
        let host = host(CompilerSettings { max_memory: mib << 20, ..compiler() });
        let error = refusal(&host, &nested_loops(5_000));
        assert_eq!(error.code(), "compile-memory-limit", "{mib} MiB: {error}");
        assert!(error.to_string().contains("max-memory in [compiler]"), "{error}");
    }
}

#[test]
fn the_smallest_default_memory_compiles_a_guest() {
    let host = host(CompilerSettings { max_memory: 256 << 20, ..compiler() });
    prepare(&host, common::misbehaving(), InstanceLimits::default());
}

#[test]
fn a_compiler_crash_refuses_the_component() {
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        path
    };
    let code = |path: &Path| {
        let error = refusal(&host(program(path)), counter());
        (error.code(), error.to_string())
    };
    let (found, text) = code(&script("killed", "echo '\x1b[2J' it hurts >&2; kill -SEGV $$"));
    assert_eq!(found, "compiler-crashed");
    assert!(text.contains("SIGSEGV") && text.contains(r"\u{1b}[2J it hurts"), "{text}");
    let (found, text) = code(&script("starved", "echo last words >&2; kill -KILL $$"));
    assert_eq!(found, "compiler-crashed");
    let named = ["SIGKILL", "runs out of memory", "max-memory in [compiler]", "last words"];
    assert!(named.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(code(&script("silent", "exit 0")).0, "compiler-unavailable");
    assert_eq!(code(&script("stranger", "echo hello")).0, "compiler-unavailable");
    assert_eq!(code(Path::new("/nonexistent")).0, "compiler-unavailable");
}

#[test]
fn a_compiler_program_without_compiler_main_is_explained() {
    let host = host(CompilerSettings { program: CompilerProgram::CurrentExecutable, ..compiler() });
    let error = refusal(&host, counter());
    assert_eq!(error.code(), "compiler-unavailable");
    assert!(error.to_string().contains("compiler_main"), "{error}");
}

#[tokio::test]
async fn an_abandoned_compilation_makes_room_for_the_next() {
    let settings =
        CompilerSettings { timeout: Duration::from_secs(600), max_concurrent: 1, ..compiler() };
    let host = host(settings);
    let slow = nested_loops(20_000);
    for _ in 0..2 {
        let given_up = tokio::time::timeout(
            Duration::from_millis(300),
            host.prepare(slow.clone(), InstanceLimits::default()),
        );
        assert!(given_up.await.is_err());
    }
    let next = host.prepare(counter().to_vec(), InstanceLimits::default());
    tokio::time::timeout(Duration::from_secs(120), next).await.unwrap().unwrap();
}
