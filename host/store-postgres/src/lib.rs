//! Both stores in PostgreSQL: the state of entities, and the cluster's rows.
//!
//! The tables are in `schema_1.sql`, with views for people. Commits are one statement, the call of the procedure
//! `commit_batch`, which locks the shards of its turns, checks their claims and versions, writes, and commits, all on the
//! server: a client that stops in the middle of sending it holds no lock (R4). The shards are divided among *lanes*,
//! each with a connection: a lane sends what waits as one batch, in the order of the calls. Reads have connections of
//! their own. A read waits until the calls before it in its lane have ended (R2).
//!
//! The cluster's rows have a connection of their own, with their compare-and-sets and reads in the order of the calls.
//! Another one follows the changes that any node makes, for the watches.
//!
//! Confusing at first: there are three counters. A writer's row counts the batches of one connection; their sum is the
//! store's sequence (R5). The sequence `commits` numbers the turns, and the table `revision` the changes of rows.

mod batch;
mod binary;
mod blobs;
mod changes;
mod connection;
mod connector;
mod copy;
mod durable;
mod error;
mod fail_over;
mod health;
mod lane;
mod options;
mod reads;
mod renew;
mod row;
mod rows;
mod schema;
mod shard_move;
mod tls;
mod writer;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleError, RecycleResult};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{BoxFuture, join_all, ready};
use ostraca_core::ids::{ClusterId, Entity, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, LoadedEntity};
use ostraca_store::change_history::ChangeHistory;
use ostraca_store::entity::check_record;
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, Page, RowOp, Scan, StoreError,
    StoreFuture, StoreIdentity, StoredRow, Watch, keys,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::batch::Prepared;
use crate::changes::Follower;
use crate::connection::Connection;
use crate::health::Health;
use crate::lane::{Lane, Op};
use crate::rows::RowQueue;
use crate::schema::Progress;

pub use copy::{PostgresCopySource, PostgresCopyTarget};
pub use error::{ColumnError, OpenError};
pub use options::{Durability, Options, Tls};
pub use renew::RewriteRow;

/// A database with a store, opened by this process. Dropping it lets the queued calls complete.
pub struct PostgresStore {
    identity: StoreIdentity,
    openings: Vec<u64>,
    options: Arc<Options>,
    lanes: Vec<Arc<Lane>>,
    readers: Pool<ReaderManager>,
    reads: Arc<AtomicUsize>,
    rows: RowQueue,
    changes: ChangeHistory,
    health: Health,
    runtime: Handle,
    /// Dropping it ends the task that follows the changes of rows.
    _open: watch::Sender<()>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("identity", &self.identity).finish_non_exhaustive()
    }
}

struct ReaderManager(Arc<Options>, Health);

impl Manager for ReaderManager {
    type Type = Connection;
    type Error = OpenError;

    async fn create(&self) -> Result<Connection, OpenError> {
        Connection::open_again(&self.0, &self.1).await
    }

    async fn recycle(&self, reader: &mut Connection, _: &Metrics) -> RecycleResult<OpenError> {
        match reader.client.is_closed() {
            true => Err(RecycleError::message("the connection was lost")),
            false => Ok(()),
        }
    }
}

impl PostgresStore {
    /// Creates the tables of a new store in a database without any, and opens it.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn create(
        options: Options,
        cluster: ClusterId,
        cluster_name: &str,
    ) -> Result<Self, OpenError> {
        let connection = Connection::open(&options).await?;
        schema::create(&connection.client, cluster, cluster_name, None).await?;
        Self::open(options).await
    }

    /// Opens the store in a database; never creates one (R5). Must be called within a tokio runtime, which then drives
    /// the connections.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        Self::open_with(options, &Handle::current()).await
    }

    /// Like [`Self::open`], but the connections for the cluster's rows are driven by another runtime, where commits do
    /// not delay the renewals of leases.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open_with(options: Options, for_rows: &Handle) -> Result<Self, OpenError> {
        Self::open_all(options, Some(for_rows)).await
    }

    /// Like [`Self::open`], but for the state of entities alone: it opens no connections for the cluster's rows, and
    /// refuses the calls of its [`ClusterStore`].
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open_for_state(options: Options) -> Result<Self, OpenError> {
        Self::open_all(options, None).await
    }

    /// Says whose store the database has, if any, without opening it: nothing is written.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be opened, and what to do.
    pub async fn probe(options: &Options) -> Result<StoreIdentity, OpenError> {
        let connection = Connection::open(options).await?;
        schema::probe(&connection.client, options.cluster).await
    }

    /// Accepts the server as it is now, after a fail-over or a move to another one: the store is opened there although
    /// acknowledged turns may be missing. No node may have the store open.
    ///
    /// # Errors
    /// [`OpenError`] says why the store cannot be reached.
    pub async fn accept_server(options: &Options) -> Result<StoreIdentity, OpenError> {
        let connection = Connection::open(options).await?;
        let identity = schema::probe(&connection.client, options.cluster).await?;
        fail_over::accept(&connection.client, connection.server).await?;
        Ok(identity)
    }

    /// Makes the store, which was restored from a backup, another one: it gets a new id, `rewrite` changes its rows, no
    /// batch of a node that used the store before has an effect, and the server is accepted as it is. No node may have the
    /// store open.
    ///
    /// # Errors
    /// [`OpenError`] says why nothing was changed.
    pub async fn renew(
        options: &Options,
        rewrite: &RewriteRow<'_>,
    ) -> Result<StoreIdentity, OpenError> {
        renew::renew(options, rewrite).await
    }

    async fn open_all(options: Options, for_rows: Option<&Handle>) -> Result<Self, OpenError> {
        let connection = Connection::open(&options).await?;
        let schema::Opened { identity, openings, revision } =
            schema::open(&connection, &options).await?;
        let runtime = Handle::current();
        let health = Health::new(connection.server, identity.durable_sequence);
        drop(connection);
        let options = Arc::new(options);
        let count = options.writers.max(1);
        let lanes: Vec<_> = (0..count).map(|_| Lane::new(&options, count)).collect();
        let opening = i64::try_from(identity.open_count).unwrap_or(i64::MAX);
        for lane in &lanes {
            runtime.spawn(lane.clone().run(options.clone(), opening, health.clone()));
        }
        let readers = Pool::builder(ReaderManager(options.clone(), health.clone()))
            .max_size(options.readers.max(1))
            .build()
            .map_err(|error| OpenError::Connect(error.to_string()))?;
        let reads = Arc::default();
        let changes = ChangeHistory::new(
            revision,
            options.watch_history_changes,
            options.watch_history_bytes,
        );
        let (open, until) = watch::channel(());
        let (rows, waiting) = RowQueue::new(&options);
        if let Some(for_rows) = for_rows {
            let follower = Follower::default();
            let following = follower.clone();
            for_rows.spawn(following.run(
                options.clone(),
                changes.clone(),
                revision,
                health.clone(),
                until,
            ));
            let serving = rows::serve(waiting, options.clone(), opening, health.clone(), follower);
            for_rows.spawn(serving);
        }
        Ok(Self {
            identity,
            openings,
            options,
            lanes,
            readers,
            reads,
            rows,
            changes,
            health,
            runtime,
            _open: open,
        })
    }

    /// Reads the store's sequence, which counts the batches of all nodes. From then on, [`EntityStore::identity`] has at
    /// least this one. If it is below the newest that this process knows, or the server is another one without all
    /// acknowledged batches, the store stops (R5): a connection through a pooler outlasts a fail-over.
    pub fn read_sequence(&self) -> StoreFuture<Result<u64, StoreError>> {
        let health = self.health.clone();
        self.read(&[], move |client| {
            async move {
                // Other connections may learn more while the answer is on its way: only what is known by now counts.
                let (known, history) = (health.sequence(), health.history());
                let progress = schema::read_progress(client).await?;
                let Progress { sequence, server, stored_replicated } = progress;
                if server.history != history && health.history() == history {
                    fail_over::check_again(client, &health, server).await?;
                }
                health.saw(sequence, known)?;
                fail_over::note_replication(client, stored_replicated, server.replicated).await?;
                health.note_replication(server.replicated);
                Ok(sequence)
            }
            .boxed()
        })
    }

    fn lane(&self, shard: &ShardPath) -> &Arc<Lane> {
        let mut hasher = DefaultHasher::new();
        shard.hash(&mut hasher);
        let place = hasher.finish() % self.lanes.len().max(1) as u64;
        &self.lanes[usize::try_from(place).unwrap_or_default()]
    }

    /// Runs a read on a connection of its own, after the calls of these shards that were made before.
    fn read<T: Send + 'static>(
        &self,
        shards: &[&ShardPath],
        read: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'static,
    ) -> StoreFuture<Result<T, StoreError>> {
        let mut before: Vec<(Arc<Lane>, u64)> = Vec::new();
        for shard in shards {
            let lane = self.lane(shard);
            if !before.iter().any(|(known, _)| Arc::ptr_eq(known, lane)) {
                before.push((lane.clone(), lane.accepted()));
            }
        }
        if let Err(error) = self.health.check() {
            return ready(Err(error)).boxed();
        }
        let Some(place) = ReadPlace::take(&self.reads, self.options.queue_reads) else {
            let text = format!("{} reads run or wait (`queue-reads`)", self.options.queue_reads);
            return ready(Err(StoreError::Unavailable(text))).boxed();
        };
        let (readers, limit) = (self.readers.clone(), self.options.call_timeout);
        let (to, result) = oneshot::channel();
        self.runtime.spawn(async move {
            let _place = place;
            for (lane, accepted) in before {
                lane.wait_for(accepted).await;
            }
            drop(to.send(on_a_reader(&readers, limit, read).await));
        });
        let ended = |_| Err(StoreError::Unavailable("the store is closed".into()));
        result.map(move |read| read.unwrap_or_else(ended)).boxed()
    }
}

/// A read that runs or waits.
struct ReadPlace(Arc<AtomicUsize>);

impl ReadPlace {
    /// Takes one of `most` places, if one is free.
    fn take(reads: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let place = Self(reads.clone());
        (reads.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for ReadPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn on_a_reader<T>(
    readers: &Pool<ReaderManager>,
    limit: Duration,
    read: impl for<'a> FnOnce(&'a Client) -> BoxFuture<'a, Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = || StoreError::Unavailable(format!("no answer from PostgreSQL within {limit:?}"));
    let reader = timeout(limit, readers.get()).await.map_err(|_| late())?;
    let reader = reader.map_err(|error| match error {
        PoolError::Backend(error) => StoreError::from(error),
        other => StoreError::Unavailable(other.to_string()),
    })?;
    match timeout(limit, read(&reader.client)).await {
        Ok(result) => result,
        Err(_) => {
            // Its answer may still come: the connection cannot be used again.
            drop(Object::take(reader));
            Err(late())
        }
    }
}

impl EntityStore for PostgresStore {
    fn identity(&self) -> StoreIdentity {
        StoreIdentity { durable_sequence: self.health.sequence(), ..self.identity.clone() }
    }

    fn open_nonces(&self) -> Vec<u64> {
        self.openings.clone()
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let cluster = self.identity.cluster;
        let outcomes = claims.into_iter().map(|claim| {
            let (to, outcome) = oneshot::channel();
            let checked = check_record(&keys::claim(&claim.shard), 0);
            if claim.cluster != cluster {
                drop(to.send(ClaimOutcome::OtherCluster { store_cluster: cluster }));
            } else if let Err(limit) = checked {
                drop(to.send(ClaimOutcome::Failed(limit)));
            } else {
                self.lane(&claim.shard).push(Op::Claim(claim, to));
            }
            let ended = |_| ClaimOutcome::Failed("the store is closed".into());
            outcome.map(move |outcome| outcome.unwrap_or_else(ended))
        });
        join_all(outcomes.collect::<Vec<_>>()).boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        let lanes: Vec<_> = shards.iter().collect();
        let wanted = shards.clone();
        self.read(&lanes, move |client| async move { reads::claims(client, &wanted).await }.boxed())
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        let outcomes = turns.into_iter().map(|commit| {
            let (to, outcome) = oneshot::channel();
            let lane = self.lane(&commit.claim.shard);
            lane.push(Op::Commit(Box::new(Prepared::new(commit)), to));
            let ended = |_| CommitOutcome::Unknown("the store is closed".into());
            outcome.map(move |outcome| outcome.unwrap_or_else(ended))
        });
        join_all(outcomes.collect::<Vec<_>>()).boxed()
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        let count = entities.len();
        let lanes: Vec<_> = entities.iter().map(|(shard, _)| shard).collect();
        let wanted = entities.clone();
        let read = self
            .read(&lanes, move |client| async move { reads::load(client, &wanted).await }.boxed());
        read.map(move |loaded| loaded.unwrap_or_else(|error| vec![Err(error); count])).boxed()
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        let shard = scan.shard.clone();
        self.read(&[&shard], move |client| async move { reads::scan(client, &scan).await }.boxed())
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        let digest = *blake3::hash(&bytes).as_bytes();
        self.read(&[], move |client| {
            async move { blobs::put(client, &digest, &bytes).await.map(|()| digest) }.boxed()
        })
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.read(&[], move |client| async move { blobs::get(client, &digest).await }.boxed())
    }
}

impl PostgresStore {
    /// Makes a call for rows.
    fn rows<T: Send + 'static, E: From<StoreError> + Send + 'static>(
        &self,
        op: impl FnOnce(oneshot::Sender<Result<T, E>>) -> RowOp,
    ) -> StoreFuture<Result<T, E>> {
        let (to, outcome) = oneshot::channel();
        match self.health.check() {
            Ok(()) => self.rows.push(op(to)),
            Err(error) => drop(to.send(Err(error.into()))),
        }
        let ended = |_| Err(StoreError::Unavailable("the store is closed".into()).into());
        outcome.map(move |outcome| outcome.unwrap_or_else(ended)).boxed()
    }
}

impl ClusterStore for PostgresStore {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(self)
    }

    fn open_nonces(&self) -> Vec<u64> {
        self.openings.clone()
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        self.rows(|to| RowOp::Get(key.to_owned(), to))
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        self.rows(|to| RowOp::List(prefix.to_owned(), to))
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        self.rows(|to| RowOp::Cas(cas, to))
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        self.changes.watch(prefix, revision)
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.close());
    }
}
