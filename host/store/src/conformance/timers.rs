//! Timers and wake-ups: R2, R25.

use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Commit, OWN_TIMERS, RecordKey, RecordWrite, Timer};

use super::{Factory, done, granted, load, scan, scan_all, set, shard, turn};
use crate::{EntityStore, ScanKind, ScannedRecord};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    a_load_returns_the_timers_by_name(&factory.make());
    wakes_are_scanned_by_time_then_entity(&factory.make());
    a_wake_follows_the_commit_that_moves_it(&factory.make());
    large_timers_are_whole_and_leave_nothing(factory);
}

pub(super) fn timer(name: &str, payload: impl Into<Bytes>) -> Timer {
    Timer {
        name: name.into(),
        generation: 1,
        due: 1_000,
        interval: 0,
        payload: payload.into(),
        attempts: 0,
        retry_at: 0,
        failure: "".into(),
        set_aside: false,
        extensions: Default::default(),
    }
}

pub(super) fn set_timer(timer: &Timer) -> RecordWrite {
    let key = RecordKey::Timer { due: OWN_TIMERS, name: timer.name.clone() };
    RecordWrite { key, value: Some(codec::encode(timer).unwrap().into()) }
}

pub(super) fn unset_timer(name: &str) -> RecordWrite {
    RecordWrite { key: RecordKey::Timer { due: OWN_TIMERS, name: name.into() }, value: None }
}

pub(super) fn wake(due: u64, value: Option<Bytes>) -> RecordWrite {
    RecordWrite { key: RecordKey::Timer { due, name: "".into() }, value }
}

fn with(mut turn: Commit, count: u32, writes: Vec<RecordWrite>) -> Commit {
    turn.head.set_timer_count(count).unwrap();
    turn.writes = writes;
    turn
}

pub(super) fn wakes(
    store: &impl EntityStore,
    of: &ShardPath,
    from: Option<(u64, Entity)>,
    most: usize,
) -> Vec<(u64, Arc<str>)> {
    let mut scan = scan(of, ScanKind::Wakes { from });
    scan.max_records = most;
    let pair = |record| match record {
        ScannedRecord::Wake(due, entity) => (due, entity.id),
        other => panic!("a scan of wake-ups returned {other:?}"),
    };
    scan_all(store, scan).into_iter().flat_map(|page| page.records).map(pair).collect()
}

fn a_load_returns_the_timers_by_name(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let all = ["b", "a\0", "a", "\u{e9}"].map(|name| timer(name, name.to_owned()));
    let mut writes: Vec<_> = all.iter().map(set_timer).collect();
    writes.extend([wake(1_000, Some(Bytes::new())), set("k", "v")]);
    let neighbour = timer("other", "x");
    done(
        store,
        vec![
            with(turn(&claim, "a", 0, 1), 4, writes),
            with(turn(&claim, "a\0", 0, 2), 1, vec![set_timer(&neighbour)]),
        ],
    );
    let [b, a0, a, e] = all;
    assert_eq!(load(store, &shard(1), "a").timers, [a.clone(), a0, b.clone(), e.clone()]);
    assert_eq!(load(store, &shard(1), "a\0").timers, [neighbour]);

    let moved = Timer { due: 2_000, ..a };
    let writes = vec![unset_timer("a\0"), set_timer(&moved)];
    done(store, vec![with(turn(&claim, "a", 1, 3), 3, writes)]);
    let loaded = load(store, &shard(1), "a");
    assert_eq!(
        (loaded.timers, loaded.head.unwrap().timer_count().unwrap()),
        (vec![moved, b, e], 3)
    );
    assert!(load(store, &shard(1), "none").timers.is_empty());
}

fn wakes_are_scanned_by_time_then_entity(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let other = granted(store, 2);
    let times = [("c", 256), ("a", 256), ("a\0", 256), ("b", 255), ("d", u64::MAX - 1)];
    let mut turns = vec![with(turn(&other, "x", 0, 9), 1, vec![wake(1, Some(Bytes::new()))])];
    for (number, (id, due)) in times.into_iter().enumerate() {
        let writes = vec![set_timer(&timer("t", "p")), wake(due, Some(Bytes::new()))];
        turns.push(with(turn(&claim, id, 0, number as u64), 1, writes));
    }
    done(store, turns);
    let expected: Vec<(u64, Arc<str>)> = vec![
        (255, "b".into()),
        (256, "a".into()),
        (256, "a\0".into()),
        (256, "c".into()),
        (u64::MAX - 1, "d".into()),
    ];
    for most in [1, 2, 100] {
        assert_eq!(wakes(store, &shard(1), None, most), expected, "timers are not wake-ups");
        let from = Some((256, Entity::new("counter", "a\0")));
        assert_eq!(wakes(store, &shard(1), from, most), expected[2..], "from that wake-up on");
        let from = Some((256, Entity::new("counter", "b")));
        assert_eq!(wakes(store, &shard(1), from, most), expected[3..], "`from` need not exist");
    }
    assert!(wakes(store, &shard(3), None, 10).is_empty());
}

fn a_wake_follows_the_commit_that_moves_it(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let timer = timer("t", "p");
    let writes = vec![set_timer(&timer), wake(1_000, Some(Bytes::new()))];
    done(store, vec![with(turn(&claim, "a", 0, 1), 1, writes)]);
    for from in 1..20 {
        let writes = vec![wake(999 + from, None), wake(1_000 + from, Some(Bytes::new()))];
        let committing = store.commit(vec![with(turn(&claim, "a", from, from + 1), 1, writes)]);
        let scanned =
            block_on(store.scan(scan(&shard(1), ScanKind::Wakes { from: None }))).unwrap();
        let expected = ScannedRecord::Wake(1_000 + from, Entity::new("counter", "a"));
        assert_eq!(scanned.records, [expected], "R2: a scan sees the commits queued before it");
        block_on(committing);
    }
    let writes = vec![unset_timer("t"), wake(1_019, None)];
    done(store, vec![with(turn(&claim, "a", 20, 21), 0, writes)]);
    assert!(wakes(store, &shard(1), None, 10).is_empty());
    assert!(load(store, &shard(1), "a").timers.is_empty());
}

/// Payloads that a backend may store as fragments, and payloads that it does not; each replaces the previous one.
fn large_timers_are_whole_and_leave_nothing<S: EntityStore>(factory: &Factory<S>) {
    let mut store = factory.make();
    let claim = granted(&store, 1);
    for (from, bytes) in [60_000, 5_000, 10, 9_000].into_iter().enumerate() {
        let from = from as u64;
        let timer = timer("t", vec![from as u8; bytes]);
        done(&store, vec![with(turn(&claim, "a", from, from), 1, vec![set_timer(&timer)])]);
        assert_eq!(load(&store, &shard(1), "a").timers, std::slice::from_ref(&timer));
        store = match factory.reopen(store) {
            Some(store) => store,
            None => return,
        };
        assert_eq!(load(&store, &shard(1), "a").timers, [timer]);
    }
    done(&store, vec![with(turn(&claim, "a", 4, 9), 0, vec![unset_timer("t")])]);
    assert!(load(&store, &shard(1), "a").timers.is_empty());
}
