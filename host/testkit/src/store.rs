//! The kit's store: in memory, with a record of what was committed, and able to lose a commit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use ostraca_core::codec;
use ostraca_core::ids::{ClusterId, Entity, ShardPath};
use ostraca_core::records::{
    ChannelItem, Claim, ClaimOutcome, Commit, CommitOutcome, LoadedEntity, RecordKey, RecordWrite,
};
use ostraca_store::{EntityStore, MemoryStore, Page, Scan, StoreError, StoreFuture, StoreIdentity};

/// The cluster that the kit pretends to be.
pub(crate) const CLUSTER: ClusterId = ClusterId(1);

/// A [`MemoryStore`] that records items and can lose commits.
pub(crate) struct KitStore {
    memory: MemoryStore,
    data: Mutex<Data>,
}

#[derive(Default)]
struct Data {
    /// The items of all committed turns. A channel itself keeps only what the manifest says.
    items: Vec<(Entity, String, Bytes)>,
    /// Entities of which a commit is lost, each with the number of commits before it.
    lose: HashMap<Entity, u32>,
}

impl Data {
    /// Whether this commit of the entity is lost.
    fn loses(&mut self, entity: &Entity) -> bool {
        match self.lose.get_mut(entity) {
            None => false,
            Some(0) => self.lose.remove(entity).is_some(),
            Some(before) => {
                *before -= 1;
                false
            }
        }
    }
}

impl KitStore {
    pub(crate) fn new() -> Self {
        Self { memory: MemoryStore::new(1, CLUSTER, "testkit"), data: Mutex::default() }
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses one of the entity's commits, after as many others: its outcome is unknown, and it has no effect.
    pub(crate) fn lose_commit(&self, entity: Entity, after: u32) {
        self.data().lose.insert(entity, after);
    }

    /// The items that the entity has emitted on a channel, in order.
    pub(crate) fn items(&self, entity: &Entity, channel: &str) -> Vec<Bytes> {
        let data = self.data();
        let of = data.items.iter().filter(|(of, on, _)| of == entity && on == channel);
        of.map(|(.., item)| item.clone()).collect()
    }
}

impl EntityStore for KitStore {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(&self.memory)
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        self.memory.claim(claims)
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.memory.current_claims(shards)
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        let mut data = self.data();
        let mut outcomes = Vec::with_capacity(turns.len());
        for turn in turns {
            if data.loses(&turn.entity) {
                outcomes.push(CommitOutcome::Unknown("the test lost this commit".into()));
                continue;
            }
            let item = |write: &RecordWrite| match (&write.key, &write.value) {
                (RecordKey::ChannelItem { channel, .. }, Some(value)) => {
                    let item: ChannelItem = codec::decode(value).ok()?;
                    Some((turn.entity.clone(), channel.to_string(), item.data))
                }
                _ => None,
            };
            let items: Vec<_> = turn.writes.iter().filter_map(item).collect();
            // The memory store has done its work when the call returns.
            let done = self.memory.commit(vec![turn]).now_or_never().unwrap_or_default();
            if matches!(done[..], [CommitOutcome::Committed]) {
                data.items.extend(items);
            }
            outcomes.extend(done);
        }
        ready(outcomes).boxed()
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.memory.load(entities)
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.memory.scan(scan)
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.memory.put_blob(bytes)
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.memory.get_blob(digest)
    }
}
