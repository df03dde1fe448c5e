//! Wires the parts into a running node: owns start, drain and stop.
//!
//! Nothing here decides on ownership, order or duplicates: that is the core's (`ostraca-core`). It has three kinds
//! of machine, and each has a driver here: the control thread drives the node's machine, workers drive those of
//! shards, and the gateway drives the router.

mod admin;
mod cache;
pub mod clock;
pub mod config;
mod control;
mod deploy;
pub mod error;
mod failing;
mod format;
mod gateway;
pub mod init;
pub mod input;
mod late;
mod loader;
pub mod manifest;
pub mod node;
pub mod ownership;
mod peers;
mod reach;
pub mod record;
mod rows;
mod service;
mod stats;
mod status;
mod stores;
mod types;
mod view;
mod worker;

pub use config::Config;
pub use error::NodeError;
pub use init::{InitOptions, Initialised, JoinOptions, Joining, init, join};
pub use manifest::Manifest;
pub use node::{Node, Summary};
pub use ostraca_wasm::compiler_main;
