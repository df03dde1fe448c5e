//! The stores of a node that starts while its store is unavailable. The node routes messages with its cached
//! routes (S8, R13), and gets the real stores as soon as they respond.
//!
//! Until then every call fails immediately, as over a broken link: nothing was sent.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, LoadedEntity,
};
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, Page, RowEvent, Scan, StoreError,
    StoreFuture, StoreIdentity, StoredRow, Watch,
};

use ostraca_catalog::clock::ClusterClock;

/// Both stores, once they are connected.
pub(crate) struct DeferredStores {
    /// Placeholder until the stores are connected: only the cluster is known.
    pub(crate) identity: StoreIdentity,
    clock: Arc<ClusterClock>,
    connected: OnceLock<(Arc<dyn ClusterStore>, Arc<dyn EntityStore>)>,
}

/// The `ClusterStore` of [`DeferredStores`].
pub(crate) struct DeferredClusterStore(pub(crate) Arc<DeferredStores>);

/// The `EntityStore` of [`DeferredStores`].
pub(crate) struct DeferredEntityStore(pub(crate) Arc<DeferredStores>);

impl DeferredStores {
    pub(crate) fn new(identity: StoreIdentity, clock: Arc<ClusterClock>) -> Arc<Self> {
        Arc::new(Self { identity, clock, connected: OnceLock::new() })
    }

    /// Sets the connected stores and the current cluster time. Called once.
    pub(crate) fn set_connected(
        &self,
        time: u64,
        rows: Arc<dyn ClusterStore>,
        entities: Arc<dyn EntityStore>,
    ) {
        // This must precede any registration or claim: lanes are stamped with this time, and a lane stamped with a
        // time behind the cluster's would be dropped too early by the shard's next owner (R17).
        self.clock.advance_to(time);
        // A second call would be a bug in this program: the first value is kept.
        let _ = self.connected.set((rows, entities));
    }

    fn cluster_store(&self) -> Result<&dyn ClusterStore, StoreError> {
        self.connected.get().map(|(rows, _)| &**rows).ok_or_else(not_connected)
    }

    fn entity_store(&self) -> Result<&dyn EntityStore, StoreError> {
        self.connected.get().map(|(_, entities)| &**entities).ok_or_else(not_connected)
    }

    fn identity(&self) -> StoreIdentity {
        self.cluster_store().map_or_else(|_| self.identity.clone(), ClusterStore::identity)
    }
}

fn not_connected() -> StoreError {
    StoreError::Unavailable("the store has not been reachable since this node started".into())
}

fn at_once<T: Send + 'static>(value: T) -> StoreFuture<T> {
    ready(value).boxed()
}

impl ClusterStore for DeferredClusterStore {
    fn identity(&self) -> StoreIdentity {
        self.0.identity()
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        match self.0.cluster_store() {
            Ok(rows) => rows.get(key),
            Err(error) => at_once(Err(error)),
        }
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        match self.0.cluster_store() {
            Ok(rows) => rows.list(prefix),
            Err(error) => at_once(Err(error)),
        }
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        match self.0.cluster_store() {
            Ok(rows) => rows.compare_and_set(cas),
            Err(error) => at_once(Err(CompareAndSetError::Store(error))),
        }
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        match self.0.cluster_store() {
            Ok(rows) => rows.watch(prefix, revision),
            Err(_) => Box::new(Nothing),
        }
    }
}

/// A watch that always requires a resync.
struct Nothing;

impl Watch for Nothing {
    fn next(&mut self) -> futures::future::BoxFuture<'_, RowEvent> {
        ready(RowEvent::ResyncRequired).boxed()
    }
}

impl EntityStore for DeferredEntityStore {
    fn identity(&self) -> StoreIdentity {
        self.0.identity()
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        match self.0.entity_store() {
            Ok(store) => store.claim(claims),
            Err(error) => {
                let failed = |_| ClaimOutcome::Failed(error.to_string());
                at_once(claims.iter().map(failed).collect())
            }
        }
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        match self.0.entity_store() {
            Ok(store) => store.current_claims(shards),
            Err(error) => at_once(Err(error)),
        }
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        match self.0.entity_store() {
            Ok(store) => store.commit(turns),
            Err(error) => {
                let refused =
                    |_| CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string()));
                at_once(turns.iter().map(refused).collect())
            }
        }
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        match self.0.entity_store() {
            Ok(store) => store.load(entities),
            Err(error) => at_once(entities.iter().map(|_| Err(error.clone())).collect()),
        }
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        match self.0.entity_store() {
            Ok(store) => store.scan(scan),
            Err(error) => at_once(Err(error)),
        }
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        match self.0.entity_store() {
            Ok(store) => store.put_blob(bytes),
            Err(error) => at_once(Err(error)),
        }
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        match self.0.entity_store() {
            Ok(store) => store.get_blob(digest),
            Err(error) => at_once(Err(error)),
        }
    }
}
