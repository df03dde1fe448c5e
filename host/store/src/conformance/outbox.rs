//! Outboxes and dead letters: R2, R19.

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::Entity;
use ostraca_core::records::{Commit, RecordKey, RecordWrite, Tell};

use super::{Factory, done, granted, load, scan, scan_all, shard, turn};
use crate::{EntityStore, ScanKind, ScannedRecord};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    a_load_returns_the_outbox_by_target_and_number(&factory.make());
    dead_letters_are_scanned_by_entity_and_number(&factory.make());
    large_tells_are_whole_and_leave_nothing(factory);
}

pub(super) fn tell(target: &str, body: impl Into<Bytes>) -> Tell {
    Tell {
        target: Entity::new("counter", target),
        method: "add".into(),
        body: body.into(),
        content_type: "".into(),
        traceparent: "".into(),
        created_ms: 7,
        utc_ms: 8,
        attempts: 0,
        retry_at: 0,
        failure: "".into(),
        extensions: Default::default(),
    }
}

pub(super) fn put_tell(number: u64, tell: &Tell) -> RecordWrite {
    let key = RecordKey::Outbox { target: tell.target.clone(), number };
    RecordWrite { key, value: Some(codec::encode(tell).unwrap().into()) }
}

pub(super) fn delete_tell(number: u64, target: &str) -> RecordWrite {
    let target = Entity::new("counter", target);
    RecordWrite { key: RecordKey::Outbox { target, number }, value: None }
}

fn put_dead_letter(number: u64, tell: &Tell) -> RecordWrite {
    let value = Some(codec::encode(tell).unwrap().into());
    RecordWrite { key: RecordKey::DeadLetter { number }, value }
}

fn with(mut turn: Commit, counts: (u32, u32), writes: Vec<RecordWrite>) -> Commit {
    turn.head.set_outbox_counts(counts).unwrap();
    turn.writes = writes;
    turn
}

fn a_load_returns_the_outbox_by_target_and_number(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let numbered = [(256, "b"), (255, "b"), (9, "a\0"), (9, "a"), (1 << 40, "a")];
    let mut writes: Vec<_> =
        numbered.iter().map(|(number, target)| put_tell(*number, &tell(target, "x"))).collect();
    writes.push(put_dead_letter(3, &tell("z", "dead")));
    let neighbour = put_tell(5, &tell("other", "y"));
    done(
        store,
        vec![
            with(turn(&claim, "a", 0, 1), (5, 1), writes),
            with(turn(&claim, "a\0", 0, 2), (1, 0), vec![neighbour]),
        ],
    );
    let numbers = |id: &str| -> Vec<(u64, String)> {
        let tells = load(store, &shard(1), id).outbox;
        tells.into_iter().map(|(number, tell)| (number, tell.target.id.to_string())).collect()
    };
    let of = |number, target: &str| (number, target.to_owned());
    let all = [of(9, "a"), of(1 << 40, "a"), of(9, "a\0"), of(255, "b"), of(256, "b")];
    assert_eq!(numbers("a"), all);
    assert_eq!(numbers("a\0"), [of(5, "other")]);
    let writes = vec![delete_tell(9, "a"), delete_tell(255, "b"), delete_tell(1, "none")];
    done(store, vec![with(turn(&claim, "a", 1, 3), (3, 1), writes)]);
    assert_eq!(numbers("a"), [of(1 << 40, "a"), of(9, "a\0"), of(256, "b")]);
    let loaded = load(store, &shard(1), "a");
    assert_eq!(loaded.head.unwrap().outbox_counts().unwrap(), (3, 1));
    assert_eq!(loaded.dead_letters, [(3, tell("z", "dead"))]);
    assert!(load(store, &shard(1), "a\0").dead_letters.is_empty());
}

fn dead_letters_are_scanned_by_entity_and_number(store: &impl EntityStore) {
    let claim = granted(store, 1);
    for (number, id) in (1..).zip(["b", "a", "a\0"]) {
        let writes = vec![
            put_dead_letter(256, &tell("x", "late")),
            put_dead_letter(255, &tell("y", id.to_owned())),
        ];
        done(store, vec![with(turn(&claim, id, 0, number), (0, 2), writes)]);
    }
    let mut by = scan(&shard(1), ScanKind::DeadLetters { from: None });
    by.max_records = 2;
    let pages = scan_all(store, by);
    let found = pages.into_iter().flat_map(|page| page.records).map(|record| match record {
        ScannedRecord::DeadLetter(entity, number, tell) => {
            (entity.id.to_string(), number, tell.target.id.to_string())
        }
        other => panic!("a scan of dead letters returned {other:?}"),
    });
    let of = |id: &str, number, target: &str| (id.to_owned(), number, target.to_owned());
    let all: Vec<_> =
        ["a", "a\0", "b"].iter().flat_map(|id| [of(id, 255, "y"), of(id, 256, "x")]).collect();
    assert_eq!(found.collect::<Vec<_>>(), all);
    let from = Some(Entity::new("counter", "a\0"));
    let some = scan_all(store, scan(&shard(1), ScanKind::DeadLetters { from }));
    assert_eq!(some.iter().map(|page| page.records.len()).sum::<usize>(), 4, "from that entity");
    let none = scan_all(store, scan(&shard(2), ScanKind::DeadLetters { from: None }));
    assert!(none.iter().all(|page| page.records.is_empty()));
}

fn large_tells_are_whole_and_leave_nothing<S: EntityStore>(factory: &Factory<S>) {
    let mut store = factory.make();
    let claim = granted(&store, 1);
    for (from, bytes) in (0..).zip([100_000, 5_000, 3, 60_000]) {
        let tell = tell("b", vec![from as u8; bytes]);
        let writes = vec![put_tell(1, &tell)];
        done(&store, vec![with(turn(&claim, "a", from, from), (1, 0), writes)]);
        assert_eq!(load(&store, &shard(1), "a").outbox, [(1, tell.clone())]);
        store = match factory.reopen(store) {
            Some(store) => store,
            None => return,
        };
        assert_eq!(load(&store, &shard(1), "a").outbox, [(1, tell)]);
    }
    let gone = vec![delete_tell(1, "b"), put_dead_letter(1, &tell("b", vec![7; 60_000]))];
    done(&store, vec![with(turn(&claim, "a", 4, 9), (0, 1), gone)]);
    let loaded = load(&store, &shard(1), "a");
    assert!(loaded.outbox.is_empty());
    assert_eq!(loaded.dead_letters, [(1, tell("b", vec![7; 60_000]))]);
}
