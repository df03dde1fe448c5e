//! Typed calls in Rust.

use std::fmt::Write as _;

use serde_json::Value;

use super::model::{Body, Call, Definition, Field, Model, Parameters, Shape};
use super::names::{Scope, comment, is_identifier, pascal, snake};

/// Names of types that the module uses already.
pub(super) const RESERVED: &[&str] = &[
    "Arguments",
    "BTreeMap",
    "Box",
    "CallOptions",
    "Entity",
    "InvokeError",
    "MessageKind",
    "Option",
    "Result",
    "Self",
    "Serialize",
    "Deserialize",
    "Session",
    "String",
    "Value",
    "Vec",
];
/// What a parameter, a field or a method may not be called.
const WORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "entity", "enum", "extern", "false", "final", "fn", "for", "gen", "if",
    "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "new", "options",
    "override", "priv", "pub", "ref", "return", "self", "session", "static", "struct", "super",
    "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where",
    "while", "yield",
];
/// What each type is derived from.
const DERIVE: &str = "#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]\n";

pub(super) fn write(model: &Model) -> String {
    let (entity_type, class) = (comment(&model.entity_type), &model.class);
    let literal = quoted(&model.entity_type);
    let mut code = String::new();
    for definition in &model.definitions {
        code.push_str(&defined(model, definition));
    }
    // Writing to a string cannot fail.
    let _ = write!(
        code,
        "\n/// An entity of the type {entity_type}.\n#[derive(Clone)]\npub struct {class} {{\n    \
         /// The entity, for calls by name and for channels.\n    pub entity: Entity,\n    \
         session: Session,\n}}\n\nimpl {class} {{\n    \
         /// The entity with this id, called in this session.\n    #[must_use]\n    \
         pub fn new(session: &Session, id: &str) -> Self {{\n        \
         Self {{ entity: Entity::new({literal}, id), session: session.clone() }}\n    }}\n",
    );
    let mut methods = Scope::new(WORDS);
    for call in &model.calls {
        code.push_str(&method(model, call, &methods.unique(snake(&call.name))));
    }
    code.push_str("}\n");
    let mut out = format!(
        "//! Typed calls of the entity type {entity_type}, revision {}. Written by `ostraca client`.\n//!\n\
         //! Needs the crates `ostraca-client`, `serde` with its feature `derive`, and `serde_json`.\n\n",
        model.revision,
    );
    if code.contains("BTreeMap<") {
        out.push_str("use std::collections::BTreeMap;\n\n");
    }
    out.push_str("use ostraca_client::{CallOptions, Entity, InvokeError, MessageKind, Session};\n");
    match model.definitions.is_empty() {
        true if code.contains("Serialize") => out.push_str("use serde::Serialize;\n"),
        true => {}
        false => out.push_str("use serde::{Deserialize, Serialize};\n"),
    }
    if code.contains("Value") {
        out.push_str("use serde_json::Value;\n");
    }
    out + &code
}

fn defined(model: &Model, definition: &Definition) -> String {
    let Definition { name, description, body } = definition;
    let mut out = format!("\n{}", documented(description, "", name));
    match body {
        Body::Object(fields) => {
            let mut scope = Scope::new(WORDS);
            let members: String = fields
                .iter()
                .map(|field| member(model, &mut scope, field, "    ", "pub "))
                .collect();
            let _ = writeln!(out, "{DERIVE}pub struct {name} {{\n{members}}}");
        }
        Body::Union(shapes) => out.push_str(&union(model, name, shapes)),
        Body::Alias(Shape::Literals(values)) => match names_of(values) {
            Some(names) => out.push_str(&names_as_enum(name, &names)),
            None => out.push_str(&wrapper(name, "Value")),
        },
        Body::Alias(shape) => out.push_str(&wrapper(name, &written(model, shape))),
    }
    out
}

fn wrapper(name: &str, inner: &str) -> String {
    format!("{DERIVE}#[serde(transparent)]\npub struct {name}(pub {inner});\n")
}

fn names_of(values: &[Value]) -> Option<Vec<&str>> {
    values.iter().map(Value::as_str).collect()
}

fn names_as_enum(name: &str, values: &[&str]) -> String {
    let mut scope = Scope::new(&["Self"]);
    let variants = values.iter().map(|value| unit_variant(&mut scope, value));
    format!("{DERIVE}pub enum {name} {{\n{}}}\n", variants.collect::<String>())
}

fn unit_variant(scope: &mut Scope, value: &str) -> String {
    let name = scope.unique(pascal(value));
    format!("    /// {}.\n{}    {name},\n", code(value), renamed(value, &name, "    "))
}

fn union(model: &Model, name: &str, shapes: &[Shape]) -> String {
    tagged(model, name, shapes).unwrap_or_else(|| {
        let mut scope = Scope::new(&["Self"]);
        let mut variants = String::new();
        for shape in shapes {
            let variant = match shape {
                Shape::Named(index) => model.definitions[*index].name.clone(),
                Shape::Boolean => "Boolean".to_owned(),
                Shape::Integer(_) => "Integer".to_owned(),
                Shape::Number(_) => "Number".to_owned(),
                Shape::Text | Shape::Literals(_) => "Text".to_owned(),
                Shape::Array(_) | Shape::Tuple(_) => "Array".to_owned(),
                Shape::Map(_) => "Map".to_owned(),
                Shape::Any | Shape::Null | Shape::Nullable(_) => "Other".to_owned(),
            };
            let variant = scope.unique(variant);
            let inner = boxed(model, shape);
            let _ = write!(variants, "    /// One of the forms.\n    {variant}({inner}),\n");
        }
        format!("{DERIVE}#[serde(untagged)]\npub enum {name} {{\n{variants}}}\n")
    })
}

/// The union as an enum whose variants are a name, or an object with one member.
fn tagged(model: &Model, name: &str, shapes: &[Shape]) -> Option<String> {
    let mut scope = Scope::new(&["Self"]);
    let mut variants = String::new();
    for shape in shapes {
        match shape {
            Shape::Literals(values) => {
                for value in names_of(values)? {
                    variants.push_str(&unit_variant(&mut scope, value));
                }
            }
            Shape::Named(index) => match &model.definitions[*index].body {
                Body::Object(fields) => {
                    let [Field { name, required: true, shape, .. }] = &fields[..] else {
                        return None;
                    };
                    let variant = scope.unique(pascal(name));
                    let _ = write!(
                        variants,
                        "    /// {}.\n{}    {variant}({}),\n",
                        code(name),
                        renamed(name, &variant, "    "),
                        boxed(model, shape),
                    );
                }
                _ => return None,
            },
            _ => return None,
        }
    }
    Some(format!("{DERIVE}pub enum {name} {{\n{variants}}}\n"))
}

fn member(model: &Model, scope: &mut Scope, field: &Field, indent: &str, public: &str) -> String {
    let name = scope.unique(snake(&field.name));
    let mut shape = boxed(model, &field.shape);
    let mut attribute = String::new();
    if !field.required {
        if !shape.starts_with("Option<") && shape != "Value" {
            shape = format!("Option<{shape}>");
        }
        let skip = if shape == "Value" { "Value::is_null" } else { "Option::is_none" };
        attribute = format!("{indent}#[serde(default, skip_serializing_if = \"{skip}\")]\n");
    }
    let description = match public {
        "" => String::new(),
        _ => documented(&field.description, indent, &field.name),
    };
    let renamed = renamed(&field.name, &name, indent);
    format!("{description}{renamed}{attribute}{indent}{public}{name}: {shape},\n")
}

fn renamed(wire: &str, name: &str, indent: &str) -> String {
    match wire == name {
        true => String::new(),
        false => format!("{indent}#[serde(rename = {})]\n", quoted(wire)),
    }
}

fn method(model: &Model, call: &Call, name: &str) -> String {
    let (parameters, before, sent) = match &call.parameters {
        Parameters::Named(fields) if fields.is_empty() => {
            let before = "        #[derive(Serialize)]\n        struct Arguments {}\n";
            (String::new(), before.to_owned(), "&Arguments {}".to_owned())
        }
        Parameters::Named(fields) => {
            let mut scope = Scope::new(WORDS);
            let members = fields.iter().map(|it| member(model, &mut scope, it, "            ", ""));
            let before = format!(
                "        #[derive(Serialize)]\n        struct Arguments {{\n{}        }}\n",
                members.collect::<String>(),
            );
            let mut scope = Scope::new(WORDS);
            let names: Vec<_> = fields.iter().map(|it| scope.unique(snake(&it.name))).collect();
            let mut parameters = String::new();
            for (field, name) in fields.iter().zip(&names) {
                let shape = written(model, &field.shape);
                let shape = match field.required || shape.starts_with("Option<") || shape == "Value"
                {
                    true => shape,
                    false => format!("Option<{shape}>"),
                };
                let _ = write!(parameters, "{name}: {shape}, ");
            }
            (parameters, before, format!("&Arguments {{ {} }}", names.join(", ")))
        }
        Parameters::Whole(shape) => {
            (format!("body: {}, ", written(model, shape)), String::new(), "&body".to_owned())
        }
    };
    let (result, literal) = (written(model, &call.result), quoted(&call.name));
    let kind = if call.is_command { "Command" } else { "Query" };
    format!(
        "\n{}    ///\n    /// # Errors\n    /// [`InvokeError`].\n    \
         pub async fn {name}(&self, {parameters}options: &CallOptions) -> Result<{result}, InvokeError> {{\n\
         {before}        let method = (MessageKind::{kind}, {literal});\n        \
         self.session.invoke_json(&self.entity, method, {sent}, options).await\n    }}\n",
        documented(&call.summary, "    ", &call.name),
    )
}

/// The type of a member: a definition is in a box, because it may contain the member's own type.
fn boxed(model: &Model, shape: &Shape) -> String {
    match shape {
        Shape::Named(index) if is_large(model, *index) => {
            format!("Box<{}>", model.definitions[*index].name)
        }
        Shape::Nullable(inner) => format!("Option<{}>", boxed(model, inner)),
        Shape::Tuple(parts) => tuple(parts.iter().map(|part| boxed(model, part)).collect()),
        shape => written(model, shape),
    }
}

/// Whether a definition leads to itself other than through arrays and maps.
fn is_large(model: &Model, index: usize) -> bool {
    fn leads(model: &Model, shape: &Shape, to: usize, seen: &mut [bool]) -> bool {
        match shape {
            Shape::Named(next) => *next == to || inside(model, *next, to, seen),
            Shape::Nullable(inner) => leads(model, inner, to, seen),
            Shape::Tuple(parts) => parts.iter().any(|part| leads(model, part, to, seen)),
            _ => false,
        }
    }
    fn inside(model: &Model, at: usize, to: usize, seen: &mut [bool]) -> bool {
        if std::mem::replace(&mut seen[at], true) {
            return false;
        }
        match &model.definitions[at].body {
            Body::Object(fields) => fields.iter().any(|it| leads(model, &it.shape, to, seen)),
            Body::Union(shapes) => shapes.iter().any(|it| leads(model, it, to, seen)),
            Body::Alias(shape) => leads(model, shape, to, seen),
        }
    }
    inside(model, index, index, &mut vec![false; model.definitions.len()])
}

fn written(model: &Model, shape: &Shape) -> String {
    match shape {
        Shape::Any => "Value".to_owned(),
        Shape::Null => "()".to_owned(),
        Shape::Boolean => "bool".to_owned(),
        Shape::Integer(format) => match format.as_deref() {
            Some("uint8") => "u8",
            Some("uint16") => "u16",
            Some("uint32") => "u32",
            Some("uint64" | "uint") => "u64",
            Some("int8") => "i8",
            Some("int16") => "i16",
            Some("int32") => "i32",
            Some("uint128") => "u128",
            Some("int128") => "i128",
            _ => "i64",
        }
        .to_owned(),
        Shape::Number(format) if format.as_deref() == Some("float") => "f32".to_owned(),
        Shape::Number(_) => "f64".to_owned(),
        Shape::Text => "String".to_owned(),
        Shape::Literals(values) if names_of(values).is_some() => "String".to_owned(),
        Shape::Literals(_) => "Value".to_owned(),
        Shape::Array(item) => format!("Vec<{}>", written(model, item)),
        Shape::Tuple(parts) => tuple(parts.iter().map(|part| written(model, part)).collect()),
        Shape::Map(value) => format!("BTreeMap<String, {}>", written(model, value)),
        Shape::Nullable(inner) => format!("Option<{}>", written(model, inner)),
        Shape::Named(index) => model.definitions[*index].name.clone(),
    }
}

fn tuple(parts: Vec<String>) -> String {
    match &parts[..] {
        [only] => format!("({only},)"),
        all => format!("({})", all.join(", ")),
    }
}

fn documented(text: &str, indent: &str, name: &str) -> String {
    match comment(text) {
        text if text.is_empty() => format!("{indent}/// {}.\n", code(name)),
        text => format!("{indent}/// {text}\n"),
    }
}

/// A name in a description.
fn code(name: &str) -> String {
    match is_identifier(name) {
        true => format!("`{name}`"),
        false => comment(name),
    }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}
