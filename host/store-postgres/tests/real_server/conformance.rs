//! The suites that every backend must pass, on a real server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ostraca_store::EntityStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};
use ostraca_store_postgres::{Options, PostgresStore};
use ostraca_test_servers::pgbouncer::Pooler;
use ostraca_test_servers::postgres::Server;
use tokio::runtime::Runtime;

use crate::clock;

/// The server's clock is wrong by this many years: nothing depends on it (R8).
fn factory(years: i64) -> Factory<PostgresStore> {
    let server = clock::server(years);
    stores(move || Options::new(server.url(&server.database())))
}

/// Makes stores: each in an empty database, for which `next` returns the settings.
pub(crate) fn stores(next: impl Fn() -> Options + Send + Sync + 'static) -> Factory<PostgresStore> {
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let settings: Arc<Mutex<HashMap<u128, Options>>> = Arc::default();
    let (on, known) = (runtime.clone(), settings.clone());
    let make = move || {
        let options = next();
        let creating = PostgresStore::create(options.clone(), CLUSTER, CLUSTER_NAME);
        let store = on.block_on(creating).expect("a store");
        let id = EntityStore::identity(&store).store_id;
        known.lock().expect("settings").insert(id, options);
        store
    };
    let reopen = move |store: PostgresStore| {
        let id = EntityStore::identity(&store).store_id;
        let options = settings.lock().expect("settings")[&id].clone();
        drop(store);
        runtime.block_on(PostgresStore::open(options)).expect("the same store")
    };
    Factory::new(make).reopening(reopen)
}

#[test]
fn postgres_keeps_the_contract_of_entity_stores() {
    conformance::check_entity_store(&factory(-30));
}

#[test]
fn r26_shards_move_between_databases() {
    conformance::check_shard_moves(&factory(0));
}

#[test]
fn m1_pools_are_copied_within_a_database() {
    conformance::check_pool_copies(&factory(0));
}

#[test]
fn postgres_keeps_the_contract_of_cluster_stores() {
    // Its history is filled by another task, so `rows.rs` tests what a watch that falls behind gets.
    conformance::check_cluster_store(&factory(30), 0);
}

/// Through a pooler that lends a connection for each transaction: no notifications, and no settings of a connection.
#[test]
fn a_pooler_keeps_the_contract_of_both_stores() {
    let make = || {
        let server = Server::start("");
        let pooler = Pooler::start(&server);
        stores(move || {
            let url = pooler.url(&server.database());
            Options { listen: false, ..Options::new(url) }
        })
    };
    conformance::check_entity_store(&make());
    conformance::check_cluster_store(&make(), 0);
}
