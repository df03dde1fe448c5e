//! A node whose claims take long, since its path to the store is slow. It is drained meanwhile; or it is left alone,
//! and whether it keeps its shards or releases them (R9), no shard moves back and forth.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, ShardInfo};
use ostraca_process_tests::attack::{AttackRun, FaultTiming, PROBATION};
use ostraca_process_tests::cluster::{Options, View};
use ostraca_process_tests::proxy::{Endpoint, Rule};

const STORE: usize = 0;

/// Three hosts, and a separate manager.
fn options(name: &str) -> Options {
    let host = "host,gateway";
    Options::new(name, &["store,gateway", "manager,gateway", host, host, host])
}

/// An answer of the store takes this node most of a second; its lease lives.
fn slow(scene: &AttackRun, node: usize) {
    let late = Rule::late(Duration::from_millis(400), Duration::from_millis(50));
    scene.cluster.network().both(Endpoint::Node(STORE), Endpoint::Node(node), late);
}

/// Whether a node's status names a problem within this time.
async fn tells(scene: &mut AttackRun, node: usize, code: &str, within: Duration) -> Result<bool> {
    let until = Instant::now() + within;
    while Instant::now() < until {
        // A late answer is requested again.
        if let Ok(status) = scene.cluster.watcher(node).await?.status().await
            && status.problems.iter().any(|problem| problem.code == code)
        {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Ok(false)
}

/// How often a shard may have moved within this time of its owner's death, to and from a host that gives its shards up.
///
/// It goes to the third host, to the slow one for balance, and away from there. Then the slow host is on probation, for
/// 4 leases of 3 s first and for twice as long each time after; between two probations the shard comes and goes once.
fn bound(within: Duration) -> u64 {
    let (mut most, mut left, mut probation) = (3, within, Duration::from_secs(12));
    while left >= probation {
        left -= probation;
        probation *= 2;
        most += 2;
    }
    most
}

/// Requests a drain without waiting for it.
async fn ask(client: &Client, node: &str, undo: bool) -> Result<()> {
    let mut updates = client.drain(node, undo).await?;
    // The first update means that the row is written.
    updates.next().await?.context("no answer to a drain")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_drained_while_it_claims_ends_up_without_shards() {
    let scene = AttackRun::set(&options("drain-claiming")).await.expect("cluster");
    let rounds = scene.rounds("drain while being claimed", async |scene| {
        let (old, new) = (2, 3);
        let to = scene.cluster.name(new);
        let before = scene.cluster.wait_settled().await?;
        slow(scene, new);
        scene.inject(|cluster, _| cluster.kill_9(old)).await?;
        let given = |view: &View| view.owned_by(&to) > before.owned_by(&to);
        // It may be on probation for shards that it released in an earlier round.
        scene.cluster.wait_for(PROBATION, "it is given shards", given).await?;
        let began = Instant::now();
        ask(&scene.clients[STORE], &to, false).await?;
        // No claim is faster than a round trip.
        let inside = began.elapsed() < Duration::from_millis(700);
        scene.cluster.start_node(old)?;
        scene.cluster.wait("it owns nothing", |view| view.owned_by(&to) == 0).await?;
        scene.cluster.wait_settled().await?;
        ask(&scene.clients[STORE], &to, true).await?;
        Ok(if inside {
            FaultTiming::InStep
        } else {
            FaultTiming::Missed("it may have claimed already".into())
        })
    });
    rounds.await.expect("rounds");
}

/// Without a load: commits beside it may keep the store from answering for a whole lease, and then it gives up instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_with_slow_claims_shows_it_in_its_status() {
    let mut scene = AttackRun::set(&options("slow-claims-told")).await.expect("cluster");
    let (old, new) = (2, 3);
    slow(&scene, new);
    scene.cluster.kill_9(old).expect("kill");
    let told = tells(&mut scene, new, "shards-not-serving", Duration::from_secs(30)).await;
    if !matches!(told, Ok(true)) {
        println!("{}", scene.cluster.logs());
    }
    assert!(told.expect("status"), "its status did not say that shards of it do not serve");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_slow_for_one_host_leaves_no_shard_unserved() {
    let scene = AttackRun::set(&options("slow-claims")).await.expect("cluster");
    let rounds = scene.rounds("slow claims", async |scene| {
        let (old, new) = (2, 3);
        let (name, to) = (scene.cluster.name(old), scene.cluster.name(new));
        let before = scene.cluster.wait_settled().await?;
        slow(scene, new);
        let struck = Instant::now();
        scene.inject(|cluster, _| cluster.kill_9(old)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.wait_served().await?;
        let after = scene.cluster.view().await?;
        let raised = |it: &ShardInfo| {
            let earlier = before.shards.iter().find(|earlier| earlier.shard == it.shard);
            it.epoch - earlier.map_or(0, |earlier| earlier.epoch)
        };
        let most = after.shards.iter().map(raised).max().unwrap_or(0);
        let bound = bound(struck.elapsed());
        ensure!(most <= bound, "an epoch was raised by {most}, and not {bound}:\n{after}");
        // It has some that it did not have before, or had some and released them: those moved twice.
        let keeps = after.owned_by(&to) > before.owned_by(&to);
        let gave_up = after.shards.iter().any(|it| raised(it) >= 2);
        Ok(if keeps || gave_up {
            FaultTiming::InStep
        } else {
            FaultTiming::Missed("it was given nothing".into())
        })
    });
    rounds.await.expect("rounds");
}
