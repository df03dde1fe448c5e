//! A node with any role is killed under load: nothing is lost, nothing runs twice, nothing remains unserved.

use std::time::Duration;

use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{ALL, NO_STORE, Options, Stores};
use ostraca_process_tests::proxy::{Endpoint, Rule};
use rand::Rng;

use crate::named;

on_each_store!(a_killed_host_loses_and_repeats_nothing, and_kubernetes);

async fn a_killed_host_loses_and_repeats_nothing(stores: Stores) {
    let options = Options::three("kill-host").on(stores);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let killed = scene.rounds(named("kill -9 of a host", stores), async |scene| {
        let host = scene.rng.random_range(1..3);
        let name = scene.cluster.name(host);
        scene.inject(|cluster, _| cluster.kill_9(host)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}

on_each_store!(a_killed_manager_is_replaced_and_nothing_is_lost);

async fn a_killed_manager_is_replaced_and_nothing_is_lost(stores: Stores) {
    let roles = ["store,host,gateway", NO_STORE, NO_STORE];
    let options = Options::new("kill-manager", &roles).on(stores);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let killed = scene.rounds(named("kill -9 of the manager", stores), async |scene| {
        let manager = scene.cluster.manager().await?;
        let name = scene.cluster.name(manager);
        let term = scene.cluster.view().await?.nodes.term;
        scene.inject(|cluster, _| cluster.kill_9(manager)).await?;
        let next = scene.cluster.wait("another node is the manager", |view| {
            view.manager().is_some_and(|next| next != name) && view.nodes.term > term
        });
        next.await?;
        scene.cluster.wait_settled().await?;
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_store_node_returns_with_all_acknowledged_turns() {
    let scene = AttackRun::set(&Options::three("kill-store")).await.expect("cluster");
    let killed = scene.rounds("kill -9 of the store's node", async |scene| {
        scene.inject(|cluster, _| cluster.kill_9(0)).await?;
        // The node returns before or after the leases lapse.
        let away = [100, 2_000, 5_000][scene.round as usize % 3];
        tokio::time::sleep(Duration::from_millis(away)).await;
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quick_restart_on_the_same_address_is_a_new_incarnation() {
    let scene = AttackRun::set(&Options::three("fast-restart")).await.expect("cluster");
    let killed = scene.rounds("fast restart on the same address", async |scene| {
        let host = scene.rng.random_range(1..3);
        let name = scene.cluster.name(host);
        let incarnation = |view: &ostraca_process_tests::cluster::View| {
            view.node(&name).map(|node| node.incarnation.clone())
        };
        let view = scene.cluster.wait_settled().await?;
        let (before, owned) = (incarnation(&view), view.owned_by(&name));
        scene.inject(|cluster, _| cluster.kill_9(host)).await?;
        // The node's lease is still valid when it starts again: no manager has marked it dead.
        let seen = scene.cluster.view().await?;
        if incarnation(&seen) != before || seen.owned_by(&name) != owned || owned == 0 {
            return Ok(FaultTiming::Missed(format!("{name} was known to be gone")));
        }
        scene.cluster.start_node(host)?;
        let another = |view: &_| incarnation(view).is_some() && incarnation(view) != before;
        scene.cluster.wait("the new incarnation is known", another).await?;
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_killed_on_a_bad_link_loses_and_repeats_nothing() {
    let scene = AttackRun::set(&Options::new("bad-line", &[ALL, NO_STORE, NO_STORE])).await;
    let killed = scene.expect("cluster").rounds("kill -9 on a bad line", async |scene| {
        let network = scene.cluster.network();
        network.between_nodes(Rule::BAD);
        for node in 0..3 {
            network.both(Endpoint::Node(node), Endpoint::Clients, Rule::BAD);
        }
        scene.wait_progress(500).await?;
        let host = scene.rng.random_range(1..3);
        let name = scene.cluster.name(host);
        scene.inject(|cluster, _| cluster.kill_9(host)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        scene.wait_progress(500).await?;
        let counts = scene.cluster.network().total();
        let hit = counts.lost > 100 && counts.doubled > 100 && counts.overtaken > 100;
        Ok(if hit { FaultTiming::InStep } else { FaultTiming::Missed(format!("{counts:?}")) })
    });
    killed.await.expect("rounds");
}
