//! Network cuts between nodes, in one or both directions, and recovery from them.

use std::time::Duration;

use anyhow::{Context, Result};
use ostraca_process_tests::attack::{AttackRun, FaultTiming, LoadSize};
use ostraca_process_tests::cluster::{Options, Stores, View};
use ostraca_process_tests::proxy::{Endpoint, Rule};
use rand::Rng;

use crate::named;

const STORE: Endpoint = Endpoint::Node(0);

/// Whether every cut dropped packets in at least one of its directions: one side may have had nothing to send.
fn fault_timing(scene: &AttackRun, ways: &[(Endpoint, Endpoint)], before: &[u64]) -> FaultTiming {
    let network = scene.cluster.network();
    let dropped = |way: &(Endpoint, Endpoint)| {
        let of = |(at, n): (&(Endpoint, Endpoint), &u64)| {
            at == way && network.counts(way.0, way.1).cut > *n
        };
        ways.iter().zip(before).any(of)
    };
    let quiet = ways.iter().find(|(from, to)| !dropped(&(*from, *to)) && !dropped(&(*to, *from)));
    quiet.map_or(FaultTiming::InStep, |(from, to)| {
        FaultTiming::Missed(format!("nothing was sent between {from:?} and {to:?}"))
    })
}

/// Cuts the network in these directions while `last` runs.
async fn cut(
    scene: &mut AttackRun,
    ways: &[(Endpoint, Endpoint)],
    last: impl AsyncFnOnce(&mut AttackRun) -> Result<()>,
) -> Result<FaultTiming> {
    let network = scene.cluster.network();
    let before: Vec<_> = ways.iter().map(|(from, to)| network.counts(*from, *to).cut).collect();
    scene
        .inject(|cluster, _| {
            ways.iter().for_each(|(from, to)| cluster.network().set(*from, *to, Rule::CUT));
            Ok(())
        })
        .await?;
    last(scene).await?;
    Ok(fault_timing(scene, ways, &before))
}

/// Waits until other nodes own the node's shards.
async fn until_others_own(scene: &mut AttackRun, name: &str) -> Result<()> {
    scene.cluster.wait("others own its shards", |view| view.owned_by(name) == 0).await.map(|_| ())
}

on_each_store!(a_node_cut_off_from_the_store_releases_its_shards, and_kubernetes);

async fn a_node_cut_off_from_the_store_releases_its_shards(stores: Stores) {
    let options = Options::three("cut-store").on(stores);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let cuts = scene.rounds(named("a node cut off from the store", stores), async |scene| {
        let place = scene.rng.random_range(1..3);
        let name = scene.cluster.name(place);
        scene
            .inject(|cluster, _| {
                cluster.cut_from_stores(place);
                Ok(())
            })
            .await?;
        until_others_own(scene, &name).await?;
        Ok(FaultTiming::InStep)
    });
    cuts.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_one_way_cut_from_the_store_acts_like_a_full_cut() {
    let scene = AttackRun::set(&Options::three("cut-store-one-way")).await.expect("cluster");
    let cuts = scene.rounds("a node and the store, one way", async |scene| {
        let place = scene.rng.random_range(1..3);
        let (node, name) = (Endpoint::Node(place), scene.cluster.name(place));
        let way = if scene.round.is_multiple_of(2) { (STORE, node) } else { (node, STORE) };
        cut(scene, &[way], async |scene| until_others_own(scene, &name).await).await
    });
    cuts.await.expect("rounds");
}

/// More load than usual, since only messages between two nodes are in doubt.
const HEAVY: LoadSize = LoadSize { sessions: 24, in_flight: 24, ..LoadSize::USUAL };

/// Waits for some time while two nodes cannot reach each other but renew their leases: neither is marked dead, and
/// messages wait.
async fn some_seconds(_: &mut AttackRun) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_cut_off_from_each_other_recover_after_the_cut() {
    let mut scene = AttackRun::set(&Options::three("cut-peers")).await.expect("cluster");
    scene.size = HEAVY;
    let cuts = scene.rounds("two nodes cut off from each other", async |scene| {
        let (one, other) = (Endpoint::Node(1), Endpoint::Node(2));
        cut(scene, &[(one, other), (other, one)], some_seconds).await
    });
    cuts.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_one_way_cut_between_nodes_loses_no_message_or_reply() {
    let mut scene = AttackRun::set(&Options::three("cut-peers-one-way")).await.expect("cluster");
    scene.size = HEAVY;
    let cuts = scene.rounds("two nodes, one way", async |scene| {
        let mut way = (Endpoint::Node(1), Endpoint::Node(2));
        if scene.round.is_multiple_of(2) {
            way = (way.1, way.0);
        }
        cut(scene, &[way], some_seconds).await
    });
    cuts.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fully_isolated_node_is_replaced_and_returns() {
    let scene = AttackRun::set(&Options::three("cut-all")).await.expect("cluster");
    let cuts = scene.rounds("a node cut off from all", async |scene| {
        let place = scene.rng.random_range(1..3);
        let name = scene.cluster.name(place);
        let others = [STORE, Endpoint::Node(3 - place), Endpoint::Clients];
        let node = Endpoint::Node(place);
        let ways: Vec<_> =
            others.iter().flat_map(|other| [(node, *other), (*other, node)]).collect();
        cut(scene, &ways, async |scene| until_others_own(scene, &name).await).await
    });
    cuts.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_cut_off_from_the_manager_leaves_no_shard_unserved() {
    // Only the second node may become the manager; a drain is requested from the first, and the third does not
    // receive it.
    let roles = ["store,gateway", "manager,host,gateway", "host,gateway", "host,gateway"];
    let mut scene = AttackRun::set(&Options::new("cut-manager", &roles)).await.expect("cluster");
    scene.size = HEAVY;
    let cuts = scene.rounds("a host cut off from the manager", async |scene| {
        let (manager, host, name) = (Endpoint::Node(1), Endpoint::Node(2), scene.cluster.name(2));
        let incarnation = |view: &View| view.node(&name).map(|node| node.incarnation.clone());
        let before = incarnation(&scene.cluster.wait_settled().await?);
        let ways = [(manager, host), (host, manager)];
        let fell = cut(scene, &ways, async |scene| {
            scene.request_drain(&name, false).await?;
            until_others_own(scene, &name).await
        });
        let fell = fell.await?;
        // The host wrote to the store what it could not send to the manager: a new incarnation registers.
        let other = |view: &View| view.is_alive(&name) && incarnation(view) != before;
        scene.cluster.wait("the host has a new incarnation", other).await?;
        scene.request_drain(&name, true).await?;
        Ok(fell)
    });
    cuts.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_manager_cut_off_from_all_hosts_is_replaced() {
    // Only the second and third nodes may become the manager; a drain of the fourth needs a manager that learns
    // which shards have stopped.
    let roles = ["store,gateway", "manager,gateway", "manager,gateway", "host,gateway", "host"];
    let mut scene = AttackRun::set(&Options::new("cut-leader", &roles)).await.expect("cluster");
    // Messages do not need the manager.
    scene.least = 0;
    let cuts = scene.rounds("the manager cut off from the hosts", async |scene| {
        let view = scene.cluster.wait_settled().await?;
        let manager = (1..3).find(|at| view.manager() == Some(&*scene.cluster.name(*at)));
        let manager = manager.context("a manager")?;
        let (follower, name) = (scene.cluster.name(3 - manager), scene.cluster.name(3));
        let (leader, one, other) = (Endpoint::Node(manager), Endpoint::Node(3), Endpoint::Node(4));
        let ways = [(leader, one), (one, leader), (leader, other), (other, leader)];
        cut(scene, &ways, async |scene| {
            let follows = |view: &View| view.manager() == Some(&*follower);
            scene.cluster.wait("the other candidate is the manager", follows).await?;
            scene.request_drain(&name, false).await?;
            until_others_own(scene, &name).await
        })
        .await
    });
    cuts.await.expect("rounds");
}
