//! Compares arguments with a method's schema, and names the place at which they do not fit.

use std::fmt;

use serde_json::Value;

use crate::json::Json;
use crate::{MAX_DEPTH, resolve};

/// Maximum number of comparisons. A check that would take more ends, and the arguments count as fitting.
const MAX_STEPS: usize = 100_000;

/// Why arguments do not fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Members and indices that lead to the place; empty for the whole body.
    path: Vec<String>,
    /// What is wrong there.
    problem: Problem,
}

#[derive(Debug, PartialEq, Eq)]
enum Problem {
    /// The value is none of these.
    Expected {
        types: Vec<String>,
        found: String,
    },
    Other(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "at {}: ", self.path.join("."))?;
        }
        match &self.problem {
            Problem::Expected { types, found } => {
                write!(f, "expected {}, found {found}", types.join(" or "))
            }
            Problem::Other(text) => f.write_str(text),
        }
    }
}

/// Compares a body with the schema of a method's arguments. An empty body counts as `{}`. A schema that is not JSON
/// admits everything.
pub fn check_body(schema: &str, body: &[u8]) -> Result<(), Mismatch> {
    let Ok(root) = serde_json::from_str::<Json>(schema) else { return Ok(()) };
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return Ok(()) };
    let mut check = Check { root: &root, path: Vec::new(), steps: 0 };
    check.schema(&root, &value, 0)
}

struct Check<'s> {
    root: &'s Json,
    path: Vec<String>,
    steps: usize,
}

impl<'s> Check<'s> {
    fn schema(&mut self, schema: &'s Json, value: &Value, depth: usize) -> Result<(), Mismatch> {
        self.steps += 1;
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            return Ok(());
        }
        if schema.as_bool() == Some(false) {
            return Err(self.other("no value is allowed here".to_owned()));
        }
        if let Some(target) = resolve(self.root, schema) {
            self.schema(target, value, depth + 1)?;
        }
        self.types(schema, value)?;
        self.values(schema, value)?;
        self.ranges(schema, value)?;
        self.members(schema, value, depth)?;
        self.elements(schema, value, depth)?;
        for part in schema.get("allOf").map_or(&[][..], Json::elements) {
            self.schema(part, value, depth + 1)?;
        }
        for alternatives in ["anyOf", "oneOf"] {
            if let Some(Json::Array(alternatives)) = schema.get(alternatives) {
                self.any_of(alternatives, value, depth)?;
            }
        }
        Ok(())
    }

    fn types(&self, schema: &Json, value: &Value) -> Result<(), Mismatch> {
        let types: Vec<&str> = match schema.get("type") {
            Some(Json::Array(types)) => types.iter().filter_map(Json::as_str).collect(),
            Some(one) => one.as_str().into_iter().collect(),
            None => return Ok(()),
        };
        if types.is_empty() || types.iter().any(|name| has_type(value, name)) {
            return Ok(());
        }
        Err(self.expected(types.into_iter().map(str::to_owned).collect(), value))
    }

    fn values(&self, schema: &Json, value: &Value) -> Result<(), Mismatch> {
        let allowed: Vec<Value> = match (schema.get("enum"), schema.get("const")) {
            (Some(Json::Array(values)), _) => values.iter().map(Json::to_value).collect(),
            (_, Some(one)) => vec![one.to_value()],
            _ => return Ok(()),
        };
        if allowed.contains(value) {
            return Ok(());
        }
        Err(self.expected(allowed.iter().map(Value::to_string).collect(), value))
    }

    fn ranges(&self, schema: &Json, value: &Value) -> Result<(), Mismatch> {
        let size = |least, most, size: usize, unit: &str| {
            let size = size as f64;
            if let Some(least) = number(schema, least).filter(|least| size < *least) {
                return Err(self.other(format!("{size} {unit}, must be at least {least}")));
            }
            if let Some(most) = number(schema, most).filter(|most| size > *most) {
                return Err(self.other(format!("{size} {unit}, must be at most {most}")));
            }
            Ok(())
        };
        match value {
            Value::String(text) => {
                size("minLength", "maxLength", text.chars().count(), "characters")
            }
            Value::Array(elements) => size("minItems", "maxItems", elements.len(), "elements"),
            Value::Object(members) => {
                size("minProperties", "maxProperties", members.len(), "members")
            }
            Value::Number(found) => {
                let Some(it) = found.as_f64() else { return Ok(()) };
                let broken = [
                    ("minimum", "at least", number(schema, "minimum").filter(|least| it < *least)),
                    ("maximum", "at most", number(schema, "maximum").filter(|most| it > *most)),
                    (
                        "exclusiveMinimum",
                        "above",
                        number(schema, "exclusiveMinimum").filter(|least| it <= *least),
                    ),
                    (
                        "exclusiveMaximum",
                        "below",
                        number(schema, "exclusiveMaximum").filter(|most| it >= *most),
                    ),
                ];
                match broken.iter().find(|(_, _, limit)| limit.is_some()) {
                    Some((keyword, words, _)) => {
                        let limit = schema.get(keyword).map(Json::to_value).unwrap_or_default();
                        Err(self.other(format!("{found} must be {words} {limit}")))
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn members(&mut self, schema: &'s Json, value: &Value, depth: usize) -> Result<(), Mismatch> {
        let Value::Object(members) = value else { return Ok(()) };
        let known = schema.get("properties");
        let rest = schema.get("additionalProperties");
        for (name, member) in members {
            match known.and_then(|known| known.get(name)).or(rest) {
                Some(rule) if rule.as_bool() == Some(false) => {
                    return Err(self.other(format!("unknown member {}", Value::from(&**name))));
                }
                Some(rule) => self.within(name.clone(), rule, member, depth)?,
                None => {}
            }
        }
        for name in schema.get("required").map_or(&[][..], Json::elements) {
            if let Some(name) = name.as_str()
                && !members.contains_key(name)
            {
                return Err(self.other(format!("missing member {}", Value::from(name))));
            }
        }
        Ok(())
    }

    fn elements(&mut self, schema: &'s Json, value: &Value, depth: usize) -> Result<(), Mismatch> {
        let Value::Array(elements) = value else { return Ok(()) };
        let first = schema.get("prefixItems").map_or(&[][..], Json::elements);
        let rest = schema.get("items");
        for (at, element) in elements.iter().enumerate() {
            if let Some(rule) = first.get(at).or(rest) {
                self.within(at.to_string(), rule, element, depth)?;
            }
        }
        Ok(())
    }

    fn within(
        &mut self,
        name: String,
        schema: &'s Json,
        value: &Value,
        depth: usize,
    ) -> Result<(), Mismatch> {
        self.path.push(name);
        let checked = self.schema(schema, value, depth + 1);
        self.path.pop();
        checked
    }

    /// Returns the mismatch with the alternative that fits best: the one that fits down to the deepest place.
    fn any_of(
        &mut self,
        alternatives: &'s [Json],
        value: &Value,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let mut best: Option<Mismatch> = None;
        for alternative in alternatives {
            let Err(found) = self.schema(alternative, value, depth + 1) else { return Ok(()) };
            let rank = |it: &Mismatch| (it.path.len(), matches!(it.problem, Problem::Other(_)));
            match &mut best {
                Some(best) if rank(best) > rank(&found) => {}
                Some(Mismatch { path, problem: Problem::Expected { types, .. } })
                    if *path == found.path =>
                {
                    match found.problem {
                        Problem::Expected { types: more, .. } => types.extend(more),
                        Problem::Other(_) => best = Some(found),
                    }
                }
                Some(best) if rank(best) == rank(&found) => {}
                _ => best = Some(found),
            }
        }
        best.map_or(Ok(()), Err)
    }

    fn expected(&self, types: Vec<String>, value: &Value) -> Mismatch {
        let found = match value {
            Value::Array(_) => "an array".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            scalar => shortened(&scalar.to_string()),
        };
        Mismatch { path: self.path.clone(), problem: Problem::Expected { types, found } }
    }

    fn other(&self, text: String) -> Mismatch {
        Mismatch { path: self.path.clone(), problem: Problem::Other(text) }
    }
}

fn number(schema: &Json, keyword: &str) -> Option<f64> {
    schema.get(keyword).and_then(Json::as_f64)
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|it| it.fract() == 0.0)
        }
        _ => true,
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r##"{"anyOf":[
        {"type":"object","properties":{"by":{"type":"integer","minimum":0}},"required":["by"],
         "additionalProperties":false},
        {"type":"integer","minimum":0}]}"##;
    const ORDER: &str = r##"{"type":"object","properties":{
        "items":{"type":"array","items":{"$ref":"#/$defs/Item"}},"note":{"type":["string","null"]}},
        "required":["items"],"additionalProperties":false,
        "$defs":{"Item":{"type":"object","properties":{"name":{"type":"string","minLength":1},
            "kind":{"enum":["a","b"]},"parts":{"type":"array","items":{"$ref":"#/$defs/Item"}}},
            "required":["name"]}}}"##;

    fn problem(schema: &str, body: &str) -> String {
        check_body(schema, body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn arguments_that_fit_are_accepted() {
        for body in ["3", r#"{"by":3}"#, "3.0"] {
            assert_eq!(check_body(ONE, body.as_bytes()), Ok(()), "{body}");
        }
        for body in [
            r#"{"items":[]}"#,
            r#"{"items":[{"name":"x","parts":[{"name":"y","kind":"b"}]}],"note":null}"#,
        ] {
            assert_eq!(check_body(ORDER, body.as_bytes()), Ok(()), "{body}");
        }
        for schema in ["true", "{}", "not JSON", r##"{"$ref":"http://other/"}"##] {
            assert_eq!(check_body(schema, b"3"), Ok(()), "{schema}");
        }
    }

    #[test]
    fn the_offending_place_is_named() {
        for (body, text) in [
            (r#"{"items":[{"name":"x"},{"name":3}]}"#, "at items.1.name: expected string, found 3"),
            (r#"{"items":[{"name":""}]}"#, "at items.0.name: 0 characters, must be at least 1"),
            (r#"{"items":[{}]}"#, "at items.0: missing member \"name\""),
            (
                r#"{"items":[{"name":"x","kind":"c"}]}"#,
                "at items.0.kind: expected \"a\" or \"b\", found \"c\"",
            ),
            (r#"{"items":[],"nope":1}"#, "unknown member \"nope\""),
            (
                r#"{"items":[{"name":"x","parts":[{"name":[]}]}]}"#,
                "at items.0.parts.0.name: expected string, found an array",
            ),
            (r#"{"items":[],"note":1}"#, "at note: expected string or null, found 1"),
            ("", "missing member \"items\""),
        ] {
            assert_eq!(problem(ORDER, body), text, "{body}");
        }
    }

    #[test]
    fn of_two_forms_the_closer_one_is_explained() {
        for (body, text) in [
            (r#"{"by":"x"}"#, "at by: expected integer, found \"x\""),
            (r#"{"bye":1}"#, "unknown member \"bye\""),
            ("", "missing member \"by\""),
            ("\"x\"", "expected object or integer, found \"x\""),
            ("-1", "-1 must be at least 0"),
        ] {
            assert_eq!(problem(ONE, body), text, "{body}");
        }
        let nested = r#"{"anyOf":[{"properties":{"a":{"properties":{"b":{"type":"integer"}}}}},
            {"required":["z"]}]}"#;
        let text = "at a.b: expected integer, found \"x\"";
        assert_eq!(problem(nested, r#"{"a":{"b":"x"}}"#), text);
    }

    #[test]
    fn a_hostile_schema_ends_the_check() {
        let endless = r##"{"$ref":"#"}"##;
        assert_eq!(check_body(endless, b"1"), Ok(()));
        let doubling = r##"{"allOf":[{"$ref":"#"},{"$ref":"#"}]}"##;
        assert_eq!(check_body(doubling, b"1"), Ok(()));
    }
}
