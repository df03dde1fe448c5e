//! A node whose claims take long, since its way to the store is slow: it is drained meanwhile.

use std::time::Duration;

use anyhow::{Context, Result};
use ostraca_client::Client;
use ostraca_process_tests::attack::{Fell, Scene};
use ostraca_process_tests::cluster::{Options, View};
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

/// Asks for a drain and does not wait for it.
async fn ask(client: &Client, node: &str, undo: bool) -> Result<()> {
    let mut updates = client.drain(node, undo).await?;
    // The first says that the row is written.
    updates.next().await?.context("no answer to a drain")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_is_drained_while_it_claims_ends_up_with_nothing() {
    let scene = Scene::set(&options("drain-claiming")).await.expect("cluster");
    let rounds = scene.rounds("drain while being claimed", async |scene| {
        let (old, new) = (2, 3);
        let to = scene.cluster.name(new);
        let before = scene.cluster.settled().await?;
        slow(scene, new);
        scene.strike(|cluster, _| cluster.kill_9(old)).await?;
        let given = |view: &View| view.owned_by(&to) > before.owned_by(&to);
        scene.cluster.wait("it is given shards", given).await?;
        let began = std::time::Instant::now();
        ask(&scene.clients[STORE], &to, false).await?;
        // No claim is quicker than the way there and back.
        let inside = began.elapsed() < Duration::from_millis(700);
        scene.cluster.start_node(old)?;
        scene.cluster.wait("it owns nothing", |view| view.owned_by(&to) == 0).await?;
        scene.cluster.settled().await?;
        ask(&scene.clients[STORE], &to, true).await?;
        Ok(if inside { Fell::Inside } else { Fell::Beside("it may have claimed already".into()) })
    });
    rounds.await.expect("rounds");
}
