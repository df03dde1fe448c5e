//! The store on a disk that is full in spite of the low-water mark.

use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::records::{Claim, Commit, CommitOutcome, Head, RecordKey, RecordWrite};
use ostraca_store::EntityStore;
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME, claim_of, shard};
use ostraca_store_sled::{Options, SledStore};
use ostraca_test_servers::disk::SmallDisk;

fn turn(claim: &Arc<Claim>, from: u64) -> Commit {
    let mut value = vec![0; 200_000];
    blake3::Hasher::new().update(&from.to_le_bytes()).finalize_xof().fill(&mut value);
    let key = RecordKey::State(Bytes::copy_from_slice(&from.to_be_bytes()));
    let turn = TurnId { nonce: 11, shard: 1, epoch: claim.epoch, number: from };
    Commit {
        claim: claim.clone(),
        entity: Entity::new("counter", "e"),
        expected_version: from,
        head: Head { version: from + 1, turn, ..Head::default() },
        writes: vec![RecordWrite { key, value: Some(value.into()) }],
        extensions: Default::default(),
    }
}

#[test]
fn a_full_disk_loses_no_acknowledged_turn() {
    let disk = SmallDisk::new(64 << 20);
    let dir = disk.path().join("store");
    let options = Options { low_water_bytes: 0, ..Options::default() };
    let store = SledStore::create(&dir, &options, CLUSTER, CLUSTER_NAME).expect("a store");
    let claim = Arc::new(claim_of(shard(1), 1, 1));
    block_on(store.claim(vec![(*claim).clone()]));
    let mut acknowledged = 0;
    disk.fill(4 << 20);
    let full = loop {
        match block_on(store.commit(vec![turn(&claim, acknowledged)])).remove(0) {
            CommitOutcome::Committed => acknowledged += 1,
            other => break other,
        }
        assert!(acknowledged < 1_000, "it is never full");
    };

    assert!(matches!(full, CommitOutcome::Unknown(_)), "{full:?}");
    drop(store);
    disk.free();
    let store = SledStore::open(&dir, &options).expect("the same store");
    let loaded = block_on(store.load(vec![(shard(1), Entity::new("counter", "e"))])).remove(0);
    let found = loaded.expect("a load").head.map_or(0, |head| head.version);
    assert!((acknowledged..=acknowledged + 1).contains(&found), "{found} of {acknowledged}");
    let again = block_on(store.commit(vec![turn(&claim, acknowledged)])).remove(0);
    let expected = match found == acknowledged {
        true => CommitOutcome::Committed,
        false => CommitOutcome::AlreadyCommitted,
    };
    assert_eq!(again, expected);
}
