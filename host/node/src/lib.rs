//! Wires the parts into a running node, and owns its start, drain and stop.
//!
//! # Embedding a node in a program
//!
//! The command `ostraca` is one program that runs nodes. Any other program needs this crate, a multi-threaded tokio
//! runtime, and three calls: [`init()`] (or [`join`]) once for each node, [`Config::load`], and [`Node::start`].
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use ostraca_client::{Client, Profile};
//! use ostraca_node::config::ClusterSettings;
//! use ostraca_node::{Config, InitOptions, Node, compiler_main, init};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // This call must come first: the node starts this program again to compile components.
//!     compiler_main();
//!
//!     let dir = Path::new("data/n1");
//!     let profile = dir.join("profile.toml");
//!     if !dir.join("ostraca.toml").exists() {
//!         let listen = "127.0.0.1:7411".parse()?;
//!         let cluster = init(
//!             dir,
//!             &InitOptions {
//!                 cluster_name: "embedded".into(),
//!                 node: "n1".into(),
//!                 listen,
//!                 shards: 64,
//!                 settings: ClusterSettings::default(),
//!                 postgres: None,
//!                 rows: None,
//!             },
//!         )?;
//!         // The certificate of an administrator, for `ostraca` and for clients.
//!         Profile::new(vec![listen.to_string()], &cluster.ca_pem, &cluster.admin).save(&profile)?;
//!     }
//!
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let mut node = Node::start(Config::load(&dir.join("ostraca.toml"))?).await?;
//!         println!("serving at {}", node.address());
//!         // The program's own clients connect like any other.
//!         let client = Client::connect(Profile::load(&profile)?).await?;
//!         let failure = tokio::select! {
//!             stop = tokio::signal::ctrl_c() => { stop?; None }
//!             failure = node.wait_for_failure() => Some(failure),
//!         };
//!         client.close().await;
//!         node.stop(Duration::from_secs(20)).await;
//!         failure.map_or(Ok(()), |failure| Err(failure.into()))
//!     })
//! }
//! ```
//!
//! - **Compiling.** Components are compiled in a separate process, with limits ([`compiler_main`]). A program whose
//!   `main` cannot call it first must name another program in the configuration:
//!   `[compiler] program = "/usr/bin/ostraca"`.
//! - **Files.** An empty directory never becomes a node automatically. [`init()`] and [`join`] create a node and
//!   overwrite nothing; the store is locked while a node uses it.
//! - **Threads.** The network runs on the caller's runtime. Guests, leases and the store have dedicated threads.
//! - **Failure.** [`Node::wait_for_failure`] resolves when the node cannot continue: stop it, and start a new one. A
//!   panic in the node's own state machine ends the whole process, so that a supervisor can restart it.
//! - **Stop.** [`Node::stop`] hands the shards over first. A process that ends without this call loses no
//!   acknowledged turn, but its shards remain unavailable until its lease has expired.
//! - **Health check.** A program may bring its own [`HealthCheck`](health_check::HealthCheck) ([`NodeParts`]), which
//!   tells the others early that a node's process has ended.
//! - **Strategy.** A program may bring its own [`AllocationStrategy`](assign::AllocationStrategy) ([`NodeParts`]), which
//!   decides which host gets which shard: see `examples/own-strategy`.
//! - **Settings.** [`Config::default_toml`] is the reference: every setting with its default, unit and memory cost.
//! - **Logs.** The crate writes `tracing` events and installs no subscriber.
//!
//! # Internals
//!
//! The parts are separate crates, each with its own documentation: workers (`ostraca-workers`) drive the shards'
//! machines, the gateway (`ostraca-gateway`) drives the router, the control thread (`ostraca-control`)
//! drives the node's machine, and `ostraca-admin` answers operators. This crate opens or finds the stores, binds
//! the socket, passes streams on to the parts, and starts and stops the parts in order. Nothing here decides on
//! ownership, order or duplicates: the core does.
//!
//! Confusing at first: parts that depend on one another are built one after the other, so an early connection may
//! find a part missing. Clients are then told that the node is starting.

mod admission;
mod blocking;
mod copy;
mod deferred;
pub mod error;
mod health;
pub mod init;
pub mod node;
mod peers;
mod probe;
mod quotas;
pub mod release;
mod renewal;
mod repair;
mod service;
mod stores;

pub use copy::{CopiedStores, StorePlace, copy_stores, renew_database, restore_backup};
pub use error::NodeError;
pub use init::{
    EtcdSettings, InitOptions, InitializedCluster, JoinOptions, JoinedNode, KubernetesSettings,
    PostgresSettings, RowsSettings, init, join,
};
pub use node::{Node, NodeParts, Summary};
pub use ostraca_config::{Config, Manifest, config, manifest, policy, user_file};
pub use ostraca_core::{assign, ids};
pub use ostraca_health as health_check;
pub use ostraca_store::{backup, transfer};
pub use ostraca_wasm::compiler_main;
pub use ostraca_workers::recording;
pub use probe::{ProbedStore, accept_database, add_databases, probe_stores};
pub use repair::{
    Contradiction, ContradictionKind, OnWait, Remedy, RepairReport, ResetReport, repair_rows,
    reset_sharding,
};
