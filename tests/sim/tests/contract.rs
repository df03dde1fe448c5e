//! The simulated store passes the conformance suite for all stores. So if the simulator finds a broken promise, the
//! store is not the cause.
//!
//! There is one engine per shard, synced after each call. Reopening the store is a crash of its process. Blobs and
//! limits on record sizes are not simulated, and exist here only to complete the trait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, LoadedEntity, OWN_TIMERS, RecordKey,
};
use ostraca_sim::rng::Rng;
use ostraca_sim::store::{Request, Response, Store};
use ostraca_store::entity::{check_commit, check_record};
use ostraca_store::{
    EntityStore, Page, Scan, ScanKind, ScannedRecord, StoreError, StoreFuture, StoreIdentity,
    conformance, keys,
};

#[derive(Clone, Default)]
struct Simulated(Arc<Mutex<Shards>>);

#[derive(Default)]
struct Shards {
    engines: BTreeMap<ShardPath, Store>,
    blobs: BTreeMap<[u8; 32], Bytes>,
    sequence: u64,
    opened: u64,
}

impl Shards {
    /// Executes one request, syncs, and returns the answer.
    fn ask(&mut self, shard: &ShardPath, request: Request) -> Response {
        let engine = self.engines.entry(shard.clone()).or_default();
        let mut answers = engine.request(1, request);
        if engine.needs_sync() {
            answers.extend(engine.sync());
        }
        answers.pop().expect("one answer for each request").1
    }

    fn claim(&mut self, claim: Claim) -> ClaimOutcome {
        if claim.cluster != conformance::CLUSTER {
            return ClaimOutcome::OtherCluster { store_cluster: conformance::CLUSTER };
        }
        if let Err(limit) = check_record(&keys::claim(&claim.shard), 0) {
            return ClaimOutcome::Failed(limit);
        }
        match self.ask(&claim.shard.clone(), Request::Claim(Arc::new(claim))) {
            Response::Claim(outcome) => outcome,
            other => panic!("expected the answer to a claim, got {other:?}"),
        }
    }

    fn commit(&mut self, mut commit: Commit) -> CommitOutcome {
        let shard = commit.claim.shard.clone();
        let head = check_record(&keys::head(&shard, &commit.entity), 0);
        let fits = commit.writes.iter().try_fold((), |(), write| {
            let key = keys::record_key(&shard, &commit.entity, &write.key).0;
            check_record(&key, write.value.as_ref().map_or(0, Bytes::len))
        });
        let by_one = commit.expected_version.checked_add(1) == Some(commit.head.version);
        let fits = head.and(fits).and_then(|()| check_commit(&commit));
        let by_one =
            if by_one { Ok(()) } else { Err(CommitRefusal::LimitReached("by one".into())) };
        let limit = by_one.and(fits.map_err(CommitRefusal::TooLarge));
        self.sequence += 1;
        commit.head.commit_sequence = self.sequence;
        if let Err(limit) = limit {
            // A wrong claim or version must be reported in preference to a limit.
            commit.writes.clear();
            commit.head.version = u64::MAX;
            let standing = self.engines.get(&shard).and_then(|e| e.durable().claim.clone());
            let stored = self.stored(&shard, &commit.entity);
            return CommitOutcome::Refused(if standing.as_ref() != Some(&*commit.claim) {
                CommitRefusal::ClaimMismatch { current: standing.map(Box::new) }
            } else if stored != commit.expected_version {
                CommitRefusal::VersionMismatch { stored }
            } else {
                limit
            });
        }
        match self.ask(&shard, Request::Commit(vec![commit])) {
            Response::Commit(mut outcomes) => outcomes.pop().expect("one outcome").2,
            other => panic!("expected the answer to a commit, got {other:?}"),
        }
    }

    fn stored(&self, shard: &ShardPath, entity: &Entity) -> u64 {
        let engine = self.engines.get(shard);
        engine.and_then(|e| e.durable().heads.get(entity)).map_or(0, |head| head.version)
    }

    fn load(&mut self, shard: &ShardPath, entity: Entity) -> Result<LoadedEntity, StoreError> {
        match self.ask(shard, Request::Load(entity)) {
            Response::Load(_, loaded) => loaded.map_err(StoreError::Unavailable),
            other => panic!("expected the answer to a load, got {other:?}"),
        }
    }

    fn scan(&mut self, scan: &Scan) -> Page {
        let engine = self.engines.entry(scan.shard.clone()).or_default();
        let image = engine.durable();
        let (prefix, first) = scan.range();
        let mut all: Vec<(Vec<u8>, ScannedRecord)> = match &scan.kind {
            ScanKind::Heads => image
                .heads
                .iter()
                .map(|(entity, head)| {
                    let key = keys::head(&scan.shard, entity)[prefix.len()..].to_vec();
                    (key, ScannedRecord::Head(entity.clone(), Box::new(head.clone())))
                })
                .collect(),
            ScanKind::State(entity) => image
                .records
                .iter()
                .filter(|((of, _), _)| of == entity)
                .filter_map(|((_, key), value)| match key {
                    RecordKey::State(key) => {
                        Some((key.to_vec(), ScannedRecord::State(key.clone(), value.clone())))
                    }
                    _ => None,
                })
                .collect(),
            ScanKind::Wakes { .. } => image
                .records
                .keys()
                .filter_map(|(entity, key)| match key {
                    RecordKey::Timer { due, .. } if *due < OWN_TIMERS => {
                        let wake = ScannedRecord::Wake(*due, entity.clone());
                        Some((keys::wake_key(*due, entity), wake))
                    }
                    _ => None,
                })
                .collect(),
            ScanKind::Channel { entity, channel, .. } => {
                let item = |((of, key), value): (&(Entity, RecordKey), &Bytes)| match key {
                    RecordKey::ChannelItem { channel: of_channel, number }
                        if of == entity && of_channel == channel =>
                    {
                        let record = ScannedRecord::of_channel(*number, value).ok()?;
                        Some((number.to_be_bytes().to_vec(), record))
                    }
                    _ => None,
                };
                image.records.iter().filter_map(item).collect()
            }
            ScanKind::Remembered { .. } => {
                let mark = |(entity, key): &(Entity, RecordKey)| {
                    let record = ScannedRecord::Remembered(entity.clone());
                    (*key == RecordKey::Remembered).then(|| (keys::entity_key(entity), record))
                };
                image.records.keys().filter_map(mark).collect()
            }
            ScanKind::Journal { entity, .. } => {
                let record = |((of, key), value): (&(Entity, RecordKey), &Bytes)| {
                    let RecordKey::Journal { number } = key else { return None };
                    let record = ScannedRecord::of_journal(*number, value).expect("a record");
                    (of == entity).then(|| (number.to_be_bytes().to_vec(), record))
                };
                image.records.iter().filter_map(record).collect()
            }
            ScanKind::DeadLetters { .. } => {
                let letter = |((entity, key), value): (&(Entity, RecordKey), &Bytes)| {
                    let RecordKey::DeadLetter { number } = key else { return None };
                    let tell = Box::new(ostraca_core::codec::decode(value).expect("a tell"));
                    let key = &keys::dead_letter(&scan.shard, entity, *number)[prefix.len()..];
                    let record = ScannedRecord::DeadLetter(entity.clone(), *number, tell);
                    Some((key.to_vec(), record))
                };
                image.records.iter().filter_map(letter).collect()
            }
        };
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let mut page = Page::default();
        let (mut bytes, mut last) = (0, None);
        for (key, record) in all {
            if first.as_ref().is_some_and(|first| key < *first) {
                continue;
            }
            bytes += key.len()
                + match &record {
                    ScannedRecord::State(_, value) => value.len(),
                    ScannedRecord::Event(_, event) => event.data.len(),
                    _ => 0,
                };
            if last.is_some() && (page.records.len() >= scan.max_records || bytes > scan.max_bytes)
            {
                page.next_cursor = last;
                break;
            }
            page.records.push(record);
            last = Some(Bytes::from(key));
        }
        page
    }
}

impl Simulated {
    fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Shards) -> T) -> StoreFuture<T> {
        let answer = work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        ready(answer).boxed()
    }

    fn reopened(self) -> Self {
        let mut shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shards.opened += 1;
        for engine in shards.engines.values_mut() {
            engine.crash(false, &mut Rng::new(1));
            engine.reopen();
        }
        drop(shards);
        self
    }
}

impl EntityStore for Simulated {
    fn identity(&self) -> StoreIdentity {
        let shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        StoreIdentity {
            store_id: 1,
            cluster: conformance::CLUSTER,
            cluster_name: conformance::CLUSTER_NAME.into(),
            open_count: shards.opened + 1,
            open_nonce: shards.opened,
            durable_sequence: shards.sequence,
        }
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        self.with(|shards| claims.into_iter().map(|claim| shards.claim(claim)).collect())
    }

    fn current_claims(
        &self,
        wanted: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.with(|shards| {
            let claim = |shard| shards.engines.get(shard).and_then(|e| e.durable().claim.clone());
            Ok(wanted.iter().map(claim).collect())
        })
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.with(|shards| turns.into_iter().map(|turn| shards.commit(turn)).collect())
    }

    fn load(
        &self,
        wanted: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.with(|shards| {
            wanted.into_iter().map(|(shard, entity)| shards.load(&shard, entity)).collect()
        })
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.with(|shards| Ok(shards.scan(&scan)))
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.with(|shards| {
            let digest = *blake3::hash(&bytes).as_bytes();
            shards.blobs.insert(digest, bytes);
            Ok(digest)
        })
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.with(|shards| Ok(shards.blobs.get(&digest).cloned()))
    }
}

#[test]
fn the_simulated_store_keeps_the_contract_of_every_store() {
    let factory = conformance::Factory::new(Simulated::default).reopening(Simulated::reopened);
    conformance::check_entity_store(&factory);
}
