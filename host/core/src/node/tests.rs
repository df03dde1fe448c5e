//! Unit tests of the node's machine: a few machines that share a store of rows, which responds instantly.
//!
//! The simulator runs the same code with faults of every kind; these tests show the intended behavior.

mod alone;
mod arbiter;
mod canonical;
mod cluster;
mod control_messages;
mod costs;
mod decisions;
mod drains;
mod escalations;
mod first_allocation;
mod formats;
mod hand_offs;
mod health;
mod late_starts;
mod leadership;
mod leases;
mod loads;
mod manager_silence;
mod moves;
mod placements;
mod plans;
mod pools;
mod pruning;
mod relocations;
mod renewals;
mod rows;
mod stateless;
mod stateless_interleavings;
mod strategies;
mod unrunnable_types;
