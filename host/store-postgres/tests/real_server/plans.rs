//! Plans: the statements of a batch are planned once for a connection, whatever the tables hold at that moment.

use std::time::Duration;

use ostraca_core::records::CommitOutcome;
use ostraca_store::EntityStore;
use ostraca_test_servers::postgres::Server;

use super::faults::{claim, claimed, commit, create, turn};

const ENTITIES: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_tables_that_were_small_are_found_by_key() {
    let server = Server::start("autovacuum = off");
    let (store, database) = create(&server).await;
    let sql = |text: &str| server.sql_on(&database, text).expect("executed").trim().to_owned();
    let claim = claim(1, "a");
    claimed(&store, &claim).await;
    // The planner believes what the tables held at the last ANALYZE: one row.
    assert_eq!(commit(&store, turn(&claim, "0", 0, 10)).await, CommitOutcome::Committed);
    sql("ANALYZE");
    drop(store);
    let options = ostraca_store_postgres::Options::new(server.url(&database));
    let store = ostraca_store_postgres::PostgresStore::open(options).await.expect("opened");
    let rounds = 3;
    for from in 0..rounds {
        for part in 0..ENTITIES / 30 {
            let ids = (0..30).map(|at| format!("e{}", part * 30 + at));
            let turns = ids.map(|id| turn(&claim, &id, from, 10)).collect();
            let outcomes = store.commit(turns).await;
            assert!(outcomes.iter().all(|it| *it == CommitOutcome::Committed), "{outcomes:?}");
        }
    }
    drop(store);
    // What the server counts arrives a moment after the connections have ended.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let read = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce((SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i \
                WHERE i.relid = t.relid), 0))::bigint FROM pg_stat_user_tables t WHERE relname IN ('heads', 'records')";
    let read: u64 = sql(read).parse().expect("a number");
    let turns = ENTITIES as u64 * rounds;
    // Two rows of a turn, each looked up a few times. Whoever reads the tables for each turn reads 90,000 rows or more.
    assert!(read >= turns && read < turns * 20, "{read} rows were read for {turns} turns");
}
