//! What a node without the store remembers of the cluster for its next life: where shards were, who the nodes were, and
//! which types there were (S3, S4, S8). It is for sending only: nothing is ever owned because it stands here (R13).
//!
//! It is a sled database of its own, under the `cache` of the data directory; the store node needs none, and so has one
//! database open, not two. Nothing of it is precious: it is not synced, and what cannot be read, or is another
//! cluster's, is removed with a warning and made anew. No failure of it ends anything.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_sharding::ids::ClusterId;
use ostraca_sharding::message::Kind;
use ostraca_sharding::rows::{CHUNK, Key, NodeRow, Row, ShardsRow};
use ostraca_store::Row as Stored;

use crate::error::NodeError;
use crate::ownership::HASH;
use crate::rows::{self, MethodRow, PoolRow, TypeRow};
use crate::types::{Type, Types};
use crate::view::View;

/// Raised when what is kept here changes its shape; rows have versions of their own.
const VERSION: u8 = 1;
/// The key of version and cluster.
const ABOUT: &str = "about";
/// Between two writes, at least.
const PAUSE: Duration = Duration::from_secs(1);
/// sled's page cache, in bytes.
const PAGES: u64 = 4 << 20;

/// What was remembered.
#[derive(Debug, Default)]
pub(crate) struct Cached {
    /// The pool's shards and hash; none: nothing was remembered.
    pub(crate) pool: Option<PoolRow>,
    /// Rows of nodes and shards, for [`Event::Cached`](ostraca_sharding::node::Event::Cached). Their revisions are 0.
    pub(crate) rows: Vec<(Key, Row, u64)>,
    /// Rows of types, for [`Loader::remembered`](crate::loader::Loader::remembered).
    pub(crate) types: Vec<Stored>,
}

/// Keeps it. Dropped, it writes what is left and closes.
pub(crate) struct Cache {
    database: Database,
    newest: Arc<Mutex<Option<Arc<View>>>>,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Cache {
    /// Where a node's lies.
    pub(crate) fn place(data: &Path) -> PathBuf {
        data.join("cache").join("routes")
    }

    /// Opens it, and makes it if it is not there, or not this cluster's, or broken. None: it cannot be had. Blocks.
    pub(crate) fn open(dir: &Path, cluster: ClusterId, types: Types) -> Option<Self> {
        let warn =
            |why: String| tracing::warn!(dir = %dir.display(), %why, "no routes are remembered");
        let database = match Database::open(dir, cluster) {
            Ok(database) => database,
            Err(why) => {
                tracing::warn!(dir = %dir.display(), %why, "what was remembered of routes is removed");
                let again = std::fs::remove_dir_all(dir)
                    .map_err(|error| error.to_string())
                    .and_then(|()| Database::open(dir, cluster));
                again.map_err(warn).ok()?
            }
        };
        let newest: Arc<Mutex<Option<Arc<View>>>> = Arc::default();
        let (wake, woken) = channel();
        let writer = Writer {
            database: database.clone(),
            newest: newest.clone(),
            types,
            written: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name("route-cache".into());
        let spawned = thread.spawn(move || writer.run(&woken));
        let thread = Some(spawned.map_err(|error| warn(error.to_string())).ok()?);
        Some(Self { database, newest, wake: Some(wake), thread })
    }

    /// What the last life left. Blocks.
    pub(crate) fn load(&self) -> Cached {
        self.database.load().unwrap_or_else(|why| {
            tracing::warn!(%why, "remembered routes cannot be read");
            Cached::default()
        })
    }

    /// The cluster is like this now. Written behind, once a second at most; never waits.
    pub(crate) fn store(&self, view: &Arc<View>) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(view.clone());
        if let Some(wake) = &self.wake {
            // A writer that has given up needs nothing.
            let _ = wake.send(());
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread of the remembered routes failed");
        }
    }
}

/// The thread that writes.
struct Writer {
    database: Database,
    newest: Arc<Mutex<Option<Arc<View>>>>,
    types: Types,
    /// What stands there, by key: unchanged rows are not written again.
    written: HashMap<String, Bytes>,
}

impl Writer {
    fn run(mut self, woken: &Receiver<()>) {
        let (mut more, mut ended) = (false, false);
        loop {
            if !more && !ended {
                ended = woken.recv().is_err();
            }
            let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(view) = newest
                && let Err(why) = self.write(&view)
            {
                tracing::warn!(%why, "routes are remembered no more");
                return;
            }
            if ended {
                return;
            }
            // A node that stops does not wait for the pause.
            let until = Instant::now() + PAUSE;
            more = false;
            while !ended {
                match woken.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(()) => more = true,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => ended = true,
                }
            }
        }
    }

    fn write(&mut self, view: &View) -> Result<(), String> {
        if view.shards.is_empty() {
            // Nothing was read yet: what the last life left is better.
            return Ok(());
        }
        let now = picture(view, &self.types).map_err(|error| error.to_string())?;
        let changed = now.iter().filter(|(key, value)| self.written.get(*key) != Some(*value));
        let gone = self.database.keys()?.into_iter().filter(|key| !now.contains_key(key));
        let mut batch = sled::Batch::default();
        changed.for_each(|(key, value)| batch.insert(key.as_bytes(), value.as_ref()));
        gone.for_each(|key| batch.remove(key.as_bytes()));
        self.database.apply(batch)?;
        self.written = now;
        Ok(())
    }
}

/// The rows that are remembered of a moment.
fn picture(view: &View, types: &Types) -> Result<HashMap<String, Bytes>, NodeError> {
    let mut rows = HashMap::new();
    let count = u32::try_from(view.shards.len()).unwrap_or(u32::MAX);
    let pool = PoolRow { hash: HASH.into(), shards: count };
    rows.insert(rows::pool_key(), rows::encode_value(&pool)?);
    for (node, row) in &view.nodes {
        // Renewals would have it written all the time.
        let row = NodeRow { renewals: 0, store_answers: true, ..row.clone() };
        let row = rows::encode_core(&Row::Node(row))?;
        rows.insert(rows::key_text(&Key::Node(node.clone())), row);
    }
    for (chunk, shards) in (0..).zip(view.shards.chunks(CHUNK as usize)) {
        let row = Row::Shards(ShardsRow { term: 0, shards: shards.to_vec() });
        rows.insert(rows::key_text(&Key::Shards(chunk)), rows::encode_core(&row)?);
    }
    for entry in types.now().values() {
        rows.insert(rows::type_key(&entry.name), rows::encode_value(&type_row(entry))?);
    }
    Ok(rows)
}

fn type_row(entry: &Type) -> TypeRow {
    let methods = entry
        .methods()
        .iter()
        .map(|(name, kind)| MethodRow { name: name.to_string(), query: *kind == Kind::Query });
    TypeRow {
        revision: entry.revision,
        manifest: entry.manifest.text_effective(),
        component: entry.component,
        component_size: entry.component_size,
        methods: methods.collect(),
    }
}

/// sled, whose panics over broken files are errors here.
#[derive(Clone)]
struct Database(sled::Db);

impl Database {
    fn open(dir: &Path, cluster: ClusterId) -> Result<Self, String> {
        let config = sled::Config::new().path(dir).cache_capacity(PAGES);
        let database = Self(guarded(|| config.open())?);
        let about = [&[VERSION][..], &cluster.0.to_be_bytes()].concat();
        match guarded(|| database.0.get(ABOUT))? {
            Some(found) if *found == *about => Ok(database),
            Some(_) => Err("it is another cluster's, or another release's".into()),
            None if database.keys()?.is_empty() => {
                guarded(|| database.0.insert(ABOUT, about.clone()))?;
                Ok(database)
            }
            None => Err("it says nothing of its cluster".into()),
        }
    }

    fn keys(&self) -> Result<Vec<String>, String> {
        let keys = guarded(|| self.0.iter().keys().collect::<Result<Vec<_>, _>>())?;
        let keys = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned());
        Ok(keys.filter(|key| key != ABOUT).collect())
    }

    fn apply(&self, batch: sled::Batch) -> Result<(), String> {
        guarded(|| self.0.apply_batch(batch))?;
        guarded(|| self.0.flush()).map(drop)
    }

    fn load(&self) -> Result<Cached, String> {
        let found = guarded(|| self.0.iter().collect::<Result<Vec<_>, _>>())?;
        let mut cached = Cached::default();
        for (key, value) in found {
            let key = String::from_utf8_lossy(&key).into_owned();
            let row = Stored { key, revision: 0, value: Bytes::copy_from_slice(&value) };
            if row.key == ABOUT {
                continue;
            }
            if rows::type_name(&row.key).is_some() {
                cached.types.push(row);
            } else if row.key == rows::pool_key() {
                cached.pool = Some(rows::decode(&row).map_err(|error| error.to_string())?);
            } else if let Some(row) = rows::decode_core(&row).map_err(|error| error.to_string())? {
                cached.rows.push(row);
            }
        }
        Ok(cached)
    }
}

fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("sled cannot read it".into()),
    }
}

#[cfg(test)]
mod tests {
    use ostraca_sharding::ids::{Epoch, Incarnation};
    use ostraca_sharding::rows::{Member, Roles, ShardRow, Standing};

    use super::*;
    use crate::types::tests::known;

    const ONE: ClusterId = ClusterId(1);

    fn node(addresses: &str) -> NodeRow {
        NodeRow {
            incarnation: Incarnation { counter: 1, nonce: 2 },
            renewals: 9,
            standing: Standing::Live,
            draining: false,
            store_answers: true,
            roles: Roles::ALL,
            version: 1,
            since: 0,
            addresses: vec![addresses.into()],
        }
    }

    fn view(shards: u32, nodes: &[&str]) -> Arc<View> {
        let owner = Member { node: "n1".into(), incarnation: node("").incarnation };
        let shard = ShardRow { epoch: Epoch(3), owner: Some(owner), moving: None };
        let nodes = nodes.iter().map(|name| ((*name).into(), node(name))).collect();
        Arc::new(View { shards: vec![shard; shards as usize], nodes, ..View::default() })
    }

    fn keys(cached: &Cached) -> Vec<String> {
        cached.rows.iter().map(|(key, ..)| rows::key_text(key)).collect()
    }

    #[test]
    fn a_nodes_next_life_knows_where_to_send() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Cache::place(dir.path());
        let types = Types::default();
        types.put(Arc::new(known("counter", 4)));
        let cache = Cache::open(&place, ONE, types.clone()).expect("opened");
        assert!(cache.load().pool.is_none());
        cache.store(&view(65, &["n1", "n2"]));
        drop(cache);

        let cache = Cache::open(&place, ONE, types.clone()).expect("opened again");
        let cached = cache.load();
        assert_eq!(cached.pool, Some(PoolRow { hash: HASH.into(), shards: 65 }));
        let all = ["nodes/n1", "nodes/n2", "shards/default/00000", "shards/default/00001"];
        assert_eq!(keys(&cached), all);
        let chunk = cached.rows.iter().find(|(key, ..)| *key == Key::Shards(1));
        let Some((_, Row::Shards(row), 0)) = chunk else { panic!("{chunk:?}") };
        assert_eq!((row.shards.len(), row.shards[0].epoch), (1, Epoch(3)));
        let (standing, manifest) = crate::loader::parse(&cached.types[0]).expect("a type");
        assert_eq!((standing.revision, &*manifest.kind), (4, "counter"));
        assert_eq!(standing.methods, [MethodRow { name: "get".into(), query: true }]);

        // What is empty yet takes nothing away; a node that is gone is forgotten.
        cache.store(&Arc::new(View::default()));
        drop(cache);
        let cache = Cache::open(&place, ONE, types.clone()).expect("opened again");
        assert_eq!(keys(&cache.load()), all);
        cache.store(&view(65, &["n1"]));
        drop(cache);
        let cache = Cache::open(&place, ONE, types).expect("opened again");
        assert_eq!(keys(&cache.load()).len(), 3);
    }

    #[test]
    fn what_is_another_clusters_or_broken_is_removed_and_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Cache::place(dir.path());
        let open = |cluster| Cache::open(&place, cluster, Types::default()).expect("opened");
        let cache = open(ONE);
        cache.store(&view(3, &["n1"]));
        drop(cache);
        assert!(open(ClusterId(2)).load().pool.is_none(), "another cluster's");

        let cache = open(ONE);
        cache.store(&view(3, &["n1"]));
        drop(cache);
        for file in ["conf", "db"] {
            std::fs::write(place.join(file), b"rubbish").expect("written");
        }
        let cache = open(ONE);
        assert!(cache.load().pool.is_none(), "broken");
        cache.store(&view(3, &["n1"]));
        drop(cache);
        assert_eq!(open(ONE).load().pool.map(|pool| pool.shards), Some(3));

        let nowhere = dir.path().join("file");
        std::fs::write(&nowhere, b"").expect("written");
        assert!(Cache::open(&nowhere.join("x"), ONE, Types::default()).is_none());
    }
}
