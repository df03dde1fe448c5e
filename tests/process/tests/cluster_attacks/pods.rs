//! Nodes in pods: what the kubelet knows of a process replaces a wait for its lease (S7, R9).

use std::time::{Duration, Instant};

use anyhow::ensure;
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, Stores};
use rand::Rng;

/// Long, so that a death by the lease would be late, even if the manager's watch falls behind and is opened again in
/// between, which takes up to 5 s.
const LEASE: Duration = Duration::from_secs(24);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s7_a_terminated_container_ends_its_nodes_lease_early() {
    let settings = format!("lease = \"{} s\"", LEASE.as_secs());
    let options = Options { settings, pods: true, ..Options::three("pods") };
    let scene = AttackRun::set(&options.on(Stores::PostgresAndKubernetes)).await.expect("cluster");
    let killed = scene.rounds("kill -9 of a node in a pod", async |scene| {
        let node = scene.rng.random_range(0..3);
        let name = scene.cluster.name(node);
        let killed = Instant::now();
        scene.inject(|cluster, _| cluster.kill_9(node)).await?;
        scene.cluster.report_terminated(node)?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        // It had renewed its lease less than a quarter of the lease before.
        let after = killed.elapsed();
        ensure!(after < LEASE * 3 / 4, "its lease may have lapsed: {after:?}");
        eprintln!("{name}'s shards have other owners after {after:.1?}");
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}
