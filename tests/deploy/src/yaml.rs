//! YAML as JSON values, which are easier to search.

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// The documents of a YAML text. Merge keys (`<<`) are resolved.
#[must_use]
pub fn documents(text: &str) -> Vec<Value> {
    YamlLoader::load_from_str(text).expect("YAML").iter().map(value).collect()
}

fn value(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) => text.as_str().into(),
        Yaml::Integer(number) => (*number).into(),
        Yaml::Real(text) => text.parse::<f64>().expect("a number").into(),
        Yaml::Boolean(value) => (*value).into(),
        Yaml::Array(items) => items.iter().map(value).collect(),
        Yaml::Hash(entries) => {
            let mut merged = Map::new();
            for (key, entry) in entries {
                let key = key.as_str().expect("a key that is a string");
                match (key, value(entry)) {
                    // Keys of the map itself take precedence.
                    ("<<", Value::Object(base)) => {
                        for (key, entry) in base {
                            merged.entry(key).or_insert(entry);
                        }
                    }
                    (key, entry) => drop(merged.insert(key.into(), entry)),
                }
            }
            Value::Object(merged)
        }
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => panic!("unresolved: {yaml:?}"),
    }
}

/// The items of a list; none if there is no list.
#[must_use]
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A string.
#[must_use]
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}

/// The strings of a list.
#[must_use]
pub fn strings(value: &Value) -> Vec<&str> {
    items(value).iter().map(string).collect()
}

/// The keys of a map; none if there is no map.
#[must_use]
pub fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|map| map.keys().map(String::as_str).collect()).unwrap_or_default()
}
