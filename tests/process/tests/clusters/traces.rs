//! Traces of messages over several nodes, as a collector gets them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{CallOptions, Client, Entity};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{Options, TIMEOUT};
use ostraca_process_tests::collector::{CollectedSpan, Collector};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const GRANT: &str = "[grants]\nask = [\"misbehaving\"]\ntell = [\"misbehaving\"]\n";

/// The options of a call whose caller has this trace, and wants it or not.
fn traced(trace: &str, sampled: bool) -> CallOptions {
    let flags = u8::from(sampled);
    let traceparent = format!("00-{trace}-{CALLER}-{flags:02x}");
    CallOptions { traceparent, ..CallOptions::default() }
}

/// The name of each span with that of the span above it.
fn edges(trace: &BTreeMap<Vec<u8>, CollectedSpan>) -> Vec<String> {
    let above = |span: &CollectedSpan| match trace.get(&span.span.parent_span_id) {
        Some(parent) => parent.span.name.clone(),
        None => span.span.parent_span_id.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let mut edges: Vec<_> =
        trace.values().map(|it| format!("{} < {}", it.span.name, above(it))).collect();
    edges.sort();
    edges
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_follows_a_message_over_the_nodes() -> Result<()> {
    let collector = Collector::start().await?;
    let options = Options { settings: collector.settings(), ..Options::three("traces") };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = Client::connect(cluster.profile(0)).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    let session = client.session();
    // The asker is on the second node, its targets on the third.
    let ids = |node: usize| format!("n{}", node + 1);
    let shards = client.shards().await?;
    let owner = |id: &str| -> String {
        let shard = ostraca_core::hash::shard_of(id, cluster.shards);
        shards.iter().find(|it| it.shard == shard.0).map(|it| it.owner.clone()).unwrap_or_default()
    };
    let on = |node: usize| {
        (0..).map(|number| format!("e{number}")).find(|id| owner(id) == ids(node)).expect("an id")
    };
    let (asker, target) = (Entity::new("misbehaving", on(1)), on(2));

    let body = json!({
        "of": "misbehaving", "id": target, "method": "add",
        "body": r#"{"key":"asked","by":1}"#, "count": 1, "ms": 0,
    });
    let reply = session.send(&asker, "ask", body.to_string(), &traced(TRACE, true)).await?;
    ensure!(String::from_utf8_lossy(&reply.body).contains("ok"), "{reply:?}");
    let trace = collector.wait(TRACE, 6, TIMEOUT).await.with_context(|| cluster.logs())?;
    let caller = format!("misbehaving.ask < {CALLER}");
    let wanted = [
        "ask misbehaving.add < turn misbehaving.ask",
        "commit < turn misbehaving.add",
        "commit < turn misbehaving.ask",
        &caller,
        "turn misbehaving.add < ask misbehaving.add",
        "turn misbehaving.ask < misbehaving.ask",
    ];
    ensure!(edges(&trace) == wanted, "{:#?}", edges(&trace));
    for it in trace.values() {
        let node = match it.span.name.as_str() {
            "misbehaving.ask" => "n1",
            "turn misbehaving.ask" | "ask misbehaving.add" => "n2",
            "turn misbehaving.add" => "n3",
            _ => continue,
        };
        ensure!(it.node == node, "{} is of {}", it.span.name, it.node);
        ensure!(it.span.end_time_unix_nano >= it.span.start_time_unix_nano);
    }
    let arrived = trace.values().find(|it| it.span.name == "misbehaving.ask").context("a span")?;
    ensure!(
        arrived.attribute("ostraca.id") == *asker.id
            && arrived.attribute("ostraca.outcome") == "result"
    );

    // A tell is below the turn that sent it, also after its turn has ended.
    let told = "11111111111111111111111111111111";
    let body = json!({ "ids": [target], "key": "told" });
    session.send(&asker, "tell_add", body.to_string(), &traced(told, true)).await?;
    // The target's turn, its commit, and the sender's commits; what confirms the tell has no trace.
    let until = tokio::time::Instant::now() + TIMEOUT;
    let tell_of = |trace: &BTreeMap<Vec<u8>, CollectedSpan>| {
        let edges = edges(trace);
        edges.contains(&"tell misbehaving.add < turn misbehaving.tell_add".to_owned())
            && edges.contains(&"turn misbehaving.add < tell misbehaving.add".to_owned())
    };
    while !tell_of(&collector.trace(told)) {
        let late = tokio::time::Instant::now() > until;
        ensure!(!late, "{:#?}", edges(&collector.trace(told)));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // A command line passes on its caller's context.
    let shell = "44444444444444444444444444444444";
    let sent = cluster
        .command_line(0)?
        .args(["send", &asker.to_string(), "read", "\"asked\""])
        .env("TRACEPARENT", format!("00-{shell}-{CALLER}-01"))
        .output()?;
    ensure!(sent.status.success(), "{sent:?}");
    let trace = collector.wait(shell, 2, TIMEOUT).await?;
    let wanted =
        [format!("misbehaving.read < {CALLER}"), "turn misbehaving.read < misbehaving.read".into()];
    ensure!(edges(&trace) == wanted, "{:#?}", edges(&trace));

    // A failure is marked at the turn and at the gateway, with its code.
    let failed = "22222222222222222222222222222222";
    let outcome = session.send(&asker, "panic", "\"oops\"", &traced(failed, true)).await;
    ensure!(outcome.is_err());
    let trace = collector.wait(failed, 2, TIMEOUT).await?;
    for it in trace.values() {
        let status = it.span.status.as_ref().map_or(0, |status| status.code);
        ensure!(status == 2 && !it.attribute("error.type").is_empty(), "{it:?}");
    }

    // Without the caller's wish, there are no spans.
    let before = collector.count();
    let quiet = "33333333333333333333333333333333";
    session.send(&asker, "add", r#"{"key":"k","by":1}"#, &traced(quiet, false)).await?;
    session.send(&asker, "add", r#"{"key":"k","by":1}"#, &CallOptions::default()).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(collector.count() == before, "{:#?}", edges(&collector.trace(quiet)));
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_collector_costs_no_message() -> Result<()> {
    // It accepts connections and never answers; at most 16 spans wait.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let settings = format!(
        "[traces]\nendpoint = \"http://{}/v1/traces\"\nmax-queued-spans = 16\ninterval = \"50 ms\"",
        silent.local_addr()?
    );
    let options = Options { settings, ..Options::three("no-collector") };
    let cluster = Cluster::start(&options).await?;
    let client = Client::connect(cluster.profile(0)).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    let session = client.session();
    let entity = Entity::new("misbehaving", "a");
    for _ in 0..300 {
        let options = traced(TRACE, true);
        session.send(&entity, "add", r#"{"key":"k","by":1}"#, &options).await?;
    }
    client.close().await;
    cluster.stop()
}
