//! A backend, and both stores over links to it.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, LoadedEntity};
use ostraca_store::conformance::CLUSTER;
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, Page, Scan, StoreError,
    StoreFuture, StoreIdentity, StoredRow, Watch,
};
use ostraca_store_peer::{
    ClientOptions, ClusterServer, Connect, EntityServer, PeerClusterStore, PeerEntityStore,
    ServerOptions, StoreVerifier,
};
use tokio::runtime::Runtime;

use super::member;
use super::net::{LinkFaults, Net, Serve};

/// Both stores as seen by nodes `a` and `b`.
pub(crate) struct Remote {
    pub(crate) a: PeerEntityStore,
    pub(crate) b: PeerEntityStore,
    pub(crate) rows: PeerClusterStore,
    pub(crate) verifier: Arc<StoreVerifier>,
    pub(crate) weather: Arc<LinkFaults>,
    /// Faults of the cluster store's links.
    pub(crate) control: Arc<LinkFaults>,
    backend: Arc<dyn Any + Send + Sync>,
    runtime: Option<Runtime>,
}

pub(crate) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn quick() -> ClientOptions {
    ClientOptions {
        backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(20),
        ..ClientOptions::default()
    }
}

impl Remote {
    pub(crate) fn new<B: EntityStore + ClusterStore>(backend: &Arc<B>, breaks: u64) -> Self {
        let mut remote = Self::with(backend.clone(), backend.clone(), breaks, quick());
        remote.backend = backend.clone();
        remote
    }

    /// Connects over links within this process.
    pub(crate) fn with(
        entities: Arc<dyn EntityStore>,
        rows: Arc<dyn ClusterStore>,
        breaks: u64,
        options: ClientOptions,
    ) -> Self {
        let runtime = runtime();
        let entity = EntityServer::new(entities, ServerOptions::default());
        let cluster = ClusterServer::new(rows.clone(), ServerOptions::default());
        let (weather, control) = (LinkFaults::new(breaks, 1), LinkFaults::new(breaks, 2));
        let net = |node: &'static str| {
            let entity = entity.clone();
            let serve: Box<dyn Fn() -> Serve + Send + Sync> = Box::new(move || {
                let mut link = entity.link(&member(node));
                Box::new(move |body| link.call(body))
            });
            Net { serve, weather: weather.clone(), runtime: runtime.handle().clone() }
        };
        let (a, b) = (net("a"), net("b"));
        let serve: Box<dyn Fn() -> Serve + Send + Sync> = Box::new(move || {
            let mut link = cluster.link(&member("a"));
            Box::new(move |body| link.call(body))
        });
        let rows_net = Net { serve, weather: control.clone(), runtime: runtime.handle().clone() };
        Self::reach([a, b], rows_net, options, runtime, [weather, control], Arc::new(rows))
    }

    /// Connects over any kind of link.
    pub(crate) fn reach(
        [a, b]: [impl Connect; 2],
        rows: impl Connect,
        options: ClientOptions,
        runtime: Runtime,
        [weather, control]: [Arc<LinkFaults>; 2],
        backend: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let known = StoreVerifier::open(CLUSTER, None).unwrap();
        let [a, b] = [a, b].map(|to| {
            let made = PeerEntityStore::connect(to, known.clone(), options.clone());
            let (store, driver) = runtime.block_on(made).unwrap();
            runtime.spawn(driver.run());
            store
        });
        let made = PeerClusterStore::connect(rows, known.clone(), options);
        let (rows, driver) = runtime.block_on(made).unwrap();
        runtime.spawn(driver.run());
        Self { a, b, rows, verifier: known, weather, control, backend, runtime: Some(runtime) }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.as_ref().unwrap().spawn(task));
    }

    /// Returns the backend, once everything that uses it has ended.
    pub(crate) fn into_backend<B: Send + Sync + 'static>(self) -> B {
        let backend = self.backend.clone();
        drop(self);
        let Ok(backend) = backend.downcast::<B>() else { panic!("another backend") };
        let until = Instant::now() + Duration::from_secs(10);
        let mut backend = backend;
        loop {
            match Arc::try_unwrap(backend) {
                Ok(backend) => return backend,
                Err(shared) => backend = shared,
            }
            assert!(Instant::now() < until, "the backend is still in use");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn of(&self, claim: Option<&Claim>) -> &PeerEntityStore {
        if claim.is_some_and(|claim| *claim.owner.node.0 == *"b") { &self.b } else { &self.a }
    }
}

impl Drop for Remote {
    /// Waits until nothing uses the backend any more.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }
}

/// Each node claims and commits in its own name.
impl EntityStore for Remote {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(&self.a)
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        self.of(claims.first()).claim(claims)
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.a.current_claims(shards)
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.of(turns.first().map(|turn| &*turn.claim)).commit(turns)
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.a.load(entities)
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.a.scan(scan)
    }

    fn put_blob(&self, bytes: bytes::Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.a.put_blob(bytes).boxed()
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<bytes::Bytes>, StoreError>> {
        self.a.get_blob(digest)
    }
}

impl ClusterStore for Remote {
    fn identity(&self) -> StoreIdentity {
        ClusterStore::identity(&self.rows)
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        self.rows.get(key)
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        self.rows.list(prefix)
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        self.rows.compare_and_set(cas)
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        self.rows.watch(prefix, revision)
    }
}
