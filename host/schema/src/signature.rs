//! Shows a method's schemas as one line: `add(by: integer) -> integer`.

use crate::json::Json;
use crate::{MAX_DEPTH, resolve};

/// Maximum number of objects within objects that are shown with their members.
const SHOWN_DEPTH: usize = 2;
/// Maximum length of a signature in characters; the rest is cut off.
const MAX_LENGTH: usize = 160;

/// The signature of a method with these schemas of its arguments and its result. Guests choose the texts.
pub fn signature(name: &str, arguments: &str, result: &str) -> String {
    let arguments =
        serde_json::from_str(arguments).map_or_else(|_| "…".to_owned(), |it| parameters(&it));
    let result =
        serde_json::from_str(result).map_or_else(|_| "any".to_owned(), |it: Json| shown(&it, &it));
    let text = match result.as_str() {
        "null" => format!("{name}({arguments})"),
        result => format!("{name}({arguments}) -> {result}"),
    };
    match text.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The named form of the arguments, as parameters.
fn parameters(root: &Json) -> String {
    let forms = root.get("anyOf").map_or(&[][..], Json::elements);
    let named = forms.iter().chain([root]).find(|form| form.get("properties").is_some());
    match named {
        Some(named) => members(root, named, 0, 0),
        None => shown(root, root),
    }
}

fn members(root: &Json, schema: &Json, objects: usize, depth: usize) -> String {
    let required = schema.get("required").map_or(&[][..], Json::elements);
    let member = |(name, schema): &(String, Json)| {
        let optional = !required.iter().any(|it| it.as_str() == Some(name));
        let shown = ty(root, schema, objects, depth + 1);
        match optional {
            true => format!("{name}?: {}", shown.strip_suffix('?').unwrap_or(&shown)),
            false => format!("{name}: {shown}"),
        }
    };
    let members = schema.get("properties").map_or(&[][..], Json::members);
    members.iter().map(member).collect::<Vec<_>>().join(", ")
}

fn shown(root: &Json, schema: &Json) -> String {
    ty(root, schema, 0, 0)
}

/// A type in a compact form: `string`, `integer?`, `Item[]`, `{name: string}`, `"a" | "b"`.
fn ty(root: &Json, schema: &Json, objects: usize, depth: usize) -> String {
    if depth > MAX_DEPTH {
        return "…".to_owned();
    }
    if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
        return match resolve(root, schema) {
            // Simple types are shown, others by their names.
            Some(target) if target.get("enum").is_some() => ty(root, target, objects, depth + 1),
            _ => reference.rsplit('/').next().unwrap_or_default().to_owned(),
        };
    }
    if let Some(Json::Array(values)) = schema.get("enum") {
        return values.iter().map(|it| it.to_value().to_string()).collect::<Vec<_>>().join(" | ");
    }
    if let Some(value) = schema.get("const") {
        return value.to_value().to_string();
    }
    let forms = schema.get("anyOf").or_else(|| schema.get("oneOf"));
    if let Some(Json::Array(forms)) = forms {
        let mut all: Vec<_> = forms.iter().map(|it| ty(root, it, objects, depth + 1)).collect();
        let nullable = all.iter().any(|it| it == "null");
        all.retain(|it| it != "null");
        let text = all.join(" | ");
        return if nullable { optional(&text) } else { text };
    }
    match schema.get("type") {
        Some(Json::Array(names)) => {
            let names: Vec<_> = names.iter().filter_map(Json::as_str).collect();
            let others = names.iter().filter(|name| **name != "null");
            let shown: Vec<_> =
                others.map(|name| named_type(root, schema, name, objects, depth)).collect();
            let text = shown.join(" | ");
            if names.contains(&"null") { optional(&text) } else { text }
        }
        Some(name) => named_type(root, schema, name.as_str().unwrap_or("any"), objects, depth),
        None if schema.get("properties").is_some() => {
            named_type(root, schema, "object", objects, depth)
        }
        None => "any".to_owned(),
    }
}

fn named_type(root: &Json, schema: &Json, name: &str, objects: usize, depth: usize) -> String {
    match name {
        "array" => {
            let element = schema.get("items").map(|it| ty(root, it, objects, depth + 1));
            match (element, schema.get("prefixItems")) {
                (_, Some(Json::Array(parts))) => {
                    let parts = parts.iter().map(|it| ty(root, it, objects, depth + 1));
                    format!("[{}]", parts.collect::<Vec<_>>().join(", "))
                }
                (Some(element), _) if element.contains(' ') => format!("({element})[]"),
                (Some(element), _) => format!("{element}[]"),
                (None, _) => "any[]".to_owned(),
            }
        }
        "object" if schema.get("properties").is_some() && objects < SHOWN_DEPTH => {
            format!("{{{}}}", members(root, schema, objects + 1, depth))
        }
        "object" => match schema.get("additionalProperties") {
            Some(value @ Json::Object(_)) => {
                format!("{{string: {}}}", ty(root, value, objects, depth + 1))
            }
            _ => "object".to_owned(),
        },
        name => name.to_owned(),
    }
}

fn optional(text: &str) -> String {
    if text.contains(' ') && !text.starts_with('{') {
        format!("({text})?")
    } else {
        format!("{text}?")
    }
}

#[cfg(test)]
mod tests {
    use super::signature;

    #[test]
    fn a_signature_shows_parameters_in_order_and_the_result() {
        let integer = r#"{"type":"integer","format":"uint64","minimum":0}"#;
        let one = format!(
            r#"{{"anyOf":[{{"type":"object","properties":{{"by":{integer}}},"required":["by"]}},{integer}]}}"#
        );
        assert_eq!(signature("add", &one, integer), "add(by: integer) -> integer");
        let none = r#"{"type":["object","null"],"properties":{},"additionalProperties":false}"#;
        assert_eq!(signature("get", none, r#"{"type":"null"}"#), "get()");
        let order = r##"{"type":"object","properties":{"zeta":{"type":"string"},
            "count":{"type":["integer","null"]},"item":{"$ref":"#/$defs/Item"},
            "kind":{"$ref":"#/$defs/Kind"}},"required":["zeta","item","kind"],
            "$defs":{"Item":{"type":"object"},"Kind":{"type":"string","enum":["a","b"]}}}"##;
        assert_eq!(
            signature("order", order, r##"{"type":"array","items":{"$ref":"#/$defs/Item"}}"##),
            "order(zeta: string, count?: integer, item: Item, kind: \"a\" | \"b\") -> Item[]"
        );
    }

    #[test]
    fn results_are_shown_with_their_shape() {
        for (schema, shown) in [
            ("true", "any"),
            (r#"{"type":["string","null"]}"#, "string?"),
            (
                r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#,
                "{a: string}",
            ),
            (r#"{"type":"object","additionalProperties":{"type":"number"}}"#, "{string: number}"),
            (
                r#"{"type":"array","prefixItems":[{"type":"string"},{"type":"null"}]}"#,
                "[string, null]",
            ),
            (r##"{"anyOf":[{"$ref":"#/$defs/X"},{"type":"null"}]}"##, "X?"),
        ] {
            let none = r#"{"type":["object","null"],"properties":{}}"#;
            assert_eq!(signature("m", none, schema), format!("m() -> {shown}"));
        }
    }

    #[test]
    fn hostile_schemas_give_short_signatures() {
        let deep = r#"{"type":"array","items":"#.repeat(60) + "true" + &"}".repeat(60);
        assert!(signature("m", &deep, "true").chars().count() < 200);
        assert!(signature("m", "not JSON", &deep).chars().count() < 200);
        let wide = format!(r#"{{"enum":[{}1]}}"#, "1,".repeat(10_000));
        assert!(signature("m", "{}", &wide).chars().count() < 200);
    }
}
