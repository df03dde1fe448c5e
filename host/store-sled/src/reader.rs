//! Reads, on threads of their own: sled waits under a lock of the whole process, and no async worker should.
//!
//! A read waits until the calls queued before it are applied, reads while no batch is being applied, and is
//! handed out only when all that was applied by then is durable (R2). Reads that wait together are served
//! together, so under load one wait serves many; with nothing queued no wait happens at all.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use futures::channel::oneshot::Sender;
use ostraca_sharding::ids::{Entity, ShardKey};
use ostraca_sharding::records::{Claim, Head, Lane, Loaded};
use ostraca_store::entity::check_record;
use ostraca_store::record::{Kind, StandingClaim};
use ostraca_store::{Page, Row, Scan, ScanKind, ScannedRecord, StoreError, keys};

use crate::judge::row;
use crate::progress::Progress;
use crate::records::{Records, Table, read_error};

/// Reads served under one lock and one wait: bounds how long a batch waits for them.
const TOGETHER: usize = 64;

/// One read, and the ticket of the last writing call queued before it.
pub(crate) struct Read {
    pub(crate) after: u64,
    pub(crate) what: What,
}

type Listed = (Vec<Row>, u64);

pub(crate) enum What {
    Claims(Vec<ShardKey>, Sender<Result<Vec<Option<Claim>>, StoreError>>),
    Load(Vec<(ShardKey, Entity)>, Sender<Vec<Result<Loaded, StoreError>>>),
    Scan(Scan, Sender<Result<Page, StoreError>>),
    Get(String, Sender<Result<Option<Row>, StoreError>>),
    List(String, Sender<Result<Listed, StoreError>>),
}

/// Hands a result out, or the error that came after the reading.
type Give = Box<dyn FnOnce(Result<(), StoreError>)>;

pub(crate) struct Reader {
    pub(crate) reads: Receiver<Read>,
    pub(crate) records: Records,
    pub(crate) progress: Arc<Progress>,
}

impl Reader {
    /// Serves reads until nobody can ask any more.
    pub(crate) fn run(self) {
        while let Ok(first) = self.reads.recv() {
            let mut together = vec![first];
            together.extend(self.reads.try_iter().take(TOGETHER - 1));
            let after = together.iter().map(|read| read.after).max().unwrap_or(0);
            let waited = self.progress.wait_applied(after);
            let reading = self.progress.reading();
            let applied = self.progress.applied();
            let waited = waited.and_then(|()| self.progress.check());
            let read = |read: Read| match &waited {
                Ok(()) => self.read(read.what),
                Err(error) => fail(read.what, error),
            };
            let gives: Vec<_> = together.into_iter().map(read).collect();
            drop(reading);
            let durable = self.progress.wait_durable(applied);
            gives.into_iter().for_each(|give| give(durable.clone()));
        }
    }

    fn read(&self, what: What) -> Give {
        match what {
            What::Claims(shards, to) => {
                let claims = shards.iter().map(|shard| self.claim(shard)).collect();
                give(claims, to)
            }
            What::Load(entities, to) => {
                let loaded: Vec<_> =
                    entities.iter().map(|(shard, entity)| self.load(shard, entity)).collect();
                Box::new(move |durable| {
                    drop(to.send(match durable {
                        Ok(()) => loaded,
                        Err(error) => vec![Err(error); loaded.len()],
                    }));
                })
            }
            What::Scan(scan, to) => give(self.scan(&scan), to),
            What::Get(key, to) => give(self.get(&key), to),
            What::List(prefix, to) => give(self.list(&prefix), to),
        }
    }

    fn claim(&self, shard: &ShardKey) -> Result<Option<Claim>, StoreError> {
        let key = Table::Entities.key(&keys::claim(shard));
        Ok(self.records.get::<StandingClaim>(&key)?.map(|standing| standing.claim))
    }

    fn load(&self, shard: &ShardKey, entity: &Entity) -> Result<Loaded, StoreError> {
        let key = Table::Entities.key(&keys::head(shard, entity));
        let Some(head) = self.records.get::<Head>(&key)? else { return Ok(Loaded::default()) };
        let mut lanes = Vec::new();
        if head.lanes_beside > 0 {
            let prefix = Table::Entities.key(&keys::of_entity(shard, Kind::Lane, entity));
            for record in self.records.db.scan_prefix(prefix) {
                let (key, raw) = record.map_err(read_error)?;
                lanes.push(self.records.decode::<Lane>(&key, &raw)?);
            }
        }
        Ok(Loaded { head: Some(head), lanes })
    }

    fn scan(&self, scan: &Scan) -> Result<Page, StoreError> {
        let prefix = match &scan.kind {
            ScanKind::Heads => keys::of_kind(&scan.shard, Kind::Head),
            ScanKind::State(entity) => keys::of_entity(&scan.shard, Kind::State, entity),
        };
        check_record(&prefix, 0).map_err(StoreError::Limit)?;
        let prefix = Table::Entities.key(&prefix);
        let mut from = prefix.clone();
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
            let Some(rest) = key.strip_prefix(&prefix[..]) else { break };
            if last.is_some() && page.records.len() >= scan.limit {
                page.next = last;
                break;
            }
            let (record, size) = match &scan.kind {
                ScanKind::Heads => {
                    let (entity, _) = keys::parse_entity(rest)?;
                    let head = Box::new(self.records.decode::<Head>(&key, &raw)?);
                    (ScannedRecord::Head(entity, head), raw.len())
                }
                ScanKind::State(_) => {
                    let value = self.records.decode_bytes(Kind::State, &key, &raw)?;
                    let size = value.len();
                    (ScannedRecord::State(bytes::Bytes::copy_from_slice(rest), value), size)
                }
            };
            bytes += rest.len() + size;
            if last.is_some() && bytes > scan.limit_bytes {
                page.next = last;
                break;
            }
            page.records.push(record);
            last = Some(bytes::Bytes::copy_from_slice(rest));
        }
        Ok(page)
    }

    fn get(&self, key: &str) -> Result<Option<Row>, StoreError> {
        let key = Table::Rows.key(key.as_bytes());
        self.records.raw(&key)?.map(|raw| row(&self.records, &key, &raw)).transpose()
    }

    fn list(&self, prefix: &str) -> Result<Listed, StoreError> {
        let prefix = Table::Rows.key(prefix.as_bytes());
        let mut rows = Vec::new();
        for record in self.records.db.scan_prefix(prefix) {
            let (key, raw) = record.map_err(read_error)?;
            rows.push(row(&self.records, &key, &raw)?);
        }
        let key = Table::Meta.key(crate::meta::SEQUENCE);
        let sequence = self.records.get::<crate::meta::Sequence>(&key)?;
        Ok((rows, sequence.map_or(0, |sequence| sequence.0)))
    }
}

fn give<T: 'static>(result: Result<T, StoreError>, to: Sender<Result<T, StoreError>>) -> Give {
    Box::new(move |durable| drop(to.send(durable.and(result))))
}

/// Answers a read with an error.
fn fail(what: What, error: &StoreError) -> Give {
    let error = error.clone();
    match what {
        What::Claims(_, to) => give(Err(error), to),
        What::Load(entities, to) => Box::new(move |_| {
            drop(to.send(vec![Err(error); entities.len()]));
        }),
        What::Scan(_, to) => give(Err(error), to),
        What::Get(_, to) => give(Err(error), to),
        What::List(_, to) => give(Err(error), to),
    }
}
