//! What leaves the worker: replies, messages of entities, and reports. The kit takes them after each step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::message::Outcome;
use ostraca_workers::{Caller, EntityMessage, ReplySink, ReportSink, WorkerReply, WorkerReport};

/// Collects the worker's output.
#[derive(Default)]
pub(crate) struct Sink(Mutex<Collected>);

/// The output of a step.
#[derive(Default)]
pub(crate) struct Collected {
    /// The outcome of each delivery, by its tag.
    pub(crate) replies: Vec<(u64, Outcome)>,
    pub(crate) messages: Vec<EntityMessage>,
    /// Shards that have stopped.
    pub(crate) stopped: Vec<(ShardId, Epoch)>,
}

/// A test waits for its replies.
pub(crate) struct Test;

impl Caller for Test {
    fn is_abandoned(&self) -> bool {
        false
    }
}

impl Sink {
    pub(crate) fn take(&self) -> Collected {
        std::mem::take(&mut *self.lock())
    }

    /// A sink for the worker's reports.
    pub(crate) fn reports(self: &Arc<Self>) -> ReportSink {
        let sink = self.clone();
        Arc::new(move |report| {
            if let WorkerReport::ShardStopped(shard, epoch) = report {
                sink.lock().stopped.push((shard, epoch));
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReplySink for Sink {
    fn deliver_replies(&self, answers: &mut Vec<WorkerReply>) {
        let replies = answers.drain(..).map(|reply| (reply.tag, reply.outcome));
        self.lock().replies.extend(replies);
    }

    fn send_messages(&self, messages: &mut Vec<EntityMessage>) {
        self.lock().messages.append(messages);
    }
}
