//! Statistics that a node keeps about its own work, for its operators.
//!
//! Workers, the control thread, the gateway and the links to the store write here; `ostraca status`, `inspect` and `top`
//! and the metrics read. No decision depends on these numbers, with one exception: while [`Stats::store_refused`] is
//! set, a stopping node does not wait for the store.
//!
//! Confusing at first: a node has one [`Stats`], whose counters only rise, while each [`WorkerGauges`] belongs to
//! one worker and holds the state at that worker's last update.

mod counters;
mod failing;
mod histogram;
mod hottest;
mod http;
mod methods;
mod pauses;

pub use counters::{Stats, WorkerGauges};
pub use failing::{FailingEntities, FailingType, LastFailure};
pub use histogram::{DURATION_BOUNDS, Distribution, Histogram, SIZE_BOUNDS};
pub use hottest::{HotEntity, TurnSample};
pub use http::HttpStats;
pub use methods::{Ending, Methods, OTHER, Work, WorkKey, WorkStats, WorkTotal};
pub use pauses::{ShardPause, ShardPauses};
