//! The nodes of a cluster get a later release with a newer format, one after the other, under load; then the format
//! is raised. At every moment, each release can read everything that any node writes.

use std::process::Output;

use anyhow::{Result, ensure};
use ostraca_core::format;
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, Release, Stores};
use rand::Rng;
use rand::seq::SliceRandom;
use serde_json::Value;

use crate::named;

on_each_store!(a_rolling_upgrade_loses_and_repeats_nothing, and_kubernetes);

/// What it printed, or its error.
fn printed(output: &Output) -> Result<Value> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Asks a node to raise the format.
async fn raise(scene: &AttackRun, node: usize) -> Result<Output> {
    scene.cluster.command(node, &["--output", "json", "cluster", "--upgrade-format"]).await
}

/// The format that the cluster writes.
async fn written(scene: &AttackRun, node: usize) -> Result<u64> {
    let shown = scene.cluster.command(node, &["--output", "json", "cluster"]).await?;
    Ok(printed(&shown)?["format"].as_u64().unwrap_or_default())
}

/// Checks in which format the rows are that nodes renew all the time, where a test can read them.
fn check_rows(scene: &mut AttackRun, format: u8) -> Result<()> {
    if scene.cluster.stores() == Stores::Postgres {
        let sql = "SELECT DISTINCT get_byte(value, 0) FROM ostraca.rows WHERE key LIKE 'nodes/%'";
        let found = scene.cluster.database().sql_on("t0", sql).map_err(anyhow::Error::msg)?;
        ensure!(found.trim() == format.to_string(), "rows of nodes in format {found}");
    }
    Ok(())
}

/// Restarts a node with another program, and waits until it has shards again.
async fn restart(scene: &mut AttackRun, node: usize, release: Release) -> Result<()> {
    scene.cluster.install(node, release);
    scene.cluster.term(node)?;
    scene.cluster.start_node(node)?;
    scene.wait_balanced().await?;
    scene.wait_progress(100).await
}

async fn a_rolling_upgrade_loses_and_repeats_nothing(stores: Stores) {
    let options = Options::three("upgrade").on(stores);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let mut before = Release::This;
    let upgraded = scene.rounds(named("rolling upgrade", stores), async |scene| {
        let after = Release::Later(before.format() + 1);
        // The first node may have the store: then no other node can continue while it is paused.
        let mut nodes = [0, 1, 2];
        nodes[usize::from(matches!(stores, Stores::Node | Stores::NodeAndEtcd))..]
            .shuffle(&mut scene.rng);
        let [first, second, last] = nodes;

        // One is killed and comes back with the later release.
        scene.cluster.install(first, after);
        scene.inject(|cluster, _| cluster.kill_9(first)).await?;
        scene.cluster.start_node(first)?;
        scene.wait_balanced().await?;
        scene.wait_progress(100).await?;
        let refused = raise(scene, first).await?;
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(!refused.status.success() && why.contains("format-not-supported"), "{why}");
        for behind in [second, last] {
            ensure!(why.contains(&scene.cluster.name(behind)), "{why}");
        }
        ensure!(written(scene, last).await? == u64::from(before.format()), "it was raised");

        // The upgrade can be undone: what the later release has written meanwhile is read by the earlier one.
        restart(scene, first, before).await?;
        restart(scene, first, after).await?;
        restart(scene, second, after).await?;

        check_rows(scene, before.format())?;

        // The last one is paused and counts as dead when the format is raised, so it must not go on with the old
        // program.
        let name = scene.cluster.name(last);
        scene.cluster.pause(last)?;
        scene.cluster.wait("it is dead", |view| !view.is_alive(&name)).await?;
        let raised = printed(&raise(scene, second).await?)?;
        ensure!(raised["format"] == after.format(), "{raised}");
        scene.wait_progress(500).await?;
        scene.cluster.resume(last)?;
        let status = scene.cluster.exited(last)?;
        let (log, refusal) = (scene.cluster.logs(), format!("writes format {}", after.format()));
        ensure!(!status.success() && log.contains(&refusal), "it ended with {status}");
        let refused = scene.cluster.start_node(last).expect_err("a newer format").to_string();
        ensure!(refused.contains(&refusal) && refused.contains("use a newer release"), "{refused}");
        scene.cluster.install(last, after);
        scene.cluster.start_node(last)?;
        scene.wait_balanced().await?;
        check_rows(scene, after.format())?;

        // What was written in the new format is read after a hand-over and after a failure.
        let killed = scene.rng.random_range(0..3);
        scene.cluster.kill_9(killed)?;
        scene.cluster.start_node(killed)?;
        scene.wait_progress(500).await?;
        before = after;
        Ok(FaultTiming::InStep)
    });
    upgraded.await.expect("rounds");
    assert!(format::RELEASE < before.format(), "it was upgraded");
}
