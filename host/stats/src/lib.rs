//! Statistics that a node keeps about its own work, for its operators.
//!
//! Workers, the control thread and the links to the store write here; `ostraca status` and `ostraca inspect` read. No
//! decision depends on these numbers, with one exception: while [`Stats::store_refused`] is set, a stopping node does
//! not wait for the store.
//!
//! Confusing at first: a node has one [`Stats`], whose counters only rise, while each [`WorkerGauges`] belongs to
//! one worker and holds the state at that worker's last update.

mod counters;
mod failing;

pub use counters::{Stats, WorkerGauges};
pub use failing::{FailingEntities, FailingType, LastFailure};
