//! Faults of the servers that have the stores: PostgreSQL and etcd. What happens to nodes is the same attack on each
//! store: see [`crate::on_each_store`].

use std::time::Duration;

use nix::sys::signal::Signal;
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Cluster, Options, Stores, View};
use rand::Rng;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_database_loses_and_repeats_nothing() {
    let options = Options::three("restart").on(Stores::PostgresAndEtcd);
    let scene = AttackRun::set(&options).await.expect("cluster");
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
    let options = Options::three("restored").on(Stores::Postgres);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_standby_takes_over_with_all_acknowledged_turns() {
    let options = Options::three("fail-over").on(Stores::PostgresAndEtcd);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let failed_over = scene.rounds("fail-over of PostgreSQL", async |scene| {
        let standby = scene.cluster.database().standby();
        scene.cluster.database().replicate();
        // The nodes ask each second whether commits wait for a standby.
        tokio::time::sleep(Duration::from_secs(3)).await;
        scene.wait_progress(500).await?;
        let inject = scene.inject(|cluster, _| {
            cluster.fail_over(standby);
            Ok(())
        });
        inject.await?;
        Ok(FaultTiming::InStep)
    });
    failed_over.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_member_of_etcd_interrupts_nothing() {
    let options = Options::three("etcd-kill").on(Stores::PostgresAndEtcd);
    let mut scene = AttackRun::set(&options).await.expect("cluster");
    // Turns do not need etcd.
    scene.least = 0;
    let killed = scene.rounds("kill -9 of a member of etcd", async |scene| {
        let owners = |view: &View| -> Vec<_> {
            view.shards.iter().map(|shard| (shard.owner.clone(), shard.epoch)).collect()
        };
        let before = owners(&scene.cluster.wait_settled().await?);
        let leads = scene.round.is_multiple_of(2);
        let leader = scene.cluster.etcd().leader();
        let member = if leads { leader } else { (leader + scene.rng.random_range(1..3)) % 3 };
        scene
            .inject(|cluster, _| {
                cluster.etcd().kill(member);
                Ok(())
            })
            .await?;
        // Longer than a lease: each node has renewed its own through another member.
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.wait_progress(500).await?;
        let after = owners(&scene.cluster.wait_settled().await?);
        anyhow::ensure!(before == after, "shards moved: {before:?}, {after:?}");
        scene.cluster.etcd().restart(member);
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}
