//! Ranges of shards move between two databases while nodes are killed (R26, promises 1 to 5): nothing that was
//! acknowledged is lost, nothing runs twice, and nothing is left where it was.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, Stores, TIMEOUT};
use ostraca_test_servers::postgres::Server;
use rand::Rng;
use tokio::time::Instant;

/// The database of the cluster.
const FIRST: &str = "t0";

/// Two databases, each in a server of its own.
struct Databases {
    further: Server,
    name: String,
    ids: [String; 2],
}

impl Databases {
    /// Adds a database to the cluster, and restarts its nodes one after the other.
    async fn add(scene: &mut AttackRun) -> Result<Self> {
        let further = Server::start("");
        let name = further.database();
        let settings = format!("[postgres]\ndatabases = [{:?}]\n", further.url(&name));
        let nodes = scene.cluster.len();
        for node in 0..nodes {
            scene.cluster.home(node).set(&settings)?;
        }
        let config = scene.cluster.home(0).config().display().to_string();
        for is_new in [true, false] {
            let out = done(scene.cluster.command(0, &["store", "add", &config]).await?)?;
            ensure!(
                out.starts_with(if is_new { "created store" } else { "exists already" }),
                "{out}"
            );
        }
        let sql = "SELECT encode(store_id, 'hex') FROM ostraca.store";
        let id = |server: &Server, name| server.sql_on(name, sql).map_err(anyhow::Error::msg);
        let first = id(scene.cluster.database(), FIRST)?;
        let ids = [first.trim().to_owned(), id(&further, &name)?.trim().to_owned()];
        for node in 0..nodes {
            scene.cluster.term(node)?;
            scene.cluster.start_node(node)?;
            scene.cluster.wait_settled().await?;
            if node + 2 == nodes {
                // The last one does not know the database yet.
                let arguments = ["store", "move", "--shards", "1-24", "--to", &ids[1]];
                let refused = scene.cluster.command(node, &arguments).await?;
                let text = String::from_utf8_lossy(&refused.stderr);
                let name = scene.cluster.name(node + 1);
                ensure!(text.contains("unknown-store") && text.contains(&name), "{text}");
            }
        }
        Ok(Self { further, name, ids })
    }

    /// Number of heads of these shards in each database.
    fn heads(&self, scene: &mut AttackRun, (first, last): (u32, u32)) -> Result<[u64; 2]> {
        let sql = format!(
            "SELECT count(*) FROM ostraca.heads h JOIN ostraca.shards s ON s.id = h.shard \
             WHERE s.number BETWEEN {first} AND {last}"
        );
        let here = scene.cluster.database().sql_on(FIRST, &sql).map_err(anyhow::Error::msg)?;
        let there = self.further.sql_on(&self.name, &sql).map_err(anyhow::Error::msg)?;
        Ok([here.trim().parse()?, there.trim().parse()?])
    }
}

fn done(out: Output) -> Result<String> {
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8(out.stdout)?)
}

/// Repeats a command until it has ended the move.
async fn finish(scene: &AttackRun, node: usize, arguments: &[&str]) -> Result<String> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match done(scene.cluster.command(node, arguments).await?) {
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            Ok(text) => return Ok(text),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r26_ranges_move_between_databases_under_attack() {
    let options = Options::three("moves").on(Stores::Postgres);
    let mut scene = AttackRun::set(&options).await.expect("cluster");
    let databases = Databases::add(&mut scene).await.expect("a further database");
    let moved = scene.rounds("kill -9 while shards move to a database", async |scene| {
        let to = usize::from(!scene.round.is_multiple_of(2));
        let range = match to {
            // Everything, or a part of it.
            1 => (1, scene.rng.random_range(8..=24)),
            _ => (scene.rng.random_range(1..=4), 24),
        };
        let shards = format!("{}-{}", range.0, range.1);
        let arguments = ["store", "move", "--shards", &shards, "--to", &databases.ids[to]];
        let mut command = scene.cluster.command_line(0)?;
        let moving = command.args(arguments).stderr(Stdio::piped()).spawn();
        let mut moving = moving.context("the command")?;
        tokio::time::sleep(Duration::from_millis(scene.rng.random_range(100..900))).await;
        let is_running = moving.try_wait()?.is_none();
        let killed = scene.rng.random_range(0..3);
        scene.inject(|cluster, _| cluster.kill_9(killed)).await?;
        // The command may have lost its node; the cluster goes on without it.
        let ended = moving.wait_with_output()?;
        let node = (killed + 1) % 3;
        finish(scene, node, &["store", "move"]).await?;
        // A move that had begun is complete now. One that the kill kept from beginning begins only with its range.
        let has_begun = databases.heads(scene, range)?[1 - to] == 0;
        let why = String::from_utf8_lossy(&ended.stderr);
        // Only a command that lost its node, or was refused because a host did not answer, may have begun nothing.
        let may_be_new =
            !ended.status.success() && (killed == 0 || why.contains("node-unreachable"));
        ensure!(has_begun || may_be_new, "the move of {shards} to {to} is forgotten: {why}");
        let text = finish(scene, node, &arguments).await?;
        ensure!(text.contains(&databases.ids[to]), "{text}");
        let heads = databases.heads(scene, range)?;
        ensure!(heads[to] > 0 && heads[1 - to] == 0, "shards {shards} to {to}: {heads:?}");
        Ok(match (is_running, has_begun) {
            (true, true) => FaultTiming::InStep,
            (true, false) => FaultTiming::Missed("the move had not begun".into()),
            (false, _) => FaultTiming::Missed("the move had ended".into()),
        })
    });
    moved.await.expect("rounds");
}
