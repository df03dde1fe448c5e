//! Panics of the host's own code in a worker's futures. Each ends what it was for, and nothing else: the message of one
//! entity, or what one batch asked of the store.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;

use crate::stats::Stats;

/// A future panicked.
#[derive(Debug, thiserror::Error)]
#[error("the host panicked: {0}")]
pub(super) struct Panicked(String);

/// What a future comes to, or that it panicked, which is counted. It is not polled again then, and all that it held is
/// dropped.
pub(super) fn contained<F: Future>(
    stats: &Arc<Stats>,
    future: F,
) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
    let stats = stats.clone();
    AssertUnwindSafe(future).catch_unwind().map(move |result| {
        result.map_err(|what| {
            let panicked = said(&*what);
            Stats::count(&stats.panics);
            tracing::error!(%panicked, "a panic was contained: report it");
            panicked
        })
    })
}

fn said(what: &(dyn Any + Send)) -> Panicked {
    let text = what.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| what.downcast_ref::<String>().cloned());
    Panicked(text.unwrap_or_else(|| "no message".into()))
}
