//! The simulator: the core's own machines, a store as bad as a real one and clients that send again, in
//! virtual time. A run is named by its seed; the same seed gives the same run.
//!
//! There are two worlds. [`cluster`] has whole clusters of 3 to 7 nodes, with all three kinds of machine. The one of
//! [`run`] is smaller and faster, and looks at the shard's machine and the store alone.
//!
//! In the small one two nodes take turns at one shard. A stand-in for the manager assigns it: it is as strict as the rules ask
//! (R7: nobody is assigned before the incarnation is known dead or has said that it stopped) and no cleverer.

mod books;
pub mod cluster;
mod finding;
pub mod guest;
pub mod hostile;
mod node;
mod queue;
pub mod rng;
mod run_digest;
pub mod store;
mod tally;
mod verdict;
mod world;

pub use finding::{Broken, Finding, WRONG_VERSIONS};
pub use tally::{KINDS, Tally};
pub use world::{Options, Report, run};
