//! How malicious guests affect their neighbours: `ONLY=ZOO`, or one attack: `ONLY=ZOO ATTACK=huge`. Each attack
//! lasts as long as the neighbours, which send at a steady rate, are measured. The targets: the neighbours' p99 is
//! at most three times that of an idle node, and a minute later the node's memory is within a fifth of what it was.
//!
//! The control shows how much of a miss is due to the machine: shells that loop and are unrelated to the node. If
//! the control misses the target, an attack that keeps the processors busy also misses it, whatever the node does.

#[path = "../../../../../host/wasm/tests/common/handmade.rs"]
mod handmade;

use std::future::Future;
use std::pin::Pin;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use handmade::{doubling, nested_loops, with_nested};
use ostraca_client::{AdminError, Client};
use ostraca_process_tests::load::{LoadResult, open_loop};
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::zoo::{self, Endings, GuestAttack, RESULT, Sink};
use ostraca_process_tests::{NodeDir, NodeProcess};
use tokio::task::JoinSet;

use super::{Bench, micros, named, sessions};

/// The neighbours' commands per second.
const RATE: u32 = 200;
const NEIGHBOURS: u64 = 50;
/// Seconds between an attack and the measurement of memory.
const SETTLE: u64 = 60;
/// Number of concurrent attackers.
const ATTACKERS: usize = 4;
/// How many times the neighbours are measured during each attack. The median counts: single measurements vary tenfold.
const TIMES: usize = 3;

/// Runs one round of an attack, and returns how it ended.
type Attack = Arc<dyn Fn(Arc<Client>, u64) -> Round + Send + Sync>;
type Round = Pin<Box<dyn Future<Output = String> + Send>>;

fn attacks(sink: &Sink) -> Vec<(&'static str, Attack)> {
    let mut all = vec![
        ("doubling instances", deploys(with_nested(&doubling(26)))),
        ("nested loops", deploys(nested_loops(20_000))),
    ];
    all.extend(zoo::attacks(sink).into_iter().map(|attack| (attack.name, sends(attack))));
    all
}

/// Deploys a component, which is created beforehand: creating it takes longer than deploying it, and the threads that
/// create it also measure.
fn deploys(component: Vec<u8>) -> Attack {
    let component = Bytes::from(component);
    Arc::new(move |client, _| {
        let component = component.clone();
        Box::pin(async move {
            let manifest = "type = \"odd\"\ncomponent = \"odd.wasm\"\n";
            match client.deploy(manifest, component, None).await {
                Ok(_) => RESULT.into(),
                Err(AdminError::Refused(problem)) => problem.code.clone(),
                Err(error) => error.to_string(),
            }
        })
    })
}

fn sends(attack: GuestAttack) -> Attack {
    let attack = Arc::new(attack);
    Arc::new(move |client, round| {
        let attack = attack.clone();
        Box::pin(async move { attack.round(&client, round).await })
    })
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let home = NodeDir::init("bench-zoo")?;
    home.set(zoo::SETTINGS)?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let settle = std::env::var("SETTLE").ok().and_then(|seconds| seconds.parse().ok());
    let settle = Duration::from_secs(settle.unwrap_or(SETTLE));
    let sink = Sink::start().await?;
    deploy_guest(&client, "misbehaving", &zoo::manifest(&sink)).await?;
    let neighbours = async |time: Duration| -> Result<LoadResult> {
        let total = u64::from(RATE) * time.as_secs().max(1);
        open_loop(&sessions(&client, 8), RATE, "add", total, named("near", NEIGHBOURS)).await
    };
    neighbours(Duration::from_secs(2)).await?;
    let settings = format!("{NEIGHBOURS} neighbours, {RATE} commands per second");
    let idle = neighbours(bench.time).await?.percentile(99.0);
    bench.line("zoo idle p99", (micros(idle), "us"), None, None, &settings);
    // Returns the median, and all values.
    let repeated = async |time: Duration| -> Result<(Duration, String)> {
        let mut found = Vec::new();
        for _ in 0..TIMES {
            found.push(neighbours(time).await?.percentile(99.0));
        }
        found.sort_unstable();
        let all: Vec<_> = found.iter().map(|p99| format!("{:.0}", micros(*p99))).collect();
        Ok((found[TIMES / 2], all.join(", ")))
    };
    let shells = Shells::start(ATTACKERS)?;
    let (control, all) = repeated(bench.time).await?;
    drop(shells);
    let ratio = control.as_secs_f64() / idle.as_secs_f64();
    let settings =
        format!("control, {ATTACKERS} shells that loop; {all}; the ratio is to the idle node");
    bench.line("zoo p99", (micros(control), "us"), None, Some(ratio), &settings);
    let only = std::env::var("ATTACK").unwrap_or_default();
    for (name, attack) in attacks(&sink).into_iter().filter(|(name, _)| name.contains(&only)) {
        let before = node.resident_kib()? as f64;
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|_| async {
                Ok::<_, anyhow::Error>(Client::connect(home.profile(node.address)?).await?)
            })
            .collect();
        let endings = Arc::new(Endings::default());
        let mut tasks = JoinSet::new();
        for attacker in attackers {
            let (client, attack) = (Arc::new(attacker.await?), attack.clone());
            let endings = endings.clone();
            tasks.spawn(async move {
                for round in 0.. {
                    endings.add(attack(client.clone(), round).await);
                }
            });
        }
        let (found, all) = repeated(bench.time).await?;
        tasks.shutdown().await;
        let ratio = found.as_secs_f64() / idle.as_secs_f64();
        let settings = format!(
            "{name}, {ATTACKERS} at a time; {all}; the ratio is to the idle node; rounds ended: {}",
            endings.text()
        );
        let aim = Some(3.0 * micros(idle));
        bench.line("zoo p99", (micros(found), "us"), aim, Some(ratio), &settings);
        tokio::time::sleep(settle).await;
        let after = node.resident_kib()? as f64;
        let settings = format!("{name}, {} s later; the ratio is to before", settle.as_secs());
        let aim = Some(before * 1.2 / 1024.0);
        bench.line("zoo memory", (after / 1024.0, "MiB"), aim, Some(after / before), &settings);
    }
    client.close().await;
    node.stop()?;
    Ok(())
}

/// Processes that only loop, until this value is dropped.
struct Shells(Vec<Child>);

impl Shells {
    fn start(count: usize) -> Result<Self> {
        let mut shells = Self(Vec::new());
        for _ in 0..count {
            shells.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(shells)
    }
}

impl Drop for Shells {
    fn drop(&mut self) {
        for shell in &mut self.0 {
            // The process may already have ended.
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}
