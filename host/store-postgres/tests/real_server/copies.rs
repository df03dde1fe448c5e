//! A stopped cluster is copied from sled to PostgreSQL and back (R26).

use std::path::PathBuf;

use futures::executor::block_on;
use ostraca_core::records::ClaimOutcome;
use ostraca_store::EntityStore;
use ostraca_store::conformance::copied::{Faulty, Seen, fill, goes_on, read};
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME};
use ostraca_store::transfer::{
    CopyError, CopySource, CopyTarget, Destination, ItemKind, StoreContents, Summary, copy,
};
use ostraca_store_postgres::{
    OpenError, Options, PostgresCopySource, PostgresCopyTarget, PostgresStore,
};
use ostraca_store_sled::{self as sled, SledCopySource, SledCopyTarget, SledStore};
use ostraca_test_servers::postgres::Server;
use tokio::runtime::Runtime;

/// An empty database, and a directory for stores.
struct Places {
    runtime: Runtime,
    root: tempfile::TempDir,
    options: Options,
    _server: Server,
}

impl Places {
    fn new() -> Self {
        let server = Server::start("");
        let options = Options::new(server.url(&server.database()));
        let root = tempfile::tempdir().expect("a directory");
        Self { runtime: Runtime::new().expect("a runtime"), root, options, _server: server }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A filled sled store that nobody has open, and what it shows.
    fn filled_sled(&self) -> (SledCopySource, Seen) {
        let (dir, options) = (self.dir("from"), sled::Options::default());
        let store = SledStore::create(&dir, &options, CLUSTER, CLUSTER_NAME).expect("a store");
        fill(&store);
        let seen = read(&store);
        drop(store);
        (SledCopySource::open(&dir, &options).expect("the source"), seen)
    }

    /// A filled store in the database that nobody has open, and what it shows.
    fn filled_database(&self) -> Seen {
        let options = self.options.clone();
        let creating = PostgresStore::create(options, CLUSTER, CLUSTER_NAME);
        let store = self.runtime.block_on(creating).expect("a store");
        fill(&store);
        read(&store)
    }

    fn source(&self) -> PostgresCopySource {
        self.runtime.block_on(PostgresCopySource::open(self.options.clone())).expect("the source")
    }

    fn target(&self, source: &dyn StoreContents) -> Result<PostgresCopyTarget, OpenError> {
        let identity = source.identity();
        self.runtime.block_on(PostgresCopyTarget::open(self.options.clone(), &identity))
    }

    fn open(&self) -> Result<PostgresStore, OpenError> {
        self.runtime.block_on(PostgresStore::open(self.options.clone()))
    }

    fn copied(
        &self,
        source: &mut dyn CopySource,
        target: &mut dyn CopyTarget,
    ) -> Result<Summary, CopyError> {
        self.runtime.block_on(copy(source, target, &Ok, &mut |_, _, _| ()))
    }
}

#[test]
fn sled_is_copied_to_postgres_and_goes_on_there() {
    let places = Places::new();
    let (mut source, seen) = places.filled_sled();
    let mut target = places.target(&source).expect("the target");
    let summary = places.copied(&mut source, &mut target).expect("a copy");
    let counts = ItemKind::ALL.map(|kind| summary.of(kind).count);
    assert_eq!(counts, [3, 2401, 2414, 1, 1100]);
    let store = places.open().expect("the copy");
    assert_eq!(read(&store), seen);
    goes_on(&store);
}

#[test]
fn postgres_is_copied_to_sled_and_goes_on_there() {
    let places = Places::new();
    let seen = places.filled_database();
    let mut source = places.source();
    let (dir, options) = (places.dir("to"), sled::Options::default());
    let mut target = SledCopyTarget::open(&dir, &options, &source.identity()).expect("the target");
    places.copied(&mut source, &mut target).expect("a copy");
    drop(target);
    let store = SledStore::open(&dir, &options).expect("the copy");
    assert_eq!(read(&store), seen);
    goes_on(&store);
    match places.open() {
        Err(OpenError::Moved { to }) => assert!(to.contains("/to (store "), "{to}"),
        other => panic!("the source was opened: {other:?}"),
    }
}

#[test]
fn an_interrupted_copy_to_postgres_continues() {
    let places = Places::new();
    let (mut source, seen) = places.filled_sled();
    for pages in [0, 1, 3] {
        let mut target = places.target(&source).expect("the target");
        let before = target.state();
        let mut faulty = Faulty { target: &mut target, pages, loses: None };
        places.copied(&mut source, &mut faulty).expect_err("an interrupted copy");
        assert_eq!(target.state() != before, pages > 0, "each page counts");
        assert!(matches!(places.open(), Err(OpenError::Unfinished)), "it is unfinished");
        let error = places.runtime.block_on(PostgresCopySource::open(places.options.clone()));
        assert!(matches!(error, Err(OpenError::Unfinished)), "nor is it copied");
    }
    let mut target = places.target(&source).expect("the target");
    places.copied(&mut source, &mut target).expect("the rest");
    assert_eq!(read(&places.open().expect("the copy")), seen);
    let error = places.target(&source).expect_err("a second copy");
    assert!(matches!(error, OpenError::Exists { .. }), "{error}");
}

#[test]
fn a_copy_in_postgres_that_lacks_an_item_is_unusable() {
    for kind in ItemKind::ALL {
        let places = Places::new();
        let (mut source, _) = places.filled_sled();
        let mut target = places.target(&source).expect("the target");
        let mut faulty = Faulty { target: &mut target, pages: 1000, loses: Some(kind) };
        match (places.copied(&mut source, &mut faulty), kind) {
            (Err(CopyError::Differs { kind: found, .. }), _) => assert_eq!(found, kind),
            // The records of a shard without a row are refused.
            (Err(CopyError::Store(_)), ItemKind::Shards) => {}
            (other, _) => panic!("a copy without one of the {kind}: {other:?}"),
        }
        assert!(matches!(places.open(), Err(OpenError::Unfinished)));
    }
}

#[test]
fn r26_a_node_that_still_runs_cannot_write_to_a_moved_store() {
    let places = Places::new();
    places.filled_database();
    let running = places.open().expect("a node's store");
    let writes = || {
        let (shards, next) = (0..8, running.identity().open_count);
        let claims = shards.map(|number| {
            let mut claim = ostraca_store::conformance::claim_of(
                ostraca_store::conformance::shard(number + 10),
                next,
                1,
            );
            claim.epoch.0 += u64::from(number);
            claim
        });
        block_on(running.claim(claims.collect()))
    };
    let mut source = places.source();
    assert!(!places.runtime.block_on(source.is_in_use()).expect("an answer"));
    assert!(writes().iter().all(|outcome| matches!(outcome, ClaimOutcome::Granted)));
    assert!(places.runtime.block_on(source.is_in_use()).expect("an answer"), "it was used");
    let to = Destination { store_id: 7, place: "elsewhere".into() };
    places.runtime.block_on(source.mark_moved(&to)).expect_err("it was used meanwhile");
    assert!(places.open().is_ok(), "it is not moved");
    let mut source = places.source();
    places.runtime.block_on(source.mark_moved(&to)).expect("the mark");
    let refused = writes();
    assert!(refused.iter().all(|outcome| !matches!(outcome, ClaimOutcome::Granted)), "{refused:?}");
    let refused = writes();
    assert!(format!("{refused:?}").contains("moved to elsewhere"), "{refused:?}");
}
