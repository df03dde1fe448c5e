//! What all languages write: the types of values with their names, and the methods.

use serde_json::Value;

/// A type of JSON values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Any,
    Null,
    Boolean,
    /// With its `format`, such as `uint32`.
    Integer(Option<String>),
    Number(Option<String>),
    Text,
    /// One of these scalars.
    Literals(Vec<Value>),
    Array(Box<Shape>),
    Tuple(Vec<Shape>),
    /// An object with any members.
    Map(Box<Shape>),
    Nullable(Box<Shape>),
    /// A definition, by its index.
    Named(usize),
}

/// A member of an object, or a parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    /// As in JSON.
    pub(super) name: String,
    pub(super) description: String,
    pub(super) required: bool,
    pub(super) shape: Shape,
}

/// A type with a name.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    /// Unique in the model, in `PascalCase`.
    pub(super) name: String,
    pub(super) description: String,
    pub(super) body: Body,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Object(Vec<Field>),
    /// Two or more shapes, none of which is null.
    Union(Vec<Shape>),
    Alias(Shape),
}

/// What a method takes.
#[derive(Clone, Debug)]
pub(super) enum Parameters {
    /// Members of the object that is sent.
    Named(Vec<Field>),
    /// One value, which is sent as it is.
    Whole(Shape),
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) is_command: bool,
    pub(super) summary: String,
    pub(super) parameters: Parameters,
    pub(super) result: Shape,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) entity_type: String,
    pub(super) revision: u64,
    /// The name of the class.
    pub(super) class: String,
    pub(super) definitions: Vec<Definition>,
    pub(super) calls: Vec<Call>,
}
