//! The bounded queue of calls waiting for the committer, and the order in which they are served.
//!
//! Row changes have priority: renewals of leases are among them, and no bulk write may delay a renewal. Commits and
//! claims wait in one flow per shard, in the order of the calls, and the flows take turns (deficit round robin): a
//! shard that writes a lot delays only itself. A read waits for the queued calls of its own shards (a read of rows
//! waits for the queued row changes), and for nothing else (decision 0035).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ostraca_core::ids::ShardPath;

use crate::Options;
use crate::read_queue::{ParkedRead, ReadDependency, ReadOp};
use crate::write_op::{Size, WriteOp};

/// The credit, in sled records, that a shard's flow gains at each of its turns.
const QUANTUM: usize = 64;

pub(crate) struct WriteQueue {
    state: Mutex<QueueState>,
    arrived: Condvar,
    max_commits: usize,
    max_bytes: usize,
    max_rows: usize,
    batch_commits: usize,
    batch_bytes: usize,
    batch_records: usize,
}

#[derive(Default)]
struct QueueState {
    rows: Flow,
    shards: HashMap<ShardPath, usize>,
    /// Indexed by the values of `shards`; the flows in `free` are unused.
    flows: Vec<Flow>,
    free: Vec<usize>,
    /// Flows with queued calls, in the order of their turns.
    active_flows: VecDeque<usize>,
    /// Flows with calls in the batch that is being written.
    taken: Vec<usize>,
    /// Reads waiting until that batch is applied.
    reads: Vec<Arc<ParkedRead>>,
    commits: usize,
    bytes: usize,
    calls: usize,
    closed: bool,
}

/// Calls that are served in order.
#[derive(Default)]
struct Flow {
    shard: Option<ShardPath>,
    items: VecDeque<Item>,
    credit: usize,
    /// Whether the batch that is being written has calls of this flow.
    taken: bool,
}

struct Item {
    work: WriteOp,
    size: Size,
    /// Reads that were queued after this call, and before the next one.
    reads: Vec<Arc<ParkedRead>>,
}

/// Why a flow's turn ended.
enum FlowStop {
    /// The flow's credit or its calls are used up.
    Exhausted,
    /// The batch has no space for the flow's next call.
    DoesNotFit,
    /// The batch has no space for any call.
    Full,
}

impl WriteQueue {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            state: Mutex::default(),
            arrived: Condvar::new(),
            max_commits: options.queue_commits,
            max_bytes: options.queue_bytes,
            max_rows: options.queue_metadata_ops,
            batch_commits: options.batch_commits,
            batch_bytes: options.batch_bytes,
            batch_records: options.batch_records,
        }
    }

    /// Queues all parts of a call, or none of them.
    ///
    /// # Errors
    /// Returns the parts, and why they cannot be queued.
    pub(crate) fn push(&self, works: Vec<WriteOp>) -> Result<(), (Vec<WriteOp>, String)> {
        let (mut all, mut calls) = (Size::default(), 0);
        let sizes: Vec<_> = works.iter().map(WriteOp::size).collect();
        for (work, size) in works.iter().zip(&sizes) {
            all.commits += size.commits;
            all.bytes += size.bytes;
            calls += usize::from(!matches!(work, WriteOp::Commit(..)));
        }
        let mut waiting = self.lock();
        let full = if waiting.closed {
            Some("write queue is closed".into())
        } else if waiting.commits + all.commits > self.max_commits {
            Some(format!(
                "write queue has too many commits (`store.queue-commits` = {})",
                self.max_commits
            ))
        } else if waiting.bytes + all.bytes > self.max_bytes {
            Some(format!(
                "write queue has too many bytes (`store.queue-bytes` = {})",
                self.max_bytes
            ))
        } else if waiting.calls + calls > self.max_rows {
            Some(format!(
                "write queue has too many claims and row changes (`store.queue-metadata-ops` = {})",
                self.max_rows
            ))
        } else {
            None
        };
        if let Some(why) = full {
            return Err((works, why));
        }
        waiting.commits += all.commits;
        waiting.bytes += all.bytes;
        waiting.calls += calls;
        for (work, size) in works.into_iter().zip(sizes) {
            let item = |work| Item { work, size, reads: Vec::new() };
            match work.ordering_key() {
                None => waiting.rows.items.push_back(item(work)),
                Some(shard) => {
                    let flow = waiting.flow(shard);
                    if waiting.flows[flow].items.is_empty() {
                        waiting.active_flows.push_back(flow);
                    }
                    waiting.flows[flow].items.push_back(item(work));
                }
            }
        }
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Parks a read until the writes that it must follow are applied; returns it if they already are.
    pub(crate) fn park(&self, read: ReadOp) -> Option<ReadOp> {
        let mut waiting = self.lock();
        let QueueState { rows, shards, flows, reads, .. } = &mut *waiting;
        let parked = Arc::new(ParkedRead::default());
        read.after(|after| match after {
            ReadDependency::Rows => rows.park(&parked, reads),
            ReadDependency::Shards(of) => {
                for shard in of {
                    if let Some(flow) = shards.get(shard) {
                        flows[*flow].park(&parked, reads);
                    }
                }
            }
        });
        // Under the lock, so that no batch releases the read before it is stored.
        parked.keep(read)
    }

    /// Waits for calls and moves one batch of them into `batch`. Returns approximately how many records they write,
    /// or `None` once the queue is closed and empty.
    pub(crate) fn take(&self, batch: &mut Vec<WriteOp>) -> Option<usize> {
        let waiting = self.lock();
        let idle = |waiting: &mut QueueState| {
            waiting.rows.items.is_empty() && waiting.active_flows.is_empty() && !waiting.closed
        };
        let waited = self.arrived.wait_while(waiting, idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        while batch.len() < self.batch_commits
            && let Some(item) = waiting.rows.items.pop_front()
        {
            waiting.rows.taken = true;
            waiting.calls -= 1;
            waiting.reads.extend(item.reads);
            batch.push(item.work);
        }
        let mut all = Size::default();
        let mut aside = Vec::new();
        while let Some(number) = waiting.active_flows.pop_front() {
            let ended = waiting.drain_flow(number, batch, &mut all, |all, next| {
                if all.commits >= self.batch_commits
                    || all.bytes >= self.batch_bytes
                    || all.records >= self.batch_records
                {
                    Some(FlowStop::Full)
                } else if all.records + next.records > self.batch_records {
                    Some(FlowStop::DoesNotFit)
                } else {
                    None
                }
            });
            match ended {
                FlowStop::Exhausted if waiting.flows[number].items.is_empty() => {}
                FlowStop::Exhausted => waiting.active_flows.push_back(number),
                // The next call of another flow may fit.
                FlowStop::DoesNotFit => aside.push(number),
                FlowStop::Full => {
                    waiting.active_flows.push_front(number);
                    break;
                }
            }
        }
        // The first flow whose next call did not fit adds that call anyway, so that large calls do not starve.
        if let Some(number) = aside.first().copied() {
            waiting.give(number, batch, &mut all);
            if waiting.flows[number].items.is_empty() {
                aside.remove(0);
            } else {
                aside.rotate_left(1);
            }
        }
        for number in aside.into_iter().rev() {
            waiting.active_flows.push_front(number);
        }
        (!batch.is_empty()).then_some(all.records + batch.len())
    }

    /// Records that the taken batch is applied, or never will be; returns the reads that can be served now.
    pub(crate) fn applied(&self) -> Vec<ReadOp> {
        let mut waiting = self.lock();
        let QueueState { rows, shards, flows, free, taken, reads, .. } = &mut *waiting;
        rows.taken = false;
        for number in taken.drain(..) {
            let flow = &mut flows[number];
            flow.taken = false;
            if flow.items.is_empty() {
                flow.credit = 0;
                if let Some(shard) = flow.shard.take() {
                    shards.remove(&shard);
                    free.push(number);
                }
            }
        }
        reads.drain(..).filter_map(|parked| parked.release()).collect()
    }

    /// Accepts no more calls; waiting calls are still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Accepts no more calls and drops the waiting ones; their callers get an error.
    pub(crate) fn abandon(&self) {
        let mut waiting = self.lock();
        *waiting = QueueState { closed: true, ..QueueState::default() };
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// The number of a shard's flow. Creates the flow if necessary.
    fn flow(&mut self, shard: &ShardPath) -> usize {
        if let Some(number) = self.shards.get(shard) {
            return *number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.flows.len() - 1
        });
        self.flows[number].shard = Some(shard.clone());
        self.shards.insert(shard.clone(), number);
        number
    }

    /// Gives a flow its turn to add calls to the batch.
    fn drain_flow(
        &mut self,
        number: usize,
        batch: &mut Vec<WriteOp>,
        all: &mut Size,
        no_room: impl Fn(&Size, &Size) -> Option<FlowStop>,
    ) -> FlowStop {
        let mut flow = &mut self.flows[number];
        // A flow that found no space in the last batch still has its credit.
        let affordable =
            |flow: &Flow| flow.items.front().is_some_and(|it| it.size.records <= flow.credit);
        if !affordable(flow) {
            flow.credit += QUANTUM;
        }
        while affordable(flow) {
            if let Some(ended) = flow.items.front().and_then(|item| no_room(all, &item.size)) {
                return ended;
            }
            self.give(number, batch, all);
            flow = &mut self.flows[number];
        }
        if flow.items.is_empty() {
            flow.credit = 0;
        }
        FlowStop::Exhausted
    }

    /// Moves a flow's next call into the batch.
    fn give(&mut self, number: usize, batch: &mut Vec<WriteOp>, all: &mut Size) {
        let flow = &mut self.flows[number];
        let Some(Item { work, size, reads }) = flow.items.pop_front() else { return };
        flow.credit = flow.credit.saturating_sub(size.records);
        self.commits -= size.commits;
        self.bytes -= size.bytes;
        self.calls -= usize::from(size.commits == 0);
        all.commits += size.commits.max(1);
        all.bytes += size.bytes;
        all.records += size.records;
        self.reads.extend(reads);
        if !std::mem::replace(&mut flow.taken, true) {
            self.taken.push(number);
        }
        batch.push(work);
    }
}

impl Flow {
    /// Makes a read wait for all calls of this flow.
    fn park(&mut self, read: &Arc<ParkedRead>, taken: &mut Vec<Arc<ParkedRead>>) {
        let reads = match self.items.back_mut() {
            Some(item) => &mut item.reads,
            None if self.taken => taken,
            None => return,
        };
        read.wait();
        reads.push(read.clone());
    }
}
