//! What a node counts and remembers of its own work, for its operators.
//!
//! Workers, the control thread and the links to the store write here; `ostraca status` and `ostraca inspect` read.
//! No decision depends on these numbers, with one exception: [`Stats::store_refused`] shortens a stop that would wait for a
//! store in vain.
//!
//! Confusing at first: [`Stats`] is one for the node and its counters only rise, while a [`WorkerGauges`] belongs to one
//! worker and holds the state at that worker's last update.

mod counters;
mod failing;

pub use counters::{Stats, WorkerGauges};
pub use failing::{FailingEntities, FailingType, LastFailure};
