//! The cluster's rows: order, watches, and servers that are reached over TLS.

use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, RowEvent, StoreError};
use ostraca_store_postgres::{OpenError, Options, PostgresStore, Tls};
use ostraca_test_servers::certificates::certificates;
use ostraca_test_servers::postgres::Server;
use ostraca_test_servers::proxy::Proxy;
use tokio::time::timeout;

const CLUSTER: ClusterId = ClusterId(7);
/// A bound on what the tests wait for.
const TIMEOUT: Duration = Duration::from_secs(60);

fn cas(key: &str, expected: Option<u64>, value: &'static str) -> CompareAndSet {
    CompareAndSet { key: key.into(), expected, value: Some(value.into()) }
}

async fn create(server: &Server) -> (PostgresStore, String) {
    let database = server.database();
    let creating = PostgresStore::create(Options::new(server.url(&database)), CLUSTER, "test");
    (creating.await.expect("a store"), database)
}

async fn next(watch: &mut Box<dyn ostraca_store::Watch>) -> RowEvent {
    timeout(TIMEOUT, watch.next()).await.expect("an event")
}

fn revision(event: &RowEvent) -> u64 {
    event.key_and_revision().map_or(0, |(_, revision)| revision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_sees_a_slow_change_that_a_fast_one_overtakes() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let quick = PostgresStore::open(Options::new(server.url(&database))).await.expect("opened");
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    // The first change has its revision long before its commit.
    let trigger = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.key = 'slow' THEN PERFORM pg_sleep(1); END IF; RETURN NEW; END $$;
        CREATE TRIGGER slow AFTER INSERT ON ostraca.row_changes FOR EACH ROW EXECUTE FUNCTION slow()";
    server.sql_on(&database, trigger).expect("a trigger");
    let slow = tokio::spawn(store.compare_and_set(cas("slow", None, "1")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let fast = quick.compare_and_set(cas("fast", None, "2")).await.expect("written");
    let slow = slow.await.expect("no panic").expect("written");
    let seen = [next(&mut watch).await, next(&mut watch).await];
    let mut expected = [slow, fast];
    expected.sort_unstable();
    assert_eq!(seen.each_ref().map(revision), expected, "each change is seen, in order: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_missed_forgotten_changes_must_resync() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let proxy = Proxy::start(server.port()).await;
    let url = format!("host=127.0.0.1 port={} user=postgres dbname={database}", proxy.port());
    let behind = PostgresStore::open(Options::new(url)).await.expect("opened");
    let (_, from) = behind.list("").await.expect("rows");
    let mut watch = behind.watch("", from);
    let first = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), first);
    proxy.stop_after(0);
    let keep = Options { row_changes: 3, ..Options::new(server.url(&database)) };
    let forgetful = PostgresStore::open(keep).await.expect("opened");
    let mut last = first;
    for _ in 0..10 {
        let changing = forgetful.compare_and_set(cas("a", Some(last), "2"));
        last = changing.await.expect("written");
    }
    proxy.cut();
    proxy.go_on();
    assert_eq!(next(&mut watch).await, RowEvent::ResyncRequired);
    let until = tokio::time::Instant::now() + TIMEOUT;
    let (rows, now) = loop {
        // The connection was lost, and the first calls may still learn of that.
        match behind.list("").await {
            Ok(rows) => break rows,
            Err(error) => assert!(tokio::time::Instant::now() < until, "{error}"),
        }
    };
    assert_eq!((rows[0].revision, now), (last, last));
    let mut fresh = behind.watch("", now);
    let next_one = forgetful.compare_and_set(cas("a", Some(last), "3")).await.expect("written");
    assert_eq!(revision(&next(&mut fresh).await), next_one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_other_nodes_arrive_without_notifications() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let polls = Options { listen: false, ..Options::new(server.url(&database)) };
    let other = PostgresStore::open(polls).await.expect("opened");
    let (_, from) = other.list("").await.expect("rows");
    let mut watch = other.watch("n", from);
    let written = store.compare_and_set(cas("nodes", None, "1")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_rows_that_went_back_stop_the_store() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let written = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    let mut watch = store.watch("", written - 1);
    assert_eq!(revision(&next(&mut watch).await), written);
    // As after the restore of a backup from before the change.
    server.sql_on(&database, "UPDATE ostraca.revision SET last = last - 1").expect("changed");
    let until = tokio::time::Instant::now() + TIMEOUT;
    while !matches!(store.get("a").await, Err(StoreError::Stopped(_))) {
        assert!(tokio::time::Instant::now() < until, "the store goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = store.compare_and_set(cas("a", Some(written), "2")).await;
    assert!(matches!(refused, Err(CompareAndSetError::Store(StoreError::Stopped(_)))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_checks_the_server_and_passwords_come_from_files() {
    let (ca, certificate, key) = certificates("localhost");
    let (other_ca, ..) = certificates("localhost");
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let files = [("server.crt", certificate.as_str()), ("server.key", key.as_str())];
    let server = Server::start_with("ssl = on", &files);
    let database = server.database();
    let user = "CREATE USER guest PASSWORD 'secret'; GRANT ALL ON DATABASE";
    server.sql_on("postgres", &format!("{user} {database} TO guest")).expect("a user");
    server.require_password("guest");
    let options = |host: &str, ca: &str, password: &str| Options {
        tls: Tls::Verify { ca: Some(file("ca.pem", ca)) },
        password_file: Some(file("password", password)),
        ..Options::new(format!("host={host} port={} user=guest dbname={database}", server.port()))
    };
    let creating = PostgresStore::create(options("localhost", &ca, "secret\n"), CLUSTER, "test");
    let store = creating.await.expect("a store");
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'guest'";
    store.list("").await.expect("rows");
    assert_eq!(server.sql_on(&database, encrypted).expect("a row").trim(), "t");

    for (host, ca, password, expected) in [
        ("localhost", other_ca.as_str(), "secret", "certificate"),
        ("127.0.0.1", &ca, "secret", "certificate"),
        ("localhost", &ca, "wrong", "password authentication failed"),
        ("localhost", "nothing", "secret", "no certificate"),
    ] {
        let refused = PostgresStore::open(options(host, ca, password)).await.expect_err("refused");
        assert!(refused.to_string().contains(expected), "{host}, {password}: {refused}");
    }
    let missing = Options {
        password_file: Some(dir.path().join("nowhere")),
        ..options("localhost", &ca, "secret")
    };
    let missing = PostgresStore::open(missing).await.expect_err("refused");
    assert!(matches!(missing, OpenError::File { .. }), "{missing}");

    let plain = Server::start("");
    let url = format!("host=localhost port={} user=postgres dbname=postgres", plain.port());
    let plain = Options { tls: Tls::Verify { ca: None }, ..Options::new(url) };
    let refused = PostgresStore::open(plain).await.expect_err("refused");
    assert!(refused.to_string().contains("TLS"), "{refused}");
}
