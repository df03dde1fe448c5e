//! Limits of the live instances of one pool, beside another pool on the same node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::{Cluster, artifacts};
use tokio::task::JoinSet;

const ENTITIES: u32 = 40;
const LIMIT: u64 = 4;

async fn deploy(client: &Client, name: &str, pool: &str) -> Result<()> {
    let manifest = format!("type = \"{name}\"\ncomponent = \"counter.wasm\"\npool = \"{pool}\"\n");
    client.deploy(&manifest, artifacts::component("counter")?, None).await?;
    Ok(())
}

/// How many entities of a type have an instance.
async fn live(client: &Client, name: &str) -> Result<u64> {
    let deployed = client.deployment(name).await?.context("deployed")?;
    ensure!(deployed.unreachable.is_empty(), "{:?}", deployed.unreachable);
    Ok(deployed.live.iter().map(|of| of.count).sum())
}

/// Adds 1 to each entity of a type, three times, all entities at once.
async fn add_to_all(client: &Client, name: &'static str) -> Result<()> {
    let session = client.session();
    let mut calls = JoinSet::new();
    for number in 0..ENTITIES {
        let session = session.clone();
        calls.spawn(async move {
            let entity = Entity::new(name, number.to_string());
            for sum in 1..=3_u8 {
                let reply = session.command(&entity, "add", "1").await?;
                ensure!(reply.body == sum.to_string(), "{entity:?}: {reply:?}");
            }
            Ok(())
        });
    }
    while let Some(done) = calls.join_next().await {
        done??;
    }
    Ok(())
}

async fn bounded_pool() -> Result<()> {
    let mut options = Options::new("pool-limits", &["store,manager,gateway,host,host.orders"]);
    options.settings =
        format!("workers = 1\n[guests.pools.orders]\nmax-live-instances = {LIMIT}\n");
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    cluster.create_pool(&client, "orders", 10).await?;
    deploy(&client, "order", "orders").await?;
    deploy(&client, "plain", "default").await?;
    add_to_all(&client, "plain").await?;

    let ends = Arc::new(AtomicBool::new(false));
    let (watched, watcher) = (ends.clone(), cluster.client(0).await?);
    let most = tokio::spawn(async move {
        let (mut most, mut least_of_others) = (0, u64::MAX);
        while !watched.load(Ordering::Relaxed) {
            most = most.max(live(&watcher, "order").await?);
            least_of_others = least_of_others.min(live(&watcher, "plain").await?);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        watcher.close().await;
        Ok::<_, anyhow::Error>((most, least_of_others))
    });
    let added = add_to_all(&client, "order").await;
    ends.store(true, Ordering::Relaxed);
    let (most, least_of_others) = most.await??;
    added?;
    ensure!((1..=LIMIT).contains(&most), "{most} instances of the pool");
    ensure!(live(&client, "order").await? == LIMIT, "they stay until others need their slots");
    let all = u64::from(ENTITIES);
    ensure!(least_of_others == all, "{least_of_others} of {all} instances of the other pool");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k39_a_pool_at_its_limit_evicts_only_its_own() {
    bounded_pool().await.unwrap_or_else(|error| panic!("{error:#}"));
}
