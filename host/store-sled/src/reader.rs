//! Reads, on threads of their own: sled waits under a process-wide lock, which must not block an async worker.
//!
//! A read arrives here when the calls that it must follow are applied. It reads while no batch is being applied,
//! and its result is returned only when everything that was applied by then is durable (R2). Reads that wait at the
//! same time are served together, so under load one wait serves many. A long read lets waiting batches be applied
//! in between ([`ReadGuard`]), and ensures that what it returns still belongs to one turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::channel::oneshot::Sender;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, Head, Lane, LoadedEntity};
use ostraca_store::entity::check_record;
use ostraca_store::record::{ClaimRecord, RecordKind};
use ostraca_store::{Page, Scan, ScanKind, ScannedRecord, StoreError, StoredRow, keys};

use crate::batch_builder::row;
use crate::progress::Progress;
use crate::read_guard::ReadGuard;
use crate::read_queue::{ReadOp, ReadQueue, RowList};
use crate::records::{Records, Table, read_error};

/// Maximum number of reads that share one wait.
const TOGETHER: usize = 64;

/// How often a read of many records restarts because of a change, before it blocks all batches.
const ATTEMPTS: u32 = 3;

/// Delivers a result, or the error that occurred after reading.
type Responder = Box<dyn FnOnce(Result<(), StoreError>)>;

pub(crate) struct Reader {
    pub(crate) reads: Arc<ReadQueue>,
    pub(crate) records: Records,
    pub(crate) progress: Arc<Progress>,
}

impl Reader {
    /// Serves reads until the queue is closed and empty.
    pub(crate) fn run(self) {
        let mut together = Vec::new();
        while self.reads.take(TOGETHER, &mut together) {
            // A panic fails only the reads that are being served together, not later ones.
            if catch_unwind(AssertUnwindSafe(|| self.serve(&mut together))).is_err() {
                together.clear();
                self.progress.read_panicked();
                tracing::error!("store read panicked: please report this bug");
            }
        }
    }

    fn serve(&self, together: &mut Vec<ReadOp>) {
        let mut hold = ReadGuard::new(&self.progress);
        let running = self.progress.check();
        let gives: Vec<_> = together
            .drain(..)
            .map(|read| match &running {
                Ok(()) => self.read(&mut hold, read),
                Err(error) => fail(read, error),
            })
            .collect();
        let durable = self.progress.wait_durable(hold.end());
        gives.into_iter().for_each(|give| give(durable.clone()));
    }

    fn read(&self, hold: &mut ReadGuard<'_>, read: ReadOp) -> Responder {
        match read {
            ReadOp::Claims(shards, to) => {
                let claims = shards.iter().map(|shard| self.claim(hold, shard)).collect();
                give(claims, to)
            }
            ReadOp::Load(entities, to) => {
                let load = |(shard, entity): &(ShardPath, Entity)| self.load(hold, shard, entity);
                let loaded: Vec<_> = entities.iter().map(load).collect();
                Box::new(move |durable| {
                    drop(to.send(match durable {
                        Ok(()) => loaded,
                        Err(error) => vec![Err(error); loaded.len()],
                    }));
                })
            }
            ReadOp::Scan(scan, to) => give(self.scan(hold, &scan), to),
            ReadOp::Get(key, to) => give(self.get(hold, &key), to),
            ReadOp::List(prefix, to) => give(self.list(hold, &prefix), to),
            #[cfg(test)]
            ReadOp::Panic(to) => {
                drop(to);
                panic!("panic requested by the test")
            }
        }
    }

    fn claim(
        &self,
        hold: &mut ReadGuard<'_>,
        shard: &ShardPath,
    ) -> Result<Option<Claim>, StoreError> {
        hold.pause();
        hold.count(1);
        let key = Table::Entities.key(&keys::claim(shard));
        Ok(self.records.get::<ClaimRecord>(&key)?.map(|record| record.claim))
    }

    fn load(
        &self,
        hold: &mut ReadGuard<'_>,
        shard: &ShardPath,
        entity: &Entity,
    ) -> Result<LoadedEntity, StoreError> {
        let key = Table::Entities.key(&keys::head(shard, entity));
        hold.pause();
        'again: for attempt in 0.. {
            hold.count(1);
            let Some(head) = self.records.get::<Head>(&key)? else {
                return Ok(LoadedEntity::default());
            };
            let mut lanes = Vec::new();
            if head.spilled_lane_count > 0 {
                let prefix =
                    Table::Entities.key(&keys::entity_prefix(shard, RecordKind::Lane, entity));
                for record in self.records.db.scan_prefix(prefix) {
                    let (key_of_lane, raw) = record.map_err(read_error)?;
                    lanes.push(self.records.decode::<Lane>(&key_of_lane, &raw)?);
                    hold.count(raw.len());
                    if attempt < ATTEMPTS && hold.pause() && self.version(&key)? != head.version {
                        continue 'again;
                    }
                }
            }
            return Ok(LoadedEntity { head: Some(head), lanes });
        }
        Ok(LoadedEntity::default())
    }

    /// The version of the head under `key`; 0 without one.
    fn version(&self, key: &[u8]) -> Result<u64, StoreError> {
        Ok(self.records.get::<Head>(key)?.map_or(0, |head| head.version))
    }

    fn scan(&self, hold: &mut ReadGuard<'_>, scan: &Scan) -> Result<Page, StoreError> {
        let (prefix, head) = match &scan.kind {
            ScanKind::Heads => (keys::kind_prefix(&scan.shard, RecordKind::Head), None),
            ScanKind::State(entity) => {
                let head = Table::Entities.key(&keys::head(&scan.shard, entity));
                (keys::entity_prefix(&scan.shard, RecordKind::State, entity), Some(head))
            }
        };
        check_record(&prefix, 0).map_err(StoreError::LimitExceeded)?;
        let prefix = Table::Entities.key(&prefix);
        // Each head is consistent by itself; the entries of a state are consistent only as a whole.
        let version = || head.as_ref().map_or(Ok(0), |head| self.version(head));
        hold.pause();
        for attempt in 0.. {
            let before = version()?;
            let unchanged = |hold: &mut ReadGuard<'_>| {
                Ok(attempt >= ATTEMPTS || !hold.pause() || version()? == before)
            };
            if let Some(page) = self.page(hold, scan, &prefix, unchanged)? {
                return Ok(page);
            }
        }
        Ok(Page::default())
    }

    /// Reads a page; `None` if `unchanged` returns false after one of its records, so that the page must be read
    /// again.
    fn page(
        &self,
        hold: &mut ReadGuard<'_>,
        scan: &Scan,
        prefix: &[u8],
        unchanged: impl Fn(&mut ReadGuard<'_>) -> Result<bool, StoreError>,
    ) -> Result<Option<Page>, StoreError> {
        let mut from = prefix.to_vec();
        if let Some(after) = &scan.after {
            // The next key in bytewise order.
            from.extend_from_slice(after);
            from.push(0);
        }
        let mut page = Page::default();
        let mut bytes = 0;
        let mut last = None;
        for record in self.records.db.range(from..) {
            let (key, raw) = record.map_err(read_error)?;
            let Some(rest) = key.strip_prefix(prefix) else { break };
            if last.is_some() && page.records.len() >= scan.max_records {
                page.next_cursor = last;
                break;
            }
            let (record, size) = match &scan.kind {
                ScanKind::Heads => {
                    let (entity, _) = keys::parse_entity(rest)?;
                    let head = Box::new(self.records.decode::<Head>(&key, &raw)?);
                    (ScannedRecord::Head(entity, head), raw.len())
                }
                ScanKind::State(_) => {
                    let value = self.records.decode_bytes(RecordKind::State, &key, &raw)?;
                    let size = value.len();
                    (ScannedRecord::State(bytes::Bytes::copy_from_slice(rest), value), size)
                }
            };
            bytes += rest.len() + size;
            if last.is_some() && bytes > scan.max_bytes {
                page.next_cursor = last;
                break;
            }
            page.records.push(record);
            last = Some(bytes::Bytes::copy_from_slice(rest));
            hold.count(size);
            if !unchanged(hold)? {
                return Ok(None);
            }
        }
        Ok(Some(page))
    }

    fn get(&self, hold: &mut ReadGuard<'_>, key: &str) -> Result<Option<StoredRow>, StoreError> {
        hold.pause();
        hold.count(1);
        let key = Table::Rows.key(key.as_bytes());
        self.records.raw(&key)?.map(|raw| row(&self.records, &key, &raw)).transpose()
    }

    fn list(&self, hold: &mut ReadGuard<'_>, prefix: &str) -> Result<RowList, StoreError> {
        let prefix = Table::Rows.key(prefix.as_bytes());
        let sequence_key = Table::Meta.key(crate::meta::SEQUENCE);
        hold.pause();
        'again: for attempt in 0.. {
            let changes = self.progress.row_changes();
            let sequence = self.records.get::<crate::meta::StoreSequence>(&sequence_key)?;
            let mut rows = Vec::new();
            for record in self.records.db.scan_prefix(&prefix) {
                let (key, raw) = record.map_err(read_error)?;
                let row = row(&self.records, &key, &raw)?;
                hold.count(row.value.len());
                rows.push(row);
                let paused = attempt < ATTEMPTS && hold.pause();
                if paused && self.progress.row_changes() != changes {
                    continue 'again;
                }
            }
            return Ok((rows, sequence.map_or(0, |sequence| sequence.0)));
        }
        Ok((Vec::new(), 0))
    }
}

fn give<T: 'static>(result: Result<T, StoreError>, to: Sender<Result<T, StoreError>>) -> Responder {
    Box::new(move |durable| drop(to.send(durable.and(result))))
}

/// Fails a read with an error.
fn fail(read: ReadOp, error: &StoreError) -> Responder {
    let error = error.clone();
    match read {
        ReadOp::Claims(_, to) => give(Err(error), to),
        ReadOp::Load(entities, to) => Box::new(move |_| {
            drop(to.send(vec![Err(error); entities.len()]));
        }),
        ReadOp::Scan(_, to) => give(Err(error), to),
        ReadOp::Get(_, to) => give(Err(error), to),
        ReadOp::List(_, to) => give(Err(error), to),
        #[cfg(test)]
        ReadOp::Panic(_) => Box::new(|_| ()),
    }
}
