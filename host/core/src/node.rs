//! A node's machine: membership and lease, the shards that it must serve, hand-offs, and the manager's work while
//! it holds the leadership.
//!
//! The machine learns the cluster's rows from a list, a watch, the answers to its own writes, and announcements by
//! other nodes, and writes them only by compare-and-set. It does not rely on the delivery of messages to other nodes:
//! every message is safe if it arrives twice, late, or unexpectedly (R11). Rows alone decide who owns a shard; messages
//! between nodes only save time.

mod action;
mod control_message;
mod event;
mod machine;
mod settings;

pub use action::{Action, Notice};
pub use control_message::{ControlMessage, HandOff, NodeReport, ReportedShard};
pub use event::{Event, WriteError};
#[cfg(any(test, feature = "testing"))]
pub use machine::Canonicalizer;
pub use machine::{Machine, NodeIdentity};
pub use settings::{LeaseSettings, Mutation, Settings};

#[cfg(test)]
mod tests;
