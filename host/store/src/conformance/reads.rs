//! Loads, scans and blobs: R2, R6.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::executor::block_on;
use ostraca_core::ids::Entity;
use ostraca_core::records::{CommitOutcome, LoadedEntity, RecordKey, RecordWrite};

use super::{
    Factory, done, granted, heads, lane, load, scan, scan_all, set, set_lane, shard, state, turn,
    version,
};
use crate::{EntityStore, ScanKind};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    unwritten_entities_load_as_empty(&factory.make());
    a_load_returns_the_spilled_lanes(&factory.make());
    reads_follow_earlier_calls(&factory.make());
    reads_show_turns_whole(&factory.make());
    state_is_scanned_in_order_of_keys(&factory.make());
    pages_keep_their_limits_and_lose_nothing(&factory.make());
    heads_are_scanned_in_order_by_pages(&factory.make());
    blobs_are_kept_under_their_digest(factory);
    everything_survives_reopening(factory);
}

fn unwritten_entities_load_as_empty(store: &impl EntityStore) {
    assert_eq!(load(store, &shard(1), "a"), LoadedEntity::default());
    assert!(state(store, &shard(1), "a").is_empty());
    assert!(heads(store, scan(&shard(1), ScanKind::Heads)).is_empty());
    assert!(block_on(store.load(vec![])).is_empty());
}

fn a_load_returns_the_spilled_lanes(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let mut first = turn(&claim, "a", 0, 1);
    first.head.lanes = vec![lane(9, 1).into()];
    first.head.spilled_lane_count = 2;
    first.writes = vec![set_lane(&lane(2, 5)), set_lane(&lane(1, 4)), set("\x01", "state")];
    let mut neighbour = turn(&claim, "a\0", 0, 2);
    neighbour.head.spilled_lane_count = 1;
    neighbour.writes = vec![set_lane(&lane(3, 6))];
    done(store, vec![first, neighbour]);
    let loaded = load(store, &shard(1), "a");
    assert_eq!(loaded.head.unwrap().lanes, [lane(9, 1).into()]);
    assert_eq!(loaded.lanes, [lane(1, 4), lane(2, 5)]);

    let mut second = turn(&claim, "a", 1, 3);
    second.head.spilled_lane_count = 1;
    let gone = RecordWrite { key: RecordKey::Lane(lane(2, 0).session), value: None };
    second.writes = vec![gone, set_lane(&lane(1, 7))];
    done(store, vec![second]);
    let entities = ["a\0", "a", "none"].map(|id| (shard(1), Entity::new("counter", id)));
    let loaded: Vec<_> = block_on(store.load(entities.to_vec()));
    let lanes: Vec<_> = loaded.into_iter().map(|loaded| loaded.unwrap().lanes).collect();
    assert_eq!(
        lanes,
        [vec![lane(3, 6)], vec![lane(1, 7)], vec![]],
        "one result per entity, in order"
    );
}

fn reads_follow_earlier_calls(store: &impl EntityStore) {
    let claim = granted(store, 1);
    for from in 0..20 {
        let mut next = turn(&claim, "a", from, from);
        next.writes = vec![set("version", from.to_string())];
        let committing = store.commit(vec![next]);
        let loading = store.load(vec![(shard(1), Entity::new("counter", "a"))]);
        let scanning = store.scan(scan(&shard(1), ScanKind::State(Entity::new("counter", "a"))));
        let listing = store.scan(scan(&shard(1), ScanKind::Heads));
        let head = block_on(loading).remove(0).unwrap().head.unwrap();
        assert_eq!(head.version, from + 1, "R2: a load sees the commits queued before it");
        let value = from.to_string();
        let expected = crate::ScannedRecord::State("version".into(), value.into());
        assert_eq!(block_on(scanning).unwrap().records, [expected]);
        assert_eq!(block_on(listing).unwrap().records.len(), 1);
        assert_eq!(block_on(committing), [CommitOutcome::Committed]);
    }
}

fn reads_show_turns_whole(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for from in 0..100 {
                let mut next = turn(&claim, "a", from, from);
                let value = vec![from as u8; 5000];
                next.head.state_bytes = from;
                next.writes = vec![set("first", value.clone()), set("second", value)];
                done(store, vec![next]);
            }
            ended.store(true, Ordering::Release);
        });
        while !ended.load(Ordering::Acquire) {
            let state = state(store, &shard(1), "a");
            assert!(state.len() == 2 || state.is_empty());
            let mut bytes = state.iter().flat_map(|(_, value)| value);
            let first = bytes.next();
            assert!(bytes.all(|byte| Some(byte) == first), "a read showed part of a turn");
        }
    });
    assert_eq!(version(store, &shard(1), "a"), 100);
}

fn state_is_scanned_in_order_of_keys(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let keys: Vec<&[u8]> = vec![b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"ab", b"b", b"\xff"];
    let mut turns = Vec::new();
    for id in ["a", "a\0", "ab", "b"] {
        let mut next = turn(&claim, id, 0, 1);
        next.writes = keys
            .iter()
            .rev()
            .map(|key| RecordWrite {
                key: RecordKey::State(Bytes::copy_from_slice(key)),
                value: Some(Bytes::copy_from_slice(id.as_bytes())),
            })
            .collect();
        turns.push(next);
    }
    done(store, turns);
    for id in ["a", "a\0", "ab", "b"] {
        let state = state(store, &shard(1), id);
        assert!(state.iter().map(|(key, _)| &key[..]).eq(keys.iter().copied()), "{state:?}");
        assert!(state.iter().all(|(_, value)| value == id), "another entity's state");
    }
    assert!(state(store, &shard(1), "").is_empty());
    assert!(state(store, &shard(2), "a").is_empty());
}

fn pages_keep_their_limits_and_lose_nothing(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let mut first = turn(&claim, "a", 0, 1);
    first.writes = (10..40).map(|n| set(&format!("k{n}"), vec![b'x'; n * 10])).collect();
    done(store, vec![first]);
    let whole = state(store, &shard(1), "a");
    assert_eq!(whole.len(), 30);
    for (limit, limit_bytes, most) in
        [(7, usize::MAX, 7), (1, usize::MAX, 1), (0, usize::MAX, 1), (1000, 0, 1), (1000, 700, 6)]
    {
        let mut by = scan(&shard(1), ScanKind::State(Entity::new("counter", "a")));
        (by.max_records, by.max_bytes) = (limit, limit_bytes);
        let pages = scan_all(store, by);
        for page in &pages {
            let records = page.records.len();
            assert!(
                (1..=most).contains(&records),
                "{records} records, limits {limit} {limit_bytes}"
            );
        }
        let records: Vec<_> = pages.into_iter().flat_map(|page| page.records).collect();
        let expected: Vec<_> =
            whole.iter().map(|(k, v)| crate::ScannedRecord::State(k.clone(), v.clone())).collect();
        assert_eq!(records, expected, "limits {limit} {limit_bytes}");
    }
}

fn heads_are_scanned_in_order_by_pages(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let other = granted(store, 0x0100);
    let mut entities = Vec::new();
    for kind in ["account", "counter", "counter\0"] {
        for id in ["1", "1\0", "10", "2"] {
            entities.push(Entity::new(kind, id));
        }
    }
    let mut turns = vec![turn(&other, "elsewhere", 0, 1)];
    for entity in entities.iter().rev() {
        let mut next = turn(&claim, "", 0, 1);
        next.entity = entity.clone();
        next.writes = vec![set("k", "v"), set_lane(&lane(1, 1))];
        turns.push(next);
    }
    done(store, turns);
    for limit in [1, 5, 100] {
        let mut by = scan(&shard(1), ScanKind::Heads);
        by.max_records = limit;
        let heads = heads(store, by);
        assert!(heads.iter().map(|(entity, _)| entity).eq(&entities), "{heads:?}");
        assert!(heads.iter().all(|(_, head)| head.version == 1));
    }
}

fn blobs_are_kept_under_their_digest<S: EntityStore>(factory: &Factory<S>) {
    let store = factory.make();
    let large = Bytes::from(vec![7; 3 * 1024 * 1024]);
    let blobs = [Bytes::new(), Bytes::from_static(b"component"), large];
    for blob in &blobs {
        for _ in 0..2 {
            let digest = block_on(store.put_blob(blob.clone())).unwrap();
            assert_eq!(digest, *blake3::hash(blob).as_bytes());
            assert_eq!(block_on(store.get_blob(digest)).unwrap().as_ref(), Some(blob));
        }
    }
    assert_eq!(block_on(store.get_blob([0; 32])).unwrap(), None);
    let Some(store) = factory.reopen(store) else { return };
    for blob in &blobs {
        let digest = *blake3::hash(blob).as_bytes();
        assert_eq!(block_on(store.get_blob(digest)).unwrap().as_ref(), Some(blob));
    }
}

fn everything_survives_reopening<S: EntityStore>(factory: &Factory<S>) {
    let mut store = factory.make();
    let claim = granted(&store, 1);
    for from in 0..6 {
        let mut next = turn(&claim, "a", from, from);
        next.head.spilled_lane_count = 1;
        next.writes = vec![set_lane(&lane(1, from)), set("k", vec![from as u8; 9000])];
        done(&store, vec![next, turn(&claim, "b", from, from)]);
        store = match factory.reopen(store) {
            Some(store) => store,
            None => return,
        };
        assert_eq!(load(&store, &shard(1), "a").lanes, [lane(1, from)]);
        assert_eq!(state(&store, &shard(1), "a"), [("k".into(), vec![from as u8; 9000].into())]);
        assert_eq!(version(&store, &shard(1), "b"), from + 1);
    }
}
