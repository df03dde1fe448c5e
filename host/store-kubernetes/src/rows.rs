//! The queue of the calls for rows.
//!
//! Kubernetes takes one object a request, so calls run side by side. The calls for one row run in their order, and a
//! list waits for the changes under its prefix that were called before it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ostraca_store::{CompareAndSet, RowOp, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::options::Options;
use crate::worker::Worker;

/// The row of a call, unless it is a list.
fn key_of(op: &RowOp) -> Option<&str> {
    match op {
        RowOp::Cas(CompareAndSet { key, .. }, _) | RowOp::Get(key, _) => Some(key),
        RowOp::List(..) => None,
    }
}

/// A call that waits, and until when it may.
pub(crate) struct WaitingOp {
    op: RowOp,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

/// The queue of the calls.
#[derive(Clone)]
pub(crate) struct RowQueue {
    ops: mpsc::UnboundedSender<WaitingOp>,
    /// A permit for each call that may wait or run.
    places: Arc<Semaphore>,
    most: usize,
    limit: Duration,
}

impl RowQueue {
    pub(crate) fn new(options: &Options) -> (Self, mpsc::UnboundedReceiver<WaitingOp>) {
        let most = options.queue_rows.clamp(1, Semaphore::MAX_PERMITS);
        let (ops, waiting) = mpsc::unbounded_channel();
        let places = Arc::new(Semaphore::new(most));
        (Self { ops, places, most, limit: options.call_timeout }, waiting)
    }

    /// Adds a call, unless the queue is full or closed.
    pub(crate) fn push(&self, op: RowOp) {
        let until = Instant::now() + self.limit;
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            let text =
                format!("{} calls for rows wait for Kubernetes (`queue-metadata-ops`)", self.most);
            return op.fail(StoreError::Unavailable(text));
        };
        if let Err(closed) = self.ops.send(WaitingOp { op, until, _place: place }) {
            closed.0.op.fail(StoreError::Unavailable("the store is closed".into()));
        }
    }
}

/// Starts the calls when their turn has come.
pub(crate) struct Dispatcher {
    worker: Worker,
    /// A permit for each request at the same time.
    connections: Arc<Semaphore>,
    /// The rows that a call is running for, with the calls that wait for it.
    lanes: HashMap<String, VecDeque<Numbered>>,
    /// The changes that are not complete, by number.
    changes: HashMap<u64, String>,
    /// Lists, each with the changes that it waits for.
    lists: Vec<(HashSet<u64>, WaitingOp)>,
    running: JoinSet<Option<(u64, String)>>,
    numbers: u64,
}

/// A call with its number.
struct Numbered(u64, WaitingOp);

impl Dispatcher {
    pub(crate) fn new(worker: Worker, options: &Options) -> Self {
        let connections = options.connections.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            worker,
            connections: Arc::new(Semaphore::new(connections)),
            lanes: HashMap::new(),
            changes: HashMap::new(),
            lists: Vec::new(),
            running: JoinSet::new(),
            numbers: 0,
        }
    }

    /// Serves the calls until the queue is closed and all are complete.
    pub(crate) async fn run(mut self, mut waiting: mpsc::UnboundedReceiver<WaitingOp>) {
        let mut open = true;
        while open || !self.running.is_empty() {
            tokio::select! {
                next = waiting.recv(), if open => match next {
                    Some(op) => self.admit(op),
                    None => open = false,
                },
                Some(done) = self.running.join_next(), if !self.running.is_empty() => match done {
                    Ok(done) => self.complete(done),
                    Err(error) => {
                        tracing::error!(%error, "a call for a row ended early: the store is closed");
                        return;
                    }
                },
            }
        }
    }

    fn admit(&mut self, waiting: WaitingOp) {
        self.numbers += 1;
        let number = self.numbers;
        match &waiting.op {
            RowOp::List(prefix, _) => {
                let earlier = self.changes.iter().filter(|(_, key)| key.starts_with(prefix));
                let earlier: HashSet<_> = earlier.map(|(number, _)| *number).collect();
                match earlier.is_empty() {
                    true => self.start(number, waiting),
                    false => self.lists.push((earlier, waiting)),
                }
                return;
            }
            RowOp::Cas(cas, _) => drop(self.changes.insert(number, cas.key.clone())),
            RowOp::Get(..) => {}
        }
        let key = key_of(&waiting.op).unwrap_or_default();
        match self.lanes.get_mut(key) {
            Some(lane) => lane.push_back(Numbered(number, waiting)),
            None => {
                self.lanes.insert(key.into(), VecDeque::new());
                self.start(number, waiting);
            }
        }
    }

    fn start(&mut self, number: u64, waiting: WaitingOp) {
        let key = key_of(&waiting.op).map(str::to_owned);
        let (worker, connections) = (self.worker.clone(), self.connections.clone());
        self.running.spawn(async move {
            let _permit = connections.acquire_owned().await;
            carry_out(&worker, waiting).await;
            key.map(|key| (number, key))
        });
    }

    /// Starts what has waited for a call.
    fn complete(&mut self, done: Option<(u64, String)>) {
        let Some((number, key)) = done else { return };
        if self.changes.remove(&number).is_some() {
            for (earlier, _) in &mut self.lists {
                earlier.remove(&number);
            }
            let ready: Vec<_> =
                self.lists.extract_if(.., |(earlier, _)| earlier.is_empty()).collect();
            for (_, list) in ready {
                self.start(number, list);
            }
        }
        match self.lanes.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(Numbered(number, next)) => self.start(number, next),
            None => drop(self.lanes.remove(&key)),
        }
    }
}

async fn carry_out(worker: &Worker, WaitingOp { op, until, .. }: WaitingOp) {
    let ready = match until <= Instant::now() {
        true => Err(worker.late()),
        false => worker.check(),
    };
    if let Err(error) = ready {
        return op.fail(error);
    }
    match op {
        RowOp::Cas(cas, to) => drop(to.send(worker.compare_and_set(&cas, until).await)),
        RowOp::Get(key, to) => drop(to.send(worker.get(&key, until).await)),
        RowOp::List(prefix, to) => drop(to.send(worker.list(&prefix, until).await)),
    }
}
