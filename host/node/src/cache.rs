//! What a node without the store remembers of the cluster for its next life: where shards were, who the nodes were, and
//! which types there were (S3, S4, S8). It is for sending only: nothing is ever owned because it stands here (R13).
//!
//! It is a sled database of its own, under the `cache` of the data directory; the store node needs none, and so has one
//! database open, not two. Nothing of it is precious: it is not synced, and what cannot be read, or is another
//! cluster's, is removed with a warning and made anew. No failure of it ends anything.

mod database;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ostraca_core::ids::ClusterId;
use ostraca_core::rows::{Row, RowKey};
use ostraca_store::StoredRow;

use crate::rows::PoolRow;
use crate::types::TypeRegistry;
use crate::view::ClusterView;
use database::{Database, OpenError};
use writer::Writer;

/// What was remembered.
#[derive(Debug, Default)]
pub(crate) struct CachedCluster {
    /// The pool's shards and hash; none: nothing was remembered.
    pub(crate) pool: Option<PoolRow>,
    /// Rows of nodes and shards, for [`Event::Cached`](ostraca_core::node::Event::Cached). Their revisions are 0.
    pub(crate) rows: Vec<(RowKey, Row, u64)>,
    /// Rows of types, for [`Loader::remembered`](crate::loader::Loader::remembered).
    pub(crate) types: Vec<StoredRow>,
}

/// Keeps it. Dropped, it writes what is left and closes.
pub(crate) struct RouteCache {
    database: Database,
    newest: Arc<Mutex<Option<Arc<ClusterView>>>>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RouteCache {
    /// Where a node's lies.
    pub(crate) fn dir(data: &Path) -> PathBuf {
        data.join("cache").join("routes")
    }

    /// Opens it, and makes it if it is not there, or not this cluster's, or broken. None: it cannot be had, as where another
    /// process has it open. Blocks.
    pub(crate) fn open(dir: &Path, cluster: ClusterId, types: TypeRegistry) -> Option<Self> {
        let warn =
            |why: String| tracing::warn!(dir = %dir.display(), %why, "no routes are remembered");
        let database = match Database::open(dir, cluster) {
            Err(OpenError::Unusable(why)) => {
                tracing::warn!(dir = %dir.display(), %why, "what was remembered of routes is removed");
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
        let writer = Writer::new(database.clone(), newest.clone(), types);
        let thread = std::thread::Builder::new().name("route-cache".into());
        let spawned = thread.spawn(move || writer.run(&woken));
        let thread = Some(spawned.map_err(|error| warn(error.to_string())).ok()?);
        Some(Self { database, newest, wake: Some(wake), thread })
    }

    /// What the last life left. Blocks.
    pub(crate) fn load(&self) -> CachedCluster {
        self.database.load().unwrap_or_else(|why| {
            tracing::warn!(%why, "remembered routes cannot be read");
            CachedCluster::default()
        })
    }

    /// The cluster is like this now. Written behind, once a second at most; never waits.
    pub(crate) fn store(&self, view: &Arc<ClusterView>) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(view.clone());
        if let Some(wake) = &self.wake {
            // A writer that has given up needs nothing.
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
            tracing::warn!("the thread of the remembered routes failed");
        }
    }
}
