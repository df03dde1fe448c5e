//! The suites that every backend must pass, on a real server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ostraca_store::EntityStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};
use ostraca_store_postgres::{Options, PostgresStore};
use ostraca_test_servers::postgres::Server;
use tokio::runtime::Runtime;

fn factory() -> Factory<PostgresStore> {
    let server = Arc::new(Server::start(""));
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let urls: Arc<Mutex<HashMap<u128, String>>> = Arc::default();
    let (on, known) = (runtime.clone(), urls.clone());
    let make = move || {
        let url = server.url(&server.database());
        let creating = PostgresStore::create(Options::new(url.clone()), CLUSTER, CLUSTER_NAME);
        let store = on.block_on(creating).expect("a store");
        let id = EntityStore::identity(&store).store_id;
        known.lock().expect("urls").insert(id, url);
        store
    };
    let reopen = move |store: PostgresStore| {
        let url = urls.lock().expect("urls")[&EntityStore::identity(&store).store_id].clone();
        drop(store);
        runtime.block_on(PostgresStore::open(Options::new(url))).expect("the same store")
    };
    Factory::new(make).reopening(reopen)
}

#[test]
fn postgres_keeps_the_contract_of_entity_stores() {
    conformance::check_entity_store(&factory());
}

#[test]
fn postgres_keeps_the_contract_of_cluster_stores() {
    // Its history is filled by another task, so `rows.rs` tests what a watch that falls behind gets.
    conformance::check_cluster_store(&factory(), 0);
}
