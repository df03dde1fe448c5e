//! Evaluates write calls in order and collects their writes in one batch (R1, R4, R5).
//!
//! The maps here hold everything that was evaluated but is not applied yet, and are always consulted first. So each
//! call sees the effects of those before it, in the same batch or an earlier one. The maps never become stale: either
//! the batch is applied, or the store stops.

mod shard_move;

use std::collections::HashMap;
use std::sync::Arc;

use ostraca_core::ids::{ClusterId, Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, Head, HeadFloor, OWN_TIMERS,
    RecordKey,
};
use ostraca_store::entity::{check_commit, check_record, corrupt_floor, removed_into};
use ostraca_store::record::{ClaimRecord, RecordKind};
use ostraca_store::{CompareAndSet, CompareAndSetError, RowEvent, StoreError, StoredRow, keys};
use sled::Batch;

use crate::changed_keys::ChangedKeys;
use crate::head_cache::{CachedHead, HeadCache};
use crate::meta::{RowBody, SEQUENCE, StoreSequence};
use crate::records::{Records, Table, fragment_count, fragment_prefix, put, remove};

/// Number of commit sequences that are reserved for a shard in one block. The shard's claim record is rewritten when
/// they run out.
const SEQUENCES: u64 = 4096;

pub(crate) struct BatchBuilder {
    records: Records,
    cluster: ClusterId,
    sequence: u64,
    shards: HashMap<ShardPath, ShardClaim>,
    heads: HeadCache,
    /// Fragment counts of the records other than heads that this batch writes for entities, if they are or may have
    /// been fragmented.
    record_fragments: HashMap<Vec<u8>, u32>,
    rows: HashMap<String, Option<StoredRow>>,
    /// The full keys that moves of shards write in this batch, with their fragment counts, or remove (`None`).
    moved: HashMap<Vec<u8>, Option<u32>>,
    batch: Batch,
    events: Vec<RowEvent>,
    /// Whether `batch` contains anything.
    wrote: bool,
    changed: Arc<ChangedKeys>,
    /// The full keys of the entities' records that the batch writes, if a backup wants to know.
    changed_keys: Vec<Vec<u8>>,
}

struct ShardClaim {
    record: ClaimRecord,
    last: u64,
}

/// A batch that is ready to be applied.
pub(crate) struct PreparedBatch {
    pub(crate) batch: Batch,
    pub(crate) events: Vec<RowEvent>,
    pub(crate) sequence: u64,
    pub(crate) changed_keys: Vec<Vec<u8>>,
}

impl BatchBuilder {
    pub(crate) fn new(
        records: Records,
        cluster: ClusterId,
        sequence: u64,
        head_cache: usize,
        changed: Arc<ChangedKeys>,
    ) -> Self {
        Self {
            records,
            cluster,
            sequence,
            shards: HashMap::new(),
            heads: HeadCache::new(head_cache),
            record_fragments: HashMap::new(),
            rows: HashMap::new(),
            moved: HashMap::new(),
            batch: Batch::default(),
            events: Vec::new(),
            wrote: false,
            changed,
            changed_keys: Vec::new(),
        }
    }

    /// Ends the batch; `None` if there is nothing to write.
    pub(crate) fn finish(&mut self) -> Result<Option<PreparedBatch>, StoreError> {
        self.record_fragments.clear();
        self.rows.clear();
        self.moved.clear();
        self.heads.age();
        if !std::mem::take(&mut self.wrote) {
            return Ok(None);
        }
        let key = Table::Meta.key(SEQUENCE);
        let record = self.records.codec.encode(&key, &StoreSequence(self.sequence))?;
        self.batch.insert(key, record);
        let batch = std::mem::take(&mut self.batch);
        let events = std::mem::take(&mut self.events);
        let changed_keys = std::mem::take(&mut self.changed_keys);
        Ok(Some(PreparedBatch { batch, events, sequence: self.sequence, changed_keys }))
    }

    pub(crate) fn claim(&mut self, claim: Claim) -> ClaimOutcome {
        if claim.cluster != self.cluster {
            return ClaimOutcome::OtherCluster { store_cluster: self.cluster };
        }
        if let Err(limit) = check_record(&keys::claim(&claim.shard), 0) {
            return ClaimOutcome::Failed(limit);
        }
        match self.shard(&claim.shard) {
            Err(error) => return ClaimOutcome::Failed(error.to_string()),
            Ok(Some(shard)) if !claim.supersedes(&shard.record.claim) => {
                return ClaimOutcome::Refused { current: Box::new(shard.record.claim.clone()) };
            }
            Ok(Some(shard)) if claim == shard.record.claim => return ClaimOutcome::Granted,
            Ok(_) => {}
        }
        let old = self.shards.get(&claim.shard);
        let (reserved, last) = old.map_or((0, 0), |old| (old.record.reserved_sequence, old.last));
        let extensions = old.map(|old| old.record.extensions.clone()).unwrap_or_default();
        let shard = ShardClaim {
            record: ClaimRecord { claim, reserved_sequence: reserved, extensions },
            last,
        };
        match self.put_claim(shard) {
            Ok(()) => ClaimOutcome::Granted,
            Err(error) => ClaimOutcome::Failed(error.to_string()),
        }
    }

    pub(crate) fn commit(&mut self, commit: Commit) -> CommitOutcome {
        match self.try_commit(commit) {
            Ok(outcome) => outcome,
            Err(error) => CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string())),
        }
    }

    fn try_commit(&mut self, mut commit: Commit) -> Result<CommitOutcome, StoreError> {
        let key = keys::head(&commit.claim.shard, &commit.entity);
        if let Err(limit) = check_record(&key, 0) {
            return Ok(too_large(limit));
        }
        let head_key = Table::Entities.key(&key);
        let mut mark = self.cached_head(&head_key)?;
        if mark.version == commit.head.version && mark.version > 0 && mark.turn == commit.head.turn
        {
            return Ok(CommitOutcome::AlreadyCommitted);
        }
        let current = self.shard(&commit.claim.shard)?.map(|shard| &shard.record.claim);
        if current != Some(&*commit.claim) {
            let current = current.cloned().map(Box::new);
            return Ok(CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current }));
        }
        let version = match mark.version {
            0 => self.floor(&commit.claim.shard)?.map_or(0, |floor| floor.version),
            version => version,
        };
        if version != commit.expected_version {
            return Ok(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: version }));
        }
        if commit.expected_version.checked_add(1) != Some(commit.head.version) {
            return Ok(CommitOutcome::Refused(CommitRefusal::LimitReached(
                "a commit must increment the version by one".into(),
            )));
        }
        if let Err(limit) = check_commit(&commit) {
            return Ok(too_large(limit));
        }
        let (shard, entity) = (&commit.claim.shard, &commit.entity);
        let mut prefixes = KeyPrefixes { shard, entity, made: Vec::new() };
        let mut writes = Vec::with_capacity(commit.writes.len());
        for write in std::mem::take(&mut commit.writes) {
            let (mut never, mut unknown) = (Some(false), None);
            let (beside, fragmented, key) = match &write.key {
                RecordKey::State(key) => {
                    let state = prefixes.of(RecordKind::State);
                    (state, &mut mark.state_fragmented, state.key(key))
                }
                RecordKey::Lane(session) => {
                    let lanes = prefixes.of(RecordKind::Lane);
                    (lanes, &mut mark.lanes_fragmented, lanes.key(&session.0))
                }
                RecordKey::Timer { due, name } => {
                    let key = Table::Entities.key(&keys::timer(shard, *due, entity, name));
                    // Wake-ups have no value.
                    let is_own = *due == OWN_TIMERS;
                    let fragmented = if is_own { &mut mark.timers_fragmented } else { &mut never };
                    (prefixes.of(RecordKind::Timer), fragmented, key)
                }
                RecordKey::Outbox { target, number } => {
                    let key = Table::Entities.key(&keys::outbox(shard, entity, target, *number));
                    (prefixes.of(RecordKind::Outbox), &mut mark.outbox_fragmented, key)
                }
                RecordKey::DeadLetter { number } => {
                    let key = Table::Entities.key(&keys::dead_letter(shard, entity, *number));
                    (prefixes.of(RecordKind::DeadLetter), &mut unknown, key)
                }
                // Marks have no value.
                RecordKey::Remembered => {
                    let key = Table::Entities.key(&keys::remembered(shard, entity));
                    (prefixes.of(RecordKind::Remembered), &mut never, key)
                }
                RecordKey::ChannelItem { channel, number } => {
                    let key = keys::channel_item(shard, entity, channel, *number);
                    let channels = prefixes.of(RecordKind::ChannelItem);
                    (channels, &mut mark.channels_fragmented, Table::Entities.key(&key))
                }
                RecordKey::Journal { number } => {
                    let journal = prefixes.of(RecordKind::Journal);
                    (journal, &mut mark.journal_fragmented, journal.key(&number.to_be_bytes()))
                }
            };
            let value = write.value;
            let size = value.as_ref().map_or(0, bytes::Bytes::len);
            if let Err(limit) = check_record(&key[1..], size) {
                return Ok(too_large(limit));
            }
            let kind = beside.kind;
            let fragmented = match *fragmented {
                Some(known) => known,
                None => *fragmented.insert(self.records.has(&fragment_prefix(&beside.prefix))?),
            };
            let old = if fragmented { self.record_fragment_count(kind, &key)? } else { 0 };
            writes.push((key, kind, value, old, fragmented));
        }
        commit.head.commit_sequence = self.next_sequence(&commit.claim.shard)?;
        let removes = commit.head.is_removed().map_err(corrupt_floor)?;
        let head = self.records.codec.encode(&head_key, &commit.head)?;
        if let Err(limit) = check_record(&[], head.len()) {
            return Ok(too_large(limit));
        }
        if removes {
            self.raise_floor(&commit.claim.shard, &commit.head)?;
        }

        // Nothing below can fail: a commit is written whole or not at all.
        if self.changed.are_wanted() {
            self.changed_keys.push(head_key.clone());
            self.changed_keys.extend(writes.iter().map(|(key, ..)| key.clone()));
        }
        for (key, kind, value, mut old, fragmented) in writes {
            // For a key that this commit writes twice, the old fragments are those of the first value.
            if let Some(fragments) = self.record_fragments.get(&key) {
                old = *fragments;
            }
            let new = match value {
                Some(value) => {
                    let record = self.records.codec.encode_bytes(kind, &key, value);
                    put(&mut self.batch, key.clone(), record, old)
                }
                None => {
                    remove(&mut self.batch, key.clone(), old);
                    0
                }
            };
            if fragmented || new > 0 {
                self.record_fragments.insert(key, new);
            }
            if new > 0 {
                match kind {
                    RecordKind::Lane => mark.lanes_fragmented = Some(true),
                    RecordKind::Timer => mark.timers_fragmented = Some(true),
                    RecordKind::Outbox => mark.outbox_fragmented = Some(true),
                    RecordKind::Journal => mark.journal_fragmented = Some(true),
                    RecordKind::ChannelItem => mark.channels_fragmented = Some(true),
                    RecordKind::DeadLetter => {}
                    _ => mark.state_fragmented = Some(true),
                }
            }
        }
        if removes {
            remove(&mut self.batch, head_key.clone(), mark.fragment_count);
            self.heads.insert(head_key, CachedHead::none());
        } else {
            let fragments = put(&mut self.batch, head_key.clone(), head, mark.fragment_count);
            let Head { version, turn, .. } = commit.head;
            self.heads
                .insert(head_key, CachedHead { version, turn, fragment_count: fragments, ..mark });
        }
        self.sequence += 1;
        self.wrote = true;
        Ok(CommitOutcome::Committed)
    }

    pub(crate) fn compare_and_set(
        &mut self,
        cas: CompareAndSet,
    ) -> Result<u64, CompareAndSetError> {
        cas.check()?;
        let key = Table::Rows.key(cas.key.as_bytes());
        let raw = self.records.raw(&key)?;
        let row = match self.rows.get(&cas.key) {
            Some(row) => row.clone(),
            None => raw.as_ref().map(|raw| row(&self.records, &key, raw)).transpose()?,
        };
        if row.as_ref().map(|row| row.revision) != cas.expected {
            return Err(CompareAndSetError::RevisionMismatch(row));
        }
        // A batch may write a row more than once: in that case, remove as many fragments as a row can have.
        let old = match (&raw, self.rows.contains_key(&cas.key)) {
            (_, true) => MAX_ROW_FRAGMENTS,
            (Some(raw), false) => fragment_count(RecordKind::Row, raw)?,
            (None, false) => 0,
        };
        let revision = self.sequence + 1;
        let (row, event) = if let Some(value) = cas.value {
            let body = RowBody { revision, value: value.clone() };
            let record = self.records.codec.encode(&key, &body)?;
            put(&mut self.batch, key, record, old);
            let row = StoredRow { key: cas.key.clone(), revision, value };
            (Some(row.clone()), RowEvent::Set(row))
        } else {
            remove(&mut self.batch, key, old);
            (None, RowEvent::Deleted { key: cas.key.clone(), revision })
        };
        self.rows.insert(cas.key, row);
        self.events.push(event);
        self.sequence = revision;
        self.wrote = true;
        Ok(revision)
    }

    /// The shard's claim, if it has ever been claimed.
    fn shard(&mut self, key: &ShardPath) -> Result<Option<&ShardClaim>, StoreError> {
        if !self.shards.contains_key(key) {
            let claim_key = Table::Entities.key(&keys::claim(key));
            let Some(current) = self.records.get::<ClaimRecord>(&claim_key)? else {
                return Ok(None);
            };
            // It is unknown which of the reserved sequences were used: continue after all of them.
            let last = current.reserved_sequence;
            self.shards.insert(key.clone(), ShardClaim { record: current, last });
        }
        Ok(self.shards.get(key))
    }

    fn floor(&mut self, key: &ShardPath) -> Result<Option<HeadFloor>, StoreError> {
        let shard = self.shard(key)?;
        let floor = shard.map(|shard| shard.record.floor()).transpose().map_err(corrupt_floor)?;
        Ok(floor.flatten())
    }

    /// Adds the write of a shard's floor to the batch, raised to a head that is removed.
    fn raise_floor(&mut self, key: &ShardPath, head: &Head) -> Result<(), StoreError> {
        let floor = self.floor(key)?;
        let raised = removed_into(floor.as_ref(), head).map_err(StoreError::Corrupt)?;
        let (Some(raised), Some(shard)) = (raised, self.shards.get(key)) else { return Ok(()) };
        let (mut record, last) = (shard.record.clone(), shard.last);
        record.set_floor(&raised).map_err(corrupt_floor)?;
        self.put_claim(ShardClaim { record, last })
    }

    fn next_sequence(&mut self, key: &ShardPath) -> Result<u64, StoreError> {
        self.shard(key)?;
        let Some(shard) = self.shards.get_mut(key) else {
            return Err(StoreError::Corrupt("claim record disappeared".into()));
        };
        let next = shard.last + 1;
        if next <= shard.record.reserved_sequence {
            shard.last = next;
            return Ok(next);
        }
        let mut current = shard.record.clone();
        current.reserved_sequence = next + SEQUENCES;
        self.put_claim(ShardClaim { record: current, last: next })?;
        Ok(next)
    }

    /// Adds the write of a shard's claim to the batch.
    fn put_claim(&mut self, shard: ShardClaim) -> Result<(), StoreError> {
        let key = Table::Entities.key(&keys::claim(&shard.record.claim.shard));
        let record = self.records.codec.encode(&key, &shard.record)?;
        put(&mut self.batch, key, record, 0);
        self.shards.insert(shard.record.claim.shard.clone(), shard);
        self.sequence += 1;
        self.wrote = true;
        Ok(())
    }

    fn cached_head(&mut self, key: &[u8]) -> Result<CachedHead, StoreError> {
        if let Some(mark) = self.heads.get(key) {
            return Ok(mark);
        }
        let Some(raw) = self.records.raw(key)? else {
            return Ok(CachedHead::none());
        };
        let head = self.records.decode::<Head>(key, &raw)?;
        let fragments = fragment_count(RecordKind::Head, &raw)?;
        Ok(CachedHead {
            version: head.version,
            turn: head.turn,
            fragment_count: fragments,
            ..CachedHead::default()
        })
    }

    fn record_fragment_count(&self, kind: RecordKind, key: &[u8]) -> Result<u32, StoreError> {
        if let Some(count) = self.record_fragments.get(key) {
            return Ok(*count);
        }
        self.records.raw(key)?.map_or(Ok(0), |raw| fragment_count(kind, &raw))
    }
}

/// More fragments than the largest row can have.
const MAX_ROW_FRAGMENTS: u32 = 20;

/// The row that was read under `key`, which includes the table's letter.
pub(crate) fn row(records: &Records, key: &[u8], raw: &[u8]) -> Result<StoredRow, StoreError> {
    let RowBody { revision, value } = records.decode(key, raw)?;
    let name = key.get(1..).map(|name| String::from_utf8(name.to_vec()));
    match name {
        Some(Ok(key)) => Ok(StoredRow { key, revision, value }),
        _ => Err(StoreError::Corrupt("row key is not UTF-8".into())),
    }
}

fn too_large(why: String) -> CommitOutcome {
    CommitOutcome::Refused(CommitRefusal::TooLarge(why))
}

/// The prefixes of an entity's records, each made when the first record of its kind is written.
struct KeyPrefixes<'a> {
    shard: &'a ShardPath,
    entity: &'a Entity,
    made: Vec<KeyPrefix>,
}

impl KeyPrefixes<'_> {
    /// For timers: the prefix of those stored with the entity.
    fn of(&mut self, kind: RecordKind) -> &KeyPrefix {
        let known = self.made.iter().position(|it| it.kind == kind);
        let at = known.unwrap_or_else(|| {
            let prefix = match kind {
                RecordKind::Timer => keys::timers_of(self.shard, OWN_TIMERS, self.entity),
                _ => keys::entity_prefix(self.shard, kind, self.entity),
            };
            self.made.push(KeyPrefix::new(kind, &prefix));
            self.made.len() - 1
        });
        &self.made[at]
    }
}

/// Builds the keys of one kind of an entity's records.
struct KeyPrefix {
    kind: RecordKind,
    prefix: Vec<u8>,
}

impl KeyPrefix {
    fn new(kind: RecordKind, prefix: &[u8]) -> Self {
        Self { kind, prefix: Table::Entities.key(prefix) }
    }

    fn key(&self, last: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + last.len());
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(last);
        key
    }
}

#[cfg(test)]
mod tests;
