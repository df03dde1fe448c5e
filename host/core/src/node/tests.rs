//! The rules of the node's machine, by hand: a few machines round one store of rows that answers at once.
//!
//! The simulator does the same with everything that can go wrong; here one can read what should happen.

mod alone;
mod canonical;
mod cluster;
mod control_messages;
mod costs;
mod decisions;
mod drains;
mod formats;
mod hand_offs;
mod leadership;
mod leases;
mod manager_silence;
mod moves;
mod plans;
mod pruning;
mod renewals;
mod rows;
mod strategies;
mod unrunnable_types;
