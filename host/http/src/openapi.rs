//! `/openapi.json`: the methods of the deployed types that the caller may use, as an OpenAPI 3.1 document.
//!
//! The schemas come from components that anyone may have deployed. Each becomes a component of the document; what it
//! refers to in itself is referred to there, and references to other documents are left out, so that no reader of the
//! document fetches anything.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use ostraca_codes::codes;
use ostraca_core::names;
use ostraca_wire::proto::{MessageKind, Method, MethodSchema, Methods};
use ostraca_wire::server::Service;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::problem::Problem;
use crate::sent::SentBytes;

/// Maximum number of documents that are being sent at the same time: each may have some megabytes.
pub(crate) const DOCUMENTS: usize = 16;
/// What stays as it is in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Keywords whose values are maps of schemas.
const MAPS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose values are data.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "required"];
/// Keywords that would change what references lead to, or that name other documents.
const NAMES: [&str; 8] = [
    "$id",
    "$schema",
    "$anchor",
    "$dynamicRef",
    "$dynamicAnchor",
    "$vocabulary",
    "discriminator",
    "externalDocs",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    r#type: Option<String>,
}

pub(crate) async fn show<S: Service>(
    State(app): State<Arc<App<S>>>,
    request: Request,
) -> Result<Response, Problem> {
    let holder = app.auth.holder(request.headers())?;
    let place = app.sessions.enter(&holder.principal, None)?;
    let Query(Parameters { r#type }) = Query::try_from_uri(request.uri()).map_err(|error| {
        let text = error.body_text();
        Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_QUERY_STRING, text)
            .help("the only parameter is `type`, with the name of a type")
    })?;
    let places = [&place.documents, &app.documents].map(|it| Arc::clone(it).try_acquire_owned());
    let [Ok(own), Ok(any)] = places else {
        let text = "too many descriptions of types are being sent";
        let busy = Problem::refused(StatusCode::SERVICE_UNAVAILABLE, codes::OVERLOADED, text);
        return Err(busy.retry_after(Duration::from_secs(1)));
    };
    let client = app.server.local_client(&holder.principal, holder.subjects.clone());
    let service = app.server.service();
    let types = service.describe_types(&client, r#type.as_deref()).map_err(Problem::of)?;
    if let Some(name) = r#type.filter(|_| types.is_empty()) {
        let text = format!("there is no type `{name}` that you may use");
        return Err(Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_TYPE, text));
    }
    let text = describe(&types, app.auth.admits_anonymous()?, app.settings.max_timeout).to_string();
    let held = (own, any, place.permit);
    let mut response = Response::new(Body::new(SentBytes::new(text.into(), held)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The document of these types: whether a request needs no token, and how long a call may wait.
fn describe(types: &[Methods], anonymous: bool, max_timeout: Duration) -> Value {
    let mut document = Document::default();
    for entry in types {
        document.add(entry);
    }
    let tags: Vec<_> = types
        .iter()
        .map(|it| json!({"name": it.r#type, "description": format!("Revision {}.", it.revision)}))
        .collect();
    let mut schemas = document.schemas;
    schemas.insert("Problem".into(), problem_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ostraca entities",
            "version": "1",
            "description": "Calls of the entity types that are deployed and that the caller may use. The header `ostraca-outcome` of an answer says what is known about the message; its status does not.",
        },
        "servers": [{"url": "/"}],
        "security": if anonymous { json!([{"token": []}, {}]) } else { json!([{"token": []}]) },
        "tags": tags,
        "paths": document.paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": parameters(max_timeout),
            "headers": headers(),
            "responses": {"Problem": {
                "description": "The call has no result. `outcome` says what is known about its message.",
                "headers": {"ostraca-outcome": reference("headers", "Outcome")},
                "content": {"application/problem+json": {"schema": reference("schemas", "Problem")}},
            }},
            "schemas": schemas,
        },
    })
}

#[derive(Default)]
struct Document {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Document {
    fn add(&mut self, entry: &Methods) {
        let name = &entry.r#type;
        let (namespace, local) = names::split(name);
        let start = format!("/v1/{namespace}/{}/{{id}}", utf8_percent_encode(local, PLAIN));
        for method in &entry.methods {
            let path = format!("{start}/call/{}", utf8_percent_encode(&method.name, PLAIN));
            let item = self.calls(name, method);
            self.paths.insert(path, item);
        }
        let follow = json!({
            "operationId": format!("{name}.follow"),
            "summary": "Follow a channel, as server-sent events.",
            "tags": [name],
            "parameters": [reference("parameters", "From"), reference("parameters", "LastEventId")],
            "responses": {
                "200": {
                    "description": "Items as they are emitted.",
                    "content": {"text/event-stream": {}},
                },
                "default": reference("responses", "Problem"),
            },
        });
        let parameters = json!([
            reference("parameters", "Id"),
            {"name": "channel", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1, "maxLength": 255}},
        ]);
        let item = json!({"parameters": parameters, "get": follow});
        self.paths.insert(format!("{start}/channel/{{channel}}"), item);
    }

    fn calls(&mut self, entity_type: &str, method: &Method) -> Value {
        let is_query = method.kind() == MessageKind::Query;
        let schema = method.schema.as_ref();
        let takes_nothing = schema.is_none_or(|schema| {
            serde_json::from_str(&schema.arguments).is_ok_and(|schema| admits_empty(&schema))
        });
        let schemas = schema.map(|schema| self.schemas_of(entity_type, method, schema));
        let (arguments, result) = schemas.unwrap_or((json!({}), json!({})));
        let common = json!({
            "summary": method.summary,
            "tags": [entity_type],
            "responses": {
                "200": {
                    "description": "The method's result.",
                    "headers": {
                        "ostraca-outcome": reference("headers", "Outcome"),
                        "ostraca-entity-version": reference("headers", "Version"),
                        "ostraca-message-id": reference("headers", "MessageId"),
                    },
                    "content": {
                        "application/json": {"schema": result},
                        "application/octet-stream": {},
                    },
                },
                "204": {"description": "The result is empty."},
                "default": reference("responses", "Problem"),
            },
        });
        let operation = |id: String, more: Value| {
            let mut operation = common.clone();
            operation["operationId"] = id.into();
            if let (Some(operation), Value::Object(more)) = (operation.as_object_mut(), more) {
                operation.extend(more);
            }
            operation
        };
        let id = format!("{entity_type}.call.{}", method.name);
        let kind = json!({
            "name": "ostraca-kind", "in": "header",
            "description": "What the caller takes the method for.",
            "schema": {"const": if is_query { "query" } else { "command" }},
        });
        let mut sent = vec![reference("parameters", "Timeout"), kind];
        if !is_query {
            sent.push(reference("parameters", "IdempotencyKey"));
        }
        let body = json!({
            "description": "The method's arguments; none for a method without arguments.",
            "required": !takes_nothing,
            "content": {"application/json": {"schema": arguments}},
        });
        let post = operation(id.clone(), json!({"parameters": sent, "requestBody": body}));
        let mut item = json!({"parameters": [reference("parameters", "Id")], "post": post});
        if is_query {
            let args = json!({
                "name": "args",
                "in": "query",
                "description": "The method's arguments.",
                "content": {"application/json": {"schema": arguments}},
            });
            let more = json!({"parameters": [args, reference("parameters", "Timeout")]});
            item["get"] = operation(format!("{entity_type}.get.{}", method.name), more);
        }
        item
    }

    /// References to the schemas of a method's arguments and of its result.
    fn schemas_of(
        &mut self,
        entity_type: &str,
        method: &Method,
        schema: &MethodSchema,
    ) -> (Value, Value) {
        let mut add = |text: &str, part: &str| {
            let Ok(schema) = serde_json::from_str::<Value>(text) else { return json!({}) };
            let plain = |text: &str| -> String {
                let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_".contains(it);
                text.chars().map(|it| if is_plain(it) { it } else { '_' }).collect()
            };
            let mut name = format!("{}.{}.{part}", plain(entity_type), plain(&method.name));
            while self.schemas.contains_key(&name) {
                name.push('_');
            }
            let schema = within(schema, &format!("#/components/schemas/{name}"));
            self.schemas.insert(name.clone(), schema);
            reference("schemas", &name)
        };
        (add(&schema.arguments, "arguments"), add(&schema.result, "result"))
    }
}

/// Whether arguments may be left out: the schema seems to admit `null`, or an object without fields.
fn admits_empty(schema: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema != &Value::Bool(false) };
    if let Some(Value::Array(choices)) = keywords.get("anyOf").or_else(|| keywords.get("oneOf")) {
        return choices.iter().any(admits_empty);
    }
    let admits = |name: &Value| name == "object" || name == "null";
    let by_type = match keywords.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(admits),
        Some(name) => admits(name),
    };
    let required = keywords.get("required").and_then(Value::as_array);
    by_type && required.is_none_or(Vec::is_empty)
}

/// The least and the greatest number of an integer format, which most readers of a schema do not know.
fn bounds(format: &str) -> Option<(Value, Value)> {
    Some(match format {
        "uint8" => (0.into(), u8::MAX.into()),
        "uint16" => (0.into(), u16::MAX.into()),
        "uint32" => (0.into(), u32::MAX.into()),
        "uint64" => (0.into(), u64::MAX.into()),
        "int8" => (i8::MIN.into(), i8::MAX.into()),
        "int16" => (i16::MIN.into(), i16::MAX.into()),
        "int32" => (i32::MIN.into(), i32::MAX.into()),
        "int64" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

fn reference(section: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{section}/{name}")})
}

/// A schema as a part of a document, at `place`.
fn within(schema: Value, place: &str) -> Value {
    match schema {
        Value::Object(keywords) => {
            let keywords = keywords.into_iter().filter(|(name, _)| !NAMES.contains(&name.as_str()));
            let keywords = keywords.filter_map(|(name, value)| {
                let value = match (name.as_str(), value) {
                    ("$ref", Value::String(target)) => {
                        let pointer = target.strip_prefix('#')?;
                        let is_pointer = pointer.is_empty() || pointer.starts_with('/');
                        is_pointer.then(|| Value::String(format!("{place}{pointer}")))?
                    }
                    ("$ref", _) => return None,
                    (map, Value::Object(schemas)) if MAPS.contains(&map) => {
                        let schemas = schemas.into_iter();
                        schemas.map(|(name, schema)| (name, within(schema, place))).collect()
                    }
                    (data, value) if DATA.contains(&data) => value,
                    (_, value) => within(value, place),
                };
                Some((name, value))
            });
            let mut keywords: Map<String, Value> = keywords.collect();
            let format = keywords.get("format").and_then(Value::as_str);
            if let Some((least, greatest)) = format.and_then(bounds) {
                keywords.entry("minimum").or_insert(least);
                keywords.entry("maximum").or_insert(greatest);
            }
            Value::Object(keywords)
        }
        Value::Array(values) => values.into_iter().map(|value| within(value, place)).collect(),
        other => other,
    }
}

fn parameters(max_timeout: Duration) -> Value {
    let most = u64::try_from(max_timeout.as_millis()).unwrap_or(u64::MAX);
    json!({
        "Id": {
            "name": "id", "in": "path", "required": true,
            "description": "The entity's id: 1 to 512 bytes of UTF-8, percent-encoded.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 512},
        },
        "Timeout": {
            "name": "ostraca-timeout", "in": "header",
            "description": "How long the caller waits for the outcome, in milliseconds.",
            "schema": {"type": "integer", "minimum": 1, "maximum": most},
        },
        "IdempotencyKey": {
            "name": "idempotency-key", "in": "header",
            "description": "Names the request. Sent again with the same key, it does not run again, and gets the same answer.",
            "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        },
        "From": {
            "name": "from", "in": "query",
            "description": "Where the channel is followed from: `now`, `oldest`, or `version:` and a version.",
            "schema": {"type": "string", "pattern": "^(now|oldest|version:[0-9]{1,19})$"},
        },
        "LastEventId": {
            "name": "last-event-id", "in": "header",
            "description": "The id of the last event that was received, behind which the channel is followed.",
            "schema": {"type": "string"},
        },
    })
}

fn headers() -> Value {
    json!({
        "Outcome": {
            "description": "What is known about the message.",
            "schema": {"type": "string", "enum": [
                "result", "not-run", "unknown", "unanswered", "application-error", "reply-dropped",
            ]},
        },
        "Version": {
            "description": "The entity's version after the turn, or the one that a query read.",
            "schema": {"type": "integer"},
        },
        "MessageId": {"description": "The message's id, for logs.", "schema": {"type": "string"}},
    })
}

fn problem_schema() -> Value {
    json!({
        "description": "A problem document (RFC 9457).",
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "outcome"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string"},
            "outcome": {"enum": [
                "not-run", "unknown", "unanswered", "application-error", "reply-dropped",
            ]},
            "help": {"type": "string"},
            "retry-after-ms": {"type": "integer"},
            "message-id": {"type": "string"},
            "entity-version": {"type": "integer"},
            "details": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What references lead to.
    fn targets(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("$ref", Value::String(target)) => drop(found.insert(target.clone())),
                        (_, value) => targets(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| targets(value, found)),
            _ => {}
        }
    }

    fn method(name: &str, kind: MessageKind, arguments: &str) -> Method {
        let schema = MethodSchema { arguments: arguments.into(), result: "{}".into() };
        let (name, kind) = (name.into(), kind.into());
        Method { name, kind, summary: "A method.".into(), schema: Some(schema) }
    }

    fn types() -> Vec<Methods> {
        let cart = r##"{
            "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://evil.example/x",
            "type": "object",
            "properties": {"$id": {"$ref": "#/$defs/Item"}, "self": {"$ref": "#"},
                "away": {"$ref": "https://evil.example/schema"}, "named": {"$ref": "#anchor"}},
            "discriminator": {"propertyName": "t", "mapping": {"a": "https://evil.example/x"}},
            "examples": [{"$ref": "#/data", "$id": 1}],
            "$defs": {"Item": {"type": "string"}}
        }"##;
        let methods = vec![
            method("put", MessageKind::Command, cart),
            method("a/b {c}", MessageKind::Query, "true"),
            method("a/b_{c}", MessageKind::Query, "not JSON"),
        ];
        vec![Methods { r#type: "cart".into(), revision: 3, methods }]
    }

    #[test]
    fn references_lead_to_parts_of_the_document() {
        let document = describe(&types(), false, Duration::from_secs(1));
        let mut found = BTreeSet::new();
        let mut checked = document.clone();
        let put = "cart.put.arguments";
        // Data is no reference.
        let examples = checked["components"]["schemas"][put]["examples"].take();
        assert_eq!(examples, json!([{"$ref": "#/data", "$id": 1}]));
        targets(&checked, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').expect("a part of the document");
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        let schema = &document["components"]["schemas"][put];
        assert_eq!(schema["properties"]["self"]["$ref"], format!("#/components/schemas/{put}"));
        let item = format!("#/components/schemas/{put}/$defs/Item");
        assert_eq!(schema["properties"]["$id"]["$ref"], item, "a property may have any name");
        assert_eq!(schema["properties"]["away"], json!({}), "nothing is fetched");
        assert_eq!(schema["properties"]["named"], json!({}));
        assert!(!document.to_string().contains("evil.example"), "{document}");
        assert!(schema.get("$id").is_none() && schema.get("$schema").is_none(), "{schema}");
    }

    #[test]
    fn what_a_method_needs_is_required() {
        for (schema, empty) in [
            (r#"{"type":["object","null"],"properties":{}}"#, true),
            (r#"{"type":"object","properties":{"by":{}},"required":["by"]}"#, false),
            (r#"{"type":"object","properties":{"by":{}},"required":[]}"#, true),
            (r#"{"anyOf":[{"type":"object","required":["by"]},{"type":"integer"}]}"#, false),
            (
                r#"{"anyOf":[{"type":"object","required":["by"]},{"type":["integer","null"]}]}"#,
                true,
            ),
            ("true", true),
            ("false", false),
        ] {
            let parsed = serde_json::from_str(schema).expect("a schema");
            assert_eq!(admits_empty(&parsed), empty, "{schema}");
        }
    }

    #[test]
    fn integers_have_the_bounds_of_their_format() {
        let schema = json!({"properties": {"a": {"type": "integer", "format": "uint32", "maximum": 5},
            "b": {"type": "integer", "format": "int8"}, "format": {"type": "string"}}});
        let described = within(schema, "#/x");
        let of = |name: &str, bound: &str| described["properties"][name][bound].clone();
        assert_eq!([of("a", "minimum"), of("a", "maximum")], [json!(0), json!(5)]);
        assert_eq!([of("b", "minimum"), of("b", "maximum")], [json!(-128), json!(127)]);
        assert_eq!(described["properties"]["format"], json!({"type": "string"}));
    }

    #[test]
    fn a_query_can_be_read_and_a_command_cannot() {
        let document = describe(&types(), false, Duration::from_secs(1));
        let paths = document["paths"].as_object().expect("paths");
        let put = &paths["/v1/default/cart/{id}/call/put"];
        assert!(put.get("get").is_none() && put.get("post").is_some(), "{put}");
        let odd = &paths["/v1/default/cart/{id}/call/a%2Fb%20%7Bc%7D"];
        assert!(odd.get("get").is_some() && odd.get("post").is_some(), "{odd}");
        let keyed = |operation: &Value| operation.to_string().contains("IdempotencyKey");
        assert!(keyed(&put["post"]) && !keyed(&odd["post"]), "{document}");
        let names: Vec<_> =
            document["components"]["schemas"].as_object().expect("schemas").keys().collect();
        assert!(names.contains(&&"cart.a_b__c_.arguments".to_owned()), "{names:?}");
        assert_eq!(names.len(), 6, "two methods whose names are written alike: {names:?}");
    }
}
