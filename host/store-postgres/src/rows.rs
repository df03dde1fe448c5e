//! The cluster's rows: compare-and-sets and reads over one connection, in the order of the calls.
//!
//! Compare-and-sets that wait together are one batch, so they share one sync of the server. Leases are rows: their
//! connection is separate from those of commits, and may be driven by another runtime.

use std::sync::Arc;

use bytes::Bytes;
use futures::channel::oneshot::Sender;
use ostraca_store::{CompareAndSet, CompareAndSetError, RowOp, StoreError, StoredRow};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::binary::Binary;
use crate::changes::Follower;
use crate::connector::Connector;
use crate::error::ColumnError;
use crate::health::Health;
use crate::options::Options;
use crate::row::{column, key_text};

/// The most compare-and-sets of one batch.
const BATCH: usize = 256;

const GET: &str = "SELECT key, revision, value FROM ostraca.rows WHERE key = $1";
/// The revision of the list is in every row, and in the only one if no row is found.
const LIST: &str = "SELECT r.key, r.revision, r.value, v.last FROM ostraca.revision v
    LEFT JOIN ostraca.rows r ON r.key >= $1 AND r.key < $2 ORDER BY r.key";

/// The queue of the calls.
#[derive(Clone)]
pub(crate) struct RowQueue {
    ops: mpsc::Sender<RowOp>,
    most: usize,
}

impl RowQueue {
    pub(crate) fn new(options: &Options) -> (Self, mpsc::Receiver<RowOp>) {
        let most = options.queue_rows.max(1);
        let (ops, waiting) = mpsc::channel(most);
        (Self { ops, most }, waiting)
    }

    /// Adds a call, unless the queue is full or closed.
    pub(crate) fn push(&self, op: RowOp) {
        match self.ops.try_send(op) {
            Ok(()) => {}
            Err(TrySendError::Full(op)) => {
                let text = format!("{} calls for rows wait (`queue-metadata-ops`)", self.most);
                op.fail(StoreError::Unavailable(text));
            }
            Err(TrySendError::Closed(op)) => {
                op.fail(StoreError::Unavailable("the store is closed".into()));
            }
        }
    }
}

/// Serves the calls until the queue is closed. `opening` is the number of the store's opening.
pub(crate) async fn serve(
    mut waiting: mpsc::Receiver<RowOp>,
    options: Arc<Options>,
    opening: i64,
    health: Health,
    follower: Follower,
) {
    let mut connector = Connector::new(options.clone(), opening, health);
    let mut ops = Vec::new();
    while waiting.recv_many(&mut ops, BATCH).await > 0 {
        let (mut changes, mut has_changed) = (Vec::new(), false);
        for op in ops.drain(..) {
            match op {
                RowOp::Cas(cas, to) => changes.push((cas, to)),
                RowOp::Get(key, to) => {
                    let before = std::mem::take(&mut changes);
                    has_changed |= change(&mut connector, &options, before).await;
                    drop(to.send(get(&mut connector, &options, &key).await));
                }
                RowOp::List(prefix, to) => {
                    let before = std::mem::take(&mut changes);
                    has_changed |= change(&mut connector, &options, before).await;
                    drop(to.send(list(&mut connector, &options, &prefix).await));
                }
            }
        }
        if change(&mut connector, &options, changes).await || has_changed {
            follower.look();
        }
    }
}

/// The columns of a batch.
#[derive(Default)]
struct Changes {
    keys: Vec<Vec<u8>>,
    expected: Vec<Option<i64>>,
    values: Vec<Option<Binary>>,
}

impl Changes {
    /// The parameters of the call, in order, behind those of the connection.
    fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        vec![
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.expected, Type::INT8_ARRAY),
            (&self.values, Type::BYTEA_ARRAY),
        ]
    }
}

type WaitingChange = (CompareAndSet, Sender<Result<u64, CompareAndSetError>>);

/// Carries out compare-and-sets as one batch. Returns whether something may have changed.
async fn change(connector: &mut Connector, options: &Options, ops: Vec<WaitingChange>) -> bool {
    let (mut changes, mut waiters) = (Changes::default(), Vec::new());
    for (cas, to) in ops {
        if let Err(error) = cas.check() {
            drop(to.send(Err(error.into())));
            continue;
        }
        changes.keys.push(cas.key.as_bytes().to_vec());
        // No row has a revision that the column cannot hold.
        changes.expected.push(cas.expected.map(|revision| i64::try_from(revision).unwrap_or(-1)));
        changes.values.push(cas.value.map(Binary));
        waiters.push((cas.key, to));
    }
    if waiters.is_empty() {
        return false;
    }
    match changed(connector, options, &changes).await {
        Ok(outcomes) => {
            for ((key, to), outcome) in waiters.into_iter().zip(outcomes) {
                drop(to.send(outcome.map_err(|found| {
                    let row = found.map(|(revision, value)| StoredRow { key, revision, value });
                    CompareAndSetError::RevisionMismatch(row)
                })));
            }
        }
        Err(error) => {
            waiters.into_iter().for_each(|(_, to)| drop(to.send(Err(error.clone().into()))));
        }
    }
    true
}

/// The new revision, or what the row was instead.
type Outcome = Result<u64, Option<(u64, Bytes)>>;

async fn changed(
    connector: &mut Connector,
    options: &Options,
    changes: &Changes,
) -> Result<Vec<Outcome>, StoreError> {
    let health = connector.health.clone();
    let writer = connector.writer().await?;
    let row = writer.change_rows(options, changes.parameters()).await?;
    health.count(1);
    let revisions: Vec<Option<i64>> = column(&row, 0)?;
    let found: Vec<Option<i64>> = column(&row, 1)?;
    let values: Vec<Option<Vec<u8>>> = column(&row, 2)?;
    if [revisions.len(), found.len(), values.len()] != [changes.keys.len(); 3] {
        return Err(StoreError::Corrupt("the server returned another number of outcomes".into()));
    }
    let all = revisions.into_iter().zip(found.into_iter().zip(values));
    Ok(all
        .map(|(revision, (found, value))| match revision {
            Some(revision) => Ok(revision.cast_unsigned()),
            None => {
                Err(found.map(|found| (found.cast_unsigned(), value.unwrap_or_default().into())))
            }
        })
        .collect())
}

async fn get(
    connector: &mut Connector,
    options: &Options,
    key: &str,
) -> Result<Option<StoredRow>, StoreError> {
    let bytes = key.as_bytes();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&bytes, Type::BYTEA)];
    let rows = connector.writer().await?.read(options, GET, &parameters).await?;
    rows.first().map(stored_row).transpose()
}

async fn list(
    connector: &mut Connector,
    options: &Options,
    prefix: &str,
) -> Result<(Vec<StoredRow>, u64), StoreError> {
    let from = prefix.as_bytes();
    // No text contains this byte.
    let to = [from, &[0xff]].concat();
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&from, Type::BYTEA), (&to, Type::BYTEA)];
    let rows = connector.writer().await?.read(options, LIST, &parameters).await?;
    let first = rows.first().ok_or_else(ColumnError::missing)?;
    let revision = column::<i64>(first, 3)?.cast_unsigned();
    if column::<Option<i64>>(first, 1)?.is_none() {
        return Ok((Vec::new(), revision));
    }
    Ok((rows.iter().map(stored_row).collect::<Result<_, _>>()?, revision))
}

fn stored_row(row: &Row) -> Result<StoredRow, StoreError> {
    let value: Vec<u8> = column(row, 2)?;
    Ok(StoredRow {
        key: key_text(column(row, 0)?)?,
        revision: column::<i64>(row, 1)?.cast_unsigned(),
        value: value.into(),
    })
}
