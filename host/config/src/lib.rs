//! Files that people write: a node's configuration, `ostraca.toml`, a type's manifest, `entity.toml`, and the cluster's
//! policy.
//!
//! Input is text, output is checked values or an error that marks the line. Starting a node uses [`Config`]; a
//! deploy and the loader of types use [`Manifest`]. Whoever handles requests uses [`Policy`]. [`user_file`] parses all
//! three and defines the error that they return, under the names [`config::ConfigError`], [`manifest::ManifestError`]
//! and [`policy::PolicyError`]. [`Error`] covers problems of a configuration whose text is valid.
//!
//! Confusing at first: a [`ClusterSettings`](config::ClusterSettings) can come from a file or from a row of the
//! cluster. The cluster's are authoritative; a file may only repeat them.

pub mod config;
mod error;
pub mod manifest;
pub mod policy;
pub mod user_file;

pub use config::Config;
pub use error::Error;
pub use manifest::Manifest;
pub use policy::Policy;
