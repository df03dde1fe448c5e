//! Reads what a type's methods say about themselves.

use super::model::{Call, Model, Parameters};
use super::names::{Scope, pascal};
use super::shapes::Shapes;
use super::{EntityType, Method};
use crate::json::Json;

impl Model {
    pub(super) fn of(entity_type: &EntityType<'_>, reserved: &'static [&'static str]) -> Self {
        let mut scope = Scope::new(reserved);
        let class = scope.unique(pascal(entity_type.name) + "Entity");
        let mut shapes = Shapes::new(scope);
        let calls = entity_type.methods.iter().map(|method| call(&mut shapes, method)).collect();
        Self {
            entity_type: entity_type.name.to_owned(),
            revision: entity_type.revision,
            class,
            definitions: shapes.finish(),
            calls,
        }
    }
}

fn call(shapes: &mut Shapes, method: &Method<'_>) -> Call {
    let schema = |text: &str| serde_json::from_str(text).unwrap_or(Json::Scalar(true.into()));
    let name = pascal(method.name);
    let arguments = schema(method.arguments);
    let forms = arguments.get("anyOf").map_or(&[][..], Json::elements);
    let named = forms.iter().chain([&arguments]).find(|form| form.get("properties").is_some());
    let parameters = match named {
        Some(form) => Parameters::Named(shapes.fields(&arguments, form, &name, 0)),
        None => Parameters::Whole(shapes.root(&arguments, &format!("{name}Arguments"))),
    };
    Call {
        name: method.name.to_owned(),
        is_command: method.is_command,
        summary: method.summary.to_owned(),
        parameters,
        result: shapes.root(&schema(method.result), &format!("{name}Result")),
    }
}
