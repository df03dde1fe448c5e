//! Wires the parts into a running node: owns start, drain and stop.
//!
//! Nothing here decides on ownership, order or duplicates: that is the core's (`ostraca-sharding`), whose actions the
//! workers carry out.

pub mod clock;
pub mod config;
mod deploy;
pub mod error;
pub mod init;
pub mod input;
mod lease;
pub mod manifest;
pub mod node;
pub mod ownership;
pub mod record;
mod rows;
mod service;
mod stats;
mod status;
mod types;
mod worker;

pub use config::Config;
pub use error::NodeError;
pub use init::{InitOptions, Initialised, JoinOptions, Joining, init, join};
pub use manifest::Manifest;
pub use node::{Node, Summary};
