//! Claims: R1, R4, R5, R26.

use std::sync::Arc;

use futures::executor::block_on;
use ostraca_core::ids::ClusterId;
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal, Placement};

use super::{CLUSTER, Factory, claim, claim_of, commit, owner, shard, turn};
use crate::EntityStore;

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    a_claim_replaces_only_a_lower_one(&factory.make());
    another_clusters_claim_is_refused_by_name(&factory.make());
    claims_are_answered_in_order_each_seeing_those_before(&factory.make());
    shards_of_other_pools_and_namespaces_are_other_shards(&factory.make());
    reading_claims_shows_earlier_claims(&factory.make());
    claims_survive_reopening(factory);
    no_epoch_passes_a_claim_of_absent_data(&factory.make());
}

fn current_claim(store: &impl EntityStore) -> Option<Claim> {
    block_on(store.current_claims(vec![shard(1)])).unwrap().remove(0)
}

fn a_claim_replaces_only_a_lower_one(store: &impl EntityStore) {
    assert_eq!(current_claim(store), None, "never claimed");
    let first = claim_of(shard(1), 5, 2);
    assert_eq!(claim(store, &first), ClaimOutcome::Granted);
    assert_eq!(claim(store, &first), ClaimOutcome::Granted, "a claim is idempotent");
    assert_eq!(current_claim(store), Some(first.clone()));

    let refused = [
        ("a lower epoch", claim_of(shard(1), 4, 9)),
        ("a lower number", claim_of(shard(1), 5, 1)),
        ("another node", Claim { owner: owner("b", 11), number: 9, ..first.clone() }),
        ("another incarnation", Claim { owner: owner("a", 12), number: 9, ..first.clone() }),
    ];
    for (why, other) in refused {
        let expected = ClaimOutcome::Refused { current: Box::new(first.clone()) };
        assert_eq!(claim(store, &other), expected, "{why}");
        assert_eq!(current_claim(store), Some(first.clone()), "{why}: nothing changed");
    }

    let next_number = claim_of(shard(1), 5, 3);
    assert_eq!(claim(store, &next_number), ClaimOutcome::Granted);
    let next_epoch = Claim { owner: owner("b", 11), ..claim_of(shard(1), 6, 1) };
    assert_eq!(claim(store, &next_epoch), ClaimOutcome::Granted);
    assert_eq!(current_claim(store), Some(next_epoch));
}

fn another_clusters_claim_is_refused_by_name(store: &impl EntityStore) {
    let foreign = Claim { cluster: ClusterId(1), ..claim_of(shard(1), 1, 1) };
    assert_eq!(claim(store, &foreign), ClaimOutcome::OtherCluster { store_cluster: CLUSTER });
    assert_eq!(current_claim(store), None);
    assert_eq!(store.identity().cluster, CLUSTER);
    assert_eq!(store.identity().cluster_name, super::CLUSTER_NAME);
}

fn claims_are_answered_in_order_each_seeing_those_before(store: &impl EntityStore) {
    let high = claim_of(shard(1), 2, 1);
    let requested = vec![claim_of(shard(2), 1, 1), high.clone(), claim_of(shard(1), 1, 1)];
    let refused = ClaimOutcome::Refused { current: Box::new(high.clone()) };
    assert_eq!(
        block_on(store.claim(requested)),
        [ClaimOutcome::Granted, ClaimOutcome::Granted, refused]
    );
    let read = block_on(store.current_claims(vec![shard(1), shard(3), shard(2)])).unwrap();
    assert_eq!(read, [Some(high), None, Some(claim_of(shard(2), 1, 1))]);
    assert!(block_on(store.claim(vec![])).is_empty());
}

fn shards_of_other_pools_and_namespaces_are_other_shards(store: &impl EntityStore) {
    let mut pool = shard(1);
    pool.pool = "other".into();
    let mut namespace = shard(1);
    namespace.namespace = "other".into();
    for (epoch, shard) in [(3, shard(1)), (2, pool), (1, namespace)] {
        assert_eq!(claim(store, &claim_of(shard, epoch, 1)), ClaimOutcome::Granted);
    }
}

fn reading_claims_shows_earlier_claims(store: &impl EntityStore) {
    let made = claim_of(shard(1), 1, 1);
    let claiming = store.claim(vec![made.clone()]);
    assert_eq!(current_claim(store), Some(made), "R2: a read sees the calls queued before it");
    assert_eq!(block_on(claiming), [ClaimOutcome::Granted]);
}

fn claims_survive_reopening<S: EntityStore>(factory: &Factory<S>) {
    let store = factory.make();
    let made = claim_of(shard(1), 7, 1);
    assert_eq!(claim(&store, &made), ClaimOutcome::Granted);
    let before = store.identity();
    let Some(store) = factory.reopen(store) else { return };
    assert_eq!(current_claim(&store), Some(made.clone()));
    let expected = ClaimOutcome::Refused { current: Box::new(made) };
    assert_eq!(claim(&store, &claim_of(shard(1), 6, 1)), expected);

    let after = store.identity();
    assert_eq!((after.store_id, after.cluster), (before.store_id, before.cluster));
    assert!(after.open_count > before.open_count, "R5: each opening is counted");
    assert_ne!(after.open_nonce, before.open_nonce, "R5: each opening has its own nonce");
    assert!(after.durable_sequence >= before.durable_sequence, "R5: the sequence never decreases");
}

fn no_epoch_passes_a_claim_of_absent_data(store: &impl EntityStore) {
    let placement = |version| Placement { store_id: 7, version };
    let own = claim_of(shard(1), 5, 1);
    for absent in [own.moved_to(placement(1)), own.incoming_from(placement(2), 3)] {
        let absent = absent.unwrap();
        assert_eq!(claim(store, &absent), ClaimOutcome::Granted);
        let refused = ClaimOutcome::Refused { current: Box::new(absent.clone()) };
        assert_eq!(claim(store, &claim_of(shard(1), 9, 1)), refused);
        let mismatch = CommitRefusal::ClaimMismatch { current: Some(Box::new(absent)) };
        let late = commit(store, vec![turn(&Arc::new(own.clone()), "a", 0, 1)]);
        assert_eq!(late, [CommitOutcome::Refused(mismatch)]);
    }
}
