//! The calls for rows, in their order: what waits together is one transaction.
//!
//! Only one transaction is on its way at a time, so a call sees the effects of all calls before it, and etcd is asked
//! once for many rows. If the answer to a transaction is lost, its reads and its changes of existing rows are sent
//! again: `mod_revision` lets a change happen once at most, and the nonce in the row shows whose it was. A creation is
//! not sent again, since the row could have been created and deleted meanwhile; it is only looked for.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ostraca_store::{CompareAndSet, CompareAndSetError, RowOp, StoreError, StoredRow};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, sleep};

use crate::batch::{self, Answer};
use crate::error::CallError;
use crate::health::Health;
use crate::layout::{Layout, encode};
use crate::members::Members;
use crate::options::Options;
use crate::proto::{RangeRequest, RequestOp};

/// The most calls that are taken from the queue at a time.
const TAKEN: usize = 1024;
/// The number of rows that are listed at a time.
const PAGE: i64 = 1000;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// A call that waits, and until when it may.
pub(crate) struct WaitingOp {
    op: RowOp,
    until: Instant,
}

/// The queue of the calls.
#[derive(Clone)]
pub(crate) struct RowQueue {
    ops: mpsc::Sender<WaitingOp>,
    most: usize,
    limit: Duration,
}

impl RowQueue {
    pub(crate) fn new(options: &Options) -> (Self, mpsc::Receiver<WaitingOp>) {
        let most = options.queue_rows.max(1);
        let (ops, waiting) = mpsc::channel(most);
        (Self { ops, most, limit: options.call_timeout }, waiting)
    }

    /// Adds a call, unless the queue is full or closed.
    pub(crate) fn push(&self, op: RowOp) {
        let until = Instant::now() + self.limit;
        match self.ops.try_send(WaitingOp { op, until }) {
            Ok(()) => {}
            Err(TrySendError::Full(waiting)) => {
                let text =
                    format!("{} calls for rows wait for etcd (`queue-metadata-ops`)", self.most);
                waiting.op.fail(StoreError::Unavailable(text));
            }
            Err(TrySendError::Closed(waiting)) => {
                waiting.op.fail(StoreError::Unavailable("the store is closed".into()));
            }
        }
    }
}

/// Serves the calls.
pub(crate) struct Server {
    options: Arc<Options>,
    members: Members,
    layout: Layout,
    health: Health,
    /// The nonce of the next write. The upper half is random, for this process.
    nonce: u128,
}

/// A call in a transaction.
struct Item {
    op: RowOp,
    until: Instant,
    nonce: u128,
    /// Whether an earlier attempt may have been carried out.
    in_doubt: bool,
}

impl Server {
    pub(crate) fn new(
        options: Arc<Options>,
        members: Members,
        layout: Layout,
        health: Health,
    ) -> Self {
        let nonce = u128::from(rand::random::<u64>()) << 64;
        Self { options, members, layout, health, nonce }
    }

    /// Serves the calls until the queue is closed.
    pub(crate) async fn run(mut self, mut waiting: mpsc::Receiver<WaitingOp>) {
        let mut taken = Vec::new();
        while waiting.recv_many(&mut taken, TAKEN).await > 0 {
            let mut queue: VecDeque<_> = taken.drain(..).collect();
            while let Some(WaitingOp { op, until }) = queue.pop_front() {
                if let Err(error) = self.health.check() {
                    op.fail(error);
                } else if let RowOp::List(prefix, to) = op {
                    drop(to.send(self.list(&prefix, until).await));
                } else {
                    queue.push_front(WaitingOp { op, until });
                    let batch = self.take_batch(&mut queue);
                    self.carry_out(batch).await;
                }
            }
        }
    }

    /// Takes the calls of the next transaction: at most one change of each row.
    fn take_batch(&mut self, queue: &mut VecDeque<WaitingOp>) -> Vec<Item> {
        let (mut batch, mut keys, mut bytes) = (Vec::new(), HashSet::new(), 0);
        while let Some(WaitingOp { op, .. }) = queue.front() {
            let is_full =
                batch.len() >= self.options.batch_rows.max(1) || bytes >= self.options.batch_bytes;
            match op {
                _ if is_full => break,
                RowOp::List(..) => break,
                RowOp::Cas(cas, _) if !keys.insert(cas.key.clone()) => break,
                RowOp::Cas(cas, _) => {
                    bytes += cas.key.len() + cas.value.as_ref().map_or(0, Bytes::len)
                }
                RowOp::Get(key, _) => bytes += key.len(),
            }
            let Some(WaitingOp { op, until }) = queue.pop_front() else { break };
            match op {
                RowOp::Cas(cas, to) if cas.check().is_err() => {
                    let limit = cas.check().err().map(CompareAndSetError::from);
                    drop(limit.map(|limit| to.send(Err(limit))));
                }
                op => {
                    self.nonce += 1;
                    batch.push(Item { op, until, nonce: self.nonce, in_doubt: false });
                }
            }
        }
        batch
    }

    /// Carries out calls as one transaction, again and again until it is known what became of them or they must end.
    async fn carry_out(&mut self, mut batch: Vec<Item>) {
        let mut last = String::new();
        loop {
            expire(&mut batch, &last, self.options.call_timeout);
            if batch.is_empty() {
                return;
            }
            match self.attempt(&mut batch).await {
                Ok(()) => return,
                Err(CallError::NotSent(error)) => last = error.to_string(),
                Err(CallError::InDoubt(why)) => {
                    batch.iter_mut().for_each(|item| item.in_doubt = true);
                    last = why;
                }
                Err(error @ (CallError::Refused(_) | CallError::Compacted)) => {
                    let error = StoreError::Unavailable(error.into_open_error().to_string());
                    batch.drain(..).for_each(|item| item.op.fail(error.clone()));
                    return;
                }
            }
            tracing::debug!(why = last, "a request to etcd failed");
            self.members.leave();
            sleep(PAUSE).await;
        }
    }

    /// Sends the calls once, and answers them if etcd answers.
    async fn attempt(&mut self, batch: &mut Vec<Item>) -> Result<(), CallError> {
        let known = self.health.seen();
        let member = self.members.member().await.map_err(CallError::NotSent)?;
        let requests = batch.iter().map(|item| item.request(&self.layout)).collect();
        let answer = batch::transact(&member, requests, self.layout.batch()).await?;
        let checked = self.health.check_header(answer.header.as_ref(), known);
        let items = batch.drain(..);
        let revision = match checked {
            Ok(revision) => revision,
            Err(error) => {
                items.for_each(|item| item.op.fail(error.clone()));
                return Ok(());
            }
        };
        let mut answers = answer.responses.into_iter();
        for item in items {
            let answer = answers.next().and_then(batch::answer);
            item.answer(answer, revision, &self.layout, &self.health);
        }
        Ok(())
    }

    /// Lists rows, page by page at one revision.
    async fn list(
        &mut self,
        prefix: &str,
        until: Instant,
    ) -> Result<(Vec<StoredRow>, u64), StoreError> {
        let mut last = String::new();
        while Instant::now() < until {
            match self.list_once(prefix, until).await {
                Ok(listed) => return listed,
                Err(CallError::Refused(error)) => {
                    return Err(StoreError::Unavailable(error.to_string()));
                }
                // It took so long that its revision is gone: the next attempt reads a newer one.
                Err(CallError::Compacted) => {}
                Err(error @ (CallError::NotSent(_) | CallError::InDoubt(_))) => {
                    last = error.into_open_error().to_string();
                    self.members.leave();
                }
            }
            sleep(PAUSE).await;
        }
        Err(late(&last, self.options.call_timeout))
    }

    async fn list_once(
        &mut self,
        prefix: &str,
        until: Instant,
    ) -> Result<Result<(Vec<StoredRow>, u64), StoreError>, CallError> {
        let known = self.health.seen();
        let (mut from, end) = self.layout.range(prefix);
        let (mut rows, mut at) = (Vec::new(), 0);
        loop {
            let member = self.members.member().await.map_err(CallError::NotSent)?;
            let request =
                RangeRequest { key: from, range_end: end.clone(), limit: PAGE, revision: at };
            let answer = member.range(request).await?;
            let revision = match self.health.check_header(answer.header.as_ref(), known) {
                Ok(revision) => revision,
                Err(error) => return Ok(Err(error)),
            };
            if at == 0 {
                at = revision.cast_signed();
            }
            for stored in &answer.kvs {
                match self.layout.decode(stored) {
                    Ok((row, _)) => rows.push(row),
                    Err(error) => return Ok(Err(error)),
                }
            }
            match answer.kvs.last() {
                Some(last) if answer.more => from = [&last.key[..], &[0]].concat().into(),
                _ => return Ok(Ok((rows, at.cast_unsigned()))),
            }
            if Instant::now() >= until {
                return Ok(Err(late("the list is long", self.options.call_timeout)));
            }
        }
    }
}

fn late(why: &str, limit: Duration) -> StoreError {
    StoreError::Unavailable(format!("no answer from etcd within {limit:?} (`call-timeout`): {why}"))
}

/// Fails the calls whose time is over.
fn expire(batch: &mut Vec<Item>, why: &str, limit: Duration) {
    let now = Instant::now();
    for item in batch.extract_if(.., |item| item.until <= now) {
        item.op.fail(late(why, limit));
    }
}

impl Item {
    fn request(&self, layout: &Layout) -> RequestOp {
        match &self.op {
            RowOp::Get(key, _) | RowOp::List(key, _) => batch::read(layout.row(key)),
            RowOp::Cas(CompareAndSet { key, expected: None, .. }, _) if self.in_doubt => {
                batch::read(layout.row(key))
            }
            RowOp::Cas(CompareAndSet { key, expected, value }, _) => {
                let key = layout.row(key);
                // No row has the revision 0 or one that is too large for etcd.
                let known = |revision| i64::try_from(revision).ok().filter(|it| *it > 0);
                let expected = expected.map_or(0, |revision| known(revision).unwrap_or(-1));
                batch::nested(match value {
                    Some(value) => batch::put_if(key, expected, encode(self.nonce, value)),
                    None => batch::delete_if(key, expected),
                })
            }
        }
    }

    /// Answers the call. `revision` is that of the transaction.
    fn answer(self, answer: Option<Answer>, revision: u64, layout: &Layout, health: &Health) {
        let Some(answer) = answer else {
            let error = StoreError::Corrupt("etcd answered something else than asked".into());
            return self.op.fail(error);
        };
        match self.op {
            RowOp::Cas(cas, to) => {
                let result = outcome(&cas, answer, self.in_doubt, self.nonce, revision, layout);
                if let (Ok(changed), true) =
                    (&result, cas.value.is_some() || cas.expected.is_some())
                {
                    health.note_change(*changed);
                }
                drop(to.send(result));
            }
            RowOp::Get(_, to) => drop(to.send(match answer {
                Answer::Found(found) => {
                    found.map(|found| layout.decode(&found).map(|(row, _)| row)).transpose()
                }
                Answer::Changed => Ok(None),
            })),
            RowOp::List(_, to) => drop(to.send(Err(StoreError::Unavailable("not sent".into())))),
        }
    }
}

/// What became of a change.
fn outcome(
    cas: &CompareAndSet,
    answer: Answer,
    in_doubt: bool,
    nonce: u128,
    revision: u64,
    layout: &Layout,
) -> Result<u64, CompareAndSetError> {
    let found = match answer {
        Answer::Changed => return Ok(revision),
        Answer::Found(found) => found.map(|found| layout.decode(&found)).transpose()?,
    };
    match found {
        Some((row, writer)) if writer == nonce => Ok(row.revision),
        // It may have been carried out and overwritten, or be carried out later.
        _ if in_doubt => Err(CompareAndSetError::Store(StoreError::Unavailable(format!(
            "the answer of etcd was lost: it is unknown whether the row {} was written",
            cas.key
        )))),
        found => Err(CompareAndSetError::RevisionMismatch(found.map(|(row, _)| row))),
    }
}
