//! Writes the typed calls of an entity type in a programming language, from the schemas of its methods.
//!
//! Whoever deployed the type chose its names, descriptions and schemas. So what is written contains names only as
//! identifiers of ASCII letters and digits or as quoted strings, and descriptions only as comments in which nothing can
//! end the comment. What a schema says beyond the shape of values is left out, and what no language could express
//! becomes a value of any kind.

mod model;
mod names;
mod python;
mod read;
mod rust;
mod shapes;
mod typescript;

use model::Model;

/// The languages in which typed calls can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// TypeScript, for the package `ostraca` on npm.
    TypeScript,
    /// Python, for the package `ostraca` on PyPI.
    Python,
    /// Rust, for the crate `ostraca-client`.
    Rust,
}

/// A deployed entity type.
#[derive(Clone, Copy, Debug)]
pub struct EntityType<'a> {
    /// Its name.
    pub name: &'a str,
    /// The deployment's revision.
    pub revision: u64,
    /// Its methods.
    pub methods: &'a [Method<'a>],
}

/// A method of an entity type.
#[derive(Clone, Copy, Debug)]
pub struct Method<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it may change state.
    pub is_command: bool,
    /// What it does, for people; may be empty.
    pub summary: &'a str,
    /// The JSON Schemas of its arguments and of its result; empty if unknown.
    pub arguments: &'a str,
    /// Likewise.
    pub result: &'a str,
}

/// The source text of a module with a class for entities of this type, and the types of its arguments and results.
#[must_use]
pub fn typed_client(language: Language, entity_type: &EntityType<'_>) -> String {
    let reserved = match language {
        Language::TypeScript => typescript::RESERVED,
        Language::Python => python::RESERVED,
        Language::Rust => rust::RESERVED,
    };
    let model = Model::of(entity_type, reserved);
    match language {
        Language::TypeScript => typescript::write(&model),
        Language::Python => python::write(&model),
        Language::Rust => rust::write(&model),
    }
}

#[cfg(test)]
mod tests;
