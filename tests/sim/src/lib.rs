//! The simulator: the core's own machines, a store that fails as real ones do, and clients that resend, in virtual
//! time. A run is identified by its seed; the same seed gives the same run.
//!
//! There are two worlds. [`cluster`] simulates whole clusters of 3 to 7 nodes, with all three kinds of machine. The
//! world of [`run`] is smaller and faster, and tests only the shard's machine and the store.
//!
//! In the small world, two nodes own one shard in turn. A stand-in for the manager assigns it. It is exactly as strict
//! as the rules require (R7: a shard gets a new owner only after the previous incarnation is known to be dead or has
//! reported that it stopped).

mod asks;
mod channels;
pub mod cluster;
mod deletion;
pub mod guest;
mod history_check;
pub mod hostile;
mod journal;
mod node;
mod passivation;
mod queue;
mod remembered;
pub mod rng;
mod run_digest;
mod schemas;
mod session;
pub mod store;
mod subscriptions;
mod tally;
mod tells;
mod timers;
mod violation;
mod world;

pub use tally::{KINDS, Tally};
pub use violation::{Violation, ViolationKind, WRONG_VERSIONS};
pub use world::{Options, Report, run};
