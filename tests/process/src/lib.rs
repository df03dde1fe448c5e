//! Code shared by the tests with real processes, the demo and the bench.
//!
//! A node here is always the program `ostraca` in a separate process, driven over QUIC by `ostraca-client`; nothing
//! is mocked. From the bottom up: [`artifacts`] builds the program and the guests, [`node_dir`] is a node's
//! directory, [`node`] its process, [`history`] what clients observed, [`http`] callers over HTTP, [`load`] many concurrent clients,
//! [`guest_calls`] calls to one guest, [`languages`] one guest in several languages, [`echo`] and [`baseline`] the parts for comparison, [`proxy`] a faulty network,
//! [`io_recorder`] and [`image`] a faulty disk, [`cluster`] many nodes, [`attack`] faults under load, [`rounds`] tests that are repeated, [`bank`] transfers
//! between accounts.
//!
//! Confusing at first: the node is built with the profile of the program that uses it (tests with `dev`, the bench
//! with `release`), while guests always have the profile of `ostraca build`.

pub mod artifacts;
pub mod attack;
pub mod bank;
pub mod baseline;
pub mod cluster;
pub mod collector;
pub mod echo;
pub mod guest_calls;
pub mod history;
pub mod http;
pub mod http3;
pub mod image;
pub mod io_recorder;
pub mod languages;
pub mod load;
pub mod node;
pub mod node_dir;
pub mod preload;
pub mod probe_load;
pub mod proxy;
pub mod rounds;
pub mod usage;
pub mod zoo;

pub use cluster::Cluster;
pub use history::{Counter, HistoryRecorder};
pub use node::NodeProcess;
pub use node_dir::NodeDir;
