//! The JSON Schemas that `#[entity]` derives from the types of its methods.

#![allow(dead_code, unused_variables, reason = "the methods are never called")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use ostraca_sdk::serde_json::{self, Value, json};
use ostraca_sdk::testing::{self, MethodSchema};
use ostraca_sdk::{Error, JsonSchema, entity};
use serde::{Deserialize, Serialize};

/// A kind of item.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "ostraca_sdk::schemars")]
struct Item {
    name: String,
    parts: Vec<Item>,
}

/// Does not derive `JsonSchema`.
#[derive(Serialize, Deserialize)]
struct Undescribed;

type Alias<T> = Result<T, Error>;

#[derive(Default, Serialize, Deserialize)]
struct Shop {}

#[entity]
impl Shop {
    #[message]
    fn order(&mut self, zeta: String, count: Option<u32>, alpha: bool) -> Result<u64, Error> {
        unreachable!()
    }

    #[message]
    fn one(&mut self, item: Item) -> Alias<Vec<Item>> {
        unreachable!()
    }

    #[message]
    fn none(&self) {}

    #[message]
    fn unknown(&self, it: Undescribed, other: u8) -> Alias<Undescribed> {
        unreachable!()
    }

    #[message]
    fn plain(&self) -> Undescribed {
        unreachable!()
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Silent {}

#[entity(schemas = false)]
impl Silent {
    #[message]
    fn get(&self) {}
}

fn schema(method: &str) -> (MethodSchema, Value, Value) {
    let all = testing::schemas::<Shop>();
    let it = all.into_iter().find(|it| it.method == method).unwrap();
    let arguments = serde_json::from_str(&it.arguments).unwrap();
    let result = serde_json::from_str(&it.result).unwrap();
    (it, arguments, result)
}

#[test]
fn parameters_keep_their_order_and_options_may_be_omitted() {
    let (text, arguments, result) = schema("order");
    assert!(text.arguments.find("zeta") < text.arguments.find("count"));
    assert!(text.arguments.find("count") < text.arguments.find("alpha"));
    assert_eq!(arguments["required"], json!(["zeta", "alpha"]));
    assert_eq!(arguments["additionalProperties"], json!(false));
    assert_eq!(arguments["properties"]["zeta"], json!({ "type": "string" }));
    assert_eq!(arguments["properties"]["count"]["type"], json!(["integer", "null"]));
    assert_eq!(result["type"], json!("integer"));
}

#[test]
fn a_single_parameter_may_be_bare_and_types_are_shared() {
    let (_, arguments, result) = schema("one");
    let item = json!({ "$ref": "#/$defs/Item" });
    assert_eq!(arguments["anyOf"][0]["properties"], json!({ "item": item }));
    assert_eq!(arguments["anyOf"][1], item);
    assert_eq!(arguments["$defs"]["Item"]["properties"]["parts"]["items"], item);
    assert_eq!(result["items"], item);
    assert_eq!(result["$defs"]["Item"]["description"], json!("A kind of item."));
}

#[test]
fn a_type_without_a_schema_admits_everything() {
    let (_, arguments, result) = schema("unknown");
    assert_eq!(arguments["properties"]["it"], json!(true));
    assert_eq!(arguments["properties"]["other"]["maximum"], json!(255));
    assert_eq!(result, json!(true));
    assert_eq!(schema("plain").2, json!(true));
}

#[test]
fn a_method_without_parameters_and_result_takes_nothing() {
    let (_, arguments, result) = schema("none");
    assert_eq!(arguments["type"], json!(["object", "null"]));
    assert_eq!(arguments["additionalProperties"], json!(false));
    assert_eq!(result, json!({ "type": "null" }));
}

#[test]
fn each_method_has_a_schema_unless_the_entity_opts_out() {
    let names: Vec<_> = testing::schemas::<Shop>().into_iter().map(|it| it.method).collect();
    assert_eq!(names, ["order", "one", "none", "unknown", "plain"]);
    assert!(testing::schemas::<Silent>().is_empty());
}
