//! The metrics of a node that works, as Prometheus reads them.

use std::net::SocketAddr;
use std::time::Duration;

use ostraca_client::{NewLimit, QuotaChanges};

use super::*;

const METRICS: &str = "\n[metrics]\nlisten = \"127.0.0.1:0\"\nmax-methods = 3";

async fn get(address: SocketAddr, path: &str, host: &str) -> Response {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    tokio::time::timeout(SOON, read(&mut stream)).await.expect("in time").expect("a response")
}

/// The value of a series.
fn value(page: &Response, series: &str) -> f64 {
    let of_series = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    let found = page.body.lines().find_map(of_series);
    found.unwrap_or_else(|| panic!("no {series} in\n{}", page.body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_what_the_node_has_done() {
    let gateway = Gateway::start(METRICS).await;
    let address = gateway.node.metrics_address().expect("an address");
    let scrape = async || get(address, "/metrics", &address.to_string()).await;
    for _ in 0..3 {
        gateway.call("POST", "/v1/default/counter/alice/call/add", "5").await;
    }
    gateway.call("POST", "/v1/default/counter/alice/call/add", "\"five\"").await;
    gateway.call("GET", "/v1/default/counter/alice/call/get", "").await;
    gateway.call("GET", "/v1/default/cuonter/alice/call/get", "").await;

    let page = scrape().await;
    assert_eq!(page.status, 200);
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(page.header("content-type"), format);
    let of_add = |outcome: &str| {
        format!("ostraca_messages_total{{type=\"counter\",method=\"add\",outcome=\"{outcome}\"}}")
    };
    let outcomes = ["ok", "error", "not-run", "unknown"].map(|it| value(&page, &of_add(it)));
    assert_eq!(outcomes, [3.0, 1.0, 0.0, 0.0]);
    let durations = "ostraca_message_duration_seconds";
    let of_add = "{type=\"counter\",method=\"add\"}";
    assert_eq!(value(&page, &format!("{durations}_count{of_add}")), 4.0);
    let total = value(&page, &format!("{durations}_sum{of_add}"));
    assert!((0.000_01..60.0).contains(&total), "{total}");
    let turns = "ostraca_turn_duration_seconds_count{type=\"counter\",work=\"message\"";
    assert_eq!(value(&page, &format!("{turns},method=\"add\"}}")), 4.0);
    assert_eq!(value(&page, &format!("{turns},method=\"get\"}}")), 1.0);
    assert_eq!(value(&page, "ostraca_turns_total"), 5.0);
    // A command is committed also if it ends with an error, and so is the answer to it.
    assert_eq!(value(&page, "ostraca_commits_total"), 4.0);
    assert_eq!(value(&page, "ostraca_commit_batch_sum"), 4.0);
    assert_eq!(value(&page, "ostraca_entity_lanes_count"), 4.0);
    assert!(value(&page, "ostraca_commit_duration_seconds_count") >= 1.0);
    assert!(value(&page, "ostraca_store_sync_duration_seconds_count") >= 4.0);
    assert!(value(&page, "ostraca_store_batch_sum") >= 4.0);
    assert_eq!(value(&page, "ostraca_http_responses_total{status=\"2xx\"}"), 4.0);
    assert_eq!(value(&page, "ostraca_http_responses_total{status=\"4xx\"}"), 2.0);
    assert_eq!(value(&page, "ostraca_http_request_duration_seconds_count"), 6.0);
    assert_eq!(value(&page, "ostraca_shards_serving"), 64.0);
    assert_eq!(value(&page, "ostraca_cluster_shards{state=\"assigned\"}"), 64.0);
    assert!(value(&page, "ostraca_ownership_changes_total") >= 64.0);
    // Everything that is documented is there; only problems have none.
    let documented = include_str!("../../../../docs/metrics.md");
    let names = documented.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    for name in names {
        let family = ["_total", "_info"].iter().find_map(|end| name.strip_suffix(end));
        let family = format!("# TYPE {} ", family.unwrap_or(name));
        assert!(page.body.contains(&family), "{name} is missing\n{}", page.body);
    }
    assert!(value(&page, "ostraca_quic_connections") >= 1.0);
    assert!(value(&page, "ostraca_lease_remaining_seconds") > 0.0);
    // Workers report every 20 ms.
    let began = Instant::now();
    while value(&scrape().await, "ostraca_entities_in_memory") != 1.0 {
        assert!(began.elapsed() < SOON, "the entity is not counted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(value(&page, "ostraca_store_used_bytes") > 0.0);

    // The lease is renewed, and most of it was left.
    let slack = async || value(&scrape().await, "ostraca_lease_slack_seconds_count");
    let before = slack().await;
    let began = Instant::now();
    while slack().await <= before {
        assert!(began.elapsed() < SOON, "no renewal is counted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // Methods beyond the bound are added up: `add`, `get` and the start of instances were first.
    gateway
        .admin
        .deploy(&COUNTER.replace("counter\"\nc", "other\"\nc"), counter(), None)
        .await
        .expect("deployed");
    let other = Entity::new("other", "o");
    gateway.admin.session().command(&other, "add", "1").await.expect("a reply");
    gateway.admin.session().query(&other, "get", "").await.expect("a reply");
    let page = scrape().await;
    let of_other = "ostraca_messages_total{type=\"(other)\",method=\"(other)\",outcome=\"ok\"}";
    assert_eq!(value(&page, of_other), 2.0);
    assert!(!page.body.contains("type=\"other\""), "{}", page.body);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_show_quotas_and_what_is_used_of_them() {
    let gateway = Gateway::start(METRICS).await;
    let address = gateway.node.metrics_address().expect("an address");
    let scrape = async || get(address, "/metrics", &address.to_string()).await;
    assert!(!scrape().await.body.contains("ostraca_namespace_quota{"));
    let entities = |limit| QuotaChanges {
        namespace: "default".into(),
        entities: Some(NewLimit { limit }),
        ..QuotaChanges::default()
    };
    gateway.admin.change_quotas(entities(Some(9))).await.expect("set");
    for id in ["alice", "bob"] {
        gateway.call("POST", &format!("/v1/default/counter/{id}/call/add"), "5").await;
    }
    let labels = "{namespace=\"default\",resource=\"entities\"}";
    let used = format!("ostraca_namespace_used{labels} 2");
    let began = Instant::now();
    loop {
        let page = scrape().await;
        if page.body.lines().any(|line| line == used) {
            assert_eq!(value(&page, &format!("ostraca_namespace_quota{labels}")), 9.0);
            assert!(!page.body.contains("turns-per-second"), "not limited\n{}", page.body);
            break;
        }
        assert!(began.elapsed() < SOON, "not measured\n{}", page.body);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    gateway.admin.change_quotas(entities(None)).await.expect("set");
    assert!(!scrape().await.body.contains("namespace=\"default\""));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_metrics_are_served_beside_the_gateway() {
    let gateway = Gateway::start(METRICS).await;
    let address = gateway.node.metrics_address().expect("an address");
    let own = address.to_string();
    get(address, "/", &own).await.is_problem(404, "unknown-path", "not-run");
    get(address, "/v1/default/counter/a/call/get", &own).await.is_problem(
        404,
        "unknown-path",
        "not-run",
    );
    // A page that points a name of its own at this address.
    get(address, "/metrics", "evil.example").await.is_problem(421, "wrong-host", "not-run");
    // And the gateway for callers has none.
    let token = gateway.token("web", 60);
    let headers = format!("authorization: Bearer {token}\r\n");
    gateway.send("GET", "/metrics", &headers, "").await.is_problem(404, "unknown-path", "not-run");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let post = format!("POST /metrics HTTP/1.1\r\nhost: {own}\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(post.as_bytes()).await.expect("sent");
    let refused = read(&mut stream).await.expect("a response");
    refused.is_problem(405, "wrong-method", "not-run");
    gateway.stop().await;
}
