//! The suite that every backend must pass.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_store::ClusterStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};
use ostraca_store_kubernetes::{KubernetesStore, Options};
use ostraca_test_servers::kubernetes::{ApiServer, Rates};
use tokio::runtime::Runtime;

use super::real_or;

/// Runs the suite with stores of their own names.
fn check(options: Options) {
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let names: Arc<Mutex<HashMap<u128, Options>>> = Arc::default();
    let (on, known, count) = (runtime.clone(), names.clone(), AtomicU32::new(0));
    let run: u64 = rand::random();
    let make = move || {
        let name = format!("t{run:x}-{}", count.fetch_add(1, Ordering::Relaxed));
        let options = Options { name, ..options.clone() };
        let creating = KubernetesStore::create(options.clone(), CLUSTER, CLUSTER_NAME);
        let store = on.block_on(creating).expect("a store");
        known.lock().expect("names").insert(store.identity().store_id, options);
        store
    };
    let reopen = move |store: KubernetesStore| {
        let options = names.lock().expect("names")[&store.identity().store_id].clone();
        drop(store);
        runtime.block_on(KubernetesStore::open(options)).expect("the same store")
    };
    // Its history is filled by another task, so `restarts.rs` tests what a watch that falls behind gets.
    conformance::check_cluster_store(&Factory::new(make).reopening(reopen), 0);
}

#[test]
fn kubernetes_keeps_the_contract_of_cluster_stores() {
    let server = ApiServer::start();
    check(real_or(&server));
}

#[test]
fn the_contract_holds_with_pages_of_one_row() {
    let server = ApiServer::start();
    check(Options { page_rows: 1, connections: 1, ..real_or(&server) });
}

#[test]
fn the_contract_holds_while_requests_fail() {
    for seed in 0..4 {
        let server = ApiServer::start();
        // The suite expects no watch to miss changes; `random.rs` lets watches expire.
        server.inject(Some(Rates { watch_expires: 0, ..Rates::SETTLED }), seed);
        println!("seed {seed}");
        let call_timeout = Duration::from_secs(60);
        let options = Options::new(server.url(), "default");
        check(Options { call_timeout, page_rows: 2, ..options });
    }
}
