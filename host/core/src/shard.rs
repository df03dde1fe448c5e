//! The machine of one shard: mailboxes, lanes, the output gate, activation and passivation.
//!
//! One machine exists for each shard that this node was assigned, for one epoch. It decides what runs
//! and what may be answered; its node does what the [`Action`]s say and reports as [`Event`]s. It keeps
//! no promise by timing: the store checks claim and version of every commit (R1).
//!
//! Confusing at first: an entity's head and lanes in memory run *ahead* of the store. A turn's result
//! changes them at once, so that the next turn can start; its reply waits at the gate for the commit. If
//! a commit is refused or unknown, everything that ran ahead is discarded and loaded again.

mod action;
mod entity;
mod event;
mod instance_slots;
mod lanes;
mod machine;
mod mailbox;
mod settings;
#[cfg(test)]
mod tests;

pub use action::Action;
pub use event::{ActivationOutcome, Event, TurnOutput, TurnResult};
pub use instance_slots::{InstanceSlots, SlotHolder};
pub use machine::{Machine, Ownership, Phase};
pub use settings::{Mutation, Settings, StartReason, StopReason, TypeSettings};
