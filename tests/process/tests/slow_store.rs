//! A node whose claims take long, since its way to the store is slow: its shards come to rest all the same.

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
async fn a_node_that_takes_long_to_claim_is_waited_for_and_its_epochs_do_not_run_away() {
    let scene = Scene::set(&options("slow-claims")).await.expect("cluster");
    let rounds = scene.rounds("slow claims", async |scene| {
        let (old, new) = (2, 3);
        let (name, to) = (scene.cluster.name(old), scene.cluster.name(new));
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
        let given = after.owned_by(&to) > before.owned_by(&to);
        Ok(if given { Fell::Inside } else { Fell::Beside("it was given nothing".into()) })
    });
    rounds.await.expect("rounds");
}
