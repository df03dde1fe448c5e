//! Wires the parts into a running node: owns start, drain and stop.
//!
//! The parts are crates of their own, and each says what drives it: workers (`ostraca-workers`) drive the shards'
//! machines, the gateway (`ostraca-gateway`) drives the router, the control thread (`ostraca-control`) drives the node's
//! machine, and operators are answered by `ostraca-admin`. What is here opens or finds the stores, binds the socket,
//! passes streams on to the parts, and builds and ends the parts in order. Nothing here decides on ownership, order or
//! duplicates: the core does.
//!
//! Confusing at first: parts that need one another are built one after the other, so a connection that comes early
//! finds a part missing. It is answered that the node is starting.

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
