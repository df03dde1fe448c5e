//! One tenant hits its quotas; its neighbour feels nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ostraca_client::{CallOptions, Client, Entity, MessageKind, Profile};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::until;
use ostraca_process_tests::rounds::Rounds;
use ostraca_process_tests::{Cluster, artifacts};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const MANIFEST: &str = "type = \"counter\"\ncomponent = \"counter.wasm\"\n";
/// Turns a second, and entities, that the loud tenant may have.
const TURNS: u64 = 300;
const ENTITIES: u64 = 40;
/// Callers of the loud tenant at each node.
const CALLERS: usize = 8;
/// How long the loud tenant's turns are counted.
const COUNTED: Duration = Duration::from_secs(5);

async fn tenant(cluster: &Cluster, node: usize, namespace: &str) -> Result<Client> {
    let profile = Profile { namespace: namespace.into(), ..cluster.profile(node) };
    Ok(Client::connect(profile).await?)
}

async fn set(cluster: &Cluster, words: &[&str]) -> Result<()> {
    let output = cluster.command(0, &[&["namespace"][..], words].concat()).await?;
    ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Adds 1, without a second attempt. The error's text if it is refused.
async fn add_once(client: &Client, id: &str) -> Option<String> {
    let options = CallOptions {
        kind: MessageKind::Command,
        timeout: Duration::from_secs(60),
        retry: false,
        ..Default::default()
    };
    let sent = client.session().send(&Entity::new("counter", id), "add", "1", &options).await;
    sent.err().map(|error| format!("{error:#}"))
}

/// What the loud callers have counted.
#[derive(Default)]
struct Noise {
    end: AtomicBool,
    ran: AtomicU64,
    refused: AtomicU64,
}

impl Noise {
    /// Calls without a pause until it ends.
    async fn make(self: Arc<Self>, client: Arc<Client>, caller: usize) -> Result<()> {
        while !self.end.load(Ordering::Relaxed) {
            for id in 0..ENTITIES / 2 {
                match add_once(&client, &format!("e{id}")).await {
                    None => self.ran.fetch_add(1, Ordering::Relaxed),
                    Some(error) if error.contains("quota-turns") => {
                        self.refused.fetch_add(1, Ordering::Relaxed)
                    }
                    Some(error) => bail!("caller {caller}: {error}"),
                };
            }
        }
        Ok(())
    }
}

/// The 99th percentile of the times of 600 calls of the calm tenant, one after the other, in milliseconds. None of them
/// is refused.
async fn p99(client: &Client) -> Result<f64> {
    let mut times = Vec::new();
    for call in 0..600 {
        let began = Instant::now();
        let id = format!("c{}", call % 30);
        if let Some(error) = add_once(client, &id).await {
            bail!("the neighbour was refused: {error}");
        }
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() * 99 / 100])
}

/// Creates entities until one is refused. Returns how many there are.
async fn fill(client: &Client, round: u64) -> Result<u64> {
    let mut made = 0;
    until("no entity can be created any more", async || {
        match add_once(client, &format!("r{round}-{made}")).await {
            None => made += 1,
            Some(error) if error.contains("quota-entities") => return Ok(Some(made)),
            Some(error) if error.contains("quota-turns") => {}
            Some(error) => bail!("{error}"),
        }
        Ok(None)
    })
    .await
}

async fn round(cluster: &Cluster, calm: &Client, round: u64) -> Result<String> {
    let quiet = p99(calm).await?;
    let turns = TURNS.to_string();
    set(cluster, &["quota", "loud", "--turns", &turns]).await?;
    let noise = Arc::new(Noise::default());
    let mut callers = JoinSet::new();
    for node in 0..cluster.len() {
        let client = Arc::new(tenant(cluster, node, "loud").await?);
        for caller in 0..CALLERS {
            callers.spawn(noise.clone().make(client.clone(), caller));
        }
    }
    // Then each node knows its share.
    let hits = async || Ok((noise.refused.load(Ordering::Relaxed) > 100).then_some(()));
    until("the loud tenant hits its quota", hits).await?;
    sleep(Duration::from_secs(3)).await;
    let before = noise.ran.load(Ordering::Relaxed);
    let began = Instant::now();
    let disturbed = p99(calm).await?;
    sleep(COUNTED.saturating_sub(began.elapsed())).await;
    let ran = noise.ran.load(Ordering::Relaxed) - before;
    let most = TURNS as f64 * (began.elapsed().as_secs_f64() + 1.0) * 1.2;
    noise.end.store(true, Ordering::Relaxed);
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    ensure!(ran > 0 && (ran as f64) < most, "{ran} turns ran, of at most {most}");
    // A bound on liveness only: the figures are printed.
    ensure!(disturbed < 2_000.0, "the neighbour's p99 was {disturbed} ms, {quiet} ms before");

    let entities = (ENTITIES * (round + 1)).to_string();
    set(cluster, &["quota", "loud", "--turns", "none", "--entities", &entities]).await?;
    let loud = tenant(cluster, 0, "loud").await?;
    let made = fill(&loud, round).await?;
    // Each node finds out within a second or so.
    for node in 0..cluster.len() {
        let loud = tenant(cluster, node, "loud").await?;
        fill(&loud, 1_000 * (round + 1) + node as u64).await?;
    }
    ensure!(add_once(&loud, "e0").await.is_none(), "an existing entity goes on");
    ensure!(add_once(calm, &format!("new{round}")).await.is_none(), "the neighbour's new entity");
    set(cluster, &["quota", "loud", "--entities", "none"]).await?;
    until("it can be created", async || Ok(add_once(&loud, "later").await.is_none().then_some(())))
        .await?;
    Ok(format!(
        "{ran} turns ran of at most {most:.0}, p99 of the neighbour {quiet:.1} ms, then {disturbed:.1} ms, {made} entities made"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tenant_at_its_quotas_leaves_its_neighbour_alone() {
    let options = Options { proxied: false, ..Options::three("quotas") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let component = artifacts::component("counter").expect("built");
    for name in ["loud", "calm"] {
        set(&cluster, &["create", name]).await.expect("created");
        let tenant = tenant(&cluster, 0, name).await.expect("a client");
        tenant.deploy(MANIFEST, component.clone(), None).await.expect("deployed");
    }
    let calm = tenant(&cluster, 1, "calm").await.expect("a client");
    let mut rounds = Rounds::of("a tenant at its quotas", 3).expect("rounds");
    while let Some(next) = rounds.next() {
        let figures = round(&cluster, &calm, next - 1).await;
        let figures =
            figures.unwrap_or_else(|error| panic!("{next}: {error:#}\n{}", cluster.logs()));
        rounds.passed(&figures).expect("kept");
    }
    cluster.stop().expect("stop");
}
