//! The store on real etcd servers, which the tests install from Debian's packages if they may, start on ports of their
//! own, and stop.

mod clock;
mod conformance;
mod faults;
mod full_disk;
mod refusals;

use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_store::{CompareAndSet, CompareAndSetError, RowEvent, StoreError};
use ostraca_store_etcd::{EtcdStore, Options};
use ostraca_test_servers::etcd::Cluster;
use tokio::time::timeout;

const CLUSTER: ClusterId = ClusterId(7);
/// A bound on what the tests wait for.
const TIMEOUT: Duration = Duration::from_secs(60);

fn cas(key: &str, expected: Option<u64>, value: &str) -> CompareAndSet {
    CompareAndSet { key: key.into(), expected, value: Some(value.to_owned().into()) }
}

async fn create(etcd: &Cluster) -> EtcdStore {
    let creating = EtcdStore::create(Options::new(etcd.endpoints()), CLUSTER, "test");
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
