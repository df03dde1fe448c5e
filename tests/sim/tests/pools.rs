//! Pools are copied within the memory store: each interruption is continued, and nothing is lost (M1, R23, R26).

use ostraca_store::MemoryStore;
use ostraca_store::conformance::{self, CLUSTER, CLUSTER_NAME, Factory};

fn factory() -> Factory<MemoryStore> {
    let count = std::cell::Cell::new(0);
    let make = move || {
        count.set(count.get() + 1);
        MemoryStore::new(count.get(), CLUSTER, CLUSTER_NAME)
    };
    Factory::new(make)
}

#[test]
fn m1_a_pool_is_copied_to_another_count_or_hash() {
    conformance::check_pool_copies(&factory());
}
