//! What a node without the store remembers about the cluster for its next start: where shards were, which nodes
//! existed, which types were deployed and who might do what (S3, S4, S8). The cache is used only to route messages: no node ever owns
//! a shard because the cache says so (R13).
//!
//! The cache is a separate sled database, under `cache` in the data directory. The store node does not need a
//! cache, so every node has one database open, not two. The contents are expendable: they are not synced, and if
//! the cache is unreadable or belongs to another cluster, it is removed with a warning and recreated. No failure of
//! the cache stops the node.

mod database;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ostraca_catalog::AccessRegistry;
use ostraca_catalog::types::TypeRegistry;
use ostraca_core::ids::ClusterId;
use ostraca_core::pools::Pools;
use ostraca_core::rows::{Row, RowKey};
use ostraca_store::StoredRow;

use crate::view::ClusterView;
use database::{Database, OpenError};
use writer::Writer;

/// The remembered state of the cluster.
#[derive(Debug, Default)]
pub struct CachedCluster {
    /// The pools; `None` if nothing was remembered.
    pub pools: Option<Pools>,
    /// Rows of nodes and shards, for [`Event::CachedRows`](ostraca_core::node::Event::CachedRows). Their revisions
    /// are 0.
    pub rows: Vec<(RowKey, Row, u64)>,
    /// Rows of types, for [`Loader::load_cached`](ostraca_catalog::Loader::load_cached).
    pub types: Vec<StoredRow>,
    /// The policy and the revocations, for [`AccessRegistry::load_cached`].
    pub access: Vec<StoredRow>,
    /// When both rows were last known to be in force, by this machine's clock, in milliseconds since 1970.
    pub access_read_ms: u64,
}

/// Keeps the cache up to date. Dropping it writes what is pending and closes the database.
pub struct RouteCache {
    database: Database,
    newest: Arc<Mutex<Option<Arc<ClusterView>>>>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RouteCache {
    /// The cache's directory within a data directory.
    #[must_use]
    pub fn dir(data: &Path) -> PathBuf {
        data.join("cache").join("routes")
    }

    /// Opens the cache, and recreates it if it is missing, damaged or belongs to another cluster. `None` if it is
    /// unavailable, for example because another process has it open. Blocks.
    #[must_use]
    pub fn open(
        dir: &Path,
        cluster: ClusterId,
        types: TypeRegistry,
        access: AccessRegistry,
    ) -> Option<Self> {
        let warn =
            |why: String| tracing::warn!(dir = %dir.display(), %why, "the route cache is disabled");
        let database = match Database::open(dir, cluster) {
            Err(OpenError::Unusable(why)) => {
                tracing::warn!(dir = %dir.display(), %why, "removing the route cache");
                std::fs::remove_dir_all(dir).map_err(|error| warn(error.to_string())).ok()?;
                Database::open(dir, cluster)
            }
            opened => opened,
        };
        let database = match database {
            Ok(database) => database,
            Err(OpenError::InUse(why) | OpenError::Unusable(why)) => {
                warn(why);
                return None;
            }
        };
        let newest: Arc<Mutex<Option<Arc<ClusterView>>>> = Arc::default();
        let (wake, woken) = channel();
        let writer = Writer::new(database.clone(), newest.clone(), types, access);
        let thread = std::thread::Builder::new().name("route-cache".into());
        let spawned = thread.spawn(move || writer.run(&woken));
        let thread = Some(spawned.map_err(|error| warn(error.to_string())).ok()?);
        Some(Self { database, newest, wake: Some(wake), thread })
    }

    /// Reads what the previous run of this node stored. Blocks.
    #[must_use]
    pub fn load(&self) -> CachedCluster {
        self.database.load().unwrap_or_else(|why| {
            tracing::warn!(%why, "cannot read the route cache");
            CachedCluster::default()
        })
    }

    /// Records the cluster's current state. It is written in the background, at most once per second. Does not block.
    pub(crate) fn store(&self, view: &Arc<ClusterView>) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(view.clone());
        if let Some(wake) = &self.wake {
            // The send fails only if the writer has given up, and then nothing can be done.
            let _ = wake.send(());
        }
    }
}

impl Drop for RouteCache {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the route cache's thread failed");
        }
    }
}
