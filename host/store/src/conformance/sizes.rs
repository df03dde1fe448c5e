//! Values of every size: a backend that splits large values must return them whole, and leave no fragments behind.

use bytes::Bytes;
use ostraca_core::ids::MessageDigest;
use ostraca_core::records::{GuestReply, RecordedReply};

use super::{Factory, done, granted, lane, load, set, set_lane, shard, state, turn, unset};
use crate::EntityStore;

const MIB: usize = 1024 * 1024;

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    values_of_every_size_come_back_whole(factory);
    a_value_may_grow_shrink_and_be_deleted(&factory.make());
    heads_and_lanes_may_be_large(&factory.make());
}

/// Bytes that differ at every position, so that a misplaced fragment is detected.
fn value(size: usize, seed: u8) -> Bytes {
    (0..size).map(|at| (at as u8) ^ ((at >> 8) as u8) ^ ((at >> 16) as u8) ^ seed).collect()
}

fn values_of_every_size_come_back_whole<S: EntityStore>(factory: &Factory<S>) {
    let store = factory.make();
    let claim = granted(&store, 1);
    let sizes = [0, 1, 4000, 4086, 4090, 4091, 4092, 4096, 4097, 8182, 8192, 65_536, 200_001, MIB];
    let mut first = turn(&claim, "a", 0, 1);
    for size in sizes {
        first.writes.push(set(&format!("{size:07}"), value(size, 0)));
        // A neighbour whose key could be mistaken for a fragment of the previous one.
        first.writes.push(set(&format!("{size:07}\0\0\0\0"), value(size, 1)));
    }
    done(&store, vec![first]);
    let check = |store: &S| {
        let state = state(store, &shard(1), "a");
        assert_eq!(state.len(), 2 * sizes.len());
        for (at, size) in sizes.into_iter().enumerate() {
            assert!(state[2 * at].1 == value(size, 0), "a value of {size} bytes");
            assert!(state[2 * at + 1].1 == value(size, 1), "a neighbour of {size} bytes");
        }
    };
    check(&store);
    if let Some(store) = factory.reopen(store) {
        check(&store);
    }
}

fn a_value_may_grow_shrink_and_be_deleted(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let mut from = 0;
    for batched in [1, 4] {
        let mut turns = Vec::new();
        for size in [10, 20_000, 5_000, MIB, 100, 60_000, 0, 70_000] {
            let mut next = turn(&claim, "a", from, from);
            let value = value(size, from as u8);
            next.writes = vec![set("k", value.clone())];
            if size == 0 {
                next.writes = vec![unset("k")];
            }
            turns.push(next);
            from += 1;
            if turns.len() == batched {
                done(store, std::mem::take(&mut turns));
                let expected = if size == 0 { vec![] } else { vec![("k".into(), value)] };
                assert!(
                    state(store, &shard(1), "a") == expected,
                    "{size} bytes, {batched} per batch"
                );
            }
        }
    }
}

fn heads_and_lanes_may_be_large(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let mut large = lane(1, 1);
    large.replies.push(RecordedReply {
        sequence: 1,
        digest: MessageDigest([1; 16]),
        version: 1,
        reply: GuestReply::Result(value(100_000, 3)),
        extensions: Default::default(),
    });
    for from in 0..4 {
        let mut next = turn(&claim, "a", from, from);
        let beside = if from % 2 == 0 { large.clone() } else { lane(1, from) };
        next.head.lanes = vec![beside.clone().into()];
        next.head.spilled_lane_count = 1;
        next.writes = vec![set_lane(&beside)];
        done(store, vec![next]);
        let loaded = load(store, &shard(1), "a");
        assert!(loaded.head.unwrap().lanes == [beside.clone().into()], "turn {from}");
        assert!(loaded.lanes == [beside], "turn {from}");
    }
}
