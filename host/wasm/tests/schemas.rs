//! The JSON Schemas that a component exports.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::handmade::guest_with_exports;
use common::{counter, host, misbehaving, prepare};
use ostraca_wasm::{InstanceLimits, RuntimeSettings, WasmRuntime};

/// A guest that exports `schemas`; `body` returns the address of the list.
fn describing(body: &str) -> Vec<u8> {
    let function =
        format!(r#"(func (export "ostraca:entity/schemas@0.1.0#schemas") (result i32) {body})"#);
    guest_with_exports("export schemas;", &format!("(func $start) (func $message) {function}"))
}

#[tokio::test]
async fn schemas_are_read_from_the_export_if_there_is_one() {
    let host = host();
    let program = prepare(&host, counter(), InstanceLimits::default());
    let schemas = host.schemas(&program).await.unwrap();
    let names: Vec<_> = schemas.iter().map(|it| it.method.as_str()).collect();
    let methods: Vec<_> = program.methods().iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, methods);
    assert!(schemas[0].arguments.contains(r#""by":{"#), "{schemas:?}");
    let silent = prepare(&host, misbehaving(), InstanceLimits::default());
    assert_eq!(host.schemas(&silent).await.unwrap(), []);
}

#[tokio::test]
async fn schemas_beyond_the_limit_are_refused() {
    let mut settings = RuntimeSettings { max_live_instances: Some(50), ..common::settings() };
    settings.component.schema_bytes = 100;
    let host = WasmRuntime::new(&settings).unwrap();
    let program = prepare(&host, counter(), InstanceLimits::default());
    let error = host.schemas(&program).await.unwrap_err();
    assert_eq!(error.code(), "schemas-too-large");
    assert!(error.to_string().contains("schema-bytes in [components] is 100"), "{error}");
}

#[tokio::test]
async fn a_schema_function_that_fails_is_a_refusal() {
    let host = host();
    let limits =
        InstanceLimits { activation_time: Duration::from_millis(20), ..InstanceLimits::default() };
    for (body, why) in
        [("(loop (br 0)) (i32.const 1024)", "activation-time"), ("unreachable", "unreachable")]
    {
        let program = prepare(&host, &describing(body), limits.clone());
        let error = host.schemas(&program).await.unwrap_err();
        assert_eq!(error.code(), "invalid-schemas", "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    let program = prepare(&host, &describing("(i32.const 1024)"), limits);
    assert_eq!(host.schemas(&program).await.unwrap(), []);
}
