//! Wires the parts into a running node: owns start, drain and stop.
//!
//! Nothing here decides on ownership, order or duplicates: the core (`ostraca-core`) does. The core has three
//! kinds of state machine, each with a driver here: the control thread drives the node's machine, workers drive
//! the shards' machines, and the gateway drives the router.

mod blocking;
mod deferred;
pub mod error;
pub mod init;
pub mod node;
mod peers;
mod service;
mod stores;

pub use error::NodeError;
pub use init::{InitOptions, InitializedCluster, JoinOptions, JoinedNode, init, join};
pub use node::{Node, Summary};
pub use ostraca_config::{Config, Manifest, config, manifest, user_file};
pub use ostraca_wasm::compiler_main;
pub use ostraca_workers::recording;
