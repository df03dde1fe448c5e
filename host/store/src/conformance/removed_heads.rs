//! Removed heads and the floor of a shard: R1, R2, E17.

use std::sync::Arc;

use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, Head};

use super::{
    Factory, claim, claim_of, commit, done, granted, heads, load, scan, set, shard, state, turn,
    unset,
};
use crate::{EntityStore, ScanKind};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    a_removed_head_raises_the_floor_of_its_shard(factory);
    a_late_commit_creates_no_entity(&factory.make());
}

/// A commit that removes the head.
fn removal(mut turn: Commit, generation: u64) -> Commit {
    turn.head.deleted = true;
    turn.head.set_generation(generation).unwrap();
    turn.head.set_removed(true).unwrap();
    turn
}

fn head(store: &impl EntityStore, number: u32, id: &str) -> Option<Head> {
    load(store, &shard(number), id).head
}

fn mismatch(stored: u64) -> CommitOutcome {
    CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored })
}

fn a_removed_head_raises_the_floor_of_its_shard<S: EntityStore>(factory: &Factory<S>) {
    let store = factory.make();
    let first = granted(&store, 1);
    granted(&store, 2);
    let create = |id, number| Commit { writes: vec![set("k", "v")], ..turn(&first, id, 0, number) };
    done(&store, vec![create("a", 1), create("b", 2), create("c", 3)]);
    let purge = |id, from, number| {
        let mut purge = Commit { writes: vec![unset("k")], ..turn(&first, id, from, number) };
        (purge.head.deleted, purge.head.watermark) = (true, 70);
        purge
    };
    done(&store, vec![purge("a", 1, 4), purge("a", 2, 5), purge("b", 1, 6)]);
    let mut last = removal(turn(&first, "a", 3, 7), 5);
    last.head.watermark = 70;
    last.head.set_tell_watermark(90).unwrap();
    done(&store, vec![last, removal(turn(&first, "b", 2, 8), 9)]);
    let listed = heads(&store, scan(&shard(1), ScanKind::Heads));
    assert_eq!(listed.len(), 1, "removed heads are not listed: {listed:?}");
    assert!(state(&store, &shard(1), "a").is_empty());
    let is_right = |store: &S| {
        for id in ["a", "b", "never"] {
            let head = head(store, 1, id).expect("a head made from the floor");
            assert!(head.deleted && head.is_removed() == Ok(true));
            let marks = (head.watermark, head.tell_watermark().unwrap());
            assert_eq!((head.version, head.generation(), marks), (4, Ok(9), (70, 90)), "{id}");
        }
        assert_eq!(head(store, 1, "c").map(|head| head.version), Some(1), "others keep theirs");
        assert_eq!(head(store, 2, "a"), None, "other shards have floors of their own");
    };
    is_right(&store);
    let store = match factory.reopen(store) {
        Some(store) => store,
        None => return,
    };
    is_right(&store);
    let next = claim_of(shard(1), 2, 1);
    assert_eq!(claim(&store, &next), ClaimOutcome::Granted);
    is_right(&store);
    let next: Arc<Claim> = Arc::new(next);
    assert_eq!(commit(&store, vec![turn(&next, "a", 0, 9)]), [mismatch(4)]);
    done(&store, vec![turn(&next, "a", 4, 9)]);
    assert_eq!(head(&store, 1, "a").map(|it| (it.version, it.is_removed())), Some((5, Ok(false))));
}

fn a_late_commit_creates_no_entity(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let first = turn(&claim, "a", 0, 1);
    done(store, vec![first.clone()]);
    let last = removal(turn(&claim, "a", 1, 2), 1);
    done(store, vec![last.clone()]);
    assert_eq!(commit(store, vec![first.clone(), last.clone()]), [mismatch(2), mismatch(2)]);
    // Nor does it when the calls are in one batch, before anything is applied.
    let again = turn(&claim, "a", 2, 3);
    let removed = removal(turn(&claim, "a", 3, 4), 2);
    let outcomes = commit(store, vec![again.clone(), removed, again, turn(&claim, "z", 4, 5)]);
    let committed = CommitOutcome::Committed;
    assert_eq!(outcomes, [committed.clone(), committed.clone(), mismatch(4), committed]);
    // A removal that is refused changes nothing.
    let refused = removal(turn(&claim, "z", 4, 6), 100);
    assert_eq!(commit(store, vec![refused]), [mismatch(5)]);
    assert_eq!(head(store, 1, "new").map(|head| head.generation()), Some(Ok(2)));
}
