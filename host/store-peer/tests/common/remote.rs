//! A backend, and both stores over links to it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use ostraca_sharding::ids::{Entity, ShardKey};
use ostraca_sharding::records::{Claim, ClaimOutcome, Commit, CommitOutcome, Loaded};
use ostraca_store::conformance::CLUSTER;
use ostraca_store::{
    Cas, ClusterStore, Conflict, EntityStore, Page, Row, Scan, StoreError, StoreFuture,
    StoreIdentity, Watch,
};
use ostraca_store_peer::{
    ClusterServer, EntityServer, Known, Options, PeerClusterStore, PeerEntityStore, ServerOptions,
};
use tokio::runtime::Runtime;

use super::member;
use super::net::{Net, Serve, Weather};

/// Both stores, as nodes `a` and `b` have them.
pub(crate) struct Remote {
    pub(crate) a: PeerEntityStore,
    pub(crate) b: PeerEntityStore,
    pub(crate) rows: PeerClusterStore,
    pub(crate) known: Arc<Known>,
    pub(crate) weather: Arc<Weather>,
    /// Of the rows.
    pub(crate) control: Arc<Weather>,
    runtime: Option<Runtime>,
}

pub(crate) fn quick() -> Options {
    Options {
        backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(20),
        ..Options::default()
    }
}

impl Remote {
    pub(crate) fn new<B: EntityStore + ClusterStore>(backend: &Arc<B>, breaks: u64) -> Self {
        Self::with(backend.clone(), backend.clone(), breaks, quick())
    }

    pub(crate) fn with(
        entities: Arc<dyn EntityStore>,
        rows: Arc<dyn ClusterStore>,
        breaks: u64,
        options: Options,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let known = Known::open(CLUSTER, None).unwrap();
        let entity = EntityServer::new(entities, ServerOptions::default());
        let cluster = ClusterServer::new(rows, ServerOptions::default());
        let (weather, control) = (Weather::new(breaks, 1), Weather::new(breaks, 2));
        let dial = |node: &'static str| {
            let (entity, known, options) = (entity.clone(), known.clone(), options.clone());
            let serve = move || -> Serve {
                let mut link = entity.link(&member(node));
                Box::new(move |body| link.call(body))
            };
            let net = Net { serve, weather: weather.clone(), runtime: runtime.handle().clone() };
            let made = runtime.block_on(PeerEntityStore::connect(net, known, options));
            let (store, driver) = made.unwrap();
            runtime.spawn(driver.run());
            store
        };
        let (a, b) = (dial("a"), dial("b"));
        let serve = move || -> Serve {
            let mut link = cluster.link(&member("a"));
            Box::new(move |body| link.call(body))
        };
        let net = Net { serve, weather: control.clone(), runtime: runtime.handle().clone() };
        let made = runtime.block_on(PeerClusterStore::connect(net, known.clone(), options));
        let (rows, driver) = made.unwrap();
        runtime.spawn(driver.run());
        Self { a, b, rows, known, weather, control, runtime: Some(runtime) }
    }

    fn of(&self, claim: Option<&Claim>) -> &PeerEntityStore {
        if claim.is_some_and(|claim| *claim.node.0 == *"b") { &self.b } else { &self.a }
    }
}

impl Drop for Remote {
    /// Nothing of the backend is in use after it.
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

    fn claims(&self, shards: Vec<ShardKey>) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.a.claims(shards)
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.of(turns.first().map(|turn| &*turn.claim)).commit(turns)
    }

    fn load(
        &self,
        entities: Vec<(ShardKey, Entity)>,
    ) -> StoreFuture<Vec<Result<Loaded, StoreError>>> {
        self.a.load(entities)
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.a.scan(scan)
    }

    fn put_blob(&self, bytes: bytes::Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.a.put_blob(bytes).boxed()
    }

    fn blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<bytes::Bytes>, StoreError>> {
        self.a.blob(digest)
    }
}

impl ClusterStore for Remote {
    fn identity(&self) -> StoreIdentity {
        ClusterStore::identity(&self.rows)
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<Row>, StoreError>> {
        self.rows.get(key)
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<Row>, u64), StoreError>> {
        self.rows.list(prefix)
    }

    fn compare_and_set(&self, cas: Cas) -> StoreFuture<Result<u64, Conflict>> {
        self.rows.compare_and_set(cas)
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        self.rows.watch(prefix, revision)
    }
}
