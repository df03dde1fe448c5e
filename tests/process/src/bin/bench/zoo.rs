//! What neighbours notice of guests that mean harm: `ONLY=ZOO`. Each attack goes on for as long as the neighbours are measured,
//! who send at a steady rate. The aims: the neighbours' p99 at most three times that of an idle node, and the node's memory
//! a minute later within a fifth of what it was.

#[path = "../../../../../host/wasm/tests/common/handmade.rs"]
mod handmade;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use handmade::{doubling, nested_loops, with_nested};
use ostraca_client::{Client, Entity, Options};
use ostraca_process_tests::home::{deploy_example, deploy_guest};
use ostraca_process_tests::load::{Measured, open_loop};
use ostraca_process_tests::{Home, Node};

use super::{Bench, micros, named, sessions};

/// Commands of the neighbours a second.
const RATE: u32 = 200;
const NEIGHBOURS: u64 = 50;
/// How many attack at the same time.
const ATTACKERS: usize = 4;

/// Does one round of an attack. Whether it is refused is not asked here.
type Attack = fn(Arc<Client>, u64) -> Pin<Box<dyn Future<Output = ()> + Send>>;

const ATTACKS: [(&str, Attack); 6] = [
    ("doubling instances", |client, _| deploy(client, with_nested(&doubling(26)))),
    ("nested loops", |client, _| deploy(client, nested_loops(20_000))),
    ("huge error from start", |client, round| send(client, "huge-start", round, "add", ADD)),
    ("passivate in start", |client, round| send(client, "passivate-start", round, "add", ADD)),
    ("fast small keys", |client, round| {
        send(client, "keys", round, "fill", "{\"keys\":5000,\"bytes\":1}")
    }),
    ("control characters", |client, round| {
        send(client, "control", round, "control", ["\"log\"", "\"panic\""][round as usize % 2])
    }),
];
const ADD: &str = "{\"key\":\"k\",\"by\":1}";

fn deploy(client: Arc<Client>, component: Vec<u8>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let manifest = "type = \"odd\"\ncomponent = \"odd.wasm\"\n";
        let _ = client.deploy(manifest, Bytes::from(component), None).await;
    })
}

fn send(
    client: Arc<Client>,
    id: &'static str,
    round: u64,
    method: &'static str,
    body: &'static str,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let entity = Entity::new("misbehaving", format!("{id}-{}", round % 100));
        let options = Options { deadline: Duration::from_secs(5), ..Options::default() };
        let _ = client.session().send(&entity, method, body, &options).await;
    })
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let home = Home::init("bench-zoo")?;
    let node = Node::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let limits = "[limits]\nmemory = \"32 MiB\"\n";
    deploy_guest(&client, "misbehaving", limits).await?;
    let neighbours = async |time: Duration| -> Result<Measured> {
        let total = u64::from(RATE) * time.as_secs().max(1);
        open_loop(&sessions(&client, 8), RATE, "add", total, named("near", NEIGHBOURS)).await
    };
    neighbours(Duration::from_secs(2)).await?;
    let settings = format!("{NEIGHBOURS} neighbours, {RATE} commands a second");
    let idle = neighbours(bench.time).await?.percentile(99.0);
    bench.line("zoo idle p99", (micros(idle), "us"), None, None, &settings);
    for (name, attack) in ATTACKS {
        let before = node.resident_kib()? as f64;
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|_| async {
                Ok::<_, anyhow::Error>(Client::connect(home.profile(node.address)?).await?)
            })
            .collect();
        let mut tasks = tokio::task::JoinSet::new();
        for attacker in attackers {
            let client = Arc::new(attacker.await?);
            tasks.spawn(async move {
                for round in 0.. {
                    attack(client.clone(), round).await;
                }
            });
        }
        let found = neighbours(bench.time).await?.percentile(99.0);
        tasks.shutdown().await;
        let ratio = found.as_secs_f64() / idle.as_secs_f64();
        let settings = format!("{name}, {ATTACKERS} at a time; the ratio is to the idle node");
        let aim = Some(3.0 * micros(idle));
        bench.line("zoo p99", (micros(found), "us"), aim, Some(ratio), &settings);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let after = node.resident_kib()? as f64;
        let settings = format!("{name}, a minute later; the ratio is to before");
        let aim = Some(before * 1.2 / 1024.0);
        bench.line("zoo memory", (after / 1024.0, "MiB"), aim, Some(after / before), &settings);
    }
    client.close().await;
    node.stop()?;
    Ok(())
}
