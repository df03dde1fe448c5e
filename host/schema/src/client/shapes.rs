//! Reads schemas as shapes. Objects and unions become definitions with a name.

use std::collections::BTreeMap;

use serde_json::Value;

use super::model::{Body, Definition, Field, Shape};
use super::names::{Scope, pascal};
use crate::json::Json;
use crate::{MAX_DEPTH, resolve};

/// A definition of a schema: its pointer, and everything that it refers to. Two methods' definitions of one name are the
/// same type if these are equal.
type Identity = (String, Vec<(String, Json)>);

#[derive(Debug)]
pub(super) struct Shapes {
    scope: Scope,
    definitions: Vec<Definition>,
    known: Vec<(Identity, usize)>,
}

impl Shapes {
    pub(super) fn new(scope: Scope) -> Self {
        Self { scope, definitions: Vec::new(), known: Vec::new() }
    }

    /// The shape of a whole schema. `hint` names what has no name of its own.
    pub(super) fn root(&mut self, root: &Json, hint: &str) -> Shape {
        self.shape(root, root, hint, 0)
    }

    /// The members of a schema with `properties`. `hint` begins the names of what is inside.
    pub(super) fn fields(
        &mut self,
        root: &Json,
        schema: &Json,
        hint: &str,
        depth: usize,
    ) -> Vec<Field> {
        let required = schema.get("required").map_or(&[][..], Json::elements);
        let members = schema.get("properties").map_or(&[][..], Json::members);
        let mut fields: BTreeMap<&str, usize> = BTreeMap::new();
        let mut all = Vec::new();
        for (name, member) in members {
            // A repeated member replaces the earlier one, as in JSON.
            let at = *fields.entry(name).or_insert(all.len());
            let field = Field {
                name: name.clone(),
                description: description(member),
                required: required.iter().any(|it| it.as_str() == Some(name)),
                shape: self.shape(root, member, &format!("{hint}{}", pascal(name)), depth + 1),
            };
            match all.get_mut(at) {
                Some(earlier) => *earlier = field,
                None => all.push(field),
            }
        }
        all
    }

    /// The definitions, without those that would be defined by nothing but themselves.
    pub(super) fn finish(mut self) -> Vec<Definition> {
        for index in 0..self.definitions.len() {
            if self.is_circular(index, index, &mut vec![false; self.definitions.len()]) {
                self.definitions[index].body = Body::Alias(Shape::Any);
            }
        }
        self.definitions
    }

    /// Whether a definition leads back to `start` without an object, an array or a map in between.
    fn is_circular(&self, start: usize, at: usize, seen: &mut [bool]) -> bool {
        if std::mem::replace(&mut seen[at], true) {
            return false;
        }
        let direct = |shape: &Shape| match shape {
            Shape::Named(next) => Some(*next),
            Shape::Nullable(inner) => match **inner {
                Shape::Named(next) => Some(next),
                _ => None,
            },
            _ => None,
        };
        let next: Vec<usize> = match &self.definitions[at].body {
            Body::Object(_) => return false,
            Body::Union(shapes) => shapes.iter().filter_map(direct).collect(),
            Body::Alias(shape) => direct(shape).into_iter().collect(),
        };
        next.into_iter().any(|next| next == start || self.is_circular(start, next, seen))
    }

    fn shape(&mut self, root: &Json, schema: &Json, hint: &str, depth: usize) -> Shape {
        let name = || match schema.get("title").and_then(Json::as_str) {
            Some(title) => pascal(title),
            None => hint.to_owned(),
        };
        match self.read(root, schema, hint, depth) {
            Read::Shape(shape) => shape,
            Read::Object(fields) => self.define(name(), schema, Body::Object(fields)),
            Read::Union(shapes, is_nullable) => {
                let shape = self.define(name(), schema, Body::Union(shapes));
                if is_nullable { nullable(shape) } else { shape }
            }
        }
    }

    fn read(&mut self, root: &Json, schema: &Json, hint: &str, depth: usize) -> Read {
        if depth > MAX_DEPTH {
            return Read::Shape(Shape::Any);
        }
        if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
            return Read::Shape(match resolve(root, schema) {
                Some(target) => self.referenced(root, reference, target, depth),
                None => Shape::Any,
            });
        }
        if let Some(values) = literals(schema) {
            return Read::Shape(literal_shape(values));
        }
        let has_properties = schema.get("properties").is_some();
        let forms = schema.get("anyOf").or_else(|| schema.get("oneOf"));
        match (forms, schema.get("allOf")) {
            // Both what the forms and what the properties say would have to hold.
            (Some(_), _) | (_, Some(_)) if has_properties => return Read::Shape(Shape::Any),
            (Some(Json::Array(forms)), None) => return self.union(root, forms, hint, depth),
            (None, Some(Json::Array(parts))) => {
                return match &parts[..] {
                    [one] => self.read(root, one, hint, depth + 1),
                    _ => Read::Shape(Shape::Any),
                };
            }
            (None, None) => {}
            _ => return Read::Shape(Shape::Any),
        }
        match schema.get("type") {
            Some(Json::Array(names)) => {
                let names: Vec<_> = names.iter().filter_map(Json::as_str).collect();
                let others: Vec<_> = names.iter().filter(|name| **name != "null").collect();
                let is_nullable = names.len() > others.len();
                if let [only] = others[..] {
                    return match self.named_type(root, schema, only, hint, depth) {
                        Read::Shape(shape) if is_nullable => Read::Shape(nullable(shape)),
                        Read::Object(fields) if is_nullable => {
                            let name = hint.to_owned();
                            Read::Shape(nullable(self.define(name, schema, Body::Object(fields))))
                        }
                        read => read,
                    };
                }
                let mut all = Vec::new();
                for name in others {
                    let shape = match self.named_type(root, schema, name, hint, depth) {
                        Read::Object(fields) => {
                            self.define(hint.to_owned(), schema, Body::Object(fields))
                        }
                        Read::Shape(shape) => shape,
                        Read::Union(..) => Shape::Any,
                    };
                    all.push(shape);
                }
                match all.is_empty() {
                    true if is_nullable => Read::Shape(Shape::Null),
                    true => Read::Shape(Shape::Any),
                    false => Read::Union(all, is_nullable),
                }
            }
            Some(name) => {
                self.named_type(root, schema, name.as_str().unwrap_or_default(), hint, depth)
            }
            None if has_properties => self.named_type(root, schema, "object", hint, depth),
            None => Read::Shape(Shape::Any),
        }
    }

    fn named_type(
        &mut self,
        root: &Json,
        schema: &Json,
        name: &str,
        hint: &str,
        depth: usize,
    ) -> Read {
        let format = || schema.get("format").and_then(Json::as_str).map(str::to_owned);
        Read::Shape(match name {
            "null" => Shape::Null,
            "boolean" => Shape::Boolean,
            "integer" => Shape::Integer(format()),
            "number" => Shape::Number(format()),
            "string" => Shape::Text,
            "array" => match (schema.get("prefixItems"), schema.get("items")) {
                (Some(Json::Array(parts)), _) => {
                    let parts = parts.iter().enumerate();
                    let part = |(at, part): (usize, &Json)| {
                        self.shape(root, part, &format!("{hint}{}", at + 1), depth + 1)
                    };
                    Shape::Tuple(parts.map(part).collect())
                }
                (_, Some(items)) => {
                    let item = self.shape(root, items, &format!("{hint}Item"), depth + 1);
                    Shape::Array(Box::new(item))
                }
                _ => Shape::Array(Box::new(Shape::Any)),
            },
            "object" if schema.get("properties").is_some() => {
                return Read::Object(self.fields(root, schema, hint, depth));
            }
            "object" => Shape::Map(Box::new(match schema.get("additionalProperties") {
                Some(value @ Json::Object(_)) => {
                    self.shape(root, value, &format!("{hint}Value"), depth + 1)
                }
                _ => Shape::Any,
            })),
            _ => Shape::Any,
        })
    }

    fn union(&mut self, root: &Json, forms: &[Json], hint: &str, depth: usize) -> Read {
        let mut all: Vec<Shape> = Vec::new();
        let mut values = Vec::new();
        for (at, form) in forms.iter().enumerate() {
            if let Some(more) = literals(form) {
                values.extend(more);
                continue;
            }
            let hint = match form.get("properties").map_or(&[][..], Json::members) {
                [(only, _)] => format!("{hint}{}", pascal(only)),
                _ => format!("{hint}{}", at + 1),
            };
            all.push(self.shape(root, form, &hint, depth + 1));
        }
        if !values.is_empty() {
            all.insert(0, literal_shape(values));
        }
        if all.is_empty() || all.contains(&Shape::Any) {
            return Read::Shape(Shape::Any);
        }
        let mut is_nullable = false;
        let mut others: Vec<Shape> = Vec::new();
        for shape in all {
            let shape = match shape {
                Shape::Null => {
                    is_nullable = true;
                    continue;
                }
                Shape::Nullable(inner) => {
                    is_nullable = true;
                    *inner
                }
                shape => shape,
            };
            if !others.contains(&shape) {
                others.push(shape);
            }
        }
        match others.len() {
            0 => Read::Shape(Shape::Null),
            1 => {
                let only = others.remove(0);
                Read::Shape(if is_nullable { nullable(only) } else { only })
            }
            _ => Read::Union(others, is_nullable),
        }
    }

    /// The definition at the end of a reference.
    fn referenced(&mut self, root: &Json, reference: &str, target: &Json, depth: usize) -> Shape {
        let identity = (reference.to_owned(), reachable(root, reference, target));
        if let Some((_, index)) = self.known.iter().find(|(known, _)| *known == identity) {
            return Shape::Named(*index);
        }
        let title = target.get("title").and_then(Json::as_str);
        let last = reference.rsplit('/').next().unwrap_or_default();
        let name = if last == "#" { title.unwrap_or("Value") } else { last };
        let index = self.reserve(pascal(name), description(target));
        self.known.push((identity, index));
        let name = self.definitions[index].name.clone();
        self.definitions[index].body = match self.read(root, target, &name, depth + 1) {
            Read::Object(fields) => Body::Object(fields),
            Read::Union(shapes, false) => Body::Union(shapes),
            Read::Union(shapes, true) => {
                let inner = self.define(format!("{name}Value"), target, Body::Union(shapes));
                Body::Alias(nullable(inner))
            }
            Read::Shape(shape) => Body::Alias(shape),
        };
        Shape::Named(index)
    }

    fn define(&mut self, name: String, schema: &Json, body: Body) -> Shape {
        let index = self.reserve(name, description(schema));
        self.definitions[index].body = body;
        Shape::Named(index)
    }

    fn reserve(&mut self, name: String, description: String) -> usize {
        let name = self.scope.unique(name);
        self.definitions.push(Definition { name, description, body: Body::Alias(Shape::Any) });
        self.definitions.len() - 1
    }
}

/// A schema that has been read, before it has a name.
enum Read {
    Shape(Shape),
    Object(Vec<Field>),
    /// Two or more shapes, and whether null is one more.
    Union(Vec<Shape>, bool),
}

fn nullable(shape: Shape) -> Shape {
    match shape {
        Shape::Any | Shape::Null | Shape::Nullable(_) => shape,
        shape => Shape::Nullable(Box::new(shape)),
    }
}

fn description(schema: &Json) -> String {
    schema.get("description").and_then(Json::as_str).unwrap_or_default().to_owned()
}

/// The values of an `enum` or a `const`.
fn literals(schema: &Json) -> Option<Vec<Json>> {
    match (schema.get("enum"), schema.get("const")) {
        (Some(Json::Array(values)), _) => Some(values.clone()),
        (_, Some(value)) => Some(vec![value.clone()]),
        _ => None,
    }
}

/// One of these values. Numbers with a fraction, arrays and objects are no literals in some languages.
fn literal_shape(values: Vec<Json>) -> Shape {
    let mut scalars: Vec<Value> = Vec::new();
    let mut is_nullable = false;
    for value in values {
        match value {
            Json::Scalar(Value::Null) => is_nullable = true,
            Json::Scalar(value @ (Value::String(_) | Value::Bool(_))) => scalars.push(value),
            Json::Scalar(Value::Number(number)) if !number.is_f64() => scalars.push(number.into()),
            _ => return Shape::Any,
        }
    }
    scalars.dedup();
    match scalars.is_empty() {
        true if is_nullable => Shape::Null,
        true => Shape::Any,
        false if is_nullable => nullable(Shape::Literals(scalars)),
        false => Shape::Literals(scalars),
    }
}

/// The target of a reference, and all that it refers to in turn, by their pointers.
fn reachable(root: &Json, reference: &str, target: &Json) -> Vec<(String, Json)> {
    let mut found = BTreeMap::from([(reference.to_owned(), target)]);
    let mut open = vec![target];
    while let Some(at) = open.pop() {
        open.extend(at.elements());
        open.extend(at.members().iter().map(|(_, value)| value));
        let Some(next) = at.get("$ref").and_then(Json::as_str) else { continue };
        if let Some(target) = resolve(root, at)
            && !found.contains_key(next)
        {
            found.insert(next.to_owned(), target);
            open.push(target);
        }
    }
    found.into_iter().map(|(pointer, schema)| (pointer, schema.clone())).collect()
}
