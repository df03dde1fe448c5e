//! Reads a store that runs, as of one moment.
//!
//! All records are read while turns go on. Then those that have changed meanwhile are read again, round after round,
//! until few are left. The last round keeps batches from being applied while it reads, and also reads what has no keys
//! to collect: shards and rows. Components are read last: those that its rows name are there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ostraca_store::backup::{BackupRecord, Chunker, Manifest, Section, encode_chunk};
use ostraca_store::record::RecordKind;
use ostraca_store::transfer::Item;
use ostraca_store::{StoreError, StoreIdentity, keys};

use crate::batch_builder::row;
use crate::changed_keys::ChangedKeys;
use crate::items;
use crate::meta::{SEQUENCE, StoreSequence};
use crate::progress::Progress;
use crate::read_guard::ReadGuard;
use crate::records::{Records, Table, read_error};

/// Number of changed records that the last round may read while no batch is applied.
const FEW: usize = 1000;
/// Number of rounds after which the last one follows, however many records have changed.
const ROUNDS: u32 = 8;
/// Number of records, and their size in bytes, after which batches may be applied.
const AT_ONCE: (usize, usize) = (256, 1 << 20);

/// What is needed to read a store that runs.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    pub(crate) records: Records,
    pub(crate) progress: Arc<Progress>,
    pub(crate) changed: Arc<ChangedKeys>,
    pub(crate) components: PathBuf,
    pub(crate) identity: StoreIdentity,
}

/// Gets the chunks of a backup in order; an error ends it.
pub(crate) type Sink<'a> = dyn FnMut(Section, Vec<u8>) -> Result<(), StoreError> + 'a;

/// What is read under one lock.
#[derive(Default)]
struct Portion {
    records: Vec<BackupRecord>,
    bytes: usize,
}

impl Portion {
    fn push(&mut self, record: BackupRecord) {
        if let BackupRecord::Item(item) = &record {
            self.bytes += item.bytes();
        }
        self.records.push(record);
    }

    fn is_full(&self) -> bool {
        self.records.len() >= AT_ONCE.0 || self.bytes >= AT_ONCE.1
    }
}

/// Ends the collection of keys when the backup ends.
pub(crate) struct Collecting(pub(crate) Arc<ChangedKeys>);

impl Drop for Collecting {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Backup {
    /// Reads everything. Changes must be collected already, and all batches that do not collect them be applied. Blocks.
    pub(crate) fn run(&self, sink: &mut Sink<'_>) -> Result<Manifest, StoreError> {
        self.read_all(sink)?;
        let mut round = 1;
        let changed = loop {
            let changed = self.changed.take()?;
            if changed.len() <= FEW || round == ROUNDS {
                break changed;
            }
            let mut chunker = Chunker::default();
            let mut keys = changed.into_iter().peekable();
            while keys.peek().is_some() {
                let guard = ReadGuard::new(&self.progress);
                let mut read = Portion::default();
                while !read.is_full()
                    && let Some(key) = keys.next()
                {
                    read.push(self.read(&key)?);
                }
                drop(guard);
                for record in read.records {
                    send(sink, Section::Round(round), chunker.add(record)?)?;
                }
            }
            send(sink, Section::Round(round), chunker.finish()?)?;
            round += 1;
        };
        let manifest = self.read_cut(changed, round, sink)?;
        self.read_components(sink)?;
        Ok(manifest)
    }

    /// Reads all records of entities while batches are applied.
    fn read_all(&self, sink: &mut Sink<'_>) -> Result<(), StoreError> {
        let (mut chunker, mut after) = (Chunker::default(), None::<Vec<u8>>);
        loop {
            let from = match &after {
                Some(key) => [&key[..], &[0]].concat(),
                None => Table::Entities.key(&[]),
            };
            let guard = ReadGuard::new(&self.progress);
            let (mut read, mut is_end) = (Portion::default(), true);
            for record in self.records.db.range(from..) {
                let (key, raw) = record.map_err(read_error)?;
                if key.first() != Some(&(Table::Entities as u8)) {
                    break;
                }
                if read.is_full() {
                    is_end = false;
                    break;
                }
                if let Some(record) = self.decode(&key, &raw)? {
                    read.push(record);
                }
                after = Some(key.to_vec());
            }
            drop(guard);
            for record in read.records {
                send(sink, Section::Round(0), chunker.add(record)?)?;
            }
            if is_end {
                return send(sink, Section::Round(0), chunker.finish()?);
            }
        }
    }

    /// Reads the last changes, the shards and the rows, as of the same moment.
    pub(crate) fn read_cut(
        &self,
        mut changed: BTreeSet<Vec<u8>>,
        round: u32,
        sink: &mut Sink<'_>,
    ) -> Result<Manifest, StoreError> {
        let guard = ReadGuard::new(&self.progress);
        changed.append(&mut self.changed.take()?);
        let records = changed.iter().map(|key| self.read(key)).collect::<Result<Vec<_>, _>>()?;
        let shards = self.read_shards()?;
        let mut rows = Vec::new();
        for record in self.records.db.scan_prefix(Table::Rows.key(&[])) {
            let (key, raw) = record.map_err(read_error)?;
            let row = row(&self.records, &key, &raw)?;
            rows.push(BackupRecord::Item(Item::Row { key: row.key, value: row.value }));
        }
        let sequence = self.records.get::<StoreSequence>(&Table::Meta.key(SEQUENCE))?;
        let cut = guard.end();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let taken_unix_s = now.map_or(0, |now| now.as_secs());
        // A crash could take back what is not durable.
        self.progress.wait_durable(cut)?;
        let mut chunker = Chunker::default();
        for record in records {
            send(sink, Section::Round(round), chunker.add(record)?)?;
        }
        send(sink, Section::Round(round), chunker.finish()?)?;
        for (section, records) in [(Section::Shards, shards), (Section::Rows, rows)] {
            for part in records.chunks(1000) {
                sink(section, encode_chunk(part)?)?;
            }
        }
        let StoreIdentity { store_id, cluster, cluster_name, .. } = self.identity.clone();
        let sequence = sequence.map_or(0, |sequence| sequence.0);
        let chunks = Vec::new();
        Ok(Manifest { cluster, cluster_name, store_id, sequence, taken_unix_s, chunks })
    }

    /// Reads the claims of all shards: each is the first record of its shard.
    fn read_shards(&self) -> Result<Vec<BackupRecord>, StoreError> {
        let (mut found, mut from) = (Vec::new(), Table::Entities.key(&[]));
        loop {
            let next = self.records.db.range(from.clone()..).next();
            let Some((key, raw)) = next.transpose().map_err(read_error)? else { return Ok(found) };
            let Some(bare) = key.strip_prefix(&[Table::Entities as u8][..]) else {
                return Ok(found);
            };
            let (shard, kind, _) = keys::parse_kind(bare)?;
            if kind == RecordKind::Claim {
                found.push(BackupRecord::Item(items::decode(&self.records, &key, &raw)?));
            }
            // Behind all records of the shard, whose kinds are below 255.
            from = [&Table::Entities.key(&keys::shard_prefix(&shard))[..], &[0xff]].concat();
        }
    }

    fn read_components(&self, sink: &mut Sink<'_>) -> Result<(), StoreError> {
        for name in items::component_names(&self.components)? {
            let bytes = items::read_component(&self.components, &name)?;
            sink(Section::Component, bytes.into())?;
        }
        Ok(())
    }

    /// Reads a record that has changed.
    fn read(&self, key: &[u8]) -> Result<BackupRecord, StoreError> {
        if let Some(raw) = self.records.raw(key)? {
            let decoded = self.decode(key, &raw)?;
            return decoded.ok_or_else(|| StoreError::Corrupt("a claim among changes".into()));
        }
        let (shard, kind, rest) = keys::parse_kind(key.get(1..).unwrap_or_default())?;
        let (entity, key) = match kind {
            RecordKind::Head => (keys::parse_entity(rest)?.0, None),
            _ => {
                let (entity, key) = keys::parse_record(kind, rest)?;
                (entity, Some(key))
            }
        };
        Ok(BackupRecord::Removed { shard, entity, key })
    }

    /// Decodes a record of an entity; `None` for a claim.
    fn decode(&self, key: &[u8], raw: &[u8]) -> Result<Option<BackupRecord>, StoreError> {
        let item = items::decode(&self.records, key, raw)?;
        let is_claim = matches!(item, Item::Shard { .. });
        Ok((!is_claim).then_some(BackupRecord::Item(item)))
    }
}

fn send(sink: &mut Sink<'_>, section: Section, chunk: Option<Vec<u8>>) -> Result<(), StoreError> {
    chunk.map_or(Ok(()), |chunk| sink(section, chunk))
}
