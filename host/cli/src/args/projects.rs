//! Arguments of `ostraca new` and `build`.

use std::path::PathBuf;

use clap::ValueEnum;

const BUILD: &str = "\
What the directory contains shows the language: Cargo.toml Rust, package.json JavaScript or TypeScript,
pyproject.toml Python, src/entity.c C.
A component in Rust is compiled for wasm32-unknown-unknown. On this target, use
ostraca_sdk::clock, ostraca_sdk::random and ostraca_sdk::log: SystemTime::now() panics, and println! goes
nowhere. Integer overflow panics, as in tests.";

#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Name of the project and the entity type: lower-case letters, digits, dashes
    pub(crate) name: String,
    /// The language of the entity
    #[arg(long = "lang", value_name = "LANG", value_enum, default_value_t)]
    pub(crate) language: ProjectLanguage,
}

/// The language of an entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectLanguage {
    /// Rust
    #[default]
    Rust,
    /// JavaScript, built with Node.js
    Js,
    /// TypeScript, built with Node.js
    Ts,
    /// Python
    Python,
    /// C, built with clang
    C,
}

#[derive(Debug, clap::Args)]
#[command(after_help = BUILD)]
pub(crate) struct Build {
    /// The directory with entity.toml, and Cargo.toml, package.json, pyproject.toml or src/entity.c
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
}
