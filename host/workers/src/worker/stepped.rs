//! A worker without a thread: its owner drives it, in virtual time, and knows when nothing more happens by itself. The
//! test kit is built on it.
//!
//! Guests still run in real time, within their real limits. Only deadlines, timers and pauses follow the clock in
//! [`WorkerDeps::clock`], which should be a manual one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::stream::{Stream, StreamExt};
use ostraca_core::ids::Entity;

use super::Worker;
use super::machines::{InstanceState, MachineEntry};
use crate::{Input, WorkerDeps};

/// A worker that only does something while its owner calls it.
pub struct SteppedWorker(Worker);

/// Whether a task has asked to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl SteppedWorker {
    /// Creates a worker without shards. Events are not recorded, whatever the settings say.
    #[must_use]
    pub fn new(deps: WorkerDeps) -> Self {
        Self(Worker::new(deps, None))
    }

    /// Takes an input. [`SteppedWorker::settle`] carries out what follows from it.
    pub fn input(&mut self, input: Input) {
        self.0.input(input);
    }

    /// When a machine must be woken next, on the clock's own time; `None` if none must.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        self.0.machines.next_wake()
    }

    /// Wakes the machines that are due.
    pub fn tick(&mut self) {
        self.0.tick();
    }

    /// Makes the entity's next turn fail as if it had trapped, after it has run.
    pub fn trap_next_turn(&mut self, entity: Entity) {
        self.0.traps.insert(entity);
    }

    /// Runs everything that can run now. Afterwards, each turn has ended, or waits for the answer to an ask.
    ///
    /// Replies and entity messages go to the sink meanwhile; whoever routes these messages must call this method again.
    /// Waits in real time for outgoing HTTP calls.
    pub async fn settle(&mut self) {
        let worker = &mut self.0;
        loop {
            let mut busy = worker.start_asks() | worker.update_calls();
            worker.assign_instance_slots();
            worker.flush_store_calls();
            worker.flush_replies();
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            match Pin::new(&mut worker.tasks).poll_next(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(done)) => {
                    worker.handle_completion(done);
                    continue;
                }
                Poll::Ready(None) if !busy => return,
                Poll::Ready(None) => continue,
                Poll::Pending => busy |= woken.0.load(Ordering::Acquire),
            }
            if busy {
                tokio::task::yield_now().await;
            } else if worker.waits_for_answers() {
                return;
            } else {
                tokio::select! {
                    Some(done) = worker.tasks.next() => worker.handle_completion(done),
                    Some(ask) = worker.started_asks.1.recv() => worker.start_ask(ask),
                    Some(update) = worker.call_updates.1.recv() => worker.update_call(update),
                }
            }
        }
    }
}

impl Worker {
    /// Whether every running turn waits for the answer to an ask.
    fn waits_for_answers(&self) -> bool {
        let asks = |(_, state): &&(u64, InstanceState)| matches!(state, InstanceState::Busy(_, waiting) if !waiting.asks.is_empty());
        let waits = |entry: &MachineEntry| {
            entry.pending_store_calls == 0
                && entry.running == entry.instances.values().filter(asks).count()
        };
        self.open_calls == 0 && self.machines.iter().all(|(_, entry)| waits(entry))
    }
}
