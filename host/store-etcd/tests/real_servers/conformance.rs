//! The suite that every backend must pass, on a real server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ostraca_store::ClusterStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};
use ostraca_store_etcd::{EtcdStore, Options};
use ostraca_test_servers::etcd::Cluster;
use tokio::runtime::Runtime;

#[test]
fn etcd_keeps_the_contract_of_cluster_stores() {
    check(Cluster::start(3));
}

pub(crate) fn check(etcd: Cluster) {
    let etcd = Arc::new(etcd);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let prefixes: Arc<Mutex<HashMap<u128, String>>> = Arc::default();
    let (on, known, at, count) =
        (runtime.clone(), prefixes.clone(), etcd.clone(), AtomicU32::new(0));
    let options =
        |etcd: &Cluster, prefix: String| Options { prefix, ..Options::new(etcd.endpoints()) };
    let make = move || {
        let prefix = format!("t{}/", count.fetch_add(1, Ordering::Relaxed));
        let creating = EtcdStore::create(options(&at, prefix.clone()), CLUSTER, CLUSTER_NAME);
        let store = on.block_on(creating).expect("a store");
        known.lock().expect("prefixes").insert(store.identity().store_id, prefix);
        store
    };
    let reopen = move |store: EtcdStore| {
        let prefix = prefixes.lock().expect("prefixes")[&store.identity().store_id].clone();
        drop(store);
        runtime.block_on(EtcdStore::open(options(&etcd, prefix))).expect("the same store")
    };
    // Its history is filled by another task, so `faults.rs` tests what a watch that falls behind gets.
    conformance::check_cluster_store(&Factory::new(make).reopening(reopen), 0);
}
