//! JSON Schemas of methods, derived from the types of their parameters and results.
//!
//! A type that does not implement [`JsonSchema`] has the schema `true`, which admits everything: deriving it is
//! optional. `Result<T, E>` has the schema of `T`, under any alias of `Result`. The macro emits
//! `(&&&Probe::<T>::NEW).schema(generator)`, and method lookup takes the first of [`OkSchema`], [`TypeSchema`] and
//! [`AnySchema`] that applies.
//!
//! In a component, only the export `schemas` reaches this code.

use std::fmt::Write as _;
use std::marker::PhantomData;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::entity::Entity;
use crate::raw::MethodSchema;

/// Writes the schema of one type.
type Describe = fn(&mut SchemaGenerator) -> Schema;

/// A row of the table of schemas.
#[derive(Debug)]
pub struct SchemaRow {
    /// The method's name.
    pub method: &'static str,
    /// The parameters, in order.
    pub parameters: &'static [ParameterSchema],
    /// Describes the result.
    pub result: Describe,
}

/// The schema of a parameter.
#[derive(Debug)]
pub struct ParameterSchema {
    /// The parameter's name.
    pub name: &'static str,
    /// Whether the argument may be omitted.
    pub optional: bool,
    /// Describes the argument.
    pub describe: Describe,
}

/// Stands for the type `T`.
#[derive(Debug)]
pub struct Probe<T>(PhantomData<T>);

impl<T> Probe<T> {
    /// The only value.
    pub const NEW: Self = Self(PhantomData);
}

/// Selected for a `Result` whose value has a schema.
pub trait OkSchema {
    /// Describes the value.
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema;
}

impl<T: JsonSchema, E> OkSchema for &&Probe<Result<T, E>> {
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

/// Selected for a type with a schema.
pub trait TypeSchema {
    /// Describes the type.
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema;
}

impl<T: JsonSchema> TypeSchema for &Probe<T> {
    fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

/// Selected for every other type.
pub trait AnySchema {
    /// Returns the schema that admits everything.
    fn schema(&self, _: &mut SchemaGenerator) -> Schema {
        Schema::from(true)
    }
}

impl<T> AnySchema for Probe<T> {}

/// The schemas of an entity's methods.
pub fn schemas<E: Entity>() -> Vec<MethodSchema> {
    let rows = E::SCHEMAS.iter();
    rows.map(|row| MethodSchema {
        method: row.method.to_owned(),
        arguments: arguments(row.parameters),
        result: result(row.result),
    })
    .collect()
}

/// Describes what [`Arguments`](crate::arguments::Arguments) accepts. The text is written by hand, since a JSON map
/// would lose the order of the parameters.
fn arguments(parameters: &[ParameterSchema]) -> String {
    if parameters.is_empty() {
        return r#"{"type":["object","null"],"properties":{},"additionalProperties":false}"#
            .to_owned();
    }
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let (mut properties, mut required) = (String::new(), String::new());
    let mut last = String::new();
    for parameter in parameters {
        let name = quoted(parameter.name);
        last = text((parameter.describe)(&mut generator));
        separated(&mut properties, &format!("{name}:{last}"));
        if !parameter.optional {
            separated(&mut required, &name);
        }
    }
    let named = format!(
        r#"{{"type":"object","properties":{{{properties}}},"required":[{required}],"additionalProperties":false"#
    );
    let definitions = definitions(&mut generator);
    match parameters {
        // The bare value is also accepted.
        [_] => format!(r#"{{"anyOf":[{named}}},{last}]{definitions}}}"#),
        _ => format!("{named}{definitions}}}"),
    }
}

fn result(describe: Describe) -> String {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let result = text(describe(&mut generator));
    let definitions = definitions(&mut generator);
    match result.strip_suffix('}') {
        Some("{") => format!("{{{}}}", definitions.trim_start_matches(',')),
        Some(open) => format!("{open}{definitions}}}"),
        None => result,
    }
}

/// The shared parts, as a further member of an object; empty if there are none.
fn definitions(generator: &mut SchemaGenerator) -> String {
    let mut text = String::new();
    for (name, schema) in generator.take_definitions(true) {
        separated(&mut text, &format!("{}:{schema}", quoted(&name)));
    }
    if text.is_empty() { text } else { format!(r#","$defs":{{{text}}}"#) }
}

fn separated(list: &mut String, item: &str) {
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(item);
}

fn text(schema: Schema) -> String {
    schema.to_value().to_string()
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            // Writing to a string cannot fail.
            letter if letter < ' ' => drop(write!(out, "\\u{:04x}", u32::from(letter))),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}
