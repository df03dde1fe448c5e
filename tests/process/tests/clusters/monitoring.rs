//! A cluster as Prometheus and `ostraca top` see it, while it works and when a node is killed.

use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{Options, TIMEOUT};
use ostraca_process_tests::http::{CallsEntities, HttpCaller, web_token};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_test_servers::prometheus::Prometheus;
use serde_json::Value;
use tokio::time::Instant;

const CONFIG: &str = include_str!("../../../../deploy/monitoring/prometheus.yml");
const ALERTS: &str = include_str!("../../../../deploy/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/monitoring/grafana-dashboard.json");

/// The configuration in `deploy/`, for this cluster, with a shorter interval.
fn prometheus(cluster: &Cluster) -> Prometheus {
    let mut config = CONFIG.replace("15s", "1s");
    for (place, target) in ["127.0.0.1:7481", "127.0.0.1:7482", "127.0.0.1:7483"].iter().enumerate()
    {
        assert!(config.contains(target));
        config = config
            .replace(&format!("- {target}\n"), &format!("- {}\n", cluster.metrics_address(place)));
    }
    Prometheus::start(&config, &[("alerts.yml", ALERTS)])
}

/// The expressions of the dashboard, with its variables set.
fn expressions() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| {
            let expression = target["expr"].as_str().expect("an expression");
            let set = expression
                .replace("$__rate_interval", "10s")
                .replace("$instance", ".*")
                .replace("$type", ".*");
            (title.to_owned(), set)
        })
    });
    targets.collect()
}

/// Waits until a query of Prometheus yields what is wanted.
async fn until(
    prometheus: &Prometheus,
    what: &str,
    is_so: impl Fn(&Prometheus) -> bool,
) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    while !is_so(prometheus) {
        ensure!(
            Instant::now() < until,
            "{what}: not within {TIMEOUT:?}; {:?}",
            prometheus.alerts()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Sends commands over QUIC and HTTP to a few entities, most of them to one, until it is told to end.
async fn load(cluster: &Cluster, end: Arc<AtomicBool>) -> Result<tokio::task::JoinHandle<u64>> {
    let client = Client::connect(cluster.profile(0)).await?;
    let token = web_token(&client, cluster.home(0)).await?;
    let mut caller = HttpCaller::new(cluster.http_address(0), &token)?;
    Ok(tokio::spawn(async move {
        let session = client.session();
        let mut sent = 0_u64;
        while !end.load(Ordering::Relaxed) {
            let id = if sent.is_multiple_of(4) { format!("e{}", sent % 40) } else { "hot".into() };
            let entity = Entity::new("counter", id);
            let calls: Vec<_> = (0..16).map(|_| session.command(&entity, "add", "1")).collect();
            for call in calls {
                // Some may be in doubt when a node is killed.
                let _ = call.await;
            }
            let _ = session.query(&entity, "get", "").await;
            let call = ("counter", "over-http", "add");
            let _ = caller.call(call, "1".into(), None).await;
            sent += 1;
        }
        sent
    }))
}

async fn top(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    cluster.command(0, &[&["top", "--once"], arguments].concat()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_and_top_show_load_and_a_killed_node() -> Result<()> {
    let options = Options { http: true, ..Options::three("monitored") };
    let mut cluster = Cluster::start(&options).await?;
    let admin = Client::connect(cluster.profile(0)).await?;
    deploy_example(&admin, "counter").await?;
    let end = Arc::<AtomicBool>::default();
    let loading = load(&cluster, end.clone()).await?;
    let prometheus = prometheus(&cluster);

    let up = |count: f64| {
        move |it: &Prometheus| it.query("sum(up)").first().is_some_and(|(_, value)| *value == count)
    };
    until(&prometheus, "three nodes are scraped", up(3.0)).await?;
    // Each panel of the dashboard shows something, but there are no problems.
    let mut expressions = expressions();
    expressions.retain(|(_, expression)| expression != "ostraca_problems");
    until(&prometheus, "all panels show something", |it| {
        expressions.iter().all(|(_, expression)| !it.query(expression).is_empty())
    })
    .await
    .with_context(|| {
        let empty = expressions.iter().filter(|(_, it)| prometheus.query(it).is_empty());
        format!("{:?}", empty.collect::<Vec<_>>())
    })?;
    ensure!(prometheus.query("ostraca_problems").is_empty());
    let fires = |(_, state, _): &(String, String, String)| state == "firing";
    ensure!(!prometheus.alerts().iter().any(fires), "{:?}", prometheus.alerts());

    let printed = top(&cluster, &["--interval", "3s"]).await?;
    let text = String::from_utf8_lossy(&printed.stdout);
    ensure!(printed.status.success(), "{printed:?}");
    for wanted in ["NODE", "n1", "n2", "n3", "counter", "add", "counter/hot", "TURNS/S"] {
        ensure!(text.contains(wanted), "{wanted}\n{text}");
    }
    let printed = top(&cluster, &["--interval", "2s", "--output", "json"]).await?;
    let view: Value = serde_json::from_slice(&printed.stdout).context("JSON")?;
    let messages: f64 = view["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it["messages"].as_f64())
        .sum();
    ensure!(messages > 1.0, "{view}");
    let mut hottest = view["hottest"].as_array().into_iter().flatten();
    ensure!(hottest.any(|it| it["entity"] == "counter/hot"), "{view}");
    let add = view["methods"].as_array().into_iter().flatten().find(|it| it["method"] == "add");
    ensure!(add.is_some_and(|it| it["p99_ms"].as_f64() > Some(0.0)), "{view}");

    // The last node dies. Prometheus and the other nodes see it, and its shards pause until others have them.
    cluster.kill_9(2)?;
    until(&prometheus, "a node does not answer", up(2.0)).await?;
    let instance = cluster.metrics_address(2).to_string();
    until(&prometheus, "the alert is about to fire", |it| {
        let down =
            |(name, _, of): &(String, String, String)| name == "OstracaNodeDown" && *of == instance;
        it.alerts().iter().any(down)
    })
    .await?;
    let is = |expression: &'static str, wanted: fn(f64) -> bool| {
        move |it: &Prometheus| it.query(expression).first().is_some_and(|(_, value)| wanted(*value))
    };
    let dead = "min(ostraca_cluster_nodes{state=\"dead\"})";
    until(&prometheus, "the nodes see that it is dead", is(dead, |it| it == 1.0)).await?;
    let pauses = "min(ostraca_shard_pause_seconds_count)";
    until(&prometheus, "each node has seen the pauses", is(pauses, |it| it >= 6.0)).await?;
    let free = "max(ostraca_cluster_shards{state=\"unassigned\"})";
    until(&prometheus, "all shards have owners again", is(free, |it| it == 0.0)).await?;
    let printed = top(&cluster, &["--interval", "1s"]).await?;
    let text = String::from_utf8_lossy(&printed.stdout);
    ensure!(printed.status.success() && !text.contains("n3 "), "{text}");

    end.store(true, Ordering::Relaxed);
    ensure!(loading.await? > 10);
    admin.close().await;
    cluster.stop()
}
