//! Files that people write: a node's configuration, `ostraca.toml`, and a type's manifest, `entity.toml`.
//!
//! Input is text, output is checked values or an error that marks the line. Starting a node uses [`Config`]; a
//! deploy and the loader of types use [`Manifest`]. [`user_file`] parses both kinds of file and defines the error
//! that both return, under the names [`config::ConfigError`] and [`manifest::ManifestError`]. [`Error`] covers
//! problems of a configuration whose text is valid.
//!
//! Confusing at first: a [`ClusterSettings`](config::ClusterSettings) can come from a file or from a row of the
//! cluster. The cluster's are authoritative; a file may only repeat them.

pub mod config;
mod error;
pub mod manifest;
pub mod user_file;

pub use config::Config;
pub use error::Error;
pub use manifest::Manifest;
