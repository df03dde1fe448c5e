//! Commits: R1, R3, R4 and commit sequences.

use std::sync::Arc;

use futures::executor::block_on;
use ostraca_core::ids::TurnId;
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal};

use super::{
    Factory, claim, claim_of, commit, done, granted, load, set, shard, state, turn, unset, version,
};
use crate::EntityStore;

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    a_chain_of_versions_is_kept(&factory.make());
    a_commit_from_another_version_is_refused(&factory.make());
    a_repeated_commit_is_answered_already_committed(&factory.make());
    a_commit_repeated_after_reopening_is_already_committed(factory);
    a_refused_commit_refuses_all_later_ones_of_its_entity(&factory.make());
    commits_in_flight_are_evaluated_in_call_order(&factory.make());
    a_commit_takes_effect_only_under_the_current_claim(&factory.make());
    a_claim_covers_its_own_shard_only(&factory.make());
    a_commit_is_written_whole_or_not_at_all(&factory.make());
    a_commit_that_skips_a_version_is_refused(&factory.make());
    sequences_rise_within_a_shard(factory);
}

fn refused_version(stored: u64) -> CommitOutcome {
    CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored })
}

fn a_chain_of_versions_is_kept(store: &impl EntityStore) {
    let claim = granted(store, 1);
    done(store, vec![turn(&claim, "a", 0, 1), turn(&claim, "a", 1, 2), turn(&claim, "b", 0, 3)]);
    done(store, vec![turn(&claim, "a", 2, 4)]);
    let mut expected = turn(&claim, "a", 2, 4).head;
    let head = load(store, &shard(1), "a").head.unwrap();
    expected.commit_sequence = head.commit_sequence;
    assert_eq!(head, expected, "the head is stored as given, except for its sequence");
    assert_eq!(version(store, &shard(1), "b"), 1);
    assert!(commit(store, vec![]).is_empty());
}

fn a_commit_from_another_version_is_refused(store: &impl EntityStore) {
    let claim = granted(store, 1);
    assert_eq!(commit(store, vec![turn(&claim, "a", 1, 1)]), [refused_version(0)]);
    done(store, vec![turn(&claim, "a", 0, 2), turn(&claim, "a", 1, 3)]);
    for from in [0, 1, 3] {
        assert_eq!(commit(store, vec![turn(&claim, "a", from, 4)]), [refused_version(2)]);
    }
    assert_eq!(version(store, &shard(1), "a"), 2);
}

fn a_repeated_commit_is_answered_already_committed(store: &impl EntityStore) {
    let first = granted(store, 1);
    let made = turn(&first, "a", 0, 1);
    let outcomes = commit(store, vec![made.clone(), made.clone()]);
    assert_eq!(outcomes, [CommitOutcome::Committed, CommitOutcome::AlreadyCommitted]);
    assert_eq!(commit(store, vec![made.clone()]), [CommitOutcome::AlreadyCommitted]);
    let another_turn = turn(&first, "a", 0, 2);
    assert_eq!(commit(store, vec![another_turn]), [refused_version(1)]);

    let next = Arc::new(claim_of(shard(1), 1, 2));
    assert_eq!(claim(store, &next), ClaimOutcome::Granted);
    let again = turn(&next, "a", 0, 1);
    assert_eq!(commit(store, vec![again.clone()]), [CommitOutcome::AlreadyCommitted]);
    assert_eq!(
        commit(store, vec![made]),
        [CommitOutcome::AlreadyCommitted],
        "regardless of the current claim"
    );
    done(store, vec![turn(&next, "a", 1, 3)]);
    assert_eq!(commit(store, vec![again]), [refused_version(2)], "no longer the head's turn");
}

fn a_commit_repeated_after_reopening_is_already_committed<S: EntityStore>(factory: &Factory<S>) {
    let store = factory.make();
    let claim = granted(&store, 1);
    let made = turn(&claim, "a", 0, 1);
    done(&store, vec![made.clone()]);
    let Some(store) = factory.reopen(store) else { return };
    let another_turn = turn(&claim, "a", 0, 2);
    assert_eq!(commit(&store, vec![another_turn]), [refused_version(1)]);
    assert_eq!(commit(&store, vec![made]), [CommitOutcome::AlreadyCommitted]);
}

fn a_refused_commit_refuses_all_later_ones_of_its_entity(store: &impl EntityStore) {
    let claim = granted(store, 1);
    done(store, vec![turn(&claim, "a", 0, 1)]);
    let outcomes = commit(
        store,
        vec![
            turn(&claim, "a", 2, 2),
            turn(&claim, "a", 3, 3),
            turn(&claim, "b", 0, 4),
            turn(&claim, "a", 4, 5),
        ],
    );
    let no = refused_version(1);
    assert_eq!(outcomes, [no.clone(), no.clone(), CommitOutcome::Committed, no.clone()]);
    assert_eq!(commit(store, vec![turn(&claim, "a", 5, 6)]), [no], "also in the next batch");
    done(store, vec![turn(&claim, "a", 1, 7)]);
}

fn commits_in_flight_are_evaluated_in_call_order(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let calls: Vec<_> = (0..50).map(|n| store.commit(vec![turn(&claim, "a", n, n)])).collect();
    let outcome = store.commit(vec![turn(&claim, "a", 49, 99)]);
    assert_eq!(block_on(outcome), [refused_version(50)]);
    for call in calls.into_iter().rev() {
        assert_eq!(block_on(call), [CommitOutcome::Committed]);
    }
    drop(store.commit(vec![turn(&claim, "a", 50, 100)]));
    let version = version(store, &shard(1), "a");
    assert!(version == 50 || version == 51, "a dropped call may still take effect");
}

fn a_commit_takes_effect_only_under_the_current_claim(store: &impl EntityStore) {
    let old = Arc::new(claim_of(shard(1), 1, 1));
    let refused = |current: Option<&Arc<Claim>>| {
        let current = current.map(|claim| Box::new((**claim).clone()));
        CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current })
    };
    assert_eq!(commit(store, vec![turn(&old, "a", 0, 1)]), [refused(None)]);
    assert_eq!(claim(store, &old), ClaimOutcome::Granted);
    done(store, vec![turn(&old, "a", 0, 1)]);

    let mut version_now = 1;
    for (epoch, number) in [(1, 2), (2, 1)] {
        let new = Arc::new(claim_of(shard(1), epoch, number));
        let before = store.commit(vec![turn(&old, "b", 0, 2)]);
        let claiming = store.claim(vec![(*new).clone()]);
        let after = store.commit(vec![turn(&old, "a", version_now, 3)]);
        assert_eq!(block_on(claiming), [ClaimOutcome::Granted]);
        assert_eq!(block_on(after), [refused(Some(&new))], "R4: no commit under another claim");
        let before = block_on(before);
        if epoch == 1 {
            assert_eq!(before, [CommitOutcome::Committed], "queued before the claim");
        }
        assert_eq!(commit(store, vec![turn(&old, "a", version_now, 4)]), [refused(Some(&new))]);
        assert_eq!(version(store, &shard(1), "a"), version_now);
        done(store, vec![turn(&new, "a", version_now, 5 + number)]);
        version_now += 1;
    }
    let future = Arc::new(claim_of(shard(1), 3, 1));
    let current = Arc::new(claim_of(shard(1), 2, 1));
    let outcome = commit(store, vec![turn(&future, "a", version_now, 9)]);
    assert_eq!(outcome, [refused(Some(&current))], "a higher claim that was never granted");
}

fn a_claim_covers_its_own_shard_only(store: &impl EntityStore) {
    let one = granted(store, 1);
    let two = granted(store, 2);
    done(store, vec![turn(&one, "a", 0, 1), turn(&two, "a", 0, 1), turn(&two, "a", 1, 2)]);
    assert_eq!(version(store, &shard(1), "a"), 1);
    assert_eq!(version(store, &shard(2), "a"), 2);
    let unclaimed = Arc::new(claim_of(shard(3), 1, 1));
    let outcomes = commit(store, vec![turn(&unclaimed, "a", 0, 1), turn(&one, "a", 1, 2)]);
    let no = CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current: None });
    assert_eq!(outcomes, [no, CommitOutcome::Committed]);
}

fn a_commit_is_written_whole_or_not_at_all(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let mut first = turn(&claim, "a", 0, 1);
    first.writes = vec![set("x", "1"), set("y", "1"), set("z", ""), unset("never")];
    let mut second = turn(&claim, "a", 1, 2);
    second.writes = vec![set("x", "2"), unset("y"), set("w", "2"), unset("w"), set("v", "2")];
    done(store, vec![first, second.clone()]);
    let expected: Vec<(bytes::Bytes, bytes::Bytes)> =
        vec![("v".into(), "2".into()), ("x".into(), "2".into()), ("z".into(), "".into())];
    assert_eq!(state(store, &shard(1), "a"), expected);

    let mut refused = turn(&claim, "a", 1, 3);
    refused.writes = vec![set("x", "3"), set("u", "3")];
    let mut limited = turn(&claim, "a", 2, 4);
    limited.writes = vec![set("x", "4"), set(&"k".repeat(crate::keys::MAX_KEY_BYTES), "4")];
    let mut large = turn(&claim, "a", 2, 5);
    large.writes = vec![set("x", "5"), set("y", vec![0; crate::entity::MAX_VALUE_BYTES + 1])];
    let mut long = turn(&claim, "a", 2, 6);
    let half = vec![0; crate::entity::MAX_COMMIT_BYTES / 2];
    long.writes = vec![set("x", half.clone()), set("y", half)];
    let outcomes = commit(store, vec![refused, limited, large, long, second]);
    assert_eq!(outcomes[0], refused_version(2));
    for outcome in &outcomes[1..4] {
        let never = matches!(outcome, CommitOutcome::Refused(CommitRefusal::TooLarge(_)));
        assert!(never, "every backend must refuse it: {outcome:?}");
    }
    assert_eq!(outcomes[4], CommitOutcome::AlreadyCommitted);
    assert_eq!(state(store, &shard(1), "a"), expected, "no part of a refused commit is written");
}

fn a_commit_that_skips_a_version_is_refused(store: &impl EntityStore) {
    let claim = granted(store, 1);
    for version in [0, 2, u64::MAX] {
        let mut skips = turn(&claim, "a", 0, 1);
        skips.head.version = version;
        let outcome = commit(store, vec![skips]).remove(0);
        assert!(
            matches!(outcome, CommitOutcome::Refused(CommitRefusal::LimitReached(_))),
            "{outcome:?}"
        );
    }
    let mut nothing = turn(&claim, "a", 0, 1);
    (nothing.head.version, nothing.head.turn) = (0, TurnId::default());
    let outcome = commit(store, vec![nothing]).remove(0);
    let no = matches!(outcome, CommitOutcome::Refused(CommitRefusal::LimitReached(_)));
    assert!(no, "without a head, nothing was committed: {outcome:?}");
    assert_eq!(load(store, &shard(1), "a").head, None);
}

fn sequences_rise_within_a_shard<S: EntityStore>(factory: &Factory<S>) {
    let mut store = factory.make();
    let claims = [granted(&store, 1), granted(&store, 2)];
    let mut last = [0, 0];
    let mut whole = 0;
    for round in 0..12 {
        for (at, claim) in claims.iter().enumerate() {
            done(
                &store,
                vec![turn(claim, "a", round, round), turn(claim, "b", round, 100 + round)],
            );
            for id in ["a", "b"] {
                let head = load(&store, &claim.shard, id).head.unwrap();
                assert!(head.commit_sequence > last[at], "round {round}");
                last[at] = head.commit_sequence;
            }
        }
        assert!(
            store.identity().durable_sequence > whole,
            "the store's sequence rises with every batch"
        );
        whole = store.identity().durable_sequence;
        if round % 4 == 1 {
            store = match factory.reopen(store) {
                Some(store) => store,
                None => return,
            };
            assert!(store.identity().durable_sequence >= whole);
        }
    }
}
