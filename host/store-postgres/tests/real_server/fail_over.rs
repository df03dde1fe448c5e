//! Fail-overs of PostgreSQL to a standby, with and without synchronous replication (R5).

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use ostraca_core::records::CommitOutcome;
use ostraca_store::{EntityStore, StoreError};
use ostraca_store_postgres::{OpenError, Options, PostgresStore};
use ostraca_test_servers::pgbouncer::Pooler;
use ostraca_test_servers::postgres::Server;

use crate::faults::{CLUSTER, TIMEOUT, claim, claimed, commit, turn, version};

/// The options for a database on two servers, of which the one that accepts writes is used.
fn on_both(primary: &Server, standby: &Server, database: &str) -> Options {
    let ports = format!("{},{}", primary.port(), standby.port());
    Options::new(format!(
        "host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname={database} target_session_attrs=read-write"
    ))
}

/// The primary ends, and the standby takes over.
fn fail_over(primary: &mut Server, standby: &Server) {
    primary.stop(Signal::SIGKILL);
    standby.promote();
    // Nobody waits for a standby of the new primary, which has none.
    standby.stop_replicating();
}

async fn create(server: &Server) -> (PostgresStore, String) {
    let database = server.database();
    let creating = PostgresStore::create(Options::new(server.url(&database)), CLUSTER, "test");
    (creating.await.expect("a store"), database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_synchronous_standby_takes_over_with_all_turns() {
    let mut primary = Server::start("");
    let (store, database) = create(&primary).await;
    drop(store);
    let standby = primary.standby();
    primary.replicate();
    let options = on_both(&primary, &standby, &database);
    let store = PostgresStore::open(options.clone()).await.expect("opened");
    // It has no connection that is replaced by itself.
    let idle = PostgresStore::open_for_state(options.clone()).await.expect("opened");
    let own = claim(1, "a");
    claimed(&store, &own).await;
    for number in 0..20 {
        let outcome = commit(&store, turn(&own, "a", number, 10)).await;
        assert_eq!(outcome, CommitOutcome::Committed);
    }
    fail_over(&mut primary, &standby);
    // The next claim succeeds as soon as the lost connections are replaced.
    let until = Instant::now() + TIMEOUT;
    let mut epoch = 2;
    while store.claim(vec![(*claim(epoch, "b")).clone()]).await
        != [ostraca_core::records::ClaimOutcome::Granted]
    {
        assert!(Instant::now() < until, "no claim is granted after the fail-over");
        epoch += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(version(&store, "a").await, 20, "all that was acknowledged");
    let again = claim(epoch, "b");
    assert_eq!(commit(&store, turn(&again, "a", 20, 10)).await, CommitOutcome::Committed);
    // A process that wrote nothing, and one that starts now, go on as well, although commits no longer wait.
    store.read_sequence().await.expect("read");
    let sql = "SELECT replicated FROM ostraca.store";
    assert_eq!(standby.sql_on(&database, sql).expect("read").trim(), "f");
    assert_eq!(version(&idle, "a").await, 21);
    PostgresStore::open(options).await.expect("opened after the fail-over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_standby_without_synchrony_must_be_accepted() {
    let mut primary = Server::start("");
    let (store, database) = create(&primary).await;
    let own = claim(1, "a");
    claimed(&store, &own).await;
    assert_eq!(commit(&store, turn(&own, "a", 0, 10)).await, CommitOutcome::Committed);
    let mut standby = primary.standby();
    let options = on_both(&primary, &standby, &database);
    let idle = PostgresStore::open(options.clone()).await.expect("opened");
    assert_eq!(version(&idle, "a").await, 1);
    // The standby does not get the last turn.
    // Its processes have ended then, so that none still receives.
    standby.stop(Signal::SIGQUIT);
    assert_eq!(commit(&store, turn(&own, "a", 1, 10)).await, CommitOutcome::Committed);
    drop(store);
    primary.stop(Signal::SIGKILL);
    standby.run();
    standby.promote();
    // The process that wrote it is gone. Neither one that runs nor one that starts takes the standby for the database.
    let until = Instant::now() + TIMEOUT;
    let stopped = loop {
        match idle.current_claims(vec![own.shard.clone()]).await {
            Err(StoreError::Stopped(why)) => break why,
            Ok(_) => panic!("the standby was used"),
            Err(_) => assert!(Instant::now() < until, "it does not stop"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(stopped.contains("from time line 1 to 2"), "{stopped}");
    let refused = PostgresStore::open(options.clone()).await.expect_err("refused");
    assert!(matches!(refused, OpenError::FailedOver { from: 1, to: 2 }), "{refused}");
    assert!(!refused.is_retryable() && refused.to_string().contains("ostraca store accept"));

    PostgresStore::accept_server(&options).await.expect("accepted");
    let store = PostgresStore::open(options.clone()).await.expect("opened");
    assert_eq!(version(&store, "a").await, 1, "the last turn is missing, as was accepted");
    // Another server with the same tables: a dump that was restored elsewhere, for example.
    let sql = "UPDATE ostraca.store SET system_identifier = 7";
    standby.sql_on(&database, sql).expect("changed");
    let refused = PostgresStore::open(options).await.expect_err("refused");
    assert!(matches!(refused, OpenError::OtherServer { expected: 7, .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_a_commit_that_no_standby_has_is_unknown() {
    let server = Server::start("");
    let own = claim(1, "a");
    let mut stores = Vec::new();
    for level in ["notice", "error"] {
        let sql = format!("ALTER ROLE postgres SET client_min_messages = {level}");
        server.sql_on("postgres", &sql).expect("set");
        let (store, _) = create(&server).await;
        claimed(&store, &own).await;
        stores.push((level, store));
    }
    let wait = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'";
    for sql in [wait, "SELECT pg_reload_conf()"] {
        server.sql_on("postgres", sql).expect("set");
    }
    let until = Instant::now() + TIMEOUT;
    for (level, store) in &stores {
        let mut from = 0;
        // `statement_timeout` ends the wait, and the server knows of the standby a moment after it was named.
        let outcome = loop {
            match commit(store, turn(&own, "a", from, 10)).await {
                CommitOutcome::Committed if Instant::now() < until => from += 1,
                outcome => break outcome,
            }
        };
        let CommitOutcome::Unknown(why) = outcome else { panic!("{level}: {outcome:?}") };
        assert!(why.contains("PostgreSQL warned"), "{level}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_new_time_line_behind_a_pooler_is_refused() {
    let mut server = Server::start("");
    let (store, database) = create(&server).await;
    drop(store);
    let pooler = Pooler::start(&server);
    // No connection of the store is used until its sequence is read again.
    let store = PostgresStore::open_for_state(Options::new(pooler.url(&database))).await;
    let store = store.expect("opened");
    store.read_sequence().await.expect("read");
    server.begin_time_line();
    let until = Instant::now() + TIMEOUT;
    let stopped = loop {
        match store.read_sequence().await {
            Err(StoreError::Stopped(why)) => break why,
            Ok(_) => panic!("the new time line was used"),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(stopped.contains("from time line 1 to 2"), "{stopped}");
}
