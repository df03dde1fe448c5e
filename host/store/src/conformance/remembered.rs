//! Marks of remembered entities: R2, K31.

use bytes::Bytes;
use ostraca_core::ids::Entity;
use ostraca_core::records::{Commit, RecordKey, RecordWrite};

use super::{Factory, done, granted, scan, scan_all, shard, turn};
use crate::{EntityStore, ScanKind, ScannedRecord};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    let store = factory.make();
    marks_are_scanned_by_entity_from_any_entity(&store);
    if let Some(store) = factory.reopen(store) {
        assert_eq!(marked(&store, None, 100), ["a\0", "b"], "marks are durable");
    }
}

fn marks(mut turn: Commit, mark: bool) -> Commit {
    let value = mark.then(Bytes::new);
    turn.head.remembered = mark;
    turn.writes = vec![RecordWrite { key: RecordKey::Remembered, value }];
    turn
}

fn marked(store: &impl EntityStore, from: Option<&str>, most: usize) -> Vec<String> {
    let from = from.map(|id| Entity::new("counter", id));
    let mut by = scan(&shard(1), ScanKind::Remembered { from });
    by.max_records = most;
    let records = scan_all(store, by).into_iter().flat_map(|page| page.records);
    let id = |record| match record {
        ScannedRecord::Remembered(entity) => entity.id.to_string(),
        other => panic!("a scan of marks returned {other:?}"),
    };
    records.map(id).collect()
}

fn marks_are_scanned_by_entity_from_any_entity(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let ids = ["b", "a\0", "a", ""];
    let turns = ids.iter().zip(1..).map(|(id, number)| marks(turn(&claim, id, 0, number), true));
    done(store, turns.collect());
    done(store, vec![turn(&claim, "c", 0, 9)]);
    let all = ["", "a", "a\0", "b"];
    assert_eq!(marked(store, None, 100), all, "only those with a mark");
    assert_eq!(marked(store, None, 1), all, "pages follow each other");
    assert_eq!(marked(store, Some("a\0"), 100), all[2..]);
    assert_eq!(marked(store, Some("aa"), 100), all[3..], "from the next one that there is");
    done(
        store,
        vec![marks(turn(&claim, "a", 1, 10), false), marks(turn(&claim, "", 1, 11), false)],
    );
    assert_eq!(marked(store, None, 100), all[2..]);
}
