//! A node that is paused for longer than its lease (SIGSTOP) and then continues (SIGCONT).

use std::time::Duration;

use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{NO_STORE, Options, Stores};
use rand::Rng;

use crate::named;

on_each_store!(an_owner_paused_past_its_lease_has_no_further_effects);

async fn an_owner_paused_past_its_lease_has_no_further_effects(stores: Stores) {
    let options = Options::three("pause-owner").on(stores);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let paused = scene.rounds(named("SIGSTOP of an owner past its lease", stores), async |scene| {
        let host = scene.rng.random_range(1..3);
        let name = scene.cluster.name(host);
        scene.inject(|cluster, _| cluster.pause(host)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        scene.cluster.wait_settled().await?;
        scene.cluster.resume(host)?;
        // The owner's earlier commits and replies are still in transit.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(FaultTiming::InStep)
    });
    paused.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_manager_paused_past_its_lease_assigns_nothing_more() {
    let roles = ["store,host,gateway", NO_STORE, NO_STORE];
    let scene = AttackRun::set(&Options::new("pause-manager", &roles)).await.expect("cluster");
    let paused = scene.rounds("SIGSTOP of the manager past its lease", async |scene| {
        let manager = scene.cluster.manager().await?;
        let name = scene.cluster.name(manager);
        scene.inject(|cluster, _| cluster.pause(manager)).await?;
        let another = |view: &ostraca_process_tests::cluster::View| {
            view.manager().is_some_and(|next| next != name)
        };
        let term = scene.cluster.wait("another node is the manager", another).await?.nodes.term;
        scene.cluster.resume(manager)?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let view = scene.cluster.wait_settled().await?;
        anyhow::ensure!(view.nodes.term >= term, "term {} after {term}", view.nodes.term);
        Ok(FaultTiming::InStep)
    });
    paused.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_paused_within_its_lease_keeps_its_shards() {
    let scene = AttackRun::set(&Options::three("doze")).await.expect("cluster");
    let paused = scene.rounds("SIGSTOP of an owner within its lease", async |scene| {
        let host = scene.rng.random_range(1..3);
        scene.inject(|cluster, _| cluster.pause(host)).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        scene.cluster.resume(host)?;
        Ok(FaultTiming::InStep)
    });
    paused.await.expect("rounds");
}
