//! PostgreSQL with a wrong clock, which must decide nothing (R8).
//!
//! PostgreSQL measures its own timeouts by this clock, those that a node sets for its statements too: after a jump
//! backwards, they end nothing for as long.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ostraca_core::records::{ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_store::{ClusterStore, CompareAndSet, EntityStore, RowEvent};
use ostraca_store_postgres::{Options, PostgresStore};
use ostraca_test_servers::postgres::{Server, Setup};
use tokio::time::timeout;

use crate::faults::{TIMEOUT, claim, claimed, commit, create, turn, version};

/// In seconds.
const YEAR: i64 = 31_557_600;

/// A server whose clock is ahead by this many years.
pub(crate) fn server(years: i64) -> Server {
    let server = Server::start_as(Setup { ahead: years * YEAR, ..Setup::default() });
    check(&server, years);
    server
}

/// Lets the server's clock jump: it is ahead by this many years from now on.
fn jump(server: &mut Server, years: i64) {
    server.set_clock(years * YEAR);
    check(server, years);
}

/// Checks that the clock is as wrong as it should be.
fn check(server: &Server, years: i64) {
    let sql = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let found: i64 =
        server.sql_on("postgres", sql).expect("a time").trim().parse().expect("seconds");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    assert!((found - now.cast_signed() - years * YEAR).abs() < YEAR / 12, "it is {found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_jumps_of_the_servers_clock_decide_nothing() {
    let mut server = server(0);
    let (store, database) = create(&server).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("a", from);
    let mut own = claim(1, "a");
    claimed(&store, &own).await;
    let (mut turns, mut row) = (0, None);
    let mut nonces = EntityStore::open_nonces(&store);
    for (epoch, years) in [(2, 10), (3, -20), (4, 30), (5, 0)] {
        jump(&mut server, years);
        // Claim, version and revision are those from before the jump.
        for _ in 0..20 {
            assert_eq!(commit(&store, turn(&own, "e", turns, 10)).await, CommitOutcome::Committed);
            turns += 1;
            let value = Some(turns.to_string().into());
            let change = CompareAndSet { key: "a".into(), expected: row, value };
            row = Some(store.compare_and_set(change).await.expect("written"));
            let event = timeout(TIMEOUT, watch.next()).await.expect("an event");
            assert!(matches!(&event, RowEvent::Set(set) if Some(set.revision) == row), "{event:?}");
        }
        // Another node opens the store, and takes over: only the epoch counts.
        let opening = PostgresStore::open(Options::new(server.url(&database)));
        let other = opening.await.expect("opened");
        nonces.push(EntityStore::identity(&other).open_nonce);
        assert_eq!(EntityStore::open_nonces(&other), nonces, "newest last");
        let next = claim(epoch, "b");
        claimed(&other, &next).await;
        let late = other.claim(vec![(*own).clone()]).await.remove(0);
        assert_eq!(late, ClaimOutcome::Refused { current: Box::new((*next).clone()) });
        let refusal = CommitRefusal::ClaimMismatch { current: Some(Box::new((*next).clone())) };
        let stale = commit(&store, turn(&own, "e", turns, 10)).await;
        assert_eq!(stale, CommitOutcome::Refused(refusal));
        assert_eq!(version(&other, "e").await, turns);
        own = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_a_stuck_batch_ends_by_the_clock_of_its_node() {
    let mut server = server(0);
    let (other, database) = create(&server).await;
    let own = claim(1, "a");
    claimed(&other, &own).await;
    let limit = Duration::from_secs(3);
    let options = Options { call_timeout: limit, ..Options::new(server.url(&database)) };
    let store = PostgresStore::open(options).await.expect("opened");
    assert_eq!(commit(&store, turn(&own, "e", 0, 10)).await, CommitOutcome::Committed);
    // Somebody else locks the shard, and the time limits of the server are far away after the jump.
    let (locker, connection) =
        tokio_postgres::connect(&server.url(&database), tokio_postgres::NoTls)
            .await
            .expect("connected");
    let connection = tokio::spawn(connection);
    locker.batch_execute("BEGIN; SELECT FROM ostraca.shards FOR UPDATE").await.expect("locked");
    let stuck = tokio::spawn(store.commit(vec![turn(&own, "e", 1, 10)]));
    let until = Instant::now() + TIMEOUT;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while server.sql_on("postgres", waits).expect("counted").trim() == "0" {
        assert!(Instant::now() < until, "the batch does not wait");
    }
    jump(&mut server, -10);
    let outcome = timeout(TIMEOUT, stuck).await.expect("it ends").expect("no panic").remove(0);
    assert!(matches!(&outcome, CommitOutcome::Unknown(why) if why.contains("3s")), "{outcome:?}");
    // Then the next claim decides, although the server still runs the batch.
    let next = claim(2, "b");
    let outcome = other.claim(vec![(*next).clone()]).await.remove(0);
    assert!(matches!(outcome, ClaimOutcome::Failed(_)), "{outcome:?}");
    locker.batch_execute("ROLLBACK").await.expect("unlocked");
    while other.claim(vec![(*next).clone()]).await != [ClaimOutcome::Granted] {
        assert!(Instant::now() < until + TIMEOUT, "no claim is granted");
    }
    let found = version(&other, "e").await;
    let late = loop {
        match commit(&store, turn(&own, "e", 1, 10)).await {
            // The lost connection is not replaced yet.
            CommitOutcome::Refused(CommitRefusal::LimitReached(why)) => {
                assert!(Instant::now() < until + TIMEOUT, "{why}");
            }
            late => break late,
        }
    };
    let refusal = CommitRefusal::ClaimMismatch { current: Some(Box::new((*next).clone())) };
    let expected = match found {
        1 => CommitOutcome::Refused(refusal),
        _ => CommitOutcome::AlreadyCommitted,
    };
    assert_eq!(late, expected);
    assert_eq!(version(&other, "e").await, found, "no late commit");
    connection.abort();
}
