//! Typed calls in Python.

use std::fmt::Write as _;

use serde_json::Value;

use super::model::{Body, Call, Definition, Field, Model, Parameters, Shape};
use super::names::{Scope, comment, is_identifier, quoted, snake};

/// Names of types that the module uses already.
pub(super) const RESERVED: &[&str] = &[
    "Any",
    "CallOptions",
    "Client",
    "Entity",
    "False",
    "Literal",
    "None",
    "NotRequired",
    "True",
    "TypeAlias",
    "TypedDict",
];
/// What neither a parameter nor a method may be called: keywords, and what the class has already.
const WORDS: &[&str] = &[
    "and", "as", "assert", "async", "await", "bool", "break", "class", "continue", "def", "del",
    "dict", "elif", "else", "entity", "except", "finally", "float", "for", "from", "global", "if",
    "import", "in", "int", "is", "lambda", "list", "nonlocal", "not", "options", "or", "pass",
    "raise", "return", "self", "str", "try", "while", "with", "yield",
];

pub(super) fn write(model: &Model) -> String {
    let mut out = format!(
        "\"\"\"Typed calls of the entity type {}, revision {}. Written by `ostraca client`.\"\"\"\n\n\
         from __future__ import annotations\n\n\
         from typing import Any, Literal, NotRequired, TypeAlias, TypedDict\n\n\
         from ostraca import CallOptions, Client, Entity\n",
        docstring(&model.entity_type),
        model.revision,
    );
    for definition in &model.definitions {
        out.push_str(&defined(model, definition));
    }
    let class = &model.class;
    let entity_type = quoted(&model.entity_type);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "\n\nclass {class}:\n    \"\"\"An entity of the type {}.\"\"\"\n\n    \
         entity: Entity\n    \
         \"\"\"The entity, for calls by name and for channels.\"\"\"\n\n    \
         def __init__(self, client: Client, id: str) -> None:\n        \
         self.entity = client.entity({entity_type}, id)\n",
        docstring(&model.entity_type),
    );
    let mut methods = Scope::new(WORDS);
    for call in &model.calls {
        out.push_str(&method(model, call, &methods.unique(snake(&call.name))));
    }
    out
}

fn defined(model: &Model, definition: &Definition) -> String {
    let Definition { name, description, body } = definition;
    let mut out = "\n\n".to_owned();
    let above = |text: &str| match comment(text) {
        text if text.is_empty() => String::new(),
        text => format!("# {text}\n"),
    };
    let _ = match body {
        Body::Object(fields) if fields.iter().all(|it| is_plain(&it.name)) => {
            let _ = writeln!(out, "class {name}(TypedDict):");
            let description = docstring(description);
            if !description.is_empty() {
                let _ = writeln!(out, "    \"\"\"{description}\"\"\"\n");
            } else if fields.is_empty() {
                out.push_str("    pass\n");
            }
            fields.iter().try_for_each(|field| {
                let description = comment(&field.description);
                if !description.is_empty() {
                    writeln!(out, "    # {description}")?;
                }
                writeln!(out, "    {}: {}", field.name, member(model, field))
            })
        }
        Body::Object(fields) => {
            let members = fields.iter().map(|field| {
                let shape = quoted(&member(model, field));
                format!("    {}: {shape},\n", quoted(&field.name))
            });
            let members: String = members.collect();
            write!(
                out,
                "{}{name} = TypedDict(\n    {},\n    {{\n{}    }},\n)\n",
                above(description),
                quoted(name),
                members.lines().map(|line| format!("    {line}\n")).collect::<String>(),
            )
        }
        Body::Union(shapes) => {
            let all: Vec<_> = shapes.iter().map(|shape| written(model, shape)).collect();
            let text = quoted(&all.join(" | "));
            writeln!(out, "{}{name}: TypeAlias = {text}", above(description))
        }
        Body::Alias(shape) => {
            let text = quoted(&written(model, shape));
            writeln!(out, "{}{name}: TypeAlias = {text}", above(description))
        }
    };
    out
}

/// Whether a member of a `TypedDict` can have this name in a class, where two underscores would change it.
fn is_plain(name: &str) -> bool {
    let keyword = ["False", "None", "True"];
    is_identifier(name)
        && !name.starts_with("__")
        && !WORDS.contains(&name)
        && !keyword.contains(&name)
}

fn member(model: &Model, field: &Field) -> String {
    let shape = written(model, &field.shape);
    if field.required { shape } else { format!("NotRequired[{shape}]") }
}

fn method(model: &Model, call: &Call, name: &str) -> String {
    let (parameters, sent) = match &call.parameters {
        Parameters::Named(fields) => named(model, fields),
        Parameters::Whole(shape) => {
            (format!(", body: {}", written(model, shape)), "body".to_owned())
        }
    };
    let result = written(model, &call.result);
    let (verb, wire) = (if call.is_command { "command" } else { "query" }, quoted(&call.name));
    let summary = match docstring(&call.summary) {
        text if text.is_empty() => String::new(),
        text => format!("        \"\"\"{text}\"\"\"\n"),
    };
    let (returned, returns) = match &call.result {
        Shape::Null => (String::new(), ""),
        _ => (format!("        result: {result} = reply.value\n"), "        return result\n"),
    };
    let reply = if returned.is_empty() { "" } else { "reply = " };
    format!(
        "\n    async def {name}(self{parameters}, *, options: CallOptions | None = None) -> {result}:\n\
         {summary}        {reply}await self.entity.{verb}({wire}, {sent}, options)\n{returned}{returns}"
    )
}

/// The parameters of a method, and the object that is sent.
fn named(model: &Model, fields: &[Field]) -> (String, String) {
    let mut scope = Scope::new(WORDS);
    let (mut parameters, mut members) = (String::new(), Vec::new());
    let last_required = fields.iter().rposition(|field| field.required);
    for (at, field) in fields.iter().enumerate() {
        let name = scope.unique(snake(&field.name));
        let shape = written(model, &field.shape);
        let shape = match field.required || shape.ends_with("| None") || shape == "Any" {
            true => shape,
            false => format!("{shape} | None"),
        };
        // Parameters that may be left out come last.
        let default = !field.required && last_required.is_none_or(|last| at > last);
        let _ = write!(parameters, ", {name}: {shape}{}", if default { " = None" } else { "" });
        let quoted = quoted(&field.name);
        members.push(match field.required {
            true => format!("{quoted}: {name}"),
            false => format!("**({{}} if {name} is None else {{{quoted}: {name}}})"),
        });
    }
    match members.is_empty() {
        true => (parameters, "None".to_owned()),
        false => (parameters, format!("{{{}}}", members.join(", "))),
    }
}

fn written(model: &Model, shape: &Shape) -> String {
    match shape {
        Shape::Any => "Any".to_owned(),
        Shape::Null => "None".to_owned(),
        Shape::Boolean => "bool".to_owned(),
        Shape::Integer(_) => "int".to_owned(),
        Shape::Number(_) => "float".to_owned(),
        Shape::Text => "str".to_owned(),
        Shape::Literals(values) => {
            let value = |value: &Value| match value {
                Value::Bool(true) => "True".to_owned(),
                Value::Bool(false) => "False".to_owned(),
                Value::String(text) => quoted(text),
                other => other.to_string(),
            };
            format!("Literal[{}]", values.iter().map(value).collect::<Vec<_>>().join(", "))
        }
        Shape::Array(item) => format!("list[{}]", written(model, item)),
        // A decoded array is a list.
        Shape::Tuple(parts) => {
            let mut all: Vec<_> = parts.iter().map(|part| written(model, part)).collect();
            all.sort();
            all.dedup();
            match all.is_empty() {
                true => "list[Any]".to_owned(),
                false => format!("list[{}]", all.join(" | ")),
            }
        }
        Shape::Map(value) => format!("dict[str, {}]", written(model, value)),
        Shape::Nullable(inner) => format!("{} | None", written(model, inner)),
        Shape::Named(index) => model.definitions[*index].name.clone(),
    }
}

/// A description in a docstring.
fn docstring(text: &str) -> String {
    let text = comment(text).replace('\\', "\\\\");
    if text.ends_with('"') { text + " " } else { text }
}
