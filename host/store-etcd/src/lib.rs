//! The cluster's rows in etcd: nodes, leases, leadership, owners of shards, deployments.
//!
//! Only transactions on `mod_revision` and linearizable reads decide anything. etcd's own leases are not used: its
//! keep-alives are not ordered against transactions, so they prove nothing (R8). The calls of a process are
//! transactions in their order, many calls in each; a watch of all rows feeds the watches of the process, and heals
//! when members fail or restart.
//!
//! Confusing at first: etcd counts one revision for a whole transaction, so several rows can have the same revision.

mod batch;
mod changes;
mod error;
mod health;
mod identity;
mod layout;
mod members;
mod options;
mod rows;

mod proto {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::allow_attributes_without_reason,
        reason = "generated"
    )]
    tonic::include_proto!("etcdserverpb");
}

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

use crate::changes::Follower;
use crate::health::Health;
use crate::layout::Layout;
use crate::members::Members;
use crate::rows::{RowQueue, Server};

pub use error::OpenError;
pub use options::{Options, Tls};

/// An etcd cluster with a store, opened by this process. Dropping it lets the queued calls complete.
pub struct EtcdStore {
    identity: StoreIdentity,
    openings: Vec<u64>,
    rows: RowQueue,
    changes: ChangeHistory,
    health: Health,
    /// Dropping it ends the task that follows the changes of rows.
    _open: watch::Sender<()>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// Creates a new store where none is, and opens it.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn create(
        options: Options,
        cluster: ClusterId,
        cluster_name: &str,
    ) -> Result<Self, OpenError> {
        let options = Arc::new(options);
        let mut members = Members::new(options.clone());
        identity::create(&options, &mut members, cluster, cluster_name).await?;
        Self::open_at(options, members).await
    }

    /// Opens the store; never creates one (R5). Must be called within a tokio runtime, which then drives the
    /// connections.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let options = Arc::new(options);
        let members = Members::new(options.clone());
        Self::open_at(options, members).await
    }

    /// Says whose store it is, if there is one, without opening it: nothing is written.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be opened, and what to do.
    pub async fn probe(options: Options) -> Result<StoreIdentity, OpenError> {
        let options = Arc::new(options);
        identity::probe(&options, &mut Members::new(options.clone())).await
    }

    /// Checks that a store can be created: etcd answers, the user may write, and there is none. Nothing is written.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be created, and what to do.
    pub async fn check_missing(options: Options) -> Result<(), OpenError> {
        let options = Arc::new(options);
        identity::check_missing(&options, &mut Members::new(options.clone())).await
    }

    async fn open_at(options: Arc<Options>, mut members: Members) -> Result<Self, OpenError> {
        let identity::Opened { identity, openings, etcd, revision } =
            identity::open(&options, &mut members).await?;
        let (layout, health) = (Layout::new(&options.prefix), Health::new(etcd, revision));
        let changes = ChangeHistory::new(
            revision,
            options.watch_history_changes,
            options.watch_history_bytes,
        );
        let (open, until) = watch::channel(());
        let follower = Follower {
            options: options.clone(),
            members: Members::new(options.clone()),
            layout: layout.clone(),
            health: health.clone(),
            history: changes.clone(),
            last: revision,
        };
        let (rows, waiting) = RowQueue::new(&options);
        let server = Server::new(options, members, layout, health.clone());
        let runtime = Handle::current();
        runtime.spawn(follower.run(until));
        runtime.spawn(server.run(waiting));
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

impl ClusterStore for EtcdStore {
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
