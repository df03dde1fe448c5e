//! Components that are refused before they run, and the cache of compiled code.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use common::{WASI, ask, build, counter, host, misbehaving, ok, prepare, send, started};
use ostraca_wasm::{
    Allocator, Error, InstanceLimits, InstanceSpec, NoState, RuntimeSettings, TurnRecords,
    WasmRuntime, encode,
};
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

const WIT: &str = include_str!("../../../wit/ostraca-entity.wit");

/// A component of the world `entity` in `wit`, whose functions all trap.
fn dummy(wit: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some("entity")).unwrap();
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Legacy(LiftLowerAbi::Sync));
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
}

fn refusal(component: &[u8]) -> Error {
    let refused = host().prepare_blocking(component, InstanceLimits::default());
    refused.err().unwrap()
}

#[test]
fn files_that_are_no_component_are_refused_by_kind() {
    assert_eq!(refusal(b"type = \"counter\"").code(), "not-wasm");
    assert_eq!(refusal(b"").code(), "not-wasm");
    let error = refusal(b"\0asm\x01\0\0\0");
    assert_eq!(error.code(), "core-module");
    assert!(error.to_string().contains("ostraca build"), "{error}");
    assert_eq!(refusal(&counter()[..counter().len() / 2]).code(), "invalid-component");
    assert_eq!(encode(b"rubbish").unwrap_err().code(), "not-wasm");
    assert_eq!(encode(b"\0asm\x01\0\0\0\x63").unwrap_err().code(), "encode-failed");
    assert_eq!(encode(counter()).unwrap(), counter());
}

#[test]
fn a_component_beyond_its_limit_is_refused_unread() {
    let settings = RuntimeSettings {
        component_limit: 1_000,
        max_live_instances: Some(5),
        ..common::settings()
    };
    let error = WasmRuntime::new(&settings)
        .unwrap()
        .prepare_blocking(&[0; 1_001], InstanceLimits::default())
        .err()
        .unwrap();
    assert_eq!(error.code(), "component-too-large");
    assert!(error.to_string().contains("1000"), "{error}");
}

#[test]
fn a_missing_export_is_named() {
    for interface in ["methods", "handler"] {
        let error = refusal(&dummy(&WIT.replacen(&format!("    export {interface};\n"), "", 1)));
        assert_eq!(error.code(), "missing-export");
        assert!(
            error.to_string().contains(&format!("ostraca:entity/{interface}@0.1.0")),
            "{error}"
        );
    }
}

#[test]
fn an_import_that_nothing_grants_is_named() {
    let wit = WIT.replace("/// Why the host", "").replacen(
        "world entity {",
        "interface telepathy { think: func(); }\nworld entity {\n    import telepathy;",
        1,
    );
    let error = refusal(&dummy(&wit));
    assert_eq!(error.code(), "import-not-granted");
    assert!(error.to_string().contains("ostraca:entity/telepathy@0.1.0"), "{error}");
}

#[test]
fn a_function_of_another_type_is_a_wrong_signature() {
    for (right, wrong) in [
        (
            "message: func(method: string, body: list<u8>)",
            "message: func(method: string, body: string)",
        ),
        ("get: func(key: string)", "get: func(key: u32)"),
        ("stop: func(reason: stop-reason);", "stop: func();"),
    ] {
        assert!(WIT.contains(right));
        let wit = WIT.replacen(right, wrong, 1).replacen(
            "    export handler;\n",
            "    export handler;\n    export stop;\n",
            1,
        );
        let error = refusal(&dummy(&wit));
        assert_eq!(error.code(), "wrong-signature", "{error}");
    }
}

#[test]
fn methods_that_trap_are_bad_methods() {
    assert_eq!(refusal(&dummy(WIT)).code(), "invalid-methods");
}

#[test]
fn a_guest_of_another_0_1_version_is_accepted() {
    // It gets as far as its methods, which trap.
    assert_eq!(refusal(&dummy(&WIT.replacen("@0.1.0", "@0.1.9", 1))).code(), "invalid-methods");
    assert_eq!(refusal(&dummy(&WIT.replacen("@0.1.0", "@0.2.0", 1))).code(), "import-not-granted");
}

#[tokio::test]
async fn a_counter_built_for_wasi_runs_too() {
    let host = host();
    let component = build("counter", WASI);
    let program = host.prepare(component, InstanceLimits::default()).await.unwrap();
    let mut entity = started(&program, "alice").await;
    assert_eq!(ok(&send(&mut entity, "add", "2").await), "2");
    assert_eq!(ok(&ask(&mut entity, "get", "").await), "2");
}

#[tokio::test]
async fn a_full_runtime_refuses_until_an_instance_is_dropped() {
    for allocator in [Allocator::Pooling, Allocator::OnDemand] {
        let host = WasmRuntime::new(&RuntimeSettings {
            allocator,
            max_live_instances: Some(2),
            ..common::settings()
        })
        .unwrap();
        assert_eq!(host.status().allocator, allocator);
        let program = prepare(&host, counter(), InstanceLimits::default());
        let (first, mut second) = (started(&program, "a").await, started(&program, "b").await);
        let spec = || InstanceSpec {
            identity: common::identity("c"),
            state: Box::new(NoState),
            values: common::values(1),
            records: TurnRecords::default(),
        };
        let error = program.instantiate(spec()).await.err().unwrap();
        assert_eq!(error.code(), "instance-limit");
        assert!(error.is_retryable());
        drop(first);
        program.instantiate(spec()).await.unwrap();
        assert_eq!(ok(&send(&mut second, "add", "1").await), "1");
    }
}

#[test]
fn an_impossible_pool_fails_or_falls_back_as_configured() {
    // No machine has this much address space.
    let impossible = |allocator| RuntimeSettings {
        allocator,
        max_live_instances: Some(2),
        pooled_instance_memory: 1 << 46,
        ..common::settings()
    };
    let error = WasmRuntime::new(&impossible(Allocator::Pooling)).err().unwrap();
    assert_eq!(error.code(), "invalid-setting");
    assert!(error.to_string().contains("max-live-instances"), "{error}");
    let shape = WasmRuntime::new(&impossible(Allocator::Auto)).unwrap().status();
    assert_eq!(shape.allocator, Allocator::OnDemand);
    assert!(shape.fallback_reason.is_some());
}

fn cached(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cwasm"));
    files
}

fn with_cache(dir: &Path) -> WasmRuntime {
    WasmRuntime::new(&RuntimeSettings {
        cache_dir: Some(dir.into()),
        max_live_instances: Some(5),
        ..common::settings()
    })
    .unwrap()
}

#[tokio::test]
async fn compiled_code_is_cached_and_tampered_files_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    prepare(&with_cache(dir.path()), counter(), InstanceLimits::default());
    let [file] = &cached(dir.path())[..] else { panic!("expected one file") };
    let whole = std::fs::read(file).unwrap();
    let inode =
        |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let first = inode(file);
    // The cached file is found and used: it is not written again.
    let program = prepare(&with_cache(dir.path()), counter(), InstanceLimits::default());
    assert_eq!(ok(&send(&mut started(&program, "a").await, "add", "2").await), "2");
    assert_eq!(inode(file), first);
    for torn in [
        whole[..whole.len() / 2].to_vec(),
        [&whole[..whole.len() - 1], &[!whole[whole.len() - 1]]].concat(),
    ] {
        // The file is replaced and not overwritten, because it may still be mapped.
        std::fs::remove_file(file).unwrap();
        std::fs::write(file, torn).unwrap();
        let program = prepare(&with_cache(dir.path()), counter(), InstanceLimits::default());
        assert_eq!(ok(&send(&mut started(&program, "a").await, "add", "2").await), "2");
        assert_eq!(std::fs::read(file).unwrap().len(), whole.len());
    }
}

#[test]
fn a_cache_file_of_another_directory_is_not_trusted() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    prepare(&with_cache(theirs.path()), counter(), InstanceLimits::default());
    let host = with_cache(ours.path());
    let foreign = &cached(theirs.path())[0];
    let planted = ours.path().join(foreign.file_name().unwrap());
    for extension in ["cwasm", "digest"] {
        std::fs::copy(foreign.with_extension(extension), planted.with_extension(extension))
            .unwrap();
    }
    let before = std::fs::read(planted.with_extension("digest")).unwrap();
    prepare(&host, counter(), InstanceLimits::default());
    assert_ne!(std::fs::read(planted.with_extension("digest")).unwrap(), before);
}

#[test]
fn a_cache_directory_that_cannot_be_used_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = RuntimeSettings {
        cache_dir: Some(file.path().into()),
        max_live_instances: Some(5),
        ..common::settings()
    };
    let error = WasmRuntime::new(&settings).err().unwrap();
    assert_eq!(error.code(), "component-cache");
    assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn deployments_share_code_and_keep_their_own_limits() {
    let host = host();
    let narrow =
        prepare(&host, misbehaving(), InstanceLimits { reply: 10, ..InstanceLimits::default() });
    let wide = prepare(&host, misbehaving(), InstanceLimits::default());
    assert_eq!(narrow.digest(), wide.digest());
    let mut entity = started(&narrow, "e").await;
    assert_eq!(common::failed(&ask(&mut entity, "reply", "100").await).code, "reply-too-large");
    assert_eq!(ok(&ask(&mut started(&wide, "e").await, "reply", "100").await).len(), 102);
}
