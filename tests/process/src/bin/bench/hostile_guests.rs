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
use ostraca_client::{CallOptions, Client, Entity};
use ostraca_process_tests::load::{LoadResult, open_loop};
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::{NodeDir, NodeProcess};

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

/// Runs one round of an attack, no matter whether it is refused.
type Attack = Arc<dyn Fn(Arc<Client>, u64) -> Round + Send + Sync>;
type Round = Pin<Box<dyn Future<Output = ()> + Send>>;

const ADD: &str = "{\"key\":\"k\",\"by\":1}";

fn attacks() -> [(&'static str, Attack); 21] {
    [
        ("doubling instances", deploys(with_nested(&doubling(26)))),
        ("nested loops", deploys(nested_loops(20_000))),
        ("huge error from start", sends("huge-start", "add", [ADD; 2])),
        ("passivate in start", sends("passivate-start", "add", [ADD; 2])),
        ("fast small keys", sends("keys", "fill", ["{\"keys\":5000,\"bytes\":1}"; 2])),
        ("control characters", sends("control", "control", ["\"log\"", "\"panic\""])),
        (
            "floods of tells",
            sends("flood", "tell", [&tells("add", ADD, 900), &tells("add", ADD, 1)]),
        ),
        ("tells at the limit", sends("large", "tell", [&tells("note", &large(), 1); 2])),
        ("tells to oneself", sends("echo", "tell_myself", ["100"; 2])),
        ("tells that trap", sends("traps", "tell", [&tells("trap", "", 100); 2])),
        ("storms of asks", sends("storm", "ask", [&asks("add", ADD, 64); 2])),
        ("asks at the limit", sends("bulky", "ask", [&asks("note", &large(), 1); 2])),
        ("asks that wait", sends("waits", "ask", [&asks("spin_for_ever", "", 64); 2])),
        ("asks that cross", sends("cross", "ask_along", [CROSSING[0], CROSSING[1]])),
        ("floods of events", sends("events", "append_sized", [&events(1, 999); 2])),
        ("events at the limit", sends("heavy", "append_sized", [&events(4_000_000, 1); 2])),
        ("deletions", sends("gone", "delete", ["\"a\"", "\"b\""])),
        ("entities that end at once", sends("ends", "expire_after", ["0", "1"])),
        ("entities to remember", sends("marks", "remember", ["true", "false"])),
        ("timers due at once", sends("timers", "set_timers", [TIMERS; 2])),
        ("odd names of timers", sends("odd", "set_odd_timer", ["\"\"", "\"a\\u0001\""])),
    ]
}

const TIMERS: &str = "{\"name\":\"t\",\"count\":100,\"after_ms\":0,\"every_ms\":0,\"bytes\":200}";

/// The arguments of `tell`: this many tells to one entity, which all attackers share.
fn tells(method: &str, body: &str, count: u64) -> String {
    let (of, id) = ("misbehaving", "victim");
    serde_json::json!({ "of": of, "id": id, "method": method, "body": body, "count": count })
        .to_string()
}

/// The arguments of `ask`: this many asks to one entity, shared by all attackers.
fn asks(method: &str, body: &str, count: u64) -> String {
    let (of, id) = ("misbehaving", "victim");
    serde_json::json!({
        "of": of, "id": id, "method": method, "body": body, "count": count, "ms": 0
    })
    .to_string()
}

/// The arguments of `append_sized`: this many events of a size.
fn events(bytes: usize, count: u64) -> String {
    serde_json::json!({ "bytes": bytes, "count": count }).to_string()
}

/// Chains of asks through the same entities, in opposite orders.
const CROSSING: [&str; 2] = [
    "{\"ids\":[\"cross-1\",\"cross-2\",\"cross-3\"],\"key\":\"k\"}",
    "{\"ids\":[\"cross-3\",\"cross-2\",\"cross-1\"],\"key\":\"k\"}",
];

/// A string that just fits into an outbox.
fn large() -> String {
    format!("\"{}\"", "x".repeat((1 << 20) - 100))
}

/// Deploys a component, which is created beforehand: creating it takes longer than deploying it, and the threads that
/// create it also measure.
fn deploys(component: Vec<u8>) -> Attack {
    let component = Bytes::from(component);
    Arc::new(move |client, _| {
        let component = component.clone();
        Box::pin(async move {
            let manifest = "type = \"odd\"\ncomponent = \"odd.wasm\"\n";
            let _ = client.deploy(manifest, component, None).await;
        })
    })
}

/// Sends the bodies in rotation to a hundred entities.
fn sends(id: &'static str, method: &'static str, bodies: [&str; 2]) -> Attack {
    let bodies = bodies.map(|body| Bytes::copy_from_slice(body.as_bytes()));
    Arc::new(move |client, round| {
        let body = bodies[(round % 2) as usize].clone();
        Box::pin(async move {
            let entity = Entity::new("misbehaving", format!("{id}-{}", round % 100));
            let options = CallOptions { timeout: Duration::from_secs(5), ..CallOptions::default() };
            let _ = client.session().send(&entity, method, body, &options).await;
        })
    })
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let home = NodeDir::init("bench-zoo")?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let settle = std::env::var("SETTLE").ok().and_then(|seconds| seconds.parse().ok());
    let settle = Duration::from_secs(settle.unwrap_or(SETTLE));
    let limits = "[limits]\nmemory = \"32 MiB\"\n[grants]\ntell = [\"misbehaving\"]\nask = [\"misbehaving\"]\n";
    deploy_guest(&client, "misbehaving", limits).await?;
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
    for (name, attack) in attacks().into_iter().filter(|(name, _)| name.contains(&only)) {
        let before = node.resident_kib()? as f64;
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|_| async {
                Ok::<_, anyhow::Error>(Client::connect(home.profile(node.address)?).await?)
            })
            .collect();
        let mut tasks = tokio::task::JoinSet::new();
        for attacker in attackers {
            let (client, attack) = (Arc::new(attacker.await?), attack.clone());
            tasks.spawn(async move {
                for round in 0.. {
                    attack(client.clone(), round).await;
                }
            });
        }
        let (found, all) = repeated(bench.time).await?;
        tasks.shutdown().await;
        let ratio = found.as_secs_f64() / idle.as_secs_f64();
        let settings =
            format!("{name}, {ATTACKERS} at a time; {all}; the ratio is to the idle node");
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
