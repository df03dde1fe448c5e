//! `docs/metrics.md` names each metric with its labels. `BLESS=1` writes its table anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_metrics::{MetricsSources, NodeMetrics};
use ostraca_stats::{Ending, Stats, Work};
use ostraca_store_sled::{Options, SledStore};
use ostraca_wire::proto;
use ostraca_wire::server::NetworkStats;

const BEGIN: &str = "<!-- metrics -->\n";
const END: &str = "<!-- end -->\n";

fn status() -> proto::Status {
    let keys = [
        "types",
        "held_shards",
        "shards_serving",
        "ownership_changes",
        "entities_in_memory",
        "failing_entities",
        "queued_messages",
        "buffered_messages",
        "in_flight_messages",
        "channel_feeds",
        "turns",
        "failed_turns",
        "commits",
        "activations",
        "migrations",
        "failed_migrations",
        "messages_not_run",
        "messages_unknown",
        "contained_panics",
        "control_messages_dropped",
        "control_messages_ignored",
        "store_sequence",
        "store_open_count",
        "live_instances",
        "max_live_instances",
        "live_memory_bytes",
        "max_live_memory_bytes",
    ];
    let problem = |code: &str| proto::StatusProblem { code: code.into(), ..Default::default() };
    proto::Status {
        node: "n1".into(),
        cluster_id: "c".into(),
        metrics: keys.into_iter().zip(1..).map(|(key, value)| (key.to_owned(), value)).collect(),
        info: BTreeMap::from([("cluster_name".into(), "a \"name\"\\ of\nsome kind".into())]),
        problems: vec![problem("panics"), problem("type-broken"), problem("type-broken")],
        cluster_status: Some(proto::ClusterStatus {
            nodes_live: 3,
            shards_moving: 2,
            lease_duration_ms: 10_000,
            since_renewal_ms: 2_500,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// One namespace whose use was measured, and one whose was not yet.
fn namespaces() -> Vec<proto::NamespaceInfo> {
    let quotas = proto::NamespaceQuotas { entities: Some(100), ..Default::default() };
    let named = |name: &str| proto::NamespaceInfo {
        name: name.into(),
        quotas: Some(quotas.clone()),
        ..Default::default()
    };
    let usage = proto::NamespaceUsage { entities: 90, state_bytes: 7, ..Default::default() };
    vec![proto::NamespaceInfo { usage: Some(usage), ..named("acme") }, named("new")]
}

/// The metrics of a node on which each thing has happened.
fn render(dir: &Path) -> String {
    let stats = Arc::new(Stats::default());
    let add = stats.methods.add(&"counter".into(), &Work::Message("add".into()));
    add.message_ended(Ending::Ok, Duration::from_micros(700));
    add.turn_ended(Duration::from_micros(80));
    stats.methods.add(&"counter".into(), &Work::Timer).turn_ended(Duration::from_micros(90));
    stats.http.responded(429, Duration::from_millis(1));
    stats.lease_slack.observe(Duration::from_secs(7));
    let store = SledStore::create(&dir.join("s"), &Options::default(), ClusterId(7), "test");
    let metrics = NodeMetrics::new(MetricsSources {
        status: Box::new(status),
        network: Box::new(|| NetworkStats { refused_handshakes: 4, ..NetworkStats::default() }),
        namespaces: Box::new(namespaces),
        stats,
        workers: vec![Arc::default(), Arc::default()],
        store: Some(Arc::new(store.expect("a store"))),
    });
    metrics.render().expect("the metrics")
}

/// The rows of the table: a name, what it is, its labels and its help.
fn rows(page: &str) -> Vec<String> {
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let found = labels.entry(name).or_default();
        let names = rest.split("=\"").filter_map(|part| part.rsplit(['{', ',', ' ']).next());
        found.extend(names.filter(|it| it.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
    let mut helps = BTreeMap::new();
    let mut rows = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            helps.insert(name, help);
        }
        let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        else {
            continue;
        };
        let (name, sample) = match kind {
            "counter" => (format!("{family}_total"), format!("{family}_total")),
            "info" => (format!("{family}_info"), format!("{family}_info")),
            "histogram" => (family.to_owned(), format!("{family}_bucket")),
            _ => (family.to_owned(), family.to_owned()),
        };
        let of_name = labels.get(&*sample).into_iter().flatten().filter(|it| **it != "le");
        let of_name: Vec<_> = of_name.map(|label| format!("`{label}`")).collect();
        rows.push(format!(
            "| `{name}` | {kind} | {} | {} |",
            of_name.join(", "),
            helps.get(family).expect("a help")
        ));
    }
    rows
}

#[test]
fn each_metric_is_in_the_documentation() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = render(dir.path());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).expect("the documentation");
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the table");
    let (table, after) = rest.split_once(END).expect("the end of the table");
    let rows = rows(&page).join("\n");
    let wanted = format!("| Name | Type | Labels | Meaning |\n|---|---|---|---|\n{rows}\n");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("written");
    } else {
        assert_eq!(table, wanted, "`BLESS=1` writes the table anew");
    }
}

#[test]
fn figures_and_labels_are_written_as_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = render(dir.path());
    let expected = [
        "ostraca_node_info{node=\"n1\",cluster=\"a \\\"name\\\"\\\\ of\\nsome kind\",cluster_id=\"c\",version=\"0.1.0\"} 1",
        "ostraca_turns_total 11",
        "ostraca_shards_held 2",
        "ostraca_messages_total{type=\"counter\",method=\"add\",outcome=\"ok\"} 1",
        "ostraca_messages_total{type=\"counter\",method=\"add\",outcome=\"unknown\"} 0",
        "ostraca_message_duration_seconds_count{type=\"counter\",method=\"add\"} 1",
        "ostraca_message_duration_seconds_bucket{le=\"0.0005\",type=\"counter\",method=\"add\"} 0",
        "ostraca_message_duration_seconds_bucket{le=\"0.001\",type=\"counter\",method=\"add\"} 1",
        "ostraca_message_duration_seconds_bucket{le=\"+Inf\",type=\"counter\",method=\"add\"} 1",
        "ostraca_turn_duration_seconds_count{type=\"counter\",work=\"timer\",method=\"\"} 1",
        "ostraca_problems{code=\"type-broken\"} 2",
        "ostraca_cluster_nodes{state=\"live\"} 3",
        "ostraca_cluster_shards{state=\"moving\"} 2",
        "ostraca_lease_remaining_seconds 7.5",
        "ostraca_lease_slack_seconds_sum 7.0",
        "ostraca_http_responses_total{status=\"4xx\"} 1",
        "ostraca_quic_handshakes_total{result=\"refused\"} 4",
        "ostraca_namespace_quota{namespace=\"acme\",resource=\"entities\"} 100",
        "ostraca_namespace_used{namespace=\"acme\",resource=\"entities\"} 90",
        "ostraca_namespace_quota{namespace=\"new\",resource=\"entities\"} 100",
    ];
    for line in expected {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
    for none in ["state-bytes", "used{namespace=\"new\""] {
        assert!(!page.contains(none), "{none}: neither limited nor measured\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
    let value = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().parse::<f64>().expect("a number")
    };
    assert!(value("process_resident_memory_bytes ") > 1e6);
    assert!(value("process_open_fds ") > 3.0);
    assert!(value("process_start_time_seconds ") > 1.7e9);
    assert!(value("ostraca_store_free_bytes ") > 1e6);
}
