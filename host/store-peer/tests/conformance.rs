//! Both stores satisfy their contracts over stable and breaking links, with each backend.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::net::LinkFaults;
use common::quic;
use common::remote::Remote;
use common::retrying::{Numbers, RetryingStore};
use ostraca_store::MemoryStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};
use ostraca_store_sled::{Options, SledStore};

/// One in this many calls breaks the link on which it is sent.
const BREAKS: u64 = 8;

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(1, CLUSTER, CLUSTER_NAME))
}

#[test]
fn the_entity_store_contract_holds_over_a_steady_link() {
    conformance::check_entity_store(&Factory::new(|| Remote::new(&memory(), 0)));
}

#[test]
fn the_cluster_store_contract_holds_over_a_steady_link() {
    conformance::check_cluster_store(&Factory::new(|| Remote::new(&memory(), 0)), 1025);
}

/// Counts the broken links of all stores of a test, so that a test in which no link broke fails.
#[derive(Clone, Default)]
struct Seen(Rc<RefCell<Vec<Arc<LinkFaults>>>>);

impl Seen {
    fn of(&self, remote: Remote) -> Remote {
        self.0.borrow_mut().extend([remote.weather.clone(), remote.control.clone()]);
        remote
    }

    fn breaks(&self) -> usize {
        self.0.borrow().iter().map(|weather| weather.broken.load(Ordering::Relaxed)).sum()
    }
}

#[test]
fn the_entity_store_contract_holds_over_a_breaking_link() {
    let seen = Seen::default();
    let make = seen.clone();
    conformance::check_entity_store(&Factory::new(move || {
        RetryingStore::new(make.of(Remote::new(&memory(), BREAKS)))
    }));
    assert!(seen.breaks() > 200, "{} breaks", seen.breaks());
}

#[test]
fn the_cluster_store_contract_holds_over_a_breaking_link() {
    let seen = Seen::default();
    let make = seen.clone();
    let make = move || RetryingStore::new(make.of(Remote::new(&memory(), BREAKS)));
    conformance::check_cluster_store(&Factory::new(make), 1025);
    assert!(seen.breaks() > 100, "{} breaks", seen.breaks());
}

fn sled_options() -> Options {
    Options { batch_commits: 4, head_cache: 3, watch_history_changes: 50, ..Options::default() }
}

/// New sled stores, each wrapped by `over`.
fn sled<S: 'static>(
    over: impl Fn(&Arc<SledStore>) -> S + Clone + 'static,
    close: impl Fn(S) -> SledStore + 'static,
) -> Factory<S> {
    let root = tempfile::tempdir().expect("a temporary directory");
    let count = std::cell::Cell::new(0);
    let again = over.clone();
    let make = move || {
        count.set(count.get() + 1);
        let dir = root.path().join(count.get().to_string());
        over(&Arc::new(SledStore::create(&dir, &sled_options(), CLUSTER, CLUSTER_NAME).unwrap()))
    };
    Factory::new(make).reopening(move |store| {
        let store = close(store);
        let dir = store.dir().to_owned();
        drop(store);
        again(&Arc::new(SledStore::open(&dir, &sled_options()).unwrap()))
    })
}

#[test]
fn a_sled_store_keeps_both_contracts_over_quic() {
    let over = |store: &Arc<SledStore>| quic::remote(store, false);
    conformance::check_entity_store(&sled(over, Remote::into_backend));
    conformance::check_cluster_store(&sled(over, Remote::into_backend), 51);
}

#[test]
fn a_memory_store_keeps_both_contracts_over_quic() {
    let factory = || Factory::new(|| quic::remote(&memory(), false));
    conformance::check_entity_store(&factory());
    conformance::check_cluster_store(&factory(), 1025);
}

#[test]
fn both_contracts_hold_over_quic_while_connections_break() {
    let seen = Seen::default();
    let make = seen.clone();
    // Shared by all stores of this test, so numbers are higher than necessary.
    let numbers = Numbers::default();
    let over = move |store: &Arc<SledStore>| {
        RetryingStore::again(make.of(quic::remote(store, true)), numbers.clone())
    };
    let close = |lasting: RetryingStore<Remote>| lasting.into_inner().into_backend();
    conformance::check_entity_store(&sled(over.clone(), close));
    conformance::check_cluster_store(&sled(over, close), 51);
    assert!(seen.breaks() > 100, "{} breaks", seen.breaks());
}
