//! A node whose way to the store is slow while it is to take over another's shards: whether it keeps them or gives
//! them up (R9), they come to rest, and no shard is thrown back and forth.

use std::time::Duration;

use anyhow::ensure;
use ostraca_client::ShardInfo;
use ostraca_process_tests::attack::{Fell, Scene};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::proxy::{Rule, Who};

const STORE: usize = 0;

/// Three hosts; the manager is apart from them.
fn options(name: &str) -> Options {
    let host = "host,gateway";
    Options::new(name, &["store,gateway", "manager,gateway", host, host, host])
}

/// An answer of the store takes this node most of a second; its lease lives.
fn slow(scene: &Scene, node: usize) {
    let late = Rule::late(Duration::from_millis(400), Duration::from_millis(50));
    scene.cluster.network().both(Who::Node(STORE), Who::Node(node), late);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn where_the_store_is_slow_to_one_host_every_shard_is_served_and_no_epoch_runs_away() {
    let scene = Scene::set(&options("slow-claims")).await.expect("cluster");
    let rounds = scene.rounds("slow claims", async |scene| {
        let (old, new) = (2, 3);
        let name = scene.cluster.name(old);
        let before = scene.cluster.settled().await?;
        slow(scene, new);
        scene.strike(|cluster, _| cluster.kill_9(old)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.served().await?;
        let after = scene.cluster.view().await?;
        let raised = |it: &ShardInfo| {
            let earlier = before.shards.iter().find(|earlier| earlier.shard == it.shard);
            it.epoch - earlier.map_or(0, |earlier| earlier.epoch)
        };
        let most = after.shards.iter().map(raised).max().unwrap_or(0);
        ensure!(most <= 3, "an epoch was raised by {most}:\n{after}");
        let moved = after.shards.iter().any(|it| raised(it) > 0);
        Ok(if moved { Fell::Inside } else { Fell::Beside("nothing moved".into()) })
    });
    rounds.await.expect("rounds");
}
