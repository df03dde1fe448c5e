//! Both stores keep their contracts over links, steady and breaking, whichever backend is behind them.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::lasting::Lasting;
use common::net::Weather;
use common::remote::Remote;
use ostraca_store::MemoryStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};

/// One call in so many breaks its link.
const BREAKS: u64 = 8;

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(1, CLUSTER, CLUSTER_NAME))
}

#[test]
fn entities_are_kept_over_a_steady_link() {
    conformance::entity_store(&Factory::new(|| Remote::new(&memory(), 0)));
}

#[test]
fn rows_are_kept_over_a_steady_link() {
    conformance::cluster_store(&Factory::new(|| Remote::new(&memory(), 0)), 1025);
}

/// Sees to it that links did break.
#[derive(Clone, Default)]
struct Seen(Rc<RefCell<Vec<Arc<Weather>>>>);

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
fn entities_are_kept_while_the_link_breaks_again_and_again() {
    let seen = Seen::default();
    let make = seen.clone();
    conformance::entity_store(&Factory::new(move || {
        Lasting::new(make.of(Remote::new(&memory(), BREAKS)))
    }));
    assert!(seen.breaks() > 200, "{} breaks", seen.breaks());
}

#[test]
fn rows_are_kept_while_the_link_breaks_again_and_again() {
    let seen = Seen::default();
    let make = seen.clone();
    let make = move || Lasting::new(make.of(Remote::new(&memory(), BREAKS)));
    conformance::cluster_store(&Factory::new(make), 1025);
    assert!(seen.breaks() > 100, "{} breaks", seen.breaks());
}
