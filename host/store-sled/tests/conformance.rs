//! The sled store satisfies both contracts.

use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};
use ostraca_store_sled::{Options, SledStore};

fn options() -> Options {
    // Small limits, so that batches split, caches evict entries and watches fall behind.
    Options { batch_commits: 4, head_cache: 3, watch_history_changes: 50, ..Options::default() }
}

fn factory() -> Factory<SledStore> {
    let root = tempfile::tempdir().expect("a temporary directory");
    let count = std::cell::Cell::new(0);
    let make = move || {
        count.set(count.get() + 1);
        let dir = root.path().join(count.get().to_string());
        SledStore::create(&dir, &options(), CLUSTER, CLUSTER_NAME).expect("a new store")
    };
    Factory::new(make).reopening(|store| {
        let dir = store.dir().to_owned();
        drop(store);
        SledStore::open(&dir, &options()).expect("the reopened store")
    })
}

#[test]
fn the_sled_store_keeps_the_contract_of_entity_stores() {
    conformance::check_entity_store(&factory());
}

#[test]
fn the_sled_store_keeps_the_contract_of_cluster_stores() {
    conformance::check_cluster_store(&factory(), 51);
}

#[test]
fn r26_shards_move_between_sled_stores() {
    conformance::check_shard_moves(&factory());
}

#[test]
fn m1_pools_are_copied_within_a_sled_store() {
    conformance::check_pool_copies(&factory());
}
