//! The contents of a cluster's rows, apart from ownership: its format, settings, pool, time and deployed types.
//!
//! [`rows`] has the encodings of all rows, including those on which the core bases its decisions. [`bootstrap`] writes
//! the rows of a new cluster, and [`format`](mod@format) upgrades the format. A [`Loader`] follows the rows of types:
//! it fetches and compiles their components and publishes them in a [`TypeRegistry`], which gateways and workers read. An
//! [`AccessRegistry`] knows who may do what, and a [`VariablesReader`] the secrets and settings of types.
//! The control thread drives these with each row that it lists or watches, and a [`ClusterClock`] with the row of
//! cluster time.
//!
//! Confusing at first: knowing a type and being able to run it are different states; see [`types`].

pub mod access;
pub mod audit;
pub mod bootstrap;
pub mod clock;
mod error;
pub mod format;
pub mod loader;
pub mod namespaces;
pub mod placement;
pub mod pool;
pub mod revisions;
pub mod rollout;
pub mod rows;
mod stores;
pub mod types;
mod variables;

pub use access::{AccessRefused, AccessRegistry};
pub use audit::AuditLog;
pub use clock::ClusterClock;
pub use error::Error;
pub use loader::Loader;
pub use types::{DeployedType, TypeRegistry};
pub use variables::VariablesReader;
