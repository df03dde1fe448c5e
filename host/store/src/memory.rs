//! Both traits in memory: the shortest implementation of their contracts, for tests and for comparison.
//!
//! Every call takes one lock and completes before it returns, so everything is "durable" immediately. That hides
//! most of the reasons for the rules; the simulated store of the tests misbehaves as a real one can.

mod shard_move;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use ostraca_core::codec;
use ostraca_core::ids::{ClusterId, Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, Head, HeadFloor, Lane, LoadedEntity,
    OWN_TIMERS, Tell, Timer,
};

use crate::change_history::ChangeHistory;
use crate::entity::{check_commit, check_record, corrupt_floor, removed_into};
use crate::record::RecordKind;
use crate::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, Page, RowEvent, Scan, ScanKind,
    ScannedRecord, StoreError, StoreFuture, StoreIdentity, StoredRow, Watch, keys,
};

const WATCHED_EVENTS: usize = 1024;
const WATCHED_BYTES: usize = 16 * 1024 * 1024;

/// A store whose data is dropped with its last handle. Clones share the same store.
#[derive(Clone)]
pub struct MemoryStore(Arc<Mutex<Data>>);

struct Data {
    identity: StoreIdentity,
    claims: BTreeMap<Vec<u8>, Claim>,
    floors: BTreeMap<ShardPath, HeadFloor>,
    /// What is added to the sequences of a shard that came from another store.
    sequence_bases: BTreeMap<ShardPath, u64>,
    heads: BTreeMap<Vec<u8>, Head>,
    records: BTreeMap<Vec<u8>, Bytes>,
    blobs: BTreeMap<[u8; 32], Bytes>,
    rows: BTreeMap<String, StoredRow>,
    changes: ChangeHistory,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("identity", &self.lock().identity)
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// Creates an empty store for the given cluster, with the id `store`.
    #[must_use]
    pub fn new(store: u128, cluster: ClusterId, cluster_name: &str) -> Self {
        let cluster_name = cluster_name.into();
        let identity = StoreIdentity {
            store_id: store,
            cluster,
            cluster_name,
            open_count: 1,
            open_nonce: 0,
            durable_sequence: 0,
        };
        Self(Arc::new(Mutex::new(Data {
            identity,
            claims: BTreeMap::new(),
            floors: BTreeMap::new(),
            sequence_bases: BTreeMap::new(),
            heads: BTreeMap::new(),
            records: BTreeMap::new(),
            blobs: BTreeMap::new(),
            rows: BTreeMap::new(),
            changes: ChangeHistory::new(0, WATCHED_EVENTS, WATCHED_BYTES),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Data {
    fn claim(&mut self, claim: Claim) -> ClaimOutcome {
        if claim.cluster != self.identity.cluster {
            return ClaimOutcome::OtherCluster { store_cluster: self.identity.cluster };
        }
        let key = keys::claim(&claim.shard);
        if let Err(limit) = check_record(&key, 0) {
            return ClaimOutcome::Failed(limit);
        }
        match self.claims.get(&key) {
            Some(current) if !claim.supersedes(current) => {
                ClaimOutcome::Refused { current: Box::new(current.clone()) }
            }
            _ => {
                self.identity.durable_sequence += 1;
                self.claims.insert(key, claim);
                ClaimOutcome::Granted
            }
        }
    }

    fn commit(&mut self, mut commit: Commit) -> CommitOutcome {
        let shard = &commit.claim.shard;
        let head_key = keys::head(shard, &commit.entity);
        let stored = self.heads.get(&head_key);
        let floor = || self.floors.get(shard).map_or(0, |floor| floor.version);
        let version = stored.map_or_else(floor, |head| head.version);
        if stored.is_some_and(|head| head.turn == commit.head.turn)
            && version == commit.head.version
        {
            return CommitOutcome::AlreadyCommitted;
        }
        let current = self.claims.get(&keys::claim(shard));
        if current != Some(&*commit.claim) {
            let current = current.cloned().map(Box::new);
            return CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current });
        }
        if version != commit.expected_version {
            return CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: version });
        }
        if commit.expected_version.checked_add(1) != Some(commit.head.version) {
            let limit = "a commit must increment the version by one".into();
            return CommitOutcome::Refused(CommitRefusal::LimitReached(limit));
        }
        if let Err(limit) = check_commit(&commit) {
            return CommitOutcome::Refused(CommitRefusal::TooLarge(limit));
        }
        let writes: Vec<_> = commit
            .writes
            .into_iter()
            .map(|write| (keys::record_key(shard, &commit.entity, &write.key).0, write.value))
            .collect();
        let mut limits = writes
            .iter()
            .map(|(key, value)| check_record(key, value.as_ref().map_or(0, Bytes::len)));
        if let Err(limit) = check_record(&head_key, 0).and_then(|()| limits.try_for_each(|it| it)) {
            return CommitOutcome::Refused(CommitRefusal::TooLarge(limit));
        }
        let removes = match removed_into(self.floors.get(shard), &commit.head) {
            Ok(floor) => floor,
            Err(error) => return CommitOutcome::Refused(CommitRefusal::LimitReached(error)),
        };
        self.identity.durable_sequence += 1;
        let base = self.sequence_bases.get(shard).copied().unwrap_or_default();
        commit.head.commit_sequence = base + self.identity.durable_sequence;
        match removes {
            Some(floor) => {
                self.floors.insert(shard.clone(), floor);
                self.heads.remove(&head_key);
            }
            None => {
                self.heads.insert(head_key, commit.head);
            }
        }
        for (key, value) in writes {
            match value {
                Some(value) => self.records.insert(key, value),
                None => self.records.remove(&key),
            };
        }
        CommitOutcome::Committed
    }

    fn load(&self, shard: &ShardPath, entity: &Entity) -> Result<LoadedEntity, StoreError> {
        let Some(head) = self.heads.get(&keys::head(shard, entity)) else {
            let floor = self.floors.get(shard);
            let head = floor.map(HeadFloor::head).transpose().map_err(corrupt_floor)?;
            return Ok(LoadedEntity { head, ..LoadedEntity::default() });
        };
        let mut lanes = Vec::new();
        if head.spilled_lane_count > 0 {
            for (_, lane) in
                starting_with(&self.records, &keys::entity_prefix(shard, RecordKind::Lane, entity))
            {
                lanes.push(codec::decode::<Lane>(lane).map_err(|error| {
                    StoreError::Corrupt(format!("cannot decode a lane of {entity}: {error}"))
                })?);
            }
        }
        let mut timers = Vec::new();
        let damaged = |error| {
            StoreError::Corrupt(format!("cannot decode a timer or a tell of {entity}: {error}"))
        };
        if head.timer_count().map_err(damaged)? > 0 {
            let own = keys::timers_of(shard, OWN_TIMERS, entity);
            for (_, timer) in starting_with(&self.records, &own) {
                timers.push(codec::decode::<Timer>(timer).map_err(damaged)?);
            }
        }
        let tells = |kind, count| -> Result<Vec<(u64, Tell)>, StoreError> {
            let own = (count > 0).then(|| keys::entity_prefix(shard, kind, entity));
            let own = own
                .into_iter()
                .flat_map(|own| starting_with(&self.records, &own).collect::<Vec<_>>());
            let decoded = own.map(|(key, tell)| {
                Ok((keys::last_number(key)?, codec::decode::<Tell>(tell).map_err(damaged)?))
            });
            decoded.collect()
        };
        let (waiting, dead) = head.outbox_counts().map_err(damaged)?;
        let outbox = tells(RecordKind::Outbox, waiting)?;
        let dead_letters = tells(RecordKind::DeadLetter, dead)?;
        Ok(LoadedEntity { head: Some(head.clone()), lanes, timers, outbox, dead_letters })
    }

    fn scan(&self, scan: &Scan) -> Result<Page, StoreError> {
        let (prefix, first) = scan.range();
        check_record(&prefix, 0).map_err(StoreError::LimitExceeded)?;
        let records: Vec<_> = match &scan.kind {
            ScanKind::Heads => {
                let heads = starting_with(&self.heads, &prefix);
                let head = |(key, head): (&[u8], &Head)| {
                    let (entity, _) = keys::parse_entity(key)?;
                    Ok((key.to_vec(), ScannedRecord::Head(entity, Box::new(head.clone()))))
                };
                heads.map(head).collect::<Result<_, StoreError>>()?
            }
            ScanKind::State(_) => {
                let state = starting_with(&self.records, &prefix).map(|(key, value)| {
                    let key = Bytes::copy_from_slice(key);
                    (key.to_vec(), ScannedRecord::State(key, value.clone()))
                });
                state.collect()
            }
            ScanKind::DeadLetters { .. } => {
                let letters = starting_with(&self.records, &prefix);
                let letter = |(key, tell): (&[u8], &Bytes)| {
                    let (entity, number) = keys::parse_entity(key)?;
                    let tell = codec::decode::<Tell>(tell).map_err(|error| {
                        StoreError::Corrupt(format!("cannot decode a dead letter: {error}"))
                    })?;
                    let record = ScannedRecord::DeadLetter(
                        entity,
                        keys::last_number(number)?,
                        Box::new(tell),
                    );
                    Ok((key.to_vec(), record))
                };
                letters.map(letter).collect::<Result<_, StoreError>>()?
            }
            ScanKind::Journal { .. } => {
                let journal = starting_with(&self.records, &prefix);
                let record = |(key, value): (&[u8], &Bytes)| {
                    let record = ScannedRecord::of_journal(keys::last_number(key)?, value)?;
                    Ok((key.to_vec(), record))
                };
                journal.map(record).collect::<Result<_, StoreError>>()?
            }
            ScanKind::Channel { .. } => {
                let items = starting_with(&self.records, &prefix);
                let item = |(key, value): (&[u8], &Bytes)| {
                    let record = ScannedRecord::of_channel(keys::last_number(key)?, value)?;
                    Ok((key.to_vec(), record))
                };
                items.map(item).collect::<Result<_, StoreError>>()?
            }
            ScanKind::Remembered { .. } => {
                let marks = starting_with(&self.records, &prefix);
                let mark = |(key, _): (&[u8], _)| {
                    let (entity, _) = keys::parse_entity(key)?;
                    Ok((key.to_vec(), ScannedRecord::Remembered(entity)))
                };
                marks.map(mark).collect::<Result<_, StoreError>>()?
            }
            ScanKind::Wakes { .. } => {
                let wakes = starting_with(&self.records, &prefix);
                let wakes =
                    wakes.take_while(|(key, _)| !key.starts_with(&OWN_TIMERS.to_be_bytes()));
                let wake = |(key, _): (&[u8], _)| {
                    let (due, entity) = keys::parse_wake(key)?;
                    Ok((key.to_vec(), ScannedRecord::Wake(due, entity)))
                };
                wakes.map(wake).collect::<Result<_, StoreError>>()?
            }
        };
        let mut page = Page::default();
        let mut bytes = 0;
        let mut last = None;
        let reached = |key: &Vec<u8>| first.as_ref().is_none_or(|first| key >= first);
        for (key, record) in records.into_iter().filter(|(key, _)| reached(key)) {
            bytes += key.len()
                + match &record {
                    ScannedRecord::State(_, value) => value.len(),
                    ScannedRecord::Event(_, event) => event.data.len(),
                    ScannedRecord::ChannelItem(_, item) => item.data.len(),
                    _ => 0,
                };
            if last.is_some() && (page.records.len() >= scan.max_records || bytes > scan.max_bytes)
            {
                page.next_cursor = last;
                break;
            }
            page.records.push(record);
            last = Some(key.into());
        }
        Ok(page)
    }

    fn compare_and_set(&mut self, cas: CompareAndSet) -> Result<u64, CompareAndSetError> {
        cas.check()?;
        let row = self.rows.get(&cas.key);
        if row.map(|row| row.revision) != cas.expected {
            return Err(CompareAndSetError::RevisionMismatch(row.cloned()));
        }
        self.identity.durable_sequence += 1;
        let revision = self.identity.durable_sequence;
        let event = if let Some(value) = cas.value {
            let row = StoredRow { key: cas.key.clone(), revision, value };
            self.rows.insert(cas.key, row.clone());
            RowEvent::Set(row)
        } else {
            self.rows.remove(&cas.key);
            RowEvent::Deleted { key: cas.key, revision }
        };
        self.changes.publish([event]);
        Ok(revision)
    }
}

/// The entries whose keys start with `prefix`, which is stripped from the keys.
fn starting_with<'a, T>(
    map: &'a BTreeMap<Vec<u8>, T>,
    prefix: &[u8],
) -> impl Iterator<Item = (&'a [u8], &'a T)> {
    map.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded))
        .map_while(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
}

impl EntityStore for MemoryStore {
    fn identity(&self) -> StoreIdentity {
        self.lock().identity.clone()
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let mut data = self.lock();
        ready(claims.into_iter().map(|claim| data.claim(claim)).collect()).boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        let data = self.lock();
        let claim = |shard| data.claims.get(&keys::claim(shard)).cloned();
        ready(Ok(shards.iter().map(claim).collect())).boxed()
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        let mut data = self.lock();
        ready(turns.into_iter().map(|commit| data.commit(commit)).collect()).boxed()
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        let data = self.lock();
        ready(entities.iter().map(|(shard, entity)| data.load(shard, entity)).collect()).boxed()
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        ready(self.lock().scan(&scan)).boxed()
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        let digest = *blake3::hash(&bytes).as_bytes();
        self.lock().blobs.insert(digest, bytes);
        ready(Ok(digest)).boxed()
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        ready(Ok(self.lock().blobs.get(&digest).cloned())).boxed()
    }
}

impl ClusterStore for MemoryStore {
    fn identity(&self) -> StoreIdentity {
        self.lock().identity.clone()
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        ready(Ok(self.lock().rows.get(key).cloned())).boxed()
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        let data = self.lock();
        let from = data.rows.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let rows = from.take_while(|(key, _)| key.starts_with(prefix)).map(|(_, row)| row.clone());
        ready(Ok((rows.collect(), data.identity.durable_sequence))).boxed()
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        ready(self.lock().compare_and_set(cas)).boxed()
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        self.lock().changes.watch(prefix, revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};

    fn factory() -> Factory<MemoryStore> {
        Factory::new(|| MemoryStore::new(1, CLUSTER, CLUSTER_NAME))
    }

    #[test]
    fn the_memory_store_keeps_the_contract_of_entity_stores() {
        conformance::check_entity_store(&factory());
    }

    #[test]
    fn r26_shards_move_between_memory_stores() {
        let next = std::cell::Cell::new(0);
        let make = move || {
            next.set(next.get() + 1);
            MemoryStore::new(next.get(), CLUSTER, CLUSTER_NAME)
        };
        conformance::check_shard_moves(&Factory::new(make));
    }

    #[test]
    fn m1_pools_are_copied_within_a_store() {
        conformance::check_pool_copies(&factory());
    }

    #[test]
    fn the_memory_store_keeps_the_contract_of_cluster_stores() {
        conformance::check_cluster_store(&factory(), WATCHED_EVENTS + 1);
    }
}
