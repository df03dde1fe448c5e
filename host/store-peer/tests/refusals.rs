//! What a serving node refuses, and which stores a client refuses to use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::net::{LinkFaults, Net, Serve};
use common::remote::{Remote, quick};
use common::{claim, member, shard, turn};
use futures::executor::block_on;
use ostraca_core::ids::{ClusterId, Entity};
use ostraca_core::records::{ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME};
use ostraca_store::{EntityStore, MemoryStore, StoreError};
use ostraca_store_peer::protocol::{
    Hello, MAX_LOADS, Request, Response, ResponseBody, VERSION, decode, encode,
};
use ostraca_store_peer::{
    ClusterServer, ConnectError, EntityServer, PeerEntityStore, ServerOptions, StoreVerifier,
};
use ostraca_store_sled::{Options, SledStore};
use tokio::runtime::Runtime;

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(1, CLUSTER, CLUSTER_NAME))
}

fn answer(bytes: &[u8]) -> ResponseBody {
    decode::<Response>(bytes).unwrap().body
}

fn hello(cluster: ClusterId) -> Request {
    Request::Hello(Hello { cluster, client: 1, link: 1 })
}

/// One link's calls.
type Ask = Box<dyn FnMut(&[u8]) -> ResponseBody>;

#[test]
fn bad_input_gets_an_error_and_has_no_effect() {
    let store = memory();
    let entities = EntityServer::new(store.clone(), ServerOptions::default());
    let rows = ClusterServer::new(store.clone(), ServerOptions::default());
    let mut entity = entities.link(&member("a"));
    let mut cluster = rows.link(&member("a"));
    let mut ask: [Ask; 2] = [
        Box::new(move |body| answer(&block_on(entity.call(body)))),
        Box::new(move |body| answer(&block_on(cluster.call(body)))),
    ];
    let refused = |answer: ResponseBody, expected_text: &str| match answer {
        ResponseBody::Refused(why) => assert!(why.contains(expected_text), "{why}"),
        other => panic!("{other:?}"),
    };
    for ask in &mut ask {
        refused(ask(&encode(&Request::CurrentClaims(vec![shard()])).unwrap()), "hello");
        refused(ask(&encode(&hello(ClusterId(9))).unwrap()), CLUSTER_NAME);
        assert!(matches!(ask(&encode(&hello(CLUSTER)).unwrap()), ResponseBody::Hello { .. }));
        for rubbish in [&b""[..], &[VERSION], &[VERSION, 3, 0xff, 0xff], &[0; 1000]] {
            assert!(matches!(ask(rubbish), ResponseBody::Refused(_)));
        }
        // A call of a later release does not close the link.
        assert_eq!(ask(&[VERSION, 14, 1, 2, 3]), ResponseBody::Unsupported { call: 14 });
        refused(ask(&[VERSION + 1, 0]), "version 3");
        refused(ask(&vec![VERSION; 2 << 20]), "exceeds the limit of");
        refused(ask(&encode(&hello(CLUSTER)).unwrap()), "arrived after");
    }
    let [entity, cluster] = &mut ask;
    let many = vec![(shard(), Entity::new("counter", "x")); MAX_LOADS + 1];
    refused(entity(&encode(&Request::Load(many)).unwrap()), "at most 1024 entities");
    refused(entity(&encode(&Request::Get("k".into())).unwrap()), "control connection");
    refused(cluster(&encode(&Request::CurrentClaims(vec![])).unwrap()), "bulk connection");
}

#[test]
fn a_node_may_write_in_its_own_name_only() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let (own, foreign) = (claim("a", 1), claim("b", 1));
    let outcomes = block_on(remote.a.claim(vec![foreign.clone(), own.clone(), foreign.clone()]));
    let [ClaimOutcome::Failed(why), ClaimOutcome::Granted, ClaimOutcome::Failed(_)] = &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert!(why.contains("node a") && why.contains("node b"), "{why}");
    let turns = vec![turn(&own, "x", 0), turn(&foreign, "y", 0), turn(&own, "x", 1)];
    let outcomes = block_on(remote.a.commit(turns));
    let [
        CommitOutcome::Committed,
        CommitOutcome::Refused(CommitRefusal::LimitReached(why)),
        CommitOutcome::Committed,
    ] = &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert!(why.contains("on behalf of node b"), "{why}");
    let other_cluster = ostraca_core::records::Claim { cluster: ClusterId(9), ..claim("a", 2) };
    let outcomes = block_on(remote.a.claim(vec![other_cluster]));
    assert_eq!(outcomes, [ClaimOutcome::OtherCluster { store_cluster: CLUSTER }]);
}

#[test]
fn watches_beyond_their_limit_are_lost_until_others_end() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let watching = |number: u64| {
        let mut watch = ostraca_store::ClusterStore::watch(&remote.rows, "", number);
        assert!(futures::FutureExt::now_or_never(watch.next()).is_none());
        watch
    };
    for _ in 0..2 {
        let watches: Vec<_> = (0..64).map(|_| watching(0)).collect();
        let mut beyond = ostraca_store::ClusterStore::watch(&remote.rows, "", 0);
        assert_eq!(block_on(beyond.next()), ostraca_store::RowEvent::ResyncRequired);
        drop(watches);
    }
}

/// A node that reaches whichever store is currently served.
struct SwappableStore {
    store: Arc<Mutex<Arc<dyn EntityStore>>>,
    weather: Arc<LinkFaults>,
    runtime: Runtime,
}

impl SwappableStore {
    fn new(store: Arc<dyn EntityStore>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self { store: Arc::new(Mutex::new(store)), weather: LinkFaults::new(0, 1), runtime }
    }

    fn put(&self, store: Arc<dyn EntityStore>) {
        *self.store.lock().unwrap() = store;
        self.weather.break_links();
    }

    fn reach(&self, known: &Arc<StoreVerifier>) -> Result<PeerEntityStore, ConnectError> {
        let store = self.store.clone();
        let serve = move || -> Serve {
            let store = store.lock().unwrap().clone();
            let mut link = EntityServer::new(store, ServerOptions::default()).link(&member("a"));
            Box::new(move |body| link.call(body))
        };
        let (weather, runtime) = (self.weather.clone(), self.runtime.handle().clone());
        let made =
            PeerEntityStore::connect(Net { serve, weather, runtime }, known.clone(), quick());
        let (store, driver) = self.runtime.block_on(made)?;
        self.runtime.spawn(driver.run());
        Ok(store)
    }
}

fn known(path: Option<PathBuf>) -> Arc<StoreVerifier> {
    StoreVerifier::open(CLUSTER, path).unwrap()
}

/// The store's first error other than a missing link.
fn first_error(store: &PeerEntityStore) -> Result<(), StoreError> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match block_on(store.current_claims(vec![])) {
            Err(StoreError::Unavailable(why)) => assert!(Instant::now() < until, "{why}"),
            Err(other) => return Err(other),
            Ok(_) => return Ok(()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_swapped_store_is_refused_and_the_right_one_accepted() {
    let right = memory();
    let place = SwappableStore::new(right.clone());
    let store = place.reach(&known(None)).unwrap();
    assert_eq!(first_error(&store), Ok(()));
    let wrong = MemoryStore::new(2, CLUSTER, CLUSTER_NAME);
    place.put(Arc::new(wrong.clone()));
    let why = first_error(&store).unwrap_err();
    assert!(matches!(&why, StoreError::Stopped(why) if why.contains("another store")), "{why}");
    let first = claim("a", 1);
    assert!(matches!(block_on(store.claim(vec![first]))[..], [ClaimOutcome::Failed(_)]));
    assert_eq!(block_on(wrong.current_claims(vec![shard()])), Ok(vec![None]), "no call reached it");
    place.put(right);
    let until = Instant::now() + Duration::from_secs(20);
    while block_on(store.current_claims(vec![])).is_err() {
        assert!(Instant::now() < until, "the original is not accepted again");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { drop(std::fs::copy(&path, &target)) }
    }
}

#[test]
fn a_rolled_back_or_forked_store_is_refused_after_restarts() {
    let root = tempfile::tempdir().unwrap();
    let [dir, old, witness] = ["store", "old", "witness"].map(|name| root.path().join(name));
    let options = Options::default();
    drop(SledStore::create(&dir, &options, CLUSTER, CLUSTER_NAME).unwrap());
    copy(&dir, &old);

    // After the copy was made, the node sees two openings of the store, and acknowledged turns.
    for opening in 0..2 {
        let place = SwappableStore::new(Arc::new(SledStore::open(&dir, &options).unwrap()));
        let known = known(Some(witness.clone()));
        let store = place.reach(&known).unwrap();
        if opening == 0 {
            let claim = claim("a", 1);
            assert_eq!(block_on(store.claim(vec![claim.clone()])), [ClaimOutcome::Granted]);
            let turns = (0..3).map(|from| turn(&claim, "x", from)).collect();
            assert_eq!(block_on(store.commit(turns)), vec![CommitOutcome::Committed; 3]);
            known.persist().unwrap();
        }
        drop(store);
        place.runtime.shutdown_timeout(Duration::from_secs(10));
    }

    let refused = |dir: &std::path::Path, expected_text: &str| {
        let place = SwappableStore::new(Arc::new(SledStore::open(dir, &options).unwrap()));
        match place.reach(&known(Some(witness.clone()))) {
            Err(ConnectError::Refused(why)) => {
                assert!(why.contains(expected_text) && why.contains("witness"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        place.runtime.shutdown_timeout(Duration::from_secs(10));
    };
    refused(&old, "rolled back");
    {
        // The copy continues with a different history.
        let forked = SledStore::open(&old, &options).unwrap();
        let claim = claim("a", 1);
        block_on(forked.claim(vec![claim.clone()]));
        let turns = (0..50).map(|from| turn(&claim, "x", from)).collect();
        assert!(block_on(forked.commit(turns)).iter().all(|it| *it == CommitOutcome::Committed));
    }
    drop(SledStore::open(&old, &options).unwrap());
    refused(&old, "forked");

    let place = SwappableStore::new(Arc::new(SledStore::open(&dir, &options).unwrap()));
    let store = place
        .reach(&known(Some(witness.clone())))
        .expect("the refusals did not change the witness");
    assert_eq!(store.identity().open_count, 4);
    place.runtime.shutdown_timeout(Duration::from_secs(10));
    assert!(matches!(
        StoreVerifier::open(CLUSTER, Some(root.path().to_owned())),
        Err(ConnectError::Io { .. })
    ));
}
