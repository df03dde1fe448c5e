//! The JSON Schemas of one method, and the export that returns those of all methods.

use wasmtime::component::{ComponentType, Lift, TypedFunc};

/// The JSON Schemas of one method's arguments and result.
#[derive(Debug, Clone, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub struct MethodSchema {
    /// The method's name.
    pub method: String,
    /// The schema of the message's body, as JSON text: an object or a boolean.
    pub arguments: String,
    /// The schema of the result, likewise.
    pub result: String,
}

/// The type of the export.
pub(crate) type SchemasFunc = TypedFunc<(), (Vec<MethodSchema>,)>;
