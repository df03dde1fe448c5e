//! The simulator: the core's own machines, a store as bad as a real one and clients that send again, in
//! virtual time. A run is named by its seed; the same seed gives the same run.
//!
//! There are two worlds. [`cluster`] has whole clusters of 3 to 7 nodes, with all three kinds of machine. The one of
//! [`run`] is smaller and faster, and looks at the shard's machine and the store alone.
//!
//! In the small one two nodes take turns at one shard. A stand-in for the manager assigns it: it is as strict as the rules ask
//! (R7: nobody is assigned before the incarnation is known dead or has said that it stopped) and no cleverer.

pub mod cluster;
pub mod guest;
mod history_check;
pub mod hostile;
mod node;
mod queue;
pub mod rng;
mod run_digest;
mod session;
pub mod store;
mod tally;
mod violation;
mod world;

pub use tally::{KINDS, Tally};
pub use violation::{Violation, ViolationKind, WRONG_VERSIONS};
pub use world::{Options, Report, run};
