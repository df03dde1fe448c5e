//! Partitions in which every node reaches the stores: the arbiter's lease ends one side, and the other serves all
//! shards (E13).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, Stores, TIMEOUT};
use ostraca_process_tests::proxy::{Endpoint, Rule};
use rand::Rng;

use crate::named;

/// The exit code of a node that lost an arbitration.
const LOST: i32 = 9;
const SETTINGS: &str = "[partition]\narbiter = true\nkeep-alive-interval = \"200 ms\"\narbiter-timeout = \"2 s\"\narbiter-flag-timeout = \"1 s\"\n";

async fn scene(name: &str, stores: Stores) -> AttackRun {
    let options = Options { settings: SETTINGS.into(), ..Options::three(name) }.on(stores);
    let mut scene = AttackRun::set(&options).await.expect("cluster");
    scene.required_rounds = 3;
    scene
}

fn cut(scene: &mut AttackRun, pairs: &[(usize, usize)]) -> impl Future<Output = Result<()>> {
    let pairs: Vec<_> =
        pairs.iter().map(|(a, b)| (Endpoint::Node(*a), Endpoint::Node(*b))).collect();
    scene.inject(move |cluster, _| {
        let network = cluster.network();
        pairs.iter().for_each(|(one, other)| network.both(*one, *other, Rule::CUT));
        Ok(())
    })
}

/// Waits until a node shows that another one does not answer its keep-alives (E12).
async fn until_keep_alives_fail(scene: &AttackRun, at: usize, of: usize) -> Result<()> {
    let name = scene.cluster.name(of);
    let shown = async {
        loop {
            let nodes = scene.clients[at].nodes().await?.nodes;
            let node = nodes.iter().find(|node| name == node.name.as_str()).context("a node")?;
            if node.unanswered_keep_alives > 0 {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, shown).await.context("no keep-alive is unanswered")?
}

/// Waits until one of these nodes has ended by itself, and returns it.
async fn until_one_ends(scene: &mut AttackRun, nodes: &[usize]) -> Result<usize> {
    let ended = async {
        loop {
            if let Some(node) = nodes.iter().find(|node| !scene.cluster.runs(**node)) {
                return *node;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let node = tokio::time::timeout(TIMEOUT, ended).await.context("no node has ended")?;
    let status = scene.cluster.exited(node)?;
    ensure!(status.code() == Some(LOST), "n{} ended with {status}", node + 1);
    Ok(node)
}

/// Waits until the others own all shards while the cut lasts, and checks that none of them has ended.
async fn until_others_serve(scene: &mut AttackRun, lost: usize) -> Result<()> {
    let name = scene.cluster.name(lost);
    let gone = |view: &ostraca_process_tests::cluster::View| view.owned_by(&name) == 0;
    scene.cluster.wait("others own its shards", gone).await?;
    scene.wait_progress(200).await?;
    for node in (0..scene.cluster.len()).filter(|node| *node != lost) {
        ensure!(scene.cluster.runs(node), "n{} has ended too", node + 1);
    }
    Ok(())
}

async fn a_lone_node_loses(stores: Stores) {
    let scene = scene("arbiter-lone", stores).await;
    let cuts = scene.rounds(named("a lone node that reaches its stores", stores), async |scene| {
        let lone = scene.rng.random_range(0..3);
        let others = [(lone + 1) % 3, (lone + 2) % 3];
        cut(scene, &[(lone, others[0]), (lone, others[1])]).await?;
        until_keep_alives_fail(scene, others[0], lone).await?;
        let lost = until_one_ends(scene, &[0, 1, 2]).await?;
        ensure!(lost == lone, "n{} lost, although it reaches another node", lost + 1);
        until_others_serve(scene, lost).await?;
        Ok(FaultTiming::InStep)
    });
    cuts.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn e13_a_lone_node_on_postgres_ends_itself() {
    a_lone_node_loses(Stores::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn e13_a_lone_node_on_postgres_and_etcd_ends_itself() {
    a_lone_node_loses(Stores::PostgresAndEtcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn e13_one_of_two_that_cannot_reach_each_other_ends() {
    // Both reach the node with the store, which never loses.
    let mut scene = scene("arbiter-two", Stores::Node).await;
    // Only messages between these two are in doubt.
    scene.least = 1;
    let cuts = scene.rounds("two nodes that reach the store, not each other", async |scene| {
        cut(scene, &[(1, 2)]).await?;
        let lost = until_one_ends(scene, &[1, 2]).await?;
        until_others_serve(scene, lost).await?;
        Ok(FaultTiming::InStep)
    });
    cuts.await.expect("rounds");
}
