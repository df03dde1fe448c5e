//! P17: calls over HTTP/1.1 and HTTP/3, compared with those of the Rust client over QUIC, in the same run. Each caller has
//! a connection and one call in flight; to the node, each call is a caller of its own. `HOT_SECONDS=n` is the duration
//! of the loop whose callers all call one entity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::StatusCode;
use ostraca_client::Client;
use ostraca_process_tests::http::{CallsEntities, HttpCaller, web_token};
use ostraca_process_tests::http3::Http3Caller;
use ostraca_process_tests::load::{LoadResult, Next, histogram};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};
use ostraca_test_servers::free_port;
use tokio::task::JoinSet;

use crate::baseline::Used;
use crate::{Bench, ENTITIES, IN_FLIGHT, busy, micros, named};

/// Highest p50, and lowest rate, as fractions of those over QUIC.
const SLOWER: f64 = 1.5;
const SHARE: f64 = 0.4;
/// Calls a second to one entity that callers without sessions must get through.
const HOT: f64 = 5_000.0;
/// The name in the certificate of HTTP/3.
const HOST: &str = "api.example.com";

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let home = NodeDir::init("bench-http")?;
    let listen = format!("127.0.0.1:{}", free_port());
    home.set(&format!("[http]\nlisten = {listen:?}"))?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let token = web_token(&client, &home).await?;
    let callers = |count| -> Result<Vec<HttpCaller>> {
        (0..count).map(|_| HttpCaller::new(listen.parse()?, &token)).collect()
    };
    let settings = "over QUIC, 1 entity, 1 in flight";
    let quic = busy(bench, "P17 QUIC", &node, &client, 1, named("one", 1), settings).await?;
    let quic_p50 = micros(quic.percentile(50.0));
    bench.line("P17 QUIC p50", (quic_p50, "us"), None, None, settings);
    let settings = format!("over QUIC, {ENTITIES} entities, {IN_FLIGHT} in flight");
    let next = named("many", ENTITIES);
    let quic = busy(bench, "P17 QUIC", &node, &client, IN_FLIGHT, next, &settings).await?;
    bench.line("P17 QUIC rate", (quic.rate(), "/s"), None, None, &settings);

    let settings = "1 entity, 1 caller";
    let result = loaded(bench, &node, callers(1)?, named("one", 1), false, settings).await?;
    let p50 = micros(result.percentile(50.0));
    let aim = Some(SLOWER * quic_p50);
    bench.line("P17 p50", (p50, "us"), aim, Some(p50 / quic_p50), settings);
    for keyed in [false, true] {
        let with = if keyed { ", each with an idempotency key" } else { "" };
        let settings = format!("{ENTITIES} entities, {IN_FLIGHT} callers{with}");
        let next = named("many", ENTITIES);
        let result = loaded(bench, &node, callers(IN_FLIGHT)?, next, keyed, &settings).await?;
        let (id, aim) = match keyed {
            false => ("P17 rate", Some(SHARE * quic.rate())),
            true => ("P17 rate with keys", None),
        };
        bench.line(id, (result.rate(), "/s"), aim, Some(result.rate() / quic.rate()), &settings);
    }
    let settings = format!("1 entity, {IN_FLIGHT} callers");
    let next = named("hot", 1);
    let seconds = std::env::var("HOT_SECONDS").ok().and_then(|text| text.parse().ok());
    let usual = bench.time;
    bench.time = seconds.map_or(usual, Duration::from_secs);
    let result = loaded(bench, &node, callers(IN_FLIGHT)?, next, false, &settings).await?;
    bench.time = usual;
    bench.line("P17 hot rate", (result.rate(), "/s"), Some(HOT), None, &settings);
    let p99 = micros(result.percentile(99.0));
    bench.line("P17 hot p99", (p99, "us"), None, None, &settings);
    client.close().await;
    node.stop()?;
    over_http3(bench, quic_p50, quic.rate()).await
}

/// The same over HTTP/3, on a node with TLS, compared with what was measured over QUIC before.
async fn over_http3(bench: &mut Bench, quic_p50: f64, quic_rate: f64) -> Result<()> {
    let home = NodeDir::init("bench-http3")?;
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()])?;
    let (certificate, key) = (home.dir().join("https.pem"), home.dir().join("https.key"));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let listen = format!("127.0.0.1:{}", free_port());
    home.set(&format!(
        "[http]\nlisten = {listen:?}\nhosts = [{HOST:?}]\ncertificate = {certificate:?}\nkey = {key:?}"
    ))?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let token = web_token(&client, &home).await?;
    let (address, at) = (listen.parse()?, (HOST, made.cert.der()));
    let settings = "over HTTP/3, 1 entity, 1 caller";
    let one = vec![Http3Caller::connect(address, at, &token).await?];
    let result = loaded(bench, &node, one, named("one", 1), false, settings).await?;
    let p50 = micros(result.percentile(50.0));
    let aim = Some(SLOWER * quic_p50);
    bench.line("P17 HTTP/3 p50", (p50, "us"), aim, Some(p50 / quic_p50), settings);
    let settings = format!("over HTTP/3, {ENTITIES} entities, {IN_FLIGHT} callers");
    let mut all = Vec::new();
    for _ in 0..IN_FLIGHT {
        all.push(Http3Caller::connect(address, at, &token).await?);
    }
    let result = loaded(bench, &node, all, named("many", ENTITIES), false, &settings).await?;
    let (rate, aim) = (result.rate(), Some(SHARE * quic_rate));
    bench.line("P17 HTTP/3 rate", (rate, "/s"), aim, Some(rate / quic_rate), &settings);
    client.close().await;
    node.stop()?;
    Ok(())
}

async fn loaded<C: CallsEntities + Send + 'static>(
    bench: &mut Bench,
    node: &NodeProcess,
    callers: Vec<C>,
    next: Arc<Next>,
    keyed: bool,
    settings: &str,
) -> Result<LoadResult> {
    let before = Used::by(node.pid())?;
    let result = http_loop(callers, Instant::now() + bench.time, next, keyed).await?;
    Used::by(node.pid())?.since(&before, bench, "P17", &result, settings);
    Ok(result)
}

/// Each caller sends one call after the other until `until`; every one must be answered with a result.
async fn http_loop<C: CallsEntities + Send + 'static>(
    callers: Vec<C>,
    until: Instant,
    next: Arc<Next>,
    keyed: bool,
) -> Result<LoadResult> {
    let began = Instant::now();
    let number = Arc::new(AtomicU64::new(0));
    let run = format!("{:?}", std::time::SystemTime::now()).replace(' ', "");
    let mut tasks = JoinSet::new();
    for (place, mut caller) in callers.into_iter().enumerate() {
        let (number, next, run) = (Arc::clone(&number), Arc::clone(&next), run.clone());
        tasks.spawn(async move {
            let mut waits = histogram()?;
            while Instant::now() < until {
                let n = number.fetch_add(1, Ordering::Relaxed);
                let (entity, body) = next(place, n);
                let key = keyed.then(|| format!("{run}-{n}"));
                let call = (&*entity.entity_type, &*entity.id, "add");
                let sent = Instant::now();
                let reply = caller.call(call, body, key.as_deref()).await?;
                ensure!(reply.status == StatusCode::OK, "{reply:?}");
                waits.saturating_record(u64::try_from(sent.elapsed().as_micros())?);
            }
            anyhow::Ok(waits)
        });
    }
    let mut waits = histogram()?;
    while let Some(done) = tasks.join_next().await {
        waits.add(done??)?;
    }
    Ok(LoadResult { done: waits.len(), took: began.elapsed(), waits })
}
