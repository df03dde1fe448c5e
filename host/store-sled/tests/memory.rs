//! Tests that the memory that batches replace is freed. This is a separate test program, because all stores of a
//! process share one queue of memory to be freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::executor::block_on;
use ostraca_core::ids::{Entity, Epoch, Incarnation, NodeId, ShardId, ShardPath, TurnId};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, Head, RecordKey, RecordWrite,
};
use ostraca_core::rows::Member;
use ostraca_store::EntityStore;
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME};
use ostraca_store_sled::{Options, SledStore};

/// A turn that writes 20,000 records.
fn turn(claim: &Arc<Claim>, from: u64) -> Commit {
    let turn = TurnId { nonce: 1, shard: 1, epoch: claim.epoch, number: from };
    let write = |key: u32| RecordWrite {
        key: RecordKey::State(key.to_be_bytes().to_vec().into()),
        value: Some(from.to_be_bytes().to_vec().into()),
    };
    Commit {
        claim: claim.clone(),
        entity: Entity::new("counter", "a"),
        expected_version: from,
        head: Head { version: from + 1, turn, ..Head::default() },
        writes: (0..20_000).map(write).collect(),
        extensions: Default::default(),
    }
}

#[test]
fn memory_replaced_by_a_batch_is_freed_after_it() {
    let dir = tempfile::tempdir().unwrap();
    // sled's own flushes also free a little.
    let options = Options { flush_interval: Duration::from_secs(3600), ..Options::default() };
    let store = SledStore::create(dir.path(), &options, CLUSTER, CLUSTER_NAME).unwrap();
    let claim = Arc::new(Claim {
        cluster: CLUSTER,
        shard: ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(1) },
        epoch: Epoch(1),
        owner: Member { node: NodeId::from("a"), incarnation: Incarnation::default() },
        number: 1,
        extensions: Default::default(),
    });
    assert_eq!(block_on(store.claim(vec![(*claim).clone()])), [ClaimOutcome::Granted]);
    let write = |from| {
        let outcomes = block_on(store.commit(vec![turn(&claim, from)]));
        assert_eq!(outcomes, [CommitOutcome::Committed]);
    };
    (0..5).for_each(write);
    // The closure below runs only after everything that these batches replaced has been freed. A thread's garbage
    // joins the queue when the thread ends.
    let freed = Arc::new(AtomicBool::new(false));
    let free = freed.clone();
    let last = move || crossbeam_epoch::pin().defer(move || free.store(true, Ordering::Relaxed));
    std::thread::spawn(last).join().unwrap();
    // One round is enough, unless a thread is delayed. Without the flushes it would take about seventy rounds.
    for from in 5..15 {
        write(from);
        if freed.load(Ordering::Relaxed) {
            return;
        }
    }
    panic!("replaced memory accumulates");
}
