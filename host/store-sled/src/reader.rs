//! Serves reads on dedicated threads: sled may block while it holds a process-wide lock, which must not happen on an
//! async worker.
//!
//! A read arrives here once the calls that it must follow have been applied. It runs while no batch is being applied,
//! and its result is returned only when everything that was applied by then is durable (R2). Reads that are queued
//! at the same time are served together, so that under load many of them share one wait. A long read lets waiting
//! batches be applied in between ([`ReadGuard`]), and ensures that what it returns still belongs to one turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::channel::oneshot::Sender;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, Head, Lane, LoadedEntity, OWN_TIMERS, Tell, Timer};
use ostraca_store::entity::{check_record, corrupt_floor};
use ostraca_store::record::{ClaimRecord, RecordKind};
use ostraca_store::transfer::ItemPage;
use ostraca_store::{Page, Scan, ScanKind, ScannedRecord, StoreError, StoredRow, keys};

use crate::batch_builder::row;
use crate::items;
use crate::progress::Progress;
use crate::read_guard::ReadGuard;
use crate::read_queue::{ReadOp, ReadQueue, RowList};
use crate::records::{Records, Table, read_error};

/// Maximum number of reads that share one wait.
const MAX_READS_PER_WAIT: usize = 64;

/// How many times a read of many records restarts because of a change, before it blocks all batches.
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
        while self.reads.take(MAX_READS_PER_WAIT, &mut together) {
            // A panic fails only the reads that are being served together, not later ones.
            if catch_unwind(AssertUnwindSafe(|| self.serve(&mut together))).is_err() {
                together.clear();
                self.progress.read_panicked();
                tracing::error!("store read panicked: please report this bug");
            }
        }
    }

    fn serve(&self, together: &mut Vec<ReadOp>) {
        let mut guard = ReadGuard::new(&self.progress);
        let running = self.progress.check();
        let responders: Vec<_> = together
            .drain(..)
            .map(|read| match &running {
                Ok(()) => self.read(&mut guard, read),
                Err(error) => fail(read, error),
            })
            .collect();
        let durable = self.progress.wait_durable(guard.end());
        responders.into_iter().for_each(|respond| respond(durable.clone()));
    }

    fn read(&self, guard: &mut ReadGuard<'_>, read: ReadOp) -> Responder {
        match read {
            ReadOp::Claims(shards, to) => {
                let claims = shards.iter().map(|shard| self.claim(guard, shard)).collect();
                respond(claims, to)
            }
            ReadOp::Load(entities, to) => {
                let load = |(shard, entity): &(ShardPath, Entity)| self.load(guard, shard, entity);
                let loaded: Vec<_> = entities.iter().map(load).collect();
                Box::new(move |durable| {
                    drop(to.send(match durable {
                        Ok(()) => loaded,
                        Err(error) => vec![Err(error); loaded.len()],
                    }));
                })
            }
            ReadOp::Scan(scan, to) => respond(self.scan(guard, &scan), to),
            ReadOp::Contents(shard, cursor, to) => {
                respond(self.contents(guard, &shard, cursor.as_deref()), to)
            }
            ReadOp::Get(key, to) => respond(self.get(guard, &key), to),
            ReadOp::List(prefix, to) => respond(self.list(guard, &prefix), to),
            #[cfg(test)]
            ReadOp::Panic(to) => {
                drop(to);
                panic!("panic requested by the test")
            }
        }
    }

    fn claim(
        &self,
        guard: &mut ReadGuard<'_>,
        shard: &ShardPath,
    ) -> Result<Option<Claim>, StoreError> {
        guard.pause();
        guard.count(1);
        let key = Table::Entities.key(&keys::claim(shard));
        Ok(self.records.get::<ClaimRecord>(&key)?.map(|record| record.claim))
    }

    fn load(
        &self,
        guard: &mut ReadGuard<'_>,
        shard: &ShardPath,
        entity: &Entity,
    ) -> Result<LoadedEntity, StoreError> {
        let key = Table::Entities.key(&keys::head(shard, entity));
        guard.pause();
        for attempt in 0.. {
            guard.count(1);
            let Some(head) = self.records.get::<Head>(&key)? else {
                let head = self.floor_head(shard)?;
                return Ok(LoadedEntity { head, ..LoadedEntity::default() });
            };
            let corrupt = |error| StoreError::Corrupt(format!("head of {entity}: {error}"));
            let has_timers = head.timer_count().map_err(corrupt)? > 0;
            let (waiting, dead) = head.outbox_counts().map_err(corrupt)?;
            let unchanged = |guard: &mut ReadGuard<'_>| {
                Ok(attempt >= ATTEMPTS || !guard.pause() || self.version(&key)? == head.version)
            };
            let of = |kind| keys::entity_prefix(shard, kind, entity);
            let lanes = (head.spilled_lane_count > 0).then(|| of(RecordKind::Lane));
            let lanes = self.beside(guard, lanes, unchanged, |key, raw| {
                self.records.decode::<Lane>(key, raw)
            })?;
            let timers = has_timers.then(|| keys::timers_of(shard, OWN_TIMERS, entity));
            let timers = self.beside(guard, timers, unchanged, |key, raw| {
                self.records.decode::<Timer>(key, raw)
            })?;
            let outbox = (waiting > 0).then(|| of(RecordKind::Outbox));
            let outbox = self.beside(guard, outbox, unchanged, |key, raw| {
                Ok((keys::last_number(key)?, self.records.decode::<Tell>(key, raw)?))
            })?;
            let dead_letters = (dead > 0).then(|| of(RecordKind::DeadLetter));
            let dead_letters = self.beside(guard, dead_letters, unchanged, |key, raw| {
                Ok((keys::last_number(key)?, self.dead_letter(key, raw)?.0))
            })?;
            if let (Some(lanes), Some(timers), Some(outbox), Some(dead_letters)) =
                (lanes, timers, outbox, dead_letters)
            {
                return Ok(LoadedEntity { head: Some(head), lanes, timers, outbox, dead_letters });
            }
        }
        Ok(LoadedEntity::default())
    }

    /// The head of an entity without one, if the shard has a floor.
    fn floor_head(&self, shard: &ShardPath) -> Result<Option<Head>, StoreError> {
        let claim = self.records.get::<ClaimRecord>(&Table::Entities.key(&keys::claim(shard)))?;
        let floor = claim.map(|claim| claim.floor()).transpose().map_err(corrupt_floor)?.flatten();
        floor.map(|floor| floor.head()).transpose().map_err(corrupt_floor)
    }

    /// The records of an entity under `prefix`; `None` if the entity has changed in the meantime.
    fn beside<T>(
        &self,
        guard: &mut ReadGuard<'_>,
        prefix: Option<Vec<u8>>,
        unchanged: impl Fn(&mut ReadGuard<'_>) -> Result<bool, StoreError>,
        decode: impl Fn(&[u8], &[u8]) -> Result<T, StoreError>,
    ) -> Result<Option<Vec<T>>, StoreError> {
        let mut found = Vec::new();
        let Some(prefix) = prefix else { return Ok(Some(found)) };
        for record in self.records.db.scan_prefix(Table::Entities.key(&prefix)) {
            let (key, raw) = record.map_err(read_error)?;
            found.push(decode(&key, &raw)?);
            guard.count(raw.len());
            if !unchanged(guard)? {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// A dead letter, and the bytes of its record.
    fn dead_letter(&self, key: &[u8], raw: &[u8]) -> Result<(Tell, usize), StoreError> {
        let body = self.records.decode_bytes(RecordKind::DeadLetter, key, raw)?;
        let tell = codec::decode::<Tell>(&body).map_err(|error| {
            StoreError::Corrupt(format!("cannot decode a dead letter: {error}"))
        })?;
        Ok((tell, body.len()))
    }

    /// The version of the head under `key`; 0 if there is none.
    fn version(&self, key: &[u8]) -> Result<u64, StoreError> {
        Ok(self.records.get::<Head>(key)?.map_or(0, |head| head.version))
    }

    fn scan(&self, guard: &mut ReadGuard<'_>, scan: &Scan) -> Result<Page, StoreError> {
        let (prefix, first) = scan.range();
        check_record(&prefix, 0).map_err(StoreError::LimitExceeded)?;
        let prefix = Table::Entities.key(&prefix);
        let first = first.unwrap_or_default();
        // Each head, wake-up, mark, item or dead letter is consistent on its own; the records of a state or a journal only as
        // a whole.
        let head = match &scan.kind {
            ScanKind::State(entity) | ScanKind::Journal { entity, .. } => {
                Some(Table::Entities.key(&keys::head(&scan.shard, entity)))
            }
            ScanKind::Heads
            | ScanKind::Wakes { .. }
            | ScanKind::DeadLetters { .. }
            | ScanKind::Remembered { .. }
            | ScanKind::Channel { .. } => None,
        };
        let version = || head.as_ref().map_or(Ok(0), |head| self.version(head));
        guard.pause();
        for attempt in 0.. {
            let before = version()?;
            let unchanged = |guard: &mut ReadGuard<'_>| {
                Ok(attempt >= ATTEMPTS || !guard.pause() || version()? == before)
            };
            if let Some(page) = self.page(guard, scan, &prefix, &first, unchanged)? {
                return Ok(page);
            }
        }
        Ok(Page::default())
    }

    /// Reads a page; `None` if `unchanged` returns `false` after any record: then the page must be read again.
    fn page(
        &self,
        guard: &mut ReadGuard<'_>,
        scan: &Scan,
        prefix: &[u8],
        first: &[u8],
        unchanged: impl Fn(&mut ReadGuard<'_>) -> Result<bool, StoreError>,
    ) -> Result<Option<Page>, StoreError> {
        let from = [prefix, first].concat();
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
                ScanKind::Wakes { .. } if rest.starts_with(&OWN_TIMERS.to_be_bytes()) => break,
                ScanKind::Wakes { .. } => {
                    let (due, entity) = keys::parse_wake(rest)?;
                    (ScannedRecord::Wake(due, entity), raw.len())
                }
                ScanKind::DeadLetters { .. } => {
                    let (entity, number) = keys::parse_entity(rest)?;
                    let (tell, size) = self.dead_letter(&key, &raw)?;
                    let number = keys::last_number(number)?;
                    (ScannedRecord::DeadLetter(entity, number, Box::new(tell)), size)
                }
                ScanKind::Remembered { .. } => {
                    let (entity, _) = keys::parse_entity(rest)?;
                    (ScannedRecord::Remembered(entity), raw.len())
                }
                ScanKind::Channel { .. } => {
                    let body = self.records.decode_bytes(RecordKind::ChannelItem, &key, &raw)?;
                    (ScannedRecord::of_channel(keys::last_number(rest)?, &body)?, body.len())
                }
                ScanKind::Journal { .. } => {
                    let body = self.records.decode_bytes(RecordKind::Journal, &key, &raw)?;
                    (ScannedRecord::of_journal(keys::last_number(rest)?, &body)?, body.len())
                }
            };
            bytes += rest.len() + size;
            if last.is_some() && bytes > scan.max_bytes {
                page.next_cursor = last;
                break;
            }
            page.records.push(record);
            last = Some(bytes::Bytes::copy_from_slice(rest));
            guard.count(size);
            if !unchanged(guard)? {
                return Ok(None);
            }
        }
        Ok(Some(page))
    }

    /// A page of all that a shard holds. Each item is consistent on its own.
    fn contents(
        &self,
        guard: &mut ReadGuard<'_>,
        shard: &ShardPath,
        cursor: Option<&[u8]>,
    ) -> Result<ItemPage, StoreError> {
        let prefix = Table::Entities.key(&keys::shard_prefix(shard));
        let from = match cursor {
            Some(last) => [&prefix[..], last, &[0]].concat(),
            None => prefix.clone(),
        };
        let mut page = items::PageBuilder::default();
        guard.pause();
        for record in self.records.db.range(from..) {
            let (key, raw) = record.map_err(read_error)?;
            let Some(rest) = key.strip_prefix(&prefix[..]) else { break };
            guard.count(raw.len());
            if !page.add(items::decode(&self.records, &key, &raw)?, || rest.to_vec()) {
                break;
            }
        }
        Ok(page.finish())
    }

    fn get(&self, guard: &mut ReadGuard<'_>, key: &str) -> Result<Option<StoredRow>, StoreError> {
        guard.pause();
        guard.count(1);
        let key = Table::Rows.key(key.as_bytes());
        self.records.raw(&key)?.map(|raw| row(&self.records, &key, &raw)).transpose()
    }

    fn list(&self, guard: &mut ReadGuard<'_>, prefix: &str) -> Result<RowList, StoreError> {
        let prefix = Table::Rows.key(prefix.as_bytes());
        let sequence_key = Table::Meta.key(crate::meta::SEQUENCE);
        guard.pause();
        'again: for attempt in 0.. {
            let changes = self.progress.row_changes();
            let sequence = self.records.get::<crate::meta::StoreSequence>(&sequence_key)?;
            let mut rows = Vec::new();
            for record in self.records.db.scan_prefix(&prefix) {
                let (key, raw) = record.map_err(read_error)?;
                let row = row(&self.records, &key, &raw)?;
                guard.count(row.value.len());
                rows.push(row);
                let paused = attempt < ATTEMPTS && guard.pause();
                if paused && self.progress.row_changes() != changes {
                    continue 'again;
                }
            }
            return Ok((rows, sequence.map_or(0, |sequence| sequence.0)));
        }
        Ok((Vec::new(), 0))
    }
}

fn respond<T: 'static>(
    result: Result<T, StoreError>,
    to: Sender<Result<T, StoreError>>,
) -> Responder {
    Box::new(move |durable| drop(to.send(durable.and(result))))
}

/// Fails a read with an error.
fn fail(read: ReadOp, error: &StoreError) -> Responder {
    let error = error.clone();
    match read {
        ReadOp::Claims(_, to) => respond(Err(error), to),
        ReadOp::Load(entities, to) => Box::new(move |_| {
            drop(to.send(vec![Err(error); entities.len()]));
        }),
        ReadOp::Scan(_, to) => respond(Err(error), to),
        ReadOp::Contents(_, _, to) => respond(Err(error), to),
        ReadOp::Get(_, to) => respond(Err(error), to),
        ReadOp::List(_, to) => respond(Err(error), to),
        #[cfg(test)]
        ReadOp::Panic(_) => Box::new(|_| ()),
    }
}
