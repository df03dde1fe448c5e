//! Typed calls in TypeScript.

use std::fmt::Write as _;

use serde_json::Value;

use super::model::{Body, Call, Definition, Field, Model, Parameters, Shape};
use super::names::{Scope, camel, comment, is_identifier, quoted};

/// Names of types that the module uses already.
pub(super) const RESERVED: &[&str] =
    &["Array", "CallOptions", "Client", "Entity", "Promise", "Record"];
/// What neither a parameter nor a method may be called.
const WORDS: &[&str] = &[
    "arguments",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "constructor",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "entity",
    "enum",
    "eval",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "new",
    "null",
    "options",
    "package",
    "private",
    "protected",
    "public",
    "return",
    "static",
    "super",
    "switch",
    "then",
    "this",
    "throw",
    "true",
    "try",
    "typeof",
    "undefined",
    "var",
    "void",
    "while",
    "with",
    "yield",
];

pub(super) fn write(model: &Model) -> String {
    let mut out = format!(
        "// Typed calls of the entity type {}, revision {}. Written by `ostraca client`.\n\n\
         import type {{ CallOptions, Client, Entity }} from \"ostraca\";\n",
        comment(&model.entity_type),
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
        "\n/** An entity of the type {}. */\nexport class {class} {{\n  \
         /** The entity, for calls by name and for channels. */\n  readonly entity: Entity;\n\n  \
         constructor(client: Client, id: string) {{\n    \
         this.entity = client.entity({entity_type}, id);\n  }}\n",
        comment(&model.entity_type),
    );
    let mut methods = Scope::new(WORDS);
    for call in &model.calls {
        out.push_str(&method(model, call, &methods.unique(camel(&call.name))));
    }
    out + "}\n"
}

fn defined(model: &Model, definition: &Definition) -> String {
    let Definition { name, description, body } = definition;
    let mut out = format!("\n{}", documented(description, ""));
    let _ = match body {
        Body::Object(fields) => {
            let members: String = fields.iter().map(|field| member(model, field)).collect();
            write!(out, "export interface {name} {{\n{members}}}\n")
        }
        Body::Union(shapes) => {
            let all: Vec<_> = shapes.iter().map(|shape| written(model, shape)).collect();
            writeln!(out, "export type {name} = {};", all.join(" | "))
        }
        Body::Alias(shape) => writeln!(out, "export type {name} = {};", written(model, shape)),
    };
    out
}

fn member(model: &Model, field: &Field) -> String {
    let name = match is_identifier(&field.name) {
        true => field.name.clone(),
        false => quoted(&field.name),
    };
    let mark = if field.required { "" } else { "?" };
    let shape = written(model, &field.shape);
    format!("{}  {name}{mark}: {shape};\n", documented(&field.description, "  "))
}

fn method(model: &Model, call: &Call, name: &str) -> String {
    let (parameters, sent) = match &call.parameters {
        Parameters::Named(fields) => named(model, fields),
        Parameters::Whole(shape) => {
            (format!("body: {}, ", written(model, shape)), "body".to_owned())
        }
    };
    let result = match &call.result {
        Shape::Null => "void".to_owned(),
        shape => written(model, shape),
    };
    let (verb, wire) = (if call.is_command { "command" } else { "query" }, quoted(&call.name));
    format!(
        "\n{}  async {name}({parameters}options?: CallOptions): Promise<{result}> {{\n    \
         return (await this.entity.{verb}<{result}>({wire}, {sent}, options)).value;\n  }}\n",
        documented(&call.summary, "  "),
    )
}

/// The parameters of a method, and the object that is sent.
fn named(model: &Model, fields: &[Field]) -> (String, String) {
    let mut scope = Scope::new(WORDS);
    let (mut parameters, mut members) = (String::new(), Vec::new());
    let last_required = fields.iter().rposition(|field| field.required);
    for (at, field) in fields.iter().enumerate() {
        let name = scope.unique(camel(&field.name));
        let shape = written(model, &field.shape);
        let _ = match (field.required, last_required) {
            (true, _) => write!(parameters, "{name}: {shape}, "),
            // Parameters that may be left out come last.
            (false, Some(last)) if at < last => {
                write!(parameters, "{name}: {shape} | undefined, ")
            }
            _ => write!(parameters, "{name}?: {shape}, "),
        };
        members.push(match field.name == name {
            true => name,
            // A member in brackets is one of the object's own, whatever its name is.
            false => format!("[{}]: {name}", quoted(&field.name)),
        });
    }
    match members.is_empty() {
        true => (parameters, "undefined".to_owned()),
        false => (parameters, format!("{{ {} }}", members.join(", "))),
    }
}

fn written(model: &Model, shape: &Shape) -> String {
    match shape {
        Shape::Any => "unknown".to_owned(),
        Shape::Null => "null".to_owned(),
        Shape::Boolean => "boolean".to_owned(),
        Shape::Integer(_) | Shape::Number(_) => "number".to_owned(),
        Shape::Text => "string".to_owned(),
        Shape::Literals(values) => values.iter().map(literal).collect::<Vec<_>>().join(" | "),
        Shape::Array(item) => format!("Array<{}>", written(model, item)),
        Shape::Tuple(parts) => {
            let parts: Vec<_> = parts.iter().map(|part| written(model, part)).collect();
            format!("[{}]", parts.join(", "))
        }
        Shape::Map(value) => format!("Record<string, {}>", written(model, value)),
        Shape::Nullable(inner) => format!("{} | null", written(model, inner)),
        Shape::Named(index) => model.definitions[*index].name.clone(),
    }
}

fn documented(text: &str, indent: &str) -> String {
    match comment(text) {
        text if text.is_empty() => String::new(),
        text => format!("{indent}/** {text} */\n"),
    }
}

fn literal(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), quoted)
}
