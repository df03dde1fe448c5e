//! A node whose claims are slow because its path to the store is slow. In one test, the node is drained while it
//! claims. In the others, it is left alone: whether it keeps its shards or releases them (R9), no shard keeps moving
//! back and forth.

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

/// Delays packets so that a response from the store takes most of a second to reach this node; its lease stays valid.
fn slow(scene: &AttackRun, node: usize) {
    let late = Rule::late(Duration::from_millis(400), Duration::from_millis(50));
    scene.cluster.network().both(Endpoint::Node(STORE), Endpoint::Node(node), late);
}

/// Whether a node's status shows a problem within this time.
async fn has_problem(
    scene: &mut AttackRun,
    node: usize,
    code: &str,
    within: Duration,
) -> Result<bool> {
    let until = Instant::now() + within;
    while Instant::now() < until {
        // A status that arrives late is requested again.
        if let Ok(status) = scene.cluster.watcher(node).await?.status().await
            && status.problems.iter().any(|problem| problem.code == code)
        {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Ok(false)
}

/// How many times a shard may have moved within this time since its owner's death, to and from a host that releases
/// its shards.
///
/// The shard moves to the third host, to the slow one for balance, and away from there. Then the slow host is on
/// probation, first for 4 leases of 3 s and then each time for twice as long; between two probations the shard moves
/// there and back once.
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
    // The first update means that the row has been written.
    updates.next().await?.context("no response to a drain")?;
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
        // The node may be on probation because of shards that it released in an earlier round.
        scene.cluster.wait_for(PROBATION, "the slow node is given shards", given).await?;
        let began = Instant::now();
        ask(&scene.clients[STORE], &to, false).await?;
        // A claim takes at least one round trip.
        let inside = began.elapsed() < Duration::from_millis(700);
        scene.cluster.start_node(old)?;
        scene.cluster.wait("the slow node owns nothing", |view| view.owned_by(&to) == 0).await?;
        scene.cluster.wait_settled().await?;
        ask(&scene.clients[STORE], &to, true).await?;
        Ok(if inside {
            FaultTiming::InStep
        } else {
            FaultTiming::Missed("the node may have claimed already".into())
        })
    });
    rounds.await.expect("rounds");
}

/// Without load: concurrent commits may keep the store from responding for a whole lease, and then the host
/// releases its shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_with_slow_claims_shows_it_in_its_status() {
    let mut scene = AttackRun::set(&options("slow-claims-reported")).await.expect("cluster");
    let (old, new) = (2, 3);
    slow(&scene, new);
    scene.cluster.kill_9(old).expect("kill");
    let reported =
        has_problem(&mut scene, new, "shards-not-serving", Duration::from_secs(30)).await;
    if !matches!(reported, Ok(true)) {
        println!("{}", scene.cluster.logs());
    }
    assert!(
        reported.expect("status"),
        "the host's status did not show that some of its shards are not serving"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_slow_for_one_host_leaves_no_shard_unserved() {
    let scene = AttackRun::set(&options("slow-claims")).await.expect("cluster");
    let rounds = scene.rounds("slow claims", async |scene| {
        let (old, new) = (2, 3);
        let (name, to) = (scene.cluster.name(old), scene.cluster.name(new));
        let before = scene.cluster.wait_settled().await?;
        slow(scene, new);
        let injected_at = Instant::now();
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
        let bound = bound(injected_at.elapsed());
        ensure!(most <= bound, "an epoch was raised by {most}, limit is {bound}:\n{after}");
        // The slow host has shards that it did not have before, or had some and released them: those moved twice.
        let keeps = after.owned_by(&to) > before.owned_by(&to);
        let gave_up = after.shards.iter().any(|it| raised(it) >= 2);
        Ok(if keeps || gave_up {
            FaultTiming::InStep
        } else {
            FaultTiming::Missed("the slow host was given no shards".into())
        })
    });
    rounds.await.expect("rounds");
}
