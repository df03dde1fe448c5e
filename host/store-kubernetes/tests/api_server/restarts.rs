//! Watches and servers that end, fall behind, forget changes or go back.

use ostraca_store::{ClusterStore, CompareAndSetError, RowEvent, StoreError};
use ostraca_store_kubernetes::{KubernetesStore, OpenError, Options};
use ostraca_test_servers::kubernetes::{ApiServer, Rates};
use std::time::Duration;

use super::{CLUSTER, cas, create, delete, next, options, revision, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_the_servers_restart() {
    let mut server = ApiServer::start();
    let (store, other) = (create(&server).await, KubernetesStore::open(options(&server)).await);
    let other = other.expect("opened");
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let mut last = None;
    for _ in 0..3 {
        let written = other.compare_and_set(cas("a", last, "v")).await.expect("written");
        last = Some(written);
        assert_eq!(revision(&next(&mut watch).await), written);
        server.stop();
        server.resume();
    }
    let written = other.compare_and_set(cas("b", None, "v")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_watch_is_opened_again() {
    let server = ApiServer::start();
    create(&server).await;
    let watch_timeout = Duration::from_millis(200);
    let store = KubernetesStore::open(Options { watch_timeout, ..options(&server) }).await;
    let store = store.expect("opened");
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    server.silence_watches(true);
    let written = store.compare_and_set(cas("a", None, "v")).await.expect("written");
    let before = server.requests("watch leases");
    until("it is opened again", || server.requests("watch leases") > before).await;
    server.silence_watches(false);
    assert_eq!(revision(&next(&mut watch).await), written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_missed_changes_must_resync() {
    let mut server = ApiServer::start();
    let store = create(&server).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let first = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), first);
    // Another one changes rows while this store is cut off, and the server forgets the changes.
    server.stop();
    let object = server.objects(|it| {
        let names = it.leases("default");
        let name = names.iter().find(|name| name.starts_with("ostraca.a.")).expect("a row");
        it.object("leases", "default", name).expect("a lease")
    });
    let last = server.objects(|it| {
        for _ in 0..10 {
            it.put("leases", "default", object.clone());
        }
        it.compact();
        it.version()
    });
    server.resume();
    assert_eq!(next(&mut watch).await, RowEvent::ResyncRequired);
    let (rows, now) = store.list("").await.expect("rows");
    assert_eq!(rows[0].revision, last);
    let mut fresh = store.watch("", now);
    let later = store.compare_and_set(cas("a", Some(last), "3")).await.expect("written");
    assert_eq!(revision(&next(&mut fresh).await), later);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookmark_saves_a_watch_from_compaction() {
    let mut server = ApiServer::start();
    let store = create(&server).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let first = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), first);
    server.objects(|it| (0..10).for_each(|_| it.change_others()));
    let sent = server.bookmarks();
    until("bookmarks are sent", || server.bookmarks() >= sent + 3).await;
    server.stop();
    server.objects(|it| it.compact());
    server.resume();
    let written = store.compare_and_set(cas("a", Some(first), "2")).await.expect("written");
    let event = next(&mut watch).await;
    assert_eq!(event.key_and_revision(), Some(("a", written)), "no resync");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_watch_in_the_stream_is_opened_again() {
    let server = ApiServer::start();
    let store = create(&server).await;
    let rates = Rates { watch_ends: 1000, watch_expires: 200, ..Rates::default() };
    server.inject(Some(rates), 3);
    let (_, mut from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let (mut last, mut seen, mut resyncs) = (None, 0, 0);
    while resyncs < 2 || seen < 5 {
        assert!(seen < 500, "only {resyncs} watches have expired");
        let written = store.compare_and_set(cas("a", last, "v")).await.expect("written");
        last = Some(written);
        match next(&mut watch).await {
            RowEvent::ResyncRequired => {
                resyncs += 1;
                from = store.list("").await.expect("rows").1;
                watch = store.watch("", from);
            }
            event => {
                assert_eq!(event.key_and_revision(), Some(("a", written)));
                seen += 1;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_server_with_an_older_state_stops_the_store() {
    for reads in [true, false] {
        let server = ApiServer::start();
        let store = create(&server).await;
        let first = store.compare_and_set(cas("a", None, "1")).await.expect("written");
        let backup = server.objects(|it| it.clone());
        let mut last = first;
        for _ in 0..5 {
            last = store.compare_and_set(cas("a", Some(last), "2")).await.expect("written");
        }
        server.objects(|it| *it = backup);
        let why = match reads {
            true => store.get("a").await.expect_err("refused"),
            // A change of the row that the backup has is carried out, but not acknowledged.
            false => match store.compare_and_set(cas("a", Some(first), "3")).await {
                Err(CompareAndSetError::Store(error)) => error,
                other => panic!("{other:?}"),
            },
        };
        assert!(
            matches!(&why, StoreError::Stopped(why) if why.contains("Kubernetes went back")),
            "{why}"
        );
        assert!(matches!(store.list("").await, Err(StoreError::Stopped(_))));
        let open = KubernetesStore::open(Options { cluster: Some(CLUSTER), ..options(&server) });
        let found = open.await.expect("opened").identity().durable_sequence;
        assert!(found < last, "a witness of {last} sees that {found} is older");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_restored_object_of_the_store_is_refused() {
    let server = ApiServer::start();
    drop(create(&server).await);
    server.objects(|it| it.recreate("leases", "default", "ostraca.store"));
    let refused = KubernetesStore::open(options(&server)).await.expect_err("refused");
    assert!(matches!(refused, OpenError::Recreated { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openings_are_counted_and_the_last_are_known() {
    let server = ApiServer::start();
    let first = create(&server).await;
    let second = KubernetesStore::open(options(&server)).await.expect("opened");
    let (one, two) = (first.identity(), second.identity());
    assert_eq!((one.open_count, two.open_count), (1, 2));
    assert_eq!(second.open_nonces(), [one.open_nonce, two.open_nonce]);
    assert!(two.durable_sequence > one.durable_sequence && two.store_id == one.store_id);
    // Openings at the same moment are all counted.
    let opening = (0..5).map(|_| KubernetesStore::open(options(&server)));
    let mut counts: Vec<_> = futures::future::join_all(opening)
        .await
        .into_iter()
        .map(|store| store.expect("opened").identity().open_count)
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [3, 4, 5, 6, 7]);
    let probed = KubernetesStore::probe(options(&server)).await.expect("a store");
    assert_eq!((probed.open_count, probed.store_id), (7, one.store_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_counts_as_no_row() {
    let server = ApiServer::start();
    let verbs = ["list leases", "watch leases", "create leases", "update leases"];
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "t").expect("written");
    server.restrict(&[("t", &verbs)]);
    let options = Options { token_file: Some(token.path().into()), ..options(&server) };
    let store = KubernetesStore::create(options, CLUSTER, "test").await.expect("a store");
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    let gone = store.compare_and_set(delete("a", made)).await.expect("deleted");
    assert!(gone > made);
    // The right to delete is missing, so the tombstone stays.
    assert_eq!(server.objects(|it| it.leases("default").len()), 2);
    assert_eq!(store.get("a").await, Ok(None));
    assert_eq!(store.list("").await.expect("rows").0, []);
    let absent = Err(CompareAndSetError::RevisionMismatch(None));
    assert_eq!(store.compare_and_set(cas("a", Some(made), "2")).await, absent);
    assert_eq!(store.compare_and_set(cas("a", Some(gone), "2")).await, absent);
    assert_eq!(store.compare_and_set(delete("a", gone)).await, absent);
    let again = store.compare_and_set(cas("a", None, "3")).await.expect("written");
    let last = store.compare_and_set(delete("a", again)).await.expect("deleted");
    let mut shown = Vec::new();
    for _ in 0..4 {
        shown.push(revision(&next(&mut watch).await));
    }
    assert_eq!(shown, [made, gone, again, last]);
    // A list has it removed as soon as that is allowed. The removal is no change of the row.
    let all = [&verbs[..], &["delete leases"]].concat();
    server.restrict(&[("t", &all)]);
    store.list("").await.expect("rows");
    until("the object is removed", || server.objects(|it| it.leases("default").len()) == 1).await;
    let later = store.compare_and_set(cas("b", None, "")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), later);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_else_deletes_is_shown() {
    let server = ApiServer::start();
    let store = create(&server).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), made);
    let name = server
        .objects(|it| it.leases("default"))
        .into_iter()
        .find(|it| it.starts_with("ostraca.a."));
    let name = name.expect("a row");
    let gone = server.objects(|it| {
        it.remove("leases", "default", &name);
        it.version()
    });
    assert_eq!(next(&mut watch).await, RowEvent::Deleted { key: "a".into(), revision: gone });
    let again = store.compare_and_set(cas("a", None, "2")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), again);
}
