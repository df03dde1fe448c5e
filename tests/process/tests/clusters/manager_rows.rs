//! The managers' rows in the store, read after all nodes have stopped: every row of assignments has the last
//! manager's term (R10), and no epoch has gone back (R5).

use std::collections::BTreeMap;

use ostraca_core::rows::{AssignmentsRow, ManagerRow, chunk_count};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{NO_STORE, Options, View};
use ostraca_store::ClusterStore;
use ostraca_store_sled::{Options as StoreOptions, SledStore};
use serde::de::DeserializeOwned;

/// Enough shards for four rows of assignments.
const SHARDS: u32 = 200;
const CHANGES: usize = 3;

/// Decodes a row, which is a format byte followed by its value.
fn read<T: DeserializeOwned>(value: &[u8]) -> T {
    postcard::from_bytes(value.get(1..).expect("a format byte")).expect("a row")
}

fn epochs(view: &View) -> BTreeMap<u32, u64> {
    view.shards.iter().map(|shard| (shard.shard, shard.epoch)).collect()
}

async fn another_manages(cluster: &mut Cluster, than: &str) -> View {
    let another =
        |view: &View| view.manager().is_some_and(|name| name != than) && view.settled(SHARDS);
    cluster
        .wait("another node is the manager and all shards are served", another)
        .await
        .expect("a manager")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_manager_seals_all_rows_and_epochs_never_decrease() {
    let roles = ["store,host,gateway", NO_STORE, NO_STORE];
    let options = Options { shards: SHARDS, ..Options::new("manager-rows", &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let mut view = cluster.wait_settled().await.expect("settled");
    for _ in 0..CHANGES {
        let (before, term) = (epochs(&view), view.nodes.term);
        let manager = cluster.manager().await.expect("manager");
        cluster.kill_9(manager).expect("kill");
        view = another_manages(&mut cluster, &format!("n{}", manager + 1)).await;
        assert!(view.nodes.term > term, "term {} after {term}", view.nodes.term);
        let now = epochs(&view);
        assert!(before.iter().all(|(shard, epoch)| now[shard] >= *epoch), "{before:?} {now:?}");
        cluster.start_node(manager).expect("start again");
    }
    let (store, term) = (cluster.home(0).store(), view.nodes.term);
    let witness = cluster.home(0).dir().join("witness");
    // The store's node is killed last, and without a pause, so that no shard moves to the remaining node.
    for node in [1, 2, 0] {
        cluster.kill_9(node).expect("kill");
    }
    let options = StoreOptions { witness: Some(witness), ..StoreOptions::default() };
    let store = SledStore::open(&store, &options).expect("the store");
    let manager = store.get("manager").await.expect("read").expect("a manager's row");
    let manager: ManagerRow = read(&manager.value);
    assert_eq!(manager.term, term, "{manager:?}");
    let (rows, _) = store.list("shards/").await.expect("read");
    assert_eq!(rows.len(), chunk_count(SHARDS) as usize);
    for row in rows {
        let chunk: AssignmentsRow = read(&row.value);
        assert_eq!(chunk.term, manager.term, "{} has another term", row.key);
        assert!(chunk.assignments.iter().all(|shard| shard.owner.is_some()), "{}", row.key);
    }
}
