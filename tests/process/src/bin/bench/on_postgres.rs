//! P16: durable turns whose state is in PostgreSQL, beside a bare client that does the same writes.
//!
//! The bare client has as many connections as a node has for commits. Each sends batches of as many turns as the node's
//! batches had on average in the same run, one after the other: a prepared statement that writes the heads and the state
//! of the turns' entities anew, with the bytes that the node wrote, into copies of the same tables, and counts the
//! batch. It has no claims, versions or outcomes to check.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use ostraca_client::Client;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};
use ostraca_test_servers::postgres::Server;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Statement};

use crate::{Bench, ENTITIES, IN_FLIGHT, busy, own, waits};

/// The target, as a fraction of the bare client's rate.
const SHARE: f64 = 0.6;
/// A node's connections for commits, by default.
const CONNECTIONS: usize = 4;

/// Copies of the tables that a turn of the entity writes, with its rows.
const COPY: &str = "
    CREATE SCHEMA bare;
    CREATE TABLE bare.heads (LIKE ostraca.heads INCLUDING ALL) WITH (fillfactor = 80);
    INSERT INTO bare.heads SELECT * FROM ostraca.heads;
    CREATE TABLE bare.records (LIKE ostraca.records INCLUDING ALL);
    INSERT INTO bare.records SELECT * FROM ostraca.records WHERE kind = 3;
    CREATE TABLE bare.batches (id integer PRIMARY KEY, batches bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO bare.batches SELECT generate_series(0, 100), 0;
    CREATE TABLE bare.entities AS
        SELECT row_number() OVER (ORDER BY h.type, h.id) - 1 AS place, h.shard, h.type, h.id, h.turn, h.head, r.key, r.value
        FROM ostraca.heads h JOIN ostraca.records r USING (shard, type, id) WHERE r.kind = 3;";

/// A batch: heads, state, and the count, in one statement, which is one transaction.
const BATCH: &str = "
    WITH heads AS (
        INSERT INTO bare.heads AS h (shard, type, id, version, turn, commit_sequence, head)
        SELECT * FROM unnest($2::int[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bytea[], $5::bigint[], $7::bytea[])
        ON CONFLICT (shard, type, id) DO UPDATE SET version = excluded.version, turn = excluded.turn,
            commit_sequence = excluded.commit_sequence, head = excluded.head),
    records AS (
        INSERT INTO bare.records AS r (shard, kind, type, id, key, value)
        SELECT s, 3, t, i, k, v FROM unnest($2::int[], $3::bytea[], $4::bytea[], $8::bytea[], $9::bytea[]) AS a(s, t, i, k, v)
        ON CONFLICT (shard, kind, type, id, key) DO UPDATE SET value = excluded.value)
    UPDATE bare.batches SET batches = batches + 1 WHERE id = $1";

/// An entity with the bytes that its last turn wrote.
struct Written {
    shard: i32,
    entity_type: Vec<u8>,
    id: Vec<u8>,
    turn: Vec<u8>,
    head: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let server = Server::start(&std::env::var("PG_SETTINGS").unwrap_or_default());
    let database = server.database();
    let url = server.url(&database);
    let home = NodeDir::init_as("bench-postgres", &["--postgres", &url], |_| {})?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let spread = bench.sessions;
    let settings = format!("{ENTITIES} entities, {IN_FLIGHT} in flight, {spread} sessions");
    let batches = || -> Result<f64> {
        let sql =
            "SELECT ended_batches + (SELECT sum(batches) FROM ostraca.writers) FROM ostraca.store";
        let count = server.sql_on(&database, sql).map_err(anyhow::Error::msg)?;
        Ok(count.trim().parse()?)
    };
    let next = own("own", ENTITIES, spread);
    let before = batches()?;
    let result = busy(bench, "P16", &node, &client, IN_FLIGHT, next, &settings).await?;
    // Warming up and renewals of the lease are among them; both are few.
    let warmed = bench.time.as_secs_f64() / (bench.time.as_secs_f64() + 2.0);
    let each = result.done as f64 / ((batches()? - before) * warmed).max(1.0);
    client.close().await;
    node.stop()?;

    let turns = (each.round() as usize).max(1);
    let bare = bare(&server, &database, turns, bench.time).await?;
    let ratio = Some(result.rate() / bare);
    let about = format!("{CONNECTIONS} connections, batches of {turns}");
    bench.line("P16 bare client", (bare, "/s"), None, None, &about);
    bench.line("P16 rate", (result.rate(), "/s"), Some(SHARE * bare), ratio, &settings);
    bench.line("P16 turns per batch", (each, ""), None, None, &settings);
    waits(bench, "P16", &result, &settings);
    Ok(())
}

/// The turns per second of the bare client.
async fn bare(server: &Server, database: &str, turns: usize, time: Duration) -> Result<f64> {
    server.sql_on(database, COPY).map_err(anyhow::Error::msg)?;
    server.sql_on(database, "VACUUM ANALYZE").map_err(anyhow::Error::msg)?;
    let url = server.url(database);
    let entities = Arc::new(written(&url).await?);
    let until = Instant::now() + time;
    let loops = (0..CONNECTIONS).map(|place| {
        let (url, entities) = (url.clone(), entities.clone());
        async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            let statement = client.prepare(BATCH).await?;
            // Each connection has its own entities, as a node's do.
            let own: Vec<_> = entities.iter().skip(place).step_by(CONNECTIONS).collect();
            let mut done = 0_usize;
            while Instant::now() < until {
                let batch: Vec<_> = (done..done + turns).map(|at| own[at % own.len()]).collect();
                write(&client, &statement, place, done, &batch).await?;
                done += turns;
            }
            Ok::<_, anyhow::Error>(done)
        }
    });
    let loops: Vec<_> = loops.map(tokio::spawn).collect();
    let mut done = 0;
    for ended in try_join_all(loops).await? {
        done += ended?;
    }
    Ok(done as f64 / time.as_secs_f64())
}

async fn written(url: &str) -> Result<Vec<Written>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let sql = "SELECT shard, type, id, turn, head, key, value FROM bare.entities ORDER BY place";
    let rows = client.query(sql, &[]).await?;
    let written: Vec<_> = rows
        .iter()
        .map(|row| Written {
            shard: row.get(0),
            entity_type: row.get(1),
            id: row.get(2),
            turn: row.get(3),
            head: row.get(4),
            key: row.get(5),
            value: row.get(6),
        })
        .collect();
    written.first().context("the node wrote nothing")?;
    Ok(written)
}

async fn write(
    client: &tokio_postgres::Client,
    statement: &Statement,
    place: usize,
    done: usize,
    batch: &[&Written],
) -> Result<()> {
    let column = |pick: fn(&Written) -> &[u8]| batch.iter().map(|it| pick(it)).collect::<Vec<_>>();
    let shards: Vec<_> = batch.iter().map(|it| it.shard).collect();
    let versions: Vec<_> = (0..batch.len()).map(|at| (done + at) as i64).collect();
    let id = i32::try_from(place)?;
    let [types, ids] = [column(|it| &it.entity_type), column(|it| &it.id)];
    let [turns, heads] = [column(|it| &it.turn), column(|it| &it.head)];
    let [keys, values] = [column(|it| &it.key), column(|it| &it.value)];
    let parameters: [&(dyn ToSql + Sync); 9] =
        [&id, &shards, &types, &ids, &versions, &turns, &heads, &keys, &values];
    client.execute(statement, &parameters).await?;
    Ok(())
}
