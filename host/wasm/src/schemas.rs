//! JSON Schemas of a component's methods, which its optional export `schemas` returns.
//!
//! They are read at deploy only, and checked for size and form. Whether a schema makes sense is not checked: nothing
//! but tools depends on it.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use serde::de::IgnoredAny;

use crate::host_trap::{Stage, explain};
use crate::meter::metered;
use crate::method_schema::{MethodSchema, SchemasFunc};
use crate::program::{CompiledComponent, wrong_signature};
use crate::shared::Shared;
use crate::text::sanitized;
use crate::world::METHODS_BYTES;
use crate::{Error, InstanceLimits};

impl CompiledComponent {
    /// Instantiates the component once, without an identity or effects, and reads its schemas. Returns none if it does
    /// not export them.
    pub(crate) async fn read_schemas(
        &self,
        shared: &Shared,
        limits: &Arc<InstanceLimits>,
        max_bytes: u64,
    ) -> Result<Vec<MethodSchema>, Error> {
        let Some(export) = self.exports.schemas else { return Ok(Vec::new()) };
        let permit = shared.readers.acquire().await;
        let _permit = permit.map_err(|error| Error::ThreadFailed(error.to_string()))?;
        let (mut store, instance) =
            self.instantiate_nobody(shared, limits).await.map_err(|error| match error {
                Error::Activation(failure) => Error::InvalidSchemas(failure.message),
                error => error,
            })?;
        let schemas: SchemasFunc =
            instance.get_typed_func(&mut store, export).map_err(wrong_signature)?;
        store.set_hostcall_fuel(METHODS_BYTES);
        let meter = store.data().meter.clone();
        let called =
            metered(&meter, &shared.ticker.sleepers, pin!(schemas.call_async(&mut store, ())))
                .await;
        let failure = match called {
            Ok(Ok((schemas,))) => return self.check_schemas(schemas, max_bytes),
            Ok(Err(error)) => explain(&error, Stage::Methods, store.data_mut()),
            Err(fault) => fault.to_failure(Stage::Methods, limits),
        };
        Err(Error::InvalidSchemas(failure.message))
    }

    fn check_schemas(
        &self,
        schemas: Vec<MethodSchema>,
        max_bytes: u64,
    ) -> Result<Vec<MethodSchema>, Error> {
        let known: HashSet<&str> = self.methods().iter().map(|it| it.name.as_str()).collect();
        check(schemas, &known, max_bytes)
    }
}

fn check(
    schemas: Vec<MethodSchema>,
    known: &HashSet<&str>,
    max_bytes: u64,
) -> Result<Vec<MethodSchema>, Error> {
    let bytes = schemas.iter().map(|it| it.arguments.len() as u64 + it.result.len() as u64).sum();
    if bytes > max_bytes {
        return Err(Error::SchemasTooLarge { bytes, limit: max_bytes });
    }
    let mut seen = HashSet::new();
    for MethodSchema { method, arguments, result } in &schemas {
        let shown = || sanitized(method.clone());
        if !known.contains(method.as_str()) {
            return Err(Error::InvalidSchemas(format!("there is no method {:?}", shown())));
        }
        if !seen.insert(method.as_str()) {
            return Err(Error::InvalidSchemas(format!("{:?} is described twice", shown())));
        }
        for (what, text) in [("arguments", arguments), ("result", result)] {
            if let Err(why) = check_form(text) {
                let text = format!("the schema of {:?}, {what}: {why}", shown());
                return Err(Error::InvalidSchemas(text));
            }
        }
    }
    drop(seen);
    Ok(schemas)
}

/// A schema is a JSON object or a boolean.
fn check_form(text: &str) -> Result<(), String> {
    let parsed = serde_json::from_str::<IgnoredAny>(text);
    parsed.map_err(|error| format!("it is not JSON: {error}"))?;
    let text = text.trim_ascii();
    if text.starts_with('{') || text == "true" || text == "false" {
        return Ok(());
    }
    Err("it must be a JSON object or a boolean".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(method: &str, arguments: &str, result: &str) -> MethodSchema {
        MethodSchema { method: method.into(), arguments: arguments.into(), result: result.into() }
    }

    fn checked(schemas: Vec<MethodSchema>) -> Result<Vec<MethodSchema>, Error> {
        check(schemas, &HashSet::from(["add", "get"]), 100)
    }

    #[test]
    fn a_schema_is_a_json_object_or_a_boolean() {
        for good in ["{}", " {\"a\":1} ", "true", "false"] {
            assert_eq!(checked(vec![schema("add", good, "true")]).unwrap().len(), 1);
            assert_eq!(checked(vec![schema("add", "{}", good)]).unwrap().len(), 1);
        }
        let deep = "[".repeat(40) + &"]".repeat(40);
        for bad in ["", "{", "1", "null", "[]", "\"x\"", "{} {}", &deep] {
            for it in [schema("add", bad, "{}"), schema("add", "{}", bad)] {
                assert_eq!(checked(vec![it]).unwrap_err().code(), "invalid-schemas", "{bad}");
            }
        }
    }

    #[test]
    fn each_schema_belongs_to_one_listed_method() {
        let text = |schemas| checked(schemas).unwrap_err().to_string();
        assert!(text(vec![schema("sub", "{}", "{}")]).contains("no method \"sub\""));
        let twice = vec![schema("add", "{}", "{}"), schema("add", "{}", "{}")];
        assert!(text(twice).contains("\"add\" is described twice"));
        let hostile = text(vec![schema("\u{1b}[2J", "{}", "{}")]);
        assert!(!hostile.contains('\u{1b}'), "{hostile}");
    }

    #[test]
    fn schemas_have_a_limit_on_their_total_size() {
        let padded = |bytes: usize| format!("{}{{}}", " ".repeat(bytes - 2));
        let fits = vec![schema("add", &padded(50), &padded(25)), schema("get", &padded(25), "")];
        assert_eq!(checked(fits).unwrap_err().code(), "invalid-schemas");
        let too_large = vec![schema("add", &padded(51), &padded(50))];
        let error = checked(too_large).unwrap_err();
        assert_eq!(error.code(), "schemas-too-large");
        assert!(error.to_string().contains("101 bytes"), "{error}");
    }
}
