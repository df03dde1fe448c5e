//! Answers that are lost, requests that arrive late, and servers that are throttled or away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, StoredRow};
use ostraca_store_kubernetes::{KubernetesStore, Options};
use ostraca_test_servers::kubernetes::{ApiServer, Rates};
use ostraca_test_servers::proxy::Proxy;

use super::{
    CLUSTER, TIMEOUT, cas, create, delete, is_unknown, next, options, real_or, revision, rows,
    until,
};

/// A store behind a proxy, and the same store without it.
async fn proxied(
    change: impl FnOnce(&mut Options),
) -> (ApiServer, Proxy, KubernetesStore, KubernetesStore) {
    let server = ApiServer::start();
    let direct = create(&server).await;
    let proxy = Proxy::start(server.port()).await;
    let mut options =
        Options { url: format!("http://127.0.0.1:{}", proxy.port()), ..options(&server) };
    change(&mut options);
    let store = KubernetesStore::open(options).await.expect("opened");
    (server, proxy, direct, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_settled_by_the_nonce() {
    let (_server, proxy, direct, store) = proxied(|_| {}).await;
    // Each change reaches the server, but not its answer.
    let lose = async |change: CompareAndSet, meanwhile: Option<&str>| {
        proxy.hold_answers(true);
        let key = change.key.clone();
        let before = direct.get(&key).await.expect("read").map(|row| row.revision);
        let changing = tokio::spawn(store.compare_and_set(change));
        let end = Instant::now() + TIMEOUT;
        let now = loop {
            let now = direct.get(&key).await.expect("read").map(|row| row.revision);
            if now != before {
                break now;
            }
            assert!(Instant::now() < end, "the change did not reach the server");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        if let Some(value) = meanwhile {
            direct.compare_and_set(cas(&key, now, value)).await.expect("overwritten");
        }
        proxy.cut();
        proxy.hold_answers(false);
        (now, changing.await.expect("no panic"))
    };
    let (made, result) = lose(cas("a", None, "1"), None).await;
    assert_eq!(result, Ok(made.expect("a revision")), "a creation");
    let (changed, result) = lose(cas("a", made, "2"), None).await;
    assert_eq!(result, Ok(changed.expect("a revision")), "a change");
    assert!(changed > made, "it happened once");
    let (_, result) = lose(cas("a", changed, "3"), Some("4")).await;
    assert!(is_unknown(&result), "it happened and was overwritten: {result:?}");
    let row = direct.get("a").await.expect("read").expect("a row");
    assert_eq!(row.value, "4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_in_doubt_is_not_sent_again() {
    let (server, proxy, direct, store) = proxied(|_| {}).await;
    proxy.hold_answers(true);
    let making = tokio::spawn(store.compare_and_set(cas("a", None, "1")));
    let end = Instant::now() + TIMEOUT;
    let made = loop {
        match direct.get("a").await.expect("read") {
            Some(row) => break row.revision,
            None => assert!(Instant::now() < end, "the creation did not reach the server"),
        }
    };
    direct.compare_and_set(delete("a", made)).await.expect("deleted");
    until("the object is removed", || server.objects(|it| it.leases("default").len()) == 1).await;
    proxy.cut();
    proxy.hold_answers(false);
    let result = making.await.expect("no panic");
    assert!(is_unknown(&result), "it was made and deleted: {result:?}");
    assert_eq!(direct.get("a").await, Ok(None), "it stays deleted");
    assert_eq!(server.requests("create leases"), 2, "one for the store, one for the row");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_change_never_brings_a_row_back() {
    let long = Duration::from_secs(30);
    let (server, proxy, direct, store) = proxied(|options| {
        (options.attempt_timeout, options.call_timeout) = (long, long);
    })
    .await;
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    // The change is on its way while the row is deleted and its object removed.
    proxy.stop_after(0);
    let changing = tokio::spawn(store.compare_and_set(cas("a", Some(made), "2")));
    direct.compare_and_set(delete("a", made)).await.expect("deleted");
    until("the object is removed", || server.objects(|it| it.leases("default").len()) == 1).await;
    proxy.go_on();
    let result = changing.await.expect("no panic");
    assert_eq!(result, Err(CompareAndSetError::RevisionMismatch(None)));
    assert_eq!(direct.get("a").await, Ok(None));
    assert_eq!(server.objects(|it| it.leases("default").len()), 1, "Kubernetes made no object");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_lose_no_change() {
    let server = ApiServer::start();
    let real = real_or(&server);
    let (base, port) = real.url.rsplit_once(':').expect("a port");
    let proxy = Proxy::start(port.parse().expect("a port")).await;
    let name = format!("t{:x}", rand::random::<u64>());
    let url = format!("{base}:{}", proxy.port());
    let through = Options { url, name: name.clone(), ..real.clone() };
    let direct = Options { name, ..real };
    let direct = KubernetesStore::create(direct, CLUSTER, "test").await.expect("a store");
    let store = KubernetesStore::open(through).await.expect("opened");
    let (_, from) = direct.list("").await.expect("rows");
    let mut watch = store.watch("a", from);
    let (mut acknowledged, mut in_doubt) = (0_u64, 0);
    let number = |row: &StoredRow| -> u64 {
        std::str::from_utf8(&row.value).expect("text").parse().expect("a number")
    };
    for round in 0..60 {
        let row = direct.get("a").await.expect("read");
        let now = row.as_ref().map_or(0, number);
        assert!(
            (acknowledged..=acknowledged + in_doubt).contains(&now),
            "{now} after {acknowledged}"
        );
        let change = cas("a", row.map(|row| row.revision), &(now + 1).to_string());
        let changing = store.compare_and_set(change);
        // The connections are cut earlier or later in the change.
        tokio::time::sleep(Duration::from_micros(round * 80)).await;
        if round % 2 == 0 {
            proxy.cut();
        }
        match changing.await {
            Ok(_) => acknowledged += 1,
            Err(CompareAndSetError::Store(error)) if error.is_retryable() => in_doubt += 1,
            Err(error) => assert!(in_doubt > 0, "{error}"),
        }
    }
    println!("{acknowledged} were acknowledged, {in_doubt} in doubt");
    assert!(acknowledged >= 30);
    let last = direct.get("a").await.expect("read").expect("a row");
    while revision(&next(&mut watch).await) < last.revision {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_call_waits_as_told_and_then_fails() {
    let server = ApiServer::start();
    let call_timeout = Duration::from_millis(2500);
    create(&server).await;
    let store = KubernetesStore::open(Options { call_timeout, ..options(&server) }).await;
    let store = store.expect("opened");
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    let before = server.requests("update leases");
    server.inject(Some(Rates { throttled: 1000, ..Rates::default() }), 0);
    let result = store.compare_and_set(cas("a", Some(made), "2")).await;
    assert!(is_unknown(&result), "{result:?}");
    let text = format!("{result:?}");
    assert!(text.contains("Too many requests") && text.contains("call-timeout"), "{text}");
    // `Retry-After` is 1 s, so there is time for three attempts at most.
    assert!(server.requests("update leases") - before <= 3);
    server.inject(None, 0);
    store.compare_and_set(cas("a", Some(made), "3")).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_without_a_cause_is_tried_again() {
    let server = ApiServer::start();
    let call_timeout = Duration::from_secs(1);
    create(&server).await;
    let store = KubernetesStore::open(Options { call_timeout, ..options(&server) }).await;
    let store = store.expect("opened");
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    let before = server.requests("update leases");
    server.inject(Some(Rates { conflicts: 1000, ..Rates::default() }), 0);
    let changing = store.compare_and_set(cas("a", Some(made), "2"));
    let result = tokio::time::timeout(TIMEOUT / 4, changing).await.expect("it ends");
    assert!(is_unknown(&result) && format!("{result:?}").contains("modified"), "{result:?}");
    // The pauses between the attempts grow.
    assert!((2..20).contains(&(server.requests("update leases") - before)));
    server.inject(Some(Rates { conflicts: 500, ..Rates::default() }), 0);
    let (mut last, end) = (made, Instant::now() + TIMEOUT);
    for _ in 0..5 {
        last = loop {
            match store.compare_and_set(cas("a", Some(last), "3")).await {
                Ok(revision) => break revision,
                result => assert!(is_unknown(&result) && Instant::now() < end, "{result:?}"),
            }
        };
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_the_server_is_away() {
    let mut server = ApiServer::start();
    create(&server).await;
    let limit = Duration::from_secs(1);
    let options = Options { call_timeout: limit, queue_rows: 20, ..options(&server) };
    let store = KubernetesStore::open(options).await.expect("opened");
    server.stop();
    let began = Instant::now();
    let calls = (0..100).map(|at| store.compare_and_set(cas(&format!("r{at}"), None, "v")));
    let results = join_all(calls).await;
    assert!(results.iter().all(is_unknown) && began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    let named = |setting: &str| {
        results.iter().filter(|result| format!("{result:?}").contains(setting)).count()
    };
    assert_eq!((named("queue-metadata-ops"), named("call-timeout")), (80, 20), "{results:?}");
    server.resume();
    let end = Instant::now() + TIMEOUT;
    while store.get("r0").await.is_err() {
        assert!(Instant::now() < end, "it does not recover");
    }
    store.compare_and_set(cas("x", None, "v")).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_sees_all_changes_called_before_it() {
    let server = ApiServer::start();
    let store = create(&server).await;
    server.inject(Some(Rates { slow: 1000, ..Rates::default() }), 1);
    for round in 0..5 {
        let keys: Vec<_> = (0..30).map(|at| format!("r{round}/{at:02}")).collect();
        let writing: Vec<_> =
            keys.iter().map(|key| store.compare_and_set(cas(key, None, "v"))).collect();
        let (listed, revision) = store.list(&format!("r{round}/")).await.expect("rows");
        let listed: Vec<_> = listed.into_iter().map(|row| row.key).collect();
        assert_eq!(listed, keys);
        for written in join_all(writing).await {
            assert!(written.expect("written") <= revision);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_one_row_keep_their_order() {
    let server = ApiServer::start();
    let store = create(&server).await;
    server.inject(Some(Rates { slow: 1000, ..Rates::default() }), 2);
    let mut last = store.compare_and_set(cas("a", None, "0")).await.expect("written");
    for _ in 0..10 {
        let (one, two, read) = (
            store.compare_and_set(cas("a", Some(last), "1")),
            store.compare_and_set(cas("a", Some(last), "2")),
            store.get("a"),
        );
        last = one.await.expect("the first one wins");
        let mismatch = two.await.expect_err("refused");
        assert!(
            matches!(mismatch, CompareAndSetError::RevisionMismatch(Some(row)) if row.revision == last)
        );
        assert_eq!(read.await.expect("read").expect("a row").value, "1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_of_zero_matches_no_row() {
    let server = ApiServer::start();
    let store = create(&server).await;
    let made = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    for expected in [0, u64::MAX] {
        let result = store.compare_and_set(cas("a", Some(expected), "2")).await;
        let is_made = |row: &ostraca_store::StoredRow| row.revision == made;
        assert!(
            matches!(&result, Err(CompareAndSetError::RevisionMismatch(Some(row))) if is_made(row)),
            "{result:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_one_request() {
    let server = ApiServer::start();
    let store = Arc::new(create(&server).await);
    let mut last = store.compare_and_set(cas("nodes/a", None, "0")).await.expect("written");
    rows(&store).await;
    let before: Vec<_> =
        ["list leases", "create leases", "delete leases"].map(|verb| server.requests(verb)).into();
    let updates = server.requests("update leases");
    for number in 0..20 {
        let renewal = cas("nodes/a", Some(last), &number.to_string());
        last = store.compare_and_set(renewal).await.expect("renewed");
    }
    assert_eq!(server.requests("update leases") - updates, 20);
    let after: Vec<_> =
        ["list leases", "create leases", "delete leases"].map(|verb| server.requests(verb)).into();
    assert_eq!(after, before);
}
