//! The examples and the test guests, built for both targets, are components with the right exports and imports.
//!
//! They are built by cargo with the settings that `ostraca build` uses, into a target directory that only this test
//! uses: another build of the same guests could replace a file after it was built and before it is read.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use wasmparser::{Encoding, Parser, Payload, Validator, WasmFeatures};
use wit_component::ComponentEncoder;

const CORE: &str = "wasm32-unknown-unknown";
const WASIP2: &str = "wasm32-wasip2";

fn built(name: &str, target: &str) -> Vec<u8> {
    static UNKNOWN: Once = Once::new();
    static WASI: Once = Once::new();
    let once = if target == CORE { &UNKNOWN } else { &WASI };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    once.call_once(|| build(target, &folder));
    let file: PathBuf = folder.join(target).join("release").join(format!("{name}.wasm"));
    std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn build(target: &str, folder: &Path) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "--target", target]);
    for guest in ["counter", "account", "misbehaving", "rubbish"] {
        cargo.args(["--package", guest]);
    }
    let output = cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", folder)
        // This test's build flags must not apply to the guest.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn component(core: &[u8]) -> Vec<u8> {
    ComponentEncoder::default().validate(true).module(core).unwrap().encode().unwrap()
}

/// The names that the component itself imports and exports.
fn names(component: &[u8]) -> (BTreeSet<String>, BTreeSet<String>) {
    Validator::new_with_features(WasmFeatures::default()).validate_all(component).unwrap();
    let (mut imports, mut exports) = (BTreeSet::new(), BTreeSet::new());
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload.unwrap() {
            Payload::Version { encoding, .. } => {
                depth += 1;
                assert!(depth > 1 || encoding == Encoding::Component);
            }
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 1 => {
                imports
                    .extend(section.into_iter().map(|import| import.unwrap().name.name.to_owned()));
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                exports
                    .extend(section.into_iter().map(|export| export.unwrap().name.name.to_owned()));
            }
            _ => {}
        }
    }
    (imports, exports)
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| format!("ostraca:entity/{name}@0.1.0")).collect()
}

/// What the module `http` of the SDK needs.
fn http() -> BTreeSet<String> {
    let names = [
        "clocks/monotonic-clock",
        "http/types",
        "http/outgoing-handler",
        "io/error",
        "io/poll",
        "io/streams",
    ];
    names.iter().map(|name| format!("wasi:{name}@0.2.12")).collect()
}

#[test]
fn a_guest_exports_an_entity_and_imports_only_what_it_uses() {
    // `misbehaving` holds an attack on each host function; the others show what the SDK adds.
    for (name, max_kib, imports, exports) in [
        ("counter", 320, set(&["types", "state", "log"]), set(&["methods", "handler", "schemas"])),
        (
            "account",
            320,
            set(&["types", "context", "state", "log"]),
            set(&["methods", "handler", "schemas"]),
        ),
        (
            "misbehaving",
            512,
            set(&[
                "types",
                "context",
                "state",
                "lifecycle",
                "clock",
                "random",
                "secrets",
                "settings",
                "timers",
                "messaging",
                "asks",
                "journal",
                "remembering",
                "passivation",
                "channels",
                "subscriptions",
                "deletion",
                "log",
            ])
            .union(&http())
            .cloned()
            .collect(),
            set(&["methods", "handler", "stop", "timer-handler"]),
        ),
        (
            "rubbish",
            64,
            set(&["types", "context", "state", "channels", "log"]),
            set(&["methods", "handler"]),
        ),
    ] {
        let component = component(&built(name, CORE));
        assert_eq!(names(&component), (imports, exports), "{name}");
        assert!(component.len() < max_kib * 1024, "{name} is {} bytes long", component.len());
    }
}

#[test]
fn the_wasip2_target_builds_the_same_entity_component() {
    for (name, expected) in [
        ("counter", set(&["methods", "handler", "schemas"])),
        ("misbehaving", set(&["methods", "handler", "stop", "timer-handler"])),
    ] {
        let (imports, exports) = names(&built(name, WASIP2));
        assert_eq!(exports, expected, "{name}");
        assert!(
            imports.iter().all(|import| import.starts_with("ostraca:entity/")
                || import.starts_with("wasi:cli/")
                || import.starts_with("wasi:http/")
                || import.starts_with("wasi:io/")
                || import.starts_with("wasi:clocks/")
                || import.starts_with("wasi:random/")),
            "{name} imports {imports:?}"
        );
    }
}

#[test]
fn a_component_matches_its_wit_world() {
    let mut resolve = wit_parser::Resolve::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
    let (package, _) = resolve.push_path(&folder).unwrap();
    let caller = "
        package test:caller;
        world caller {
            include ostraca:entity/entity-with-stop-and-timers@0.1.0;
            import wasi:http/outgoing-handler@0.2.12;
        }
    ";
    let caller = resolve.push_str("caller.wit", caller).unwrap();
    for (name, package, world) in
        [("counter", package, "entity"), ("misbehaving", caller, "caller")]
    {
        let world = resolve.select_world(&[package], Some(world)).unwrap();
        let component = component(&built(name, CORE));
        wit_component::targets(&resolve, world, &component).unwrap();
    }
}
