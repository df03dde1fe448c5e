//! Compares what real nodes show and refuse with `golden/`. Parts that differ from run to run are masked.

use std::path::Path;

use ostraca_client::{Client, Entity};
use ostraca_process_tests::cluster::{ALL, Options, View};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{Cluster, NodeDir, NodeProcess};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_node_refuses_with_the_golden_texts() {
    let home = NodeDir::init_as("texts", &["--node", "n1"], |_| {}).expect("init");
    let node = NodeProcess::start(&home).expect("start");
    let profile = home.profile(node.address).expect("profile");
    profile.save(&home.dir().join("profile.toml")).expect("saved");
    let client = Client::connect(profile).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    client.close().await;
    let commands: [(&str, i32, &[&str]); 3] = [
        ("drain-no-host.txt", 1, &["drain", "n1"]),
        ("forget-live.txt", 2, &["forget", "n1"]),
        ("tell-query.txt", 5, &["tell", "counter/alice", "get"]),
    ];
    for (name, exit, words) in commands {
        let output = home.command(words).expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{words:?}: {stderr}");
        same(name, &stderr);
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    let unknown = home.command(&["forget", "n33"]).expect("it runs");
    let stderr = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr.starts_with("unknown-node\n") && stderr.contains("no node `n33`"), "{stderr}");
    assert!(node.stop().expect("stop").success());
}

/// Masks the parts that differ from run to run.
fn masked(text: &str) -> String {
    let masks = [
        (r"\d+-[0-9a-f]{16}", "INCARNATION"),
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
        (r"127\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
        (r"\b[0-9a-f]{32}\b", "ID"),
        (r"sled at \S+", "sled at STORE"),
        (r"\d+ (ms|s|min|h)( \d+ (ms|s|min))?\b", "AGE"),
        (
            r#""(registered_for_ms|registered_at_unix_ms|renewals|since_renewal_ms|ends_in_ms)": \d+"#,
            r#""$1": NUMBER"#,
        ),
        (r"(?m) +$", ""),
        (r"(\S)  +", "$1  "),
        (r"owned by n\d, epoch \d+", "owned by NODE, epoch NUMBER"),
        (r#""owner": "n\d""#, r#""owner": "NODE""#),
        (r#""epoch": \d+"#, r#""epoch": NUMBER"#),
        (r"counter/e\d+", "counter/ENTITY"),
        (r"(shard|last commit)  \d+", "$1  NUMBER"),
        (r"(?m)^(counter/\S+  \d+)  n\d", "$1  NODE"),
        (r"(?m)^ *\d+  TIME  (AGE ago|now)", "NUMBER  TIME  AGE"),
    ];
    let mask = |text: String, (from, to): &(&str, &str)| {
        regex::Regex::new(from).expect("a mask").replace_all(&text, *to).into_owned()
    };
    masks.iter().fold(text.to_owned(), mask)
}

/// A command, its exit code, and the lines to compare.
struct Shown {
    name: &'static str,
    exit: i32,
    words: Vec<String>,
    lines: fn(&str) -> bool,
}

fn shown(name: &'static str, exit: i32, words: &str) -> Shown {
    let words = words.split(' ').map(str::to_owned).collect();
    Shown { name, exit, words, lines: |_| true }
}

/// Compares a node's output with the golden file of that name, with variable parts masked.
async fn compare(cluster: &Cluster, it: &Shown) {
    let words: Vec<&str> = it.words.iter().map(String::as_str).collect();
    let output = cluster.command(0, &words).await.expect("it runs");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut text: String =
        out.lines().filter(|line| (it.lines)(line)).map(|line| format!("{line}\n")).collect();
    if !err.is_empty() {
        text = format!("{text}-- standard error\n{err}");
    }
    assert_eq!(output.status.code(), Some(it.exit), "{words:?}: {text}");
    same(it.name, &text);
}

fn same(name: &str, text: &str) {
    let text = masked(text);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &text).expect("written");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, golden, "{name}");
}

async fn compare_all(cluster: &Cluster, all: &[Shown]) {
    for it in all {
        compare(cluster, it).await;
    }
}

/// An entity whose shard this node owns.
async fn entity_of(cluster: &mut Cluster, node: &str) -> String {
    let view = cluster.view().await.expect("a view");
    let client = cluster.client(0).await.expect("a client");
    let session = client.session();
    for number in 0.. {
        let id = format!("e{number}");
        session.command(&Entity::new("counter", &*id), "add", "1").await.expect("an answer");
        let detail = client.inspect(&Entity::new("counter", &*id), false).await.expect("an entity");
        if view.owner(detail.shard) == Some(node) {
            client.close().await;
            return id;
        }
    }
    unreachable!("the node owns no entity")
}

/// `BLESS=1 cargo test -p ostraca-process-tests --test texts` rewrites the golden files; review them before you commit
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_cluster_is_shown_in_the_golden_texts() {
    let options = Options {
        proxied: false,
        // Long enough for requests to a paused node before it is marked dead.
        settings: "lease = \"10 s\"".into(),
        ..Options::new("texts", &[ALL, "host,gateway", "host,gateway"])
    };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let even = |view: &View| view.settled(24) && view.balanced() && view.hosts().len() == 3;
    cluster.wait("the shards are balanced", even).await.expect("balanced");
    let client = cluster.client(0).await.expect("a client");
    deploy_example(&client, "counter").await.expect("deploy");
    client.close().await;

    // A healthy cluster.
    compare_all(
        &cluster,
        &[
            shown("nodes.txt", 0, "nodes"),
            shown("nodes.json", 0, "--output json nodes"),
            shown("tell.txt", 0, "tell counter/alice add 1"),
            shown("inspect.txt", 0, "inspect counter/alice"),
            shown("inspect.json", 0, "--output json inspect counter/alice"),
            shown("inspect-nobody.txt", 0, "inspect counter/nobody"),
            shown("rebalance.txt", 0, "rebalance"),
            shown("plan.txt", 0, "rebalance --dry-run"),
            Shown { lines: overview, ..shown("status.txt", 0, "status") },
        ],
    )
    .await;
    for id in ["bob", "carol"] {
        let result = cluster.command(0, &["tell", &format!("counter/{id}"), "add", "1"]).await;
        assert!(result.expect("it runs").status.success());
    }
    let words = "entities counter --limit 2";
    let page = cluster.command(0, &words.split(' ').collect::<Vec<_>>()).await.expect("it runs");
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    let (_, next) = page.rsplit_once("next page: ostraca ").expect("another page");
    compare_all(
        &cluster,
        &[
            shown("entities.txt", 0, words),
            shown("entities.json", 0, &format!("--output json {words}")),
            shown("entities-rest.txt", 0, next.trim_end()),
            shown("invalid-cursor.txt", 2, "entities --cursor 0x"),
        ],
    )
    .await;
    let output = cluster.command(0, &["shards", "--list"]).await.expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 25);
    let output = cluster.command(0, &["--output", "json", "shards"]).await.expect("it runs");
    let shards: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(shards["shards_by_owner"], serde_json::json!({ "n1": 8, "n2": 8, "n3": 8 }));
    let output = cluster.command(0, &["shards"]).await.expect("it runs");
    let map = String::from_utf8_lossy(&output.stdout).into_owned();
    let drawn = map.lines().next().expect("a line");
    for letter in ['A', 'B', 'C'] {
        assert_eq!(drawn.chars().filter(|it| *it == letter).count(), 8, "{map}");
    }

    // A drain, from start to end.
    compare_all(
        &cluster,
        &[
            shown("drain.txt", 0, "drain n2"),
            shown("drain.json", 0, "--output json drain n2"),
            shown("nodes-drained.txt", 0, "nodes"),
            shown("drain-undo.txt", 0, "drain n2 --undo"),
            shown("drain-unknown.txt", 2, "drain n22"),
        ],
    )
    .await;
    cluster.wait("the shards are balanced", even).await.expect("balanced");

    // A paused node, before any other node detects it.
    let id = entity_of(&mut cluster, "n3").await;
    cluster.pause(2).expect("paused");
    let words = format!("inspect counter/{id}");
    compare_all(
        &cluster,
        &[
            shown("inspect-unanswered.txt", 3, &words),
            shown("drain-timeout.txt", 1, "drain n3 --timeout 300ms"),
            shown("drain-undo-silent.txt", 0, "drain n3 --undo"),
        ],
    )
    .await;

    // A dead node.
    cluster.resume(2).expect("resumed");
    cluster.kill_9(2).expect("killed");
    let dead = |view: &View| view.settled(24) && view.owned_by("n3") == 0 && !view.is_alive("n3");
    cluster.wait("it is dead", dead).await.expect("dead");
    compare_all(
        &cluster,
        &[
            shown("nodes-dead.txt", 0, "nodes"),
            Shown { lines: overview, ..shown("status-dead.txt", 8, "status") },
            shown("forget.txt", 0, "forget n3"),
            shown("forget.json", 0, "--output json forget n3"),
            shown("forget-again.txt", 0, "forget n3"),
            Shown { lines: of_nodes, ..shown("events.txt", 0, "events") },
        ],
    )
    .await;
    cluster.stop().expect("stop");
}

/// Whether a line of `status` is about the cluster or its problems, and not one of the many metrics.
fn overview(line: &str) -> bool {
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    begins(&["cluster ", "manager ", "store ", "node-", "  help"])
        || (begins(&["nodes "]) && line.contains(" live"))
        || (begins(&["shards "]) && line.contains(" assigned"))
}

/// Whether a line is an event of a node that dies, drains or cancels its drain.
fn of_nodes(line: &str) -> bool {
    ["node-dead", "drain-started", "drain-cancelled"].iter().any(|kind| line.contains(kind))
}
