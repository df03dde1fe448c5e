//! Copies of stores: what is filled with [`fill`] must be seen in every copy of it (R26).

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{BoxFuture, ready};
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, Commit, Head, JournalEvent, JournalSnapshot, LoadedEntity, RecordKey, RecordWrite,
};

use super::{
    claim, claim_of, done, granted, heads, lane, load, outbox, scan, scan_all, set, set_lane,
    shard, timers, turn,
};
use crate::transfer::{
    CopyError, CopySource, CopyState, CopyTarget, Item, ItemKind, ItemPage, StoreContents, Summary,
    copy,
};
use crate::{
    ClusterStore, CompareAndSet, EntityStore, ScanKind, ScannedRecord, StoreError, StoreIdentity,
};

/// Number of shards that [`fill`] claims.
const SHARDS: u32 = 3;
/// The entity with records of all kinds; its id is unusual.
pub(super) const RICH: &str = "rich\0\u{1}";

/// What a store shows to those who read it: everything but revisions of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    claims: Vec<Option<Claim>>,
    heads: Vec<(Entity, Head)>,
    scanned: Vec<ScannedRecord>,
    rich: LoadedEntity,
    floor: Option<Head>,
    component: Option<Bytes>,
    rows: Vec<(String, Bytes)>,
}

fn component() -> Bytes {
    Bytes::from(vec![7; 300_000])
}

/// Fills a new store with items of all kinds, on several pages.
pub fn fill<S: EntityStore + ClusterStore>(store: &S) {
    fill_shards(store);
    block_on(store.put_blob(component())).unwrap();
    let rows = (0..1100).map(|number| {
        let value = Some(Bytes::from(vec![5; if number == 9 { 20_000 } else { 20 }]));
        let key = format!("rows/{number:04}");
        store.compare_and_set(CompareAndSet { key, expected: None, value })
    });
    for row in rows.collect::<Vec<_>>() {
        block_on(row).unwrap();
    }
}

/// Fills shards with heads and records of all kinds.
pub(super) fn fill_shards<S: EntityStore>(store: &S) {
    let claims: Vec<_> = (1..=SHARDS).map(|number| granted(store, number)).collect();
    for claim in &claims[1..] {
        let small = |number: u64| {
            let writes = vec![set("k", number.to_string())];
            Commit { writes, ..turn(claim, &format!("small-{number}"), 0, number) }
        };
        for from in (1..1200).step_by(200) {
            done(store, (from..from + 200).map(small).collect());
        }
    }
    let mut rich = rich(&claims[0]);
    done(store, vec![rich.clone(), turn(&claims[0], "gone", 0, 2)]);
    let mut last = turn(&claims[0], "gone", 1, 3);
    (last.head.deleted, last.head.watermark) = (true, 70);
    last.head.set_generation(3).unwrap();
    last.head.set_removed(true).unwrap();
    // The second version has other values and fewer fragments.
    (rich.expected_version, rich.head.version, rich.head.turn.number) = (1, 2, 4);
    rich.writes = vec![set("large", vec![3; 5000])];
    done(store, vec![last, rich]);
    let second = claim_of(shard(2), 4, 9);
    assert_eq!(claim(store, &second), ostraca_core::records::ClaimOutcome::Granted);
}

/// The first turn of the entity with records of all kinds.
pub(super) fn rich(claim: &Arc<Claim>) -> Commit {
    let other = lane(2, 9);
    let record = |key, value: Vec<u8>| RecordWrite { key, value: Some(value.into()) };
    let event = |number: u64| {
        let event =
            JournalEvent { start: number, data: "e".into(), extensions: Default::default() };
        record(RecordKey::Journal { number }, codec::encode(&event).unwrap())
    };
    let snapshot = JournalSnapshot {
        through: 1,
        version: 1,
        data: vec![1; 9000].into(),
        extensions: Default::default(),
    };
    let item = |number| {
        let item = ostraca_core::records::ChannelItem {
            version: number,
            utc_ms: 7,
            data: "i".into(),
            extensions: Default::default(),
        };
        let channel = "news\0".into();
        record(RecordKey::ChannelItem { channel, number }, codec::encode(&item).unwrap())
    };
    let mut commit = turn(claim, RICH, 0, 1);
    commit.head.lanes = vec![lane(1, 5).into()];
    commit.head.spilled_lane_count = 1;
    commit.head.set_timer_count(1).unwrap();
    commit.head.set_outbox_counts((1, 1)).unwrap();
    commit.writes = vec![
        set("", "of the empty key"),
        set("empty", ""),
        set("large", vec![2; 1 << 20]),
        set_lane(&other),
        timers::set_timer(&timers::timer("tick", "payload")),
        timers::wake(1_000, Some(Bytes::new())),
        outbox::put_tell(3, &outbox::tell("b\0", "body")),
        record(
            RecordKey::DeadLetter { number: 2 },
            codec::encode(&outbox::tell("c", "b")).unwrap(),
        ),
        record(RecordKey::Journal { number: 0 }, codec::encode(&snapshot).unwrap()),
        event(2),
        event(1 << 40),
        record(RecordKey::Remembered, Vec::new()),
        item(1),
        item(300),
    ];
    commit
}

/// Reads all that [`fill`] wrote.
pub fn read<S: EntityStore + ClusterStore>(store: &S) -> Seen {
    let shards: Vec<ShardPath> = (1..=SHARDS).map(shard).collect();
    let claims = block_on(store.current_claims(shards.clone())).unwrap();
    let mut found = Vec::new();
    let mut scanned = Vec::new();
    for one in &shards {
        found.extend(heads(store, scan(one, ScanKind::Heads)));
        for kind in [
            ScanKind::Wakes { from: None },
            ScanKind::DeadLetters { from: None },
            ScanKind::Remembered { from: None },
        ] {
            let pages = scan_all(store, scan(one, kind));
            scanned.extend(pages.into_iter().flat_map(|page| page.records));
        }
    }
    let entity = Entity::new("counter", RICH);
    for kind in [
        ScanKind::State(entity.clone()),
        ScanKind::Journal { entity: entity.clone(), from: 0 },
        ScanKind::Channel { entity, channel: "news\0".into(), from: 0 },
    ] {
        let pages = scan_all(store, scan(&shards[0], kind));
        scanned.extend(pages.into_iter().flat_map(|page| page.records));
    }
    let digest = *blake3::hash(&component()).as_bytes();
    let rows = block_on(store.list("")).unwrap().0;
    Seen {
        claims,
        heads: found,
        scanned,
        rich: load(store, &shards[0], RICH),
        floor: load(store, &shards[0], "gone").head,
        component: block_on(store.get_blob(digest)).unwrap(),
        rows: rows.into_iter().map(|row| (row.key, row.value)).collect(),
    }
}

/// Checks that a store that was copied goes on where its source ended: versions, claims, sequences and rows.
pub fn goes_on<S: EntityStore + ClusterStore>(store: &S) {
    let before = load(store, &shard(1), RICH).head.unwrap();
    let first = claim_of(shard(1), 1, 1);
    let next = claim_of(shard(1), 2, 1);
    assert_eq!(claim(store, &next), ostraca_core::records::ClaimOutcome::Granted);
    let (first, next) = (Arc::new(first), Arc::new(next));
    let late = super::commit(store, vec![turn(&first, RICH, 2, 5)]);
    assert!(matches!(late[0], ostraca_core::records::CommitOutcome::Refused(_)), "{late:?}");
    // It overwrites a record of many fragments with a short one, and removes the other.
    let writes = vec![set("large", "s"), super::unset("empty")];
    done(store, vec![Commit { writes, ..turn(&next, RICH, 2, 6) }]);
    let after = load(store, &shard(1), RICH).head.unwrap();
    assert!(after.commit_sequence > before.commit_sequence, "sequences rise");
    assert_eq!(super::state(store, &shard(1), RICH).len(), 2);
    let row = block_on(store.get("rows/0009")).unwrap().unwrap();
    let cas =
        CompareAndSet { key: row.key, expected: Some(row.revision), value: Some("new".into()) };
    assert!(block_on(store.compare_and_set(cas)).unwrap() > row.revision);
    assert_eq!(block_on(store.get("rows/0009")).unwrap().unwrap().value, "new");
}

/// Copies a store without any changes.
///
/// # Errors
/// [`CopyError`], as [`copy`].
pub fn copied(
    source: &mut dyn CopySource,
    target: &mut dyn CopyTarget,
) -> Result<Summary, CopyError> {
    block_on(copy(source, target, &Ok, &mut |_, _, _| ()))
}

/// A target with a fault.
pub struct Faulty<'a> {
    /// The real one.
    pub target: &'a mut dyn CopyTarget,
    /// Number of pages that are written before it fails.
    pub pages: usize,
    /// The first item of this kind is lost.
    pub loses: Option<ItemKind>,
}

impl std::fmt::Debug for Faulty<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty").field("pages", &self.pages).finish_non_exhaustive()
    }
}

impl StoreContents for Faulty<'_> {
    fn identity(&self) -> StoreIdentity {
        self.target.identity()
    }

    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>> {
        self.target.page(cursor)
    }
}

impl CopyTarget for Faulty<'_> {
    fn state(&self) -> CopyState {
        self.target.state()
    }

    fn write(
        &mut self,
        mut items: Vec<Item>,
        state: CopyState,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let Some(left) = self.pages.checked_sub(1) else {
            return ready(Err(StoreError::Unavailable("a fault".into()))).boxed();
        };
        self.pages = left;
        if let Some(at) = items.iter().position(|item| Some(item.kind()) == self.loses) {
            items.remove(at);
            self.loses = None;
        }
        self.target.write(items, state)
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.target.finish()
    }

    fn place(&self) -> String {
        self.target.place()
    }
}
