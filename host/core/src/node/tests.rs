//! The rules of the node's machine, by hand: a few machines round one store of rows that answers at once.
//!
//! The simulator does the same with everything that can go wrong; here one can read what should happen.

mod alone;
mod cluster;
mod costs;
mod decisions;
mod drains;
mod formats;
mod handoffs;
mod leadership;
mod leases;
mod moves;
mod past;
mod plans;
mod relative;
mod renewals;
mod rows;
mod strategies;
mod unfit;
mod unheard;
mod words;
