//! Three nodes whose stores are in PostgreSQL: a node is killed or stopped, or the database restarts, under load.
//! Nothing is lost, nothing runs twice, nothing remains unserved.

use std::time::Duration;

use nix::sys::signal::Signal;
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Cluster, Options};
use rand::Rng;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_node_on_postgres_loses_and_repeats_nothing() {
    let scene = AttackRun::set(&Options::three_on_postgres("pg-kill")).await.expect("cluster");
    let killed = scene.rounds("kill -9 of a node on PostgreSQL", async |scene| {
        let node = scene.rng.random_range(0..3);
        let name = scene.cluster.name(node);
        scene.inject(|cluster, _| cluster.kill_9(node)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopped_node_on_postgres_holds_no_shard() {
    let scene = AttackRun::set(&Options::three_on_postgres("pg-pause")).await.expect("cluster");
    let paused = scene.rounds("SIGSTOP of a node on PostgreSQL", async |scene| {
        let node = scene.rng.random_range(0..3);
        let name = scene.cluster.name(node);
        scene.inject(|cluster, _| cluster.pause(node)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        // What it sends when it goes on comes from a former owner.
        scene.cluster.resume(node)?;
        Ok(FaultTiming::InStep)
    });
    paused.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_database_loses_and_repeats_nothing() {
    let scene = AttackRun::set(&Options::three_on_postgres("pg-restart")).await.expect("cluster");
    let restarted = scene.rounds("kill -9 of PostgreSQL", async |scene| {
        let kill = scene.inject(|cluster, _| {
            cluster.database().stop(Signal::SIGKILL);
            Ok(())
        });
        kill.await?;
        // It returns before or after the leases lapse.
        let away = [100, 2_000, 5_000][scene.round as usize % 3];
        tokio::time::sleep(Duration::from_millis(away)).await;
        scene.cluster.database().run();
        Ok(FaultTiming::InStep)
    });
    restarted.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r5_a_restored_database_is_refused_by_a_node() {
    let options = Options::three_on_postgres("pg-restored");
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    cluster.term(0).expect("stopped");
    cluster.term(1).expect("stopped");
    // The last node's witness is written each second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.kill_9(2).expect("killed");
    let count = |cluster: &mut Cluster, change: &str| {
        let sql = format!("UPDATE ostraca.store SET ended_batches = ended_batches {change} 50");
        cluster.database().sql_on("t0", &sql).expect("changed");
    };
    // As after the restore of a backup from before the last batches.
    count(&mut cluster, "-");
    let refused = format!("{:#}", cluster.start_node(2).expect_err("refused"));
    let witness = cluster.home(2).dir().join("postgres.witness");
    for part in ["store-refused", &witness.display().to_string()] {
        assert!(refused.contains(part), "{refused}");
    }
    // The right database is accepted, and so is this one when the operator says so.
    count(&mut cluster, "+");
    cluster.start_node(2).expect("started");
    cluster.term(2).expect("stopped");
    count(&mut cluster, "-");
    std::fs::remove_file(&witness).expect("removed");
    cluster.start_node(2).expect("started");
    cluster.stop().expect("stopped");
}
