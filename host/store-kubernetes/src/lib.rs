//! The cluster's rows in a Kubernetes namespace: nodes, leases, leadership, owners of shards, deployments.
//!
//! Each row is an object of the kind `Lease`, so that one resource version orders all changes: Kubernetes defines an
//! order of versions within one resource only (KEP-5504). Only replacements under uid and resource version and reads
//! from a quorum decide anything. The times in the objects are for people: an observer times on its own clock how long
//! a row has not changed (R8).
//!
//! Confusing at first: a `Lease` of Kubernetes is only an object with a name and fields. The API server never lets one
//! expire.

mod api;
mod attempts;
mod changes;
mod connections;
mod error;
mod health;
mod identity;
mod layout;
mod options;
mod pods;
mod rows;
mod worker;

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::channel::oneshot;
use ostraca_core::ids::ClusterId;
use ostraca_store::change_history::ChangeHistory;
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, RowOp, StoreError, StoreFuture, StoreIdentity,
    StoredRow, Watch,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::api::Api;
use crate::changes::Follower;
use crate::health::Health;
use crate::identity::{Opened, StoreOpening};
use crate::layout::Layout;
use crate::rows::{Dispatcher, RowQueue};
use crate::worker::{Uids, Worker, remove_tombstones};

pub use error::OpenError;
pub use options::Options;
pub use pods::{PodHealth, ProcessState};

/// A store in a Kubernetes namespace, opened by this process. Dropping it lets the queued calls complete.
pub struct KubernetesStore {
    identity: StoreIdentity,
    openings: Vec<u64>,
    rows: RowQueue,
    changes: ChangeHistory,
    health: Health,
    /// Dropping it ends the task that follows the changes of rows.
    _open: watch::Sender<()>,
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesStore").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl KubernetesStore {
    /// Creates a new store where none is, and opens it.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn create(
        options: Options,
        cluster: ClusterId,
        cluster_name: &str,
    ) -> Result<Self, OpenError> {
        let (options, api, layout) = prepare(options)?;
        StoreOpening::new(&options, &api, &layout).create(cluster, cluster_name).await?;
        Self::open_at(options, api, layout).await
    }

    /// Opens the store; never creates one (R5). Must be called within a tokio runtime, which then drives the
    /// connections.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let (options, api, layout) = prepare(options)?;
        Self::open_at(options, api, layout).await
    }

    /// Says whose store it is, if there is one, without opening it: nothing is written.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be opened, and what to do.
    pub async fn probe(options: Options) -> Result<StoreIdentity, OpenError> {
        let (options, api, layout) = prepare(options)?;
        StoreOpening::new(&options, &api, &layout).probe().await
    }

    /// Checks that a store can be created: the API server answers and would create it, and there is none. Nothing is
    /// written.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be created, and what to do.
    pub async fn check_missing(options: Options) -> Result<(), OpenError> {
        let (options, api, layout) = prepare(options)?;
        StoreOpening::new(&options, &api, &layout).check_missing().await
    }

    async fn open_at(options: Arc<Options>, api: Api, layout: Layout) -> Result<Self, OpenError> {
        let Opened { identity, openings, revision } =
            StoreOpening::new(&options, &api, &layout).open().await?;
        let (health, uids) = (Health::new(revision), Uids::default());
        let changes = ChangeHistory::new(
            revision,
            options.watch_history_changes,
            options.watch_history_bytes,
        );
        let (open, until) = watch::channel(());
        let follower = Follower {
            options: options.clone(),
            api: api.clone(),
            layout: layout.clone(),
            health: health.clone(),
            uids: uids.clone(),
            history: changes.clone(),
            last: revision,
        };
        let (rows, waiting) = RowQueue::new(&options);
        let (worker, tombstones) =
            Worker::new(options.clone(), api.clone(), layout.clone(), health.clone(), uids);
        let runtime = Handle::current();
        runtime.spawn(follower.run(until));
        runtime.spawn(remove_tombstones(options.clone(), api, layout, tombstones));
        runtime.spawn(Dispatcher::new(worker, &options).run(waiting));
        Ok(Self { identity, openings, rows, changes, health, _open: open })
    }

    /// Makes a call.
    fn call<T: Send + 'static, E: From<StoreError> + Send + 'static>(
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

/// The complete settings, and what follows from them.
fn prepare(options: Options) -> Result<(Arc<Options>, Api, Layout), OpenError> {
    let options = Arc::new(options.resolved()?);
    let api = Api::new(options.clone())?;
    let layout = Layout::new(&options.name, &options.holder);
    Ok((options, api, layout))
}

impl ClusterStore for KubernetesStore {
    fn identity(&self) -> StoreIdentity {
        StoreIdentity { durable_sequence: self.health.seen(), ..self.identity.clone() }
    }

    fn open_nonces(&self) -> Vec<u64> {
        self.openings.clone()
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        self.call(|to| RowOp::Get(key.to_owned(), to))
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        self.call(|to| RowOp::List(prefix.to_owned(), to))
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        self.call(|to| RowOp::Cas(cas, to))
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        self.changes.watch(prefix, revision)
    }
}
