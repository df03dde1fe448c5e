//! The store on an API server: one of the tests, or a real one that `OSTRACA_TEST_KUBERNETES` names.

mod conformance;
mod faults;
mod objects;
mod random;
mod refusals;
mod restarts;

use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, RowEvent, StoreError};
use ostraca_store_kubernetes::{KubernetesStore, Options};
use ostraca_test_servers::kubernetes::ApiServer;
use tokio::time::timeout;

const CLUSTER: ClusterId = ClusterId(7);
/// A bound on what the tests wait for.
const TIMEOUT: Duration = Duration::from_secs(60);

fn cas(key: &str, expected: Option<u64>, value: &str) -> CompareAndSet {
    CompareAndSet { key: key.into(), expected, value: Some(value.to_owned().into()) }
}

fn delete(key: &str, expected: u64) -> CompareAndSet {
    CompareAndSet { key: key.into(), expected: Some(expected), value: None }
}

fn options(server: &ApiServer) -> Options {
    Options::new(server.url(), "default")
}

/// The settings for a real API server, or for this one. `OSTRACA_TEST_KUBERNETES` is the address of a real one,
/// `OSTRACA_TEST_KUBERNETES_TOKEN` and `OSTRACA_TEST_KUBERNETES_CA` are files with the token and the certificate of its
/// authority. Its namespace is `default`, and the stores of the tests stay there.
fn real_or(server: &ApiServer) -> Options {
    let variable = |name| std::env::var(name).ok();
    let Some(url) = variable("OSTRACA_TEST_KUBERNETES") else { return options(server) };
    Options {
        token_file: variable("OSTRACA_TEST_KUBERNETES_TOKEN").map(Into::into),
        ca_file: variable("OSTRACA_TEST_KUBERNETES_CA").map(Into::into),
        ..Options::new(url, "default")
    }
}

async fn create(server: &ApiServer) -> KubernetesStore {
    let creating = KubernetesStore::create(options(server), CLUSTER, "test");
    creating.await.expect("a store")
}

async fn next(watch: &mut Box<dyn ostraca_store::Watch>) -> RowEvent {
    timeout(TIMEOUT, watch.next()).await.expect("an event")
}

fn revision(event: &RowEvent) -> u64 {
    event.key_and_revision().map_or(0, |(_, revision)| revision)
}

fn is_unknown(result: &Result<u64, CompareAndSetError>) -> bool {
    matches!(result, Err(CompareAndSetError::Store(StoreError::Unavailable(_))))
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

/// The store's rows and revision.
async fn rows(store: &KubernetesStore) -> (Vec<ostraca_store::StoredRow>, u64) {
    store.list("").await.expect("rows")
}
