//! A node's machine: membership and lease, which shards it must serve, hand-offs, and the manager's work
//! where it holds the leadership.
//!
//! It knows the cluster's rows only from a list, a watch and the answers to its own writes, and
//! writes only by compare-and-set. It sends to other nodes without counting on delivery: every message
//! is safe if it arrives twice, late, or unexpectedly (R11). What owns a shard is decided by rows
//! alone; messages between nodes only save time.

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
