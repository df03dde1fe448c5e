//! Clients that stop or lose their connections in the middle of a batch, and servers that end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::Signal;
use ostraca_core::codec;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, NodeId, ShardId, ShardPath, TurnId,
};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, Head, JournalEvent, JournalSnapshot,
    Placement, RecordKey, RecordWrite,
};
use ostraca_core::rows::Member;
use ostraca_store::transfer::{CopySource, CopyTarget, Destination, Item, ItemKind};
use ostraca_store::{EntityStore, MovableShards, StoreError};
use ostraca_store_postgres::{
    OpenError, Options, PostgresCopySource, PostgresCopyTarget, PostgresStore,
};
use ostraca_test_servers::postgres::Server;
use ostraca_test_servers::proxy::Proxy;

pub(crate) const CLUSTER: ClusterId = ClusterId(7);
/// A lease, which a stopped client must not outlast.
const LEASE: Duration = Duration::from_secs(3);
/// A bound on what the tests wait for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn shard() -> ShardPath {
    ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(1) }
}

pub(crate) fn claim(epoch: u64, node: &str) -> Arc<Claim> {
    Arc::new(Claim {
        cluster: CLUSTER,
        shard: shard(),
        epoch: Epoch(epoch),
        owner: Member { node: NodeId::from(node), incarnation: Incarnation::default() },
        number: 1,
        extensions: Default::default(),
    })
}

pub(crate) fn turn(claim: &Arc<Claim>, id: &str, from: u64, bytes: usize) -> Commit {
    let turn = TurnId { nonce: 1, shard: 1, epoch: claim.epoch, number: from };
    let value = Some(Bytes::from(vec![b'x'; bytes]));
    Commit {
        claim: claim.clone(),
        entity: Entity::new("counter", id),
        expected_version: from,
        head: Head { version: from + 1, turn, ..Head::default() },
        writes: vec![RecordWrite { key: RecordKey::State("k".into()), value }],
        extensions: Default::default(),
    }
}

pub(crate) async fn claimed(store: &PostgresStore, claim: &Claim) {
    assert_eq!(store.claim(vec![claim.clone()]).await, [ClaimOutcome::Granted]);
}

pub(crate) async fn commit(store: &PostgresStore, turn: Commit) -> CommitOutcome {
    store.commit(vec![turn]).await.remove(0)
}

pub(crate) async fn version(store: &PostgresStore, id: &str) -> u64 {
    let loaded = store.load(vec![(shard(), Entity::new("counter", id))]).await.remove(0);
    loaded.expect("a load").head.map_or(0, |head| head.version)
}

fn url(port: u16, database: &str) -> String {
    format!("host=127.0.0.1 port={port} user=postgres dbname={database}")
}

pub(crate) async fn create(server: &Server) -> (PostgresStore, String) {
    let database = server.database();
    let creating = PostgresStore::create(Options::new(server.url(&database)), CLUSTER, "test");
    (creating.await.expect("a store"), database)
}

/// A store behind a proxy, with one connection that writes.
async fn behind(proxy: &Proxy, database: &str) -> PostgresStore {
    // The proxy counts bytes: only those of the calls may pass. Connections for rows would be opened beside them.
    let options = Options { writers: 1, ..Options::new(url(proxy.port(), database)) };
    PostgresStore::open_for_state(options).await.expect("the store")
}

/// A store behind a proxy, and the same one without it.
struct Proxied {
    server: Server,
    proxy: Proxy,
    direct: PostgresStore,
    store: PostgresStore,
    database: String,
}

async fn proxied() -> Proxied {
    let server = Server::start("");
    let (direct, database) = create(&server).await;
    let proxy = Proxy::start(server.port()).await;
    let store = behind(&proxy, &database).await;
    Proxied { server, proxy, direct, store, database }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_a_client_that_stops_in_a_batch_holds_no_lock() {
    let Proxied { server: _server, proxy, direct, store: stopping, .. } = proxied().await;
    let mut epoch = 1;
    let mut own = claim(epoch, "a");
    claimed(&stopping, &own).await;
    // The bytes of one batch, from its first message to the last.
    assert_eq!(commit(&stopping, turn(&own, "first", 0, 1_000)).await, CommitOutcome::Committed);
    let before = proxy.passed();
    assert_eq!(commit(&stopping, turn(&own, "again", 0, 1_000)).await, CommitOutcome::Committed);
    let whole = proxy.passed() - before;
    // The last messages are Execute (10 bytes) and Sync (5 bytes).
    let places = [1, whole / 2, whole - 16, whole - 15, whole - 6, whole - 5, whole - 4, whole - 1];
    let mut committed = 0;
    for (number, bytes) in places.into_iter().enumerate() {
        let id = format!("e{number:04}");
        proxy.stop_after(bytes);
        let mut stopped = tokio::spawn(stopping.commit(vec![turn(&own, &id, 0, 1_000)]));
        let early = tokio::time::timeout(Duration::from_millis(300), &mut stopped).await;
        assert!(early.is_err(), "the batch of which {bytes} of {whole} bytes came: {early:?}");
        epoch += 1;
        let asked = Instant::now();
        claimed(&direct, &claim(epoch, "b")).await;
        assert!(asked.elapsed() < LEASE, "{bytes} of {whole} bytes: {:?}", asked.elapsed());
        // Whatever has happened by now is final.
        let found = version(&direct, &id).await;
        committed += found;
        proxy.go_on();
        let outcome = tokio::time::timeout(TIMEOUT, stopped).await.expect("it ends");
        let outcome = outcome.expect("no panic").remove(0);
        let refused = |outcome: &CommitOutcome| {
            matches!(outcome, CommitOutcome::Refused(CommitRefusal::ClaimMismatch { .. }))
        };
        assert!(
            if found == 1 { outcome == CommitOutcome::Committed } else { refused(&outcome) },
            "{bytes} of {whole} bytes: {outcome:?}, but the version was {found}"
        );
        assert_eq!(version(&direct, &id).await, found, "no late commit");
        epoch += 1;
        own = claim(epoch, "a");
        claimed(&stopping, &own).await;
    }
    assert!((1..8).contains(&committed), "some batches ran before the claim, others not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_a_lost_connection_leaves_an_outcome_to_the_next_claim() {
    let Proxied { server: _server, proxy, direct, store, .. } = proxied().await;
    claimed(&store, &claim(1, "a")).await;
    let before = proxy.passed();
    let first = turn(&claim(1, "a"), "first", 0, 10);
    assert_eq!(commit(&store, first).await, CommitOutcome::Committed);
    let whole = proxy.passed() - before;
    for (epoch, bytes, expected) in [(2, 1, 0), (3, whole / 2, 0), (4, whole - 5, 1)] {
        let (own, id) = (claim(epoch, "a"), format!("e{epoch:04}"));
        claimed(&store, &own).await;
        proxy.stop_after(bytes);
        let waiting = tokio::spawn(store.commit(vec![turn(&own, &id, 0, 10)]));
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.cut();
        proxy.go_on();
        let outcome = waiting.await.expect("no panic").remove(0);
        assert!(matches!(outcome, CommitOutcome::Unknown(_)), "{outcome:?}");
        // The claim's next number is ordered after it, and what the head says then is final.
        let next = Arc::new(Claim { number: 2, ..(*own).clone() });
        claimed(&store, &next).await;
        assert_eq!(version(&direct, &id).await, expected, "{bytes} of {whole} bytes");
        let late = commit(&store, turn(&own, &id, 0, 10)).await;
        let same = commit(&store, turn(&next, &id, 0, 10)).await;
        if expected == 1 {
            assert_eq!(late, CommitOutcome::AlreadyCommitted, "it is durable under any claim");
            assert_eq!(same, CommitOutcome::AlreadyCommitted);
        } else {
            let refused = CommitRefusal::ClaimMismatch { current: Some(Box::new((*next).clone())) };
            assert_eq!(late, CommitOutcome::Refused(refused));
            assert_eq!(same, CommitOutcome::Committed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_keeps_what_it_has_acknowledged() {
    let mut server = Server::start("");
    let (store, _) = create(&server).await;
    let own = claim(1, "a");
    claimed(&store, &own).await;
    let mut acknowledged = 0;
    for round in 0..3 {
        for _ in 0..50 {
            let next = turn(&own, "e", acknowledged, 100);
            assert_eq!(commit(&store, next).await, CommitOutcome::Committed, "round {round}");
            acknowledged += 1;
        }
        server.stop(Signal::SIGKILL);
        // A server's processes may serve for a moment longer.
        if commit(&store, turn(&own, "e", acknowledged, 100)).await == CommitOutcome::Committed {
            acknowledged += 1;
        }
        server.run();
        let until = Instant::now() + TIMEOUT;
        loop {
            let loaded = store.load(vec![(shard(), Entity::new("counter", "e"))]).await.remove(0);
            match loaded {
                Ok(loaded) => {
                    let version = loaded.head.map_or(0, |head| head.version);
                    // The commit in between may have taken effect.
                    assert!((acknowledged..=acknowledged + 1).contains(&version), "round {round}");
                    acknowledged = version;
                    break;
                }
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_database_without_acknowledged_batches_is_refused() {
    let Proxied { server, proxy, store: behind, database, .. } = proxied().await;
    let own = claim(1, "a");
    claimed(&behind, &own).await;
    assert_eq!(commit(&behind, turn(&own, "e", 0, 10)).await, CommitOutcome::Committed);
    // As after the restore of a backup from before the last batch.
    server.sql_on(&database, "UPDATE ostraca.writers SET batches = batches - 1").expect("changed");
    proxy.cut();
    let until = Instant::now() + TIMEOUT;
    loop {
        match commit(&behind, turn(&own, "e", 1, 10)).await {
            CommitOutcome::Refused(CommitRefusal::LimitReached(why))
                if why.contains("rolled back") =>
            {
                break;
            }
            other => assert!(Instant::now() < until, "{other:?}"),
        }
    }
    let stopped = behind.load(vec![(shard(), Entity::new("counter", "e"))]).await.remove(0);
    assert!(matches!(stopped, Err(StoreError::Stopped(_))), "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_sequence_that_went_back_stops_the_store() {
    let server = Server::start("");
    let (writing, database) = create(&server).await;
    let reading = PostgresStore::open_for_state(Options::new(server.url(&database))).await;
    let reading = reading.expect("opened");
    let own = claim(1, "a");
    claimed(&writing, &own).await;
    assert_eq!(commit(&writing, turn(&own, "e", 0, 10)).await, CommitOutcome::Committed);
    let before = EntityStore::identity(&writing).durable_sequence;
    assert_eq!(reading.read_sequence().await, Ok(before));
    // As after a fail-over without the last batch, behind a pooler that keeps the nodes' connections.
    server.sql_on(&database, "UPDATE ostraca.writers SET batches = batches - 1").expect("changed");
    for store in [&writing, &reading] {
        let lower = store.read_sequence().await;
        assert!(
            matches!(&lower, Err(StoreError::Stopped(why)) if why.contains("rolled back")),
            "{lower:?}"
        );
        let stopped = store.load(vec![(shard(), Entity::new("counter", "e"))]).await.remove(0);
        assert!(matches!(stopped, Err(StoreError::Stopped(_))), "{stopped:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_batch_that_fails_counts_for_nothing() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let own = claim(1, "a");
    claimed(&store, &own).await;
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE ostraca.{from} RENAME TO {to}");
        server.sql_on(&database, &sql).expect("renamed");
    };
    rename("heads", "elsewhere");
    for _ in 0..3 {
        let refused = commit(&store, turn(&own, "e", 0, 10)).await;
        let CommitOutcome::Refused(CommitRefusal::LimitReached(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.contains("ostraca.heads"), "{why}");
    }
    rename("elsewhere", "heads");
    assert_eq!(commit(&store, turn(&own, "e", 0, 10)).await, CommitOutcome::Committed);
    // A witness that is ahead of the database would be taken for a rollback.
    let sql =
        "SELECT ended_batches + (SELECT sum(batches) FROM ostraca.writers) FROM ostraca.store";
    let durable = server.sql_on(&database, sql).expect("a sum");
    assert_eq!(store.identity().durable_sequence.to_string(), durable.trim());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_servers_and_databases_are_refused_by_name() {
    let server = Server::start("");
    let open =
        async |url: String| PostgresStore::open(Options::new(url)).await.expect_err("refused");
    let empty = server.database();
    assert!(matches!(open(server.url(&empty)).await, OpenError::Missing));
    assert!(matches!(open("no address".into()).await, OpenError::Url(_)));
    let nowhere = open(server.url("nowhere")).await.to_string();
    assert!(nowhere.contains("database \"nowhere\" does not exist"), "{nowhere}");
    let closed = open(url(1, "postgres")).await;
    assert!(matches!(closed, OpenError::Connect(_)) && closed.is_retryable(), "{closed}");

    let (store, database) = create(&server).await;
    drop(store);
    let again = PostgresStore::create(Options::new(server.url(&database)), ClusterId(8), "other");
    let exists = again.await.expect_err("refused");
    assert!(matches!(exists, OpenError::Exists { cluster: CLUSTER, .. }), "{exists}");
    let other = Options { cluster: Some(ClusterId(8)), ..Options::new(server.url(&database)) };
    let other = PostgresStore::open(other).await.expect_err("refused");
    assert!(matches!(other, OpenError::OtherCluster { cluster: CLUSTER, .. }), "{other}");
    server.sql_on(&database, "UPDATE ostraca.store SET schema_version = 99").expect("changed");
    let newer = open(server.url(&database)).await;
    assert!(matches!(newer, OpenError::NewerSchema { found: 99, .. }), "{newer}");

    let read_only = server.database();
    let setting = format!("ALTER DATABASE {read_only} SET default_transaction_read_only = on");
    server.sql_on("postgres", &setting).expect("changed");
    assert!(matches!(open(server.url(&read_only)).await, OpenError::ReadOnly));
    let isolated = server.database();
    let setting =
        format!("ALTER DATABASE {isolated} SET default_transaction_isolation = 'repeatable read'");
    server.sql_on("postgres", &setting).expect("changed");
    let unsafe_setting = open(server.url(&isolated)).await;
    assert!(
        unsafe_setting.to_string().contains("default_transaction_isolation"),
        "{unsafe_setting}"
    );

    for setting in ["fsync", "full_page_writes"] {
        let server = Server::start(&format!("{setting} = off"));
        let refused = open(server.url("postgres")).await;
        assert!(
            matches!(refused, OpenError::UnsafeSetting { setting: found, .. } if found == setting),
            "{refused}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_another_one_defeated_is_sent_again() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let setting =
        format!("ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'");
    server.sql_on("postgres", &setting).expect("changed");
    drop(store);
    let open = async || PostgresStore::open(Options::new(server.url(&database))).await;
    let (one, other) = (open().await.expect("opened"), open().await.expect("opened"));
    let own = claim(1, "a");
    claimed(&one, &own).await;
    // Both write to the same entity at the same time, so PostgreSQL ends some of the transactions (SQLSTATE 40001).
    let until = Instant::now() + TIMEOUT;
    let mut rounds = 0;
    while !server.log().contains("could not serialize access") {
        assert!(Instant::now() < until, "no conflict in {rounds} rounds");
        let first = turn(&own, "a", rounds, 10);
        let mut second = first.clone();
        second.head.turn.nonce = 2;
        let outcomes = tokio::join!(commit(&one, first), commit(&other, second));
        let committed = |outcome: &CommitOutcome| *outcome == CommitOutcome::Committed;
        let refused = |outcome: &CommitOutcome| {
            matches!(outcome, CommitOutcome::Refused(CommitRefusal::VersionMismatch { .. }))
        };
        let (one, other) = &outcomes;
        let one_won = committed(one) && refused(other) || refused(one) && committed(other);
        assert!(one_won, "round {rounds}: {outcomes:?}");
        rounds += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_returns_ends_what_it_left_behind() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let own = claim(1, "a");
    claimed(&store, &own).await;
    assert_eq!(commit(&store, turn(&own, "a", 0, 10)).await, CommitOutcome::Committed);
    let before = EntityStore::identity(&store);
    let writers = || {
        let sql = "SELECT count(*) FROM ostraca.writers";
        server.sql_on(&database, sql).expect("counted").trim().parse::<u64>().expect("a number")
    };
    // As after a crash: nothing ends its connections' rows.
    drop(store);
    let left = writers();
    assert!(left >= 1);
    let options =
        Options { last_opening: Some(before.open_count), ..Options::new(server.url(&database)) };
    let store = PostgresStore::open(options).await.expect("opened");
    let after = EntityStore::identity(&store);
    assert!(after.durable_sequence >= before.durable_sequence, "its batches count on (R5)");
    assert_eq!(commit(&store, turn(&own, "a", 1, 10)).await, CommitOutcome::Committed);
    assert!(writers() <= left, "{} rows of writers, {left} before", writers());
    let opening =
        format!("SELECT count(*) FROM ostraca.writers WHERE opening = {}", before.open_count);
    assert_eq!(server.sql_on(&database, &opening).expect("counted").trim(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e18_people_query_state_and_journals_with_sql() {
    let server = Server::start("");
    let (store, database) = create(&server).await;
    let own = claim(1, "a");
    claimed(&store, &own).await;
    let encoded = |record: Result<Vec<u8>, _>| {
        let record: Result<Vec<u8>, ostraca_core::codec::CodecError> = record;
        Some(Bytes::from(record.expect("encoded")))
    };
    let journal = |number, value| RecordWrite { key: RecordKey::Journal { number }, value };
    let mut turn = turn(&own, "alice", 0, 3);
    for (number, data) in [(1, "opened"), (2, "closed")] {
        let data = Bytes::from_static(data.as_bytes());
        let event = JournalEvent { start: 1_000, data, extensions: Default::default() };
        turn.writes.push(journal(number, encoded(codec::encode(&event))));
    }
    let (through, version, data) = (300, 70_000, Bytes::from_static(b"{}"));
    let snapshot = JournalSnapshot { through, version, data, extensions: Default::default() };
    turn.writes.push(journal(RecordKey::SNAPSHOT, encoded(codec::encode(&snapshot))));
    assert_eq!(commit(&store, turn).await, CommitOutcome::Committed);
    let query = |columns: &str, view: &str| {
        let select =
            format!("SELECT {columns} FROM ostraca.{view} WHERE type = 'counter' AND id = 'alice'");
        let sql = format!("SET bytea_output = 'escape'; {select} ORDER BY 1");
        server.sql_on(&database, &sql).expect("rows")
    };
    assert_eq!(query("shard, version", "entities"), "1|1\n");
    assert_eq!(query("key, value", "state"), "k|xxx\n");
    assert_eq!(query("event, data", "journal"), "1|opened\n2|closed\n");
    assert_eq!(query("through, data", "snapshots"), "300|{}\n");
}

/// The server writes nothing by itself for so long that only what a commit waited for survives.
const LAZY: &str = "synchronous_commit = off\nwal_writer_delay = 10s";

/// Kills the server, and returns what this query finds afterwards.
fn after_crash(server: &mut Server, database: &str, sql: &str) -> String {
    server.stop(Signal::SIGKILL);
    server.run();
    server.sql_on(database, sql).expect("read").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_every_answered_change_survives_a_crash() {
    let mut server = Server::start(LAZY);
    let (store, database) = create(&server).await;
    let options = Options::new(server.url(&database));
    store.put_blob(Bytes::from_static(b"component")).await.expect("stored");
    drop(store);
    let found = after_crash(&mut server, &database, "SELECT count(*) FROM ostraca.blobs");
    assert_eq!(found, "1", "a component");

    let store = PostgresStore::open(options.clone()).await.expect("opened");
    let identity = EntityStore::identity(&store);
    drop(store);
    let found = after_crash(&mut server, &database, "SELECT open_count FROM ostraca.store");
    assert_eq!(found, identity.open_count.to_string(), "an opening");

    let store = PostgresStore::open(options.clone()).await.expect("opened");
    // Only a connection that writes reads rows.
    ostraca_store::ClusterStore::get(&store, "a").await.expect("read");
    let opening = EntityStore::identity(&store).open_count;
    drop(store);
    let writers = format!("SELECT count(*) FROM ostraca.writers WHERE opening = {opening}");
    assert_eq!(after_crash(&mut server, &database, &writers), "1", "a writer");

    PostgresStore::accept_server(&options).await.expect("accepted");
    let accepted = "SELECT accepted_timeline FROM ostraca.store";
    assert_eq!(after_crash(&mut server, &database, accepted), "1", "an accepted server");

    let copy = server.database();
    let copying = PostgresCopyTarget::open(Options::new(server.url(&copy)), &identity);
    copying.await.expect("a target").finish().await.expect("finished");
    let finished = "SELECT copy IS NULL FROM ostraca.store";
    assert_eq!(after_crash(&mut server, &copy, finished), "t", "a finished copy");

    let mut source = PostgresCopySource::open(options).await.expect("a source");
    let to = Destination { store_id: 7, place: "elsewhere".into() };
    source.mark_moved(&to).await.expect("marked");
    drop(source);
    let moved = "SELECT moved_to IS NOT NULL FROM ostraca.store";
    assert_eq!(after_crash(&mut server, &database, moved), "t", "a moved store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_what_was_copied_to_a_shard_survives_a_crash() {
    let mut server = Server::start(LAZY);
    let (store, database) = create(&server).await;
    let from = Placement { store_id: 9, version: 1 };
    let incoming = claim(1, "a").incoming_from(from, 5).expect("a claim");
    claimed(&store, &incoming).await;
    let entity = Entity::new("counter", "copied");
    let turn = turn(&claim(1, "a"), "copied", 0, 1);
    let items = vec![
        Item::Head { shard: shard(), entity: entity.clone(), head: Box::new(turn.head) },
        Item::Record {
            shard: shard(),
            entity,
            key: RecordKey::State("k".into()),
            value: Bytes::from_static(b"v"),
        },
    ];
    for item in items {
        store.write_incoming(incoming.clone(), vec![item]).await.expect("written");
    }
    server.stop(Signal::SIGKILL);
    server.run();
    let store = PostgresStore::open_for_state(Options::new(server.url(&database))).await;
    let (store, mut kinds, mut cursor) = (store.expect("the store"), Vec::new(), None);
    loop {
        let page = store.shard_page(shard(), cursor).await.expect("a page");
        kinds.extend(page.items.iter().map(Item::kind));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(kinds, [ItemKind::Shards, ItemKind::Heads, ItemKind::Records]);
}
