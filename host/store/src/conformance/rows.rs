//! Rows: compare-and-set, lists and watches.

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::{Either, select};

use super::Factory;
use crate::cluster::{MAX_ROW_KEY_BYTES, MAX_ROW_VALUE_BYTES};
use crate::{ClusterStore, CompareAndSet, CompareAndSetError, RowEvent, StoreError, StoredRow};

pub(super) fn check<S: ClusterStore>(factory: &Factory<S>, forgets: usize) {
    a_row_changes_only_if_it_is_as_expected(&factory.make());
    a_recreated_row_has_a_new_revision(&factory.make());
    rows_are_listed_by_prefix_in_order(&factory.make());
    keys_and_values_have_limits(&factory.make());
    reads_follow_earlier_writes(&factory.make());
    a_watch_delivers_every_later_change_of_its_prefix(&factory.make());
    a_watch_wakes_at_a_change(&factory.make());
    a_watch_that_falls_behind_must_resync(&factory.make(), forgets);
    rows_survive_reopening(factory);
    exactly_one_concurrent_write_wins(&factory.make());
}

fn cas(
    store: &impl ClusterStore,
    key: &str,
    expected: Option<u64>,
    value: Option<&'static str>,
) -> Result<u64, CompareAndSetError> {
    let value = value.map(Bytes::from);
    block_on(store.compare_and_set(CompareAndSet { key: key.into(), expected, value }))
}

fn get(store: &impl ClusterStore, key: &str) -> Option<StoredRow> {
    block_on(store.get(key)).unwrap()
}

fn row(key: &str, revision: u64, value: &'static str) -> StoredRow {
    StoredRow { key: key.into(), revision, value: value.into() }
}

fn a_row_changes_only_if_it_is_as_expected(store: &impl ClusterStore) {
    assert_eq!(get(store, "a"), None);
    assert_eq!(
        cas(store, "a", Some(1), Some("x")),
        Err(CompareAndSetError::RevisionMismatch(None))
    );
    assert_eq!(cas(store, "a", Some(1), None), Err(CompareAndSetError::RevisionMismatch(None)));
    let first = cas(store, "a", None, Some("1")).unwrap();
    assert_eq!(get(store, "a"), Some(row("a", first, "1")));
    let is_first = Err(CompareAndSetError::RevisionMismatch(Some(row("a", first, "1"))));
    assert_eq!(cas(store, "a", None, Some("x")), is_first);
    assert_eq!(cas(store, "a", Some(first + 1), Some("x")), is_first);
    assert_eq!(cas(store, "a", None, None), is_first);

    let second = cas(store, "a", Some(first), Some("")).unwrap();
    assert!(second > first, "revisions rise");
    let is_second = Err(CompareAndSetError::RevisionMismatch(Some(row("a", second, ""))));
    assert_eq!(cas(store, "a", Some(first), Some("x")), is_second, "an old revision fails");
    let third = cas(store, "a", Some(second), None).unwrap();
    assert!(third > second);
    assert_eq!(get(store, "a"), None);
}

fn a_recreated_row_has_a_new_revision(store: &impl ClusterStore) {
    let first = cas(store, "a", None, Some("1")).unwrap();
    cas(store, "a", Some(first), None).unwrap();
    let second = cas(store, "a", None, Some("1")).unwrap();
    assert!(second > first);
    let is_second = Err(CompareAndSetError::RevisionMismatch(Some(row("a", second, "1"))));
    assert_eq!(cas(store, "a", Some(first), Some("x")), is_second);
}

fn rows_are_listed_by_prefix_in_order(store: &impl ClusterStore) {
    let (rows, start) = block_on(store.list("")).unwrap();
    assert!(rows.is_empty());
    let mut revisions = Vec::new();
    for key in ["b/2", "a", "b/10", "b", "c", "b/1"] {
        revisions.push((key, cas(store, key, None, Some("v")).unwrap()));
    }
    let keys = |prefix: &str| {
        let (rows, revision) = block_on(store.list(prefix)).unwrap();
        assert!(revision >= revisions[5].1 && revision >= start);
        for row in &rows {
            assert!(revisions.contains(&(row.key.as_str(), row.revision)));
        }
        rows.into_iter().map(|row| row.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(""), ["a", "b", "b/1", "b/10", "b/2", "c"]);
    assert_eq!(keys("b/"), ["b/1", "b/10", "b/2"]);
    assert_eq!(keys("c"), ["c"]);
    assert!(keys("d").is_empty());
}

fn keys_and_values_have_limits(store: &impl ClusterStore) {
    let limited = |key: String, size: usize| {
        let value = Some(vec![b'v'; size].into());
        block_on(store.compare_and_set(CompareAndSet { key, expected: None, value }))
    };
    let is_limit =
        |result| matches!(result, Err(CompareAndSetError::Store(StoreError::LimitExceeded(_))));
    assert!(is_limit(limited(String::new(), 1)));
    assert!(is_limit(limited("k".repeat(MAX_ROW_KEY_BYTES + 1), 1)));
    assert!(is_limit(limited("k".into(), MAX_ROW_VALUE_BYTES + 1)));
    for size in [0, 4090, 4100, MAX_ROW_VALUE_BYTES] {
        let key = format!("{size:0>width$}", width = MAX_ROW_KEY_BYTES);
        let revision = limited(key.clone(), size).unwrap();
        let row = StoredRow { key: key.clone(), revision, value: vec![b'v'; size].into() };
        assert!(get(store, &key) == Some(row), "a row of {size} bytes");
    }
    assert_eq!(block_on(store.list("0")).unwrap().0.len(), 4);
}

fn reads_follow_earlier_writes(store: &impl ClusterStore) {
    let make = CompareAndSet { key: "a".into(), expected: None, value: Some("1".into()) };
    let writing = store.compare_and_set(make);
    let row = get(store, "a").expect("R2: a read sees the calls queued before it");
    let (rows, revision) = block_on(store.list("a")).unwrap();
    assert_eq!(rows, std::slice::from_ref(&row));
    assert!(revision >= row.revision);
    assert_eq!(block_on(writing), Ok(row.revision));
}

fn a_watch_delivers_every_later_change_of_its_prefix(store: &impl ClusterStore) {
    let before = cas(store, "a/0", None, Some("0")).unwrap();
    let (_, from) = block_on(store.list("a/")).unwrap();
    assert!(from >= before);
    let mut watch = store.watch("a/", from);
    let one = cas(store, "a/1", None, Some("1")).unwrap();
    cas(store, "b/1", None, Some("x")).unwrap();
    let two = cas(store, "a/2", None, Some("2")).unwrap();
    assert_eq!(block_on(watch.next()), RowEvent::Set(row("a/1", one, "1")));
    let gone = cas(store, "a/1", Some(one), None).unwrap();
    assert_eq!(block_on(watch.next()), RowEvent::Set(row("a/2", two, "2")));
    let expected = RowEvent::Deleted { key: "a/1".into(), revision: gone };
    assert_eq!(block_on(watch.next()), expected);

    let mut later = store.watch("a/", two);
    assert_eq!(
        block_on(later.next()),
        expected,
        "a watch from a revision delivers all later changes"
    );
    let mut all = store.watch("", gone);
    let last = cas(store, "c", None, Some("3")).unwrap();
    assert_eq!(block_on(all.next()), RowEvent::Set(row("c", last, "3")));
    let never = watch.next();
    let Either::Right(_) = block_on(select(never, futures::future::ready(()))) else {
        panic!("nothing under its prefix changed")
    };
}

fn a_watch_wakes_at_a_change(store: &impl ClusterStore) {
    let (_, from) = block_on(store.list("")).unwrap();
    std::thread::scope(|scope| {
        let mut watches = [store.watch("a", from), store.watch("a", from)];
        let waiting = scope.spawn(move || watches.each_mut().map(|watch| block_on(watch.next())));
        let revision = cas(store, "a", None, Some("1")).unwrap();
        let event = RowEvent::Set(row("a", revision, "1"));
        assert_eq!(waiting.join().unwrap(), [event.clone(), event]);
    });
}

fn a_watch_that_falls_behind_must_resync(store: &impl ClusterStore, forgets: usize) {
    if forgets == 0 {
        return;
    }
    let (_, from) = block_on(store.list("")).unwrap();
    let behind = store.watch("a", from);
    let mut revision = None;
    for _ in 0..forgets {
        revision = Some(cas(store, "a", revision, Some("v")).unwrap());
    }
    for (mut watch, other) in [(behind, "b1"), (store.watch("other", from), "b2")] {
        assert_eq!(block_on(watch.next()), RowEvent::ResyncRequired);
        cas(store, other, None, Some("x")).unwrap();
        assert_eq!(
            block_on(watch.next()),
            RowEvent::ResyncRequired,
            "after a resync event only resync events"
        );
    }
    let (_, now) = block_on(store.list("a")).unwrap();
    let mut fresh = store.watch("a", now);
    let next = cas(store, "a", revision, Some("w")).unwrap();
    assert_eq!(block_on(fresh.next()), RowEvent::Set(row("a", next, "w")));
}

fn rows_survive_reopening<S: ClusterStore>(factory: &Factory<S>) {
    let store = factory.make();
    let kept = cas(&store, "kept", None, Some("1")).unwrap();
    let gone = cas(&store, "gone", None, Some("2")).unwrap();
    let deleted = cas(&store, "gone", Some(gone), None).unwrap();
    let Some(store) = factory.reopen(store) else { return };
    assert_eq!(get(&store, "kept"), Some(row("kept", kept, "1")));
    assert_eq!(get(&store, "gone"), None);
    let (_, from) = block_on(store.list("")).unwrap();
    let mut watch = store.watch("kept", from);
    let next = cas(&store, "kept", Some(kept), Some("3")).unwrap();
    assert!(next > deleted, "no revision is reused");
    assert_eq!(block_on(watch.next()), RowEvent::Set(row("kept", next, "3")));
    assert_eq!(
        block_on(store.watch("", 0).next()),
        RowEvent::ResyncRequired,
        "the history was lost, so a resync is required"
    );
}

fn exactly_one_concurrent_write_wins(store: &impl ClusterStore) {
    let first = cas(store, "row", None, Some("0")).unwrap();
    let won: usize = std::thread::scope(|scope| {
        let rivals: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| usize::from(cas(store, "row", Some(first), Some("1")).is_ok())))
            .collect();
        rivals.into_iter().map(|rival| rival.join().unwrap()).sum()
    });
    assert_eq!(won, 1);
}
