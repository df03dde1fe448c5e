//! Where operators and measured loads put shards, on real nodes: weights, pins, moves, the strategy `load` (A4, K22).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostraca_client::Entity;
use ostraca_core::hash::shard_of;
use ostraca_process_tests::cluster::{NO_STORE, Options, View};
use ostraca_process_tests::{Cluster, artifacts};

const SHARDS: u32 = 24;

/// Runs a command, and returns its exit code and all that it printed.
async fn run(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let output = cluster.command(0, arguments).await.expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn are_at(view: &View, shards: std::ops::RangeInclusive<u32>, node: &str) -> bool {
    view.settled(SHARDS) && shards.into_iter().all(|shard| view.owner(shard) == Some(node))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_follow_weights_pins_and_moves() {
    let options = Options { proxied: false, at_once: 0, ..Options::three("placement") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.home(2).set("weight = 2").expect("a weight");
    for node in 0..3 {
        cluster.start_node(node).expect("start");
    }
    let names: Vec<_> = (0..3).map(|node| cluster.name(node)).collect();
    let weighed = |view: &View| {
        let counts: Vec<_> = names.iter().map(|name| view.owned_by(name)).collect();
        view.settled(SHARDS) && counts == [6, 6, 12]
    };
    cluster.wait("shares are in proportion to weights", weighed).await.expect("weighed");

    let (code, text) = run(&cluster, &["shards", "pin", "1-4", "--to", &names[1]]).await;
    assert_eq!(code, Some(0), "{text}");
    cluster.wait("they are pinned", |view| are_at(view, 1..=4, &names[1])).await.expect("there");
    let (code, text) = run(&cluster, &["shards", "pins"]).await;
    assert!(code == Some(0) && text.lines().count() == 5 && text.contains(&names[1]), "{text}");

    // While its node is drained, a pinned shard is elsewhere; then it comes back.
    let (code, text) = run(&cluster, &["drain", &names[1]]).await;
    assert_eq!(code, Some(0), "{text}");
    let gone = |view: &View| view.settled(SHARDS) && view.owned_by(&names[1]) == 0;
    cluster.wait("it is drained", gone).await.expect("drained");
    let (code, text) = run(&cluster, &["shards", "move", "9", "--to", &names[1]]).await;
    assert!(code == Some(2) && text.contains("is being drained"), "{code:?} {text}");
    let (code, text) = run(&cluster, &["drain", &names[1], "--undo"]).await;
    assert_eq!(code, Some(0), "{text}");
    let back = |view: &View| are_at(view, 1..=4, &names[1]) && weighed(view);
    cluster.wait("they are back", back).await.expect("back");

    // A move is made once, whatever it does to the balance.
    let view = cluster.view().await.expect("a view");
    let shard = (5..=SHARDS).find(|shard| view.owner(*shard) == Some(&*names[0])).expect("one");
    let number = shard.to_string();
    let (code, text) = run(&cluster, &["shards", "move", &number, "--to", &names[2]]).await;
    assert!(code == Some(0) && text.contains("moved"), "{code:?} {text}");

    // What a program says once counts at once.
    let create = ["pool", "create", "placed", "--shards", "6", "--strategy", "external"];
    let (code, text) = run(&cluster, &create).await;
    assert_eq!(code, Some(0), "{text}");
    let all = SHARDS + 6;
    let served = |view: &View| view.settled(all);
    cluster.wait("the pool is served", served).await.expect("served");
    let file = cluster.home(0).dir().join("placement.txt");
    std::fs::write(&file, format!("25-30 {}\n", names[1])).expect("a file");
    let file = file.to_str().expect("a path");
    let (code, text) = run(&cluster, &["shards", "place", "--pool", "placed", file]).await;
    assert_eq!(code, Some(0), "{text}");
    let placed = |view: &View| {
        view.settled(all) && (25..=30).all(|shard| view.owner(shard) == Some(&*names[1]))
    };
    cluster.wait("they are placed", placed).await.expect("placed");

    for (arguments, code, expected) in [
        (&["shards", "pin", "99", "--to", "n1"][..], 2, "no shard 99"),
        (&["shards", "pin", "9-3", "--to", "n1"], 2, "is not a range of shards"),
        (&["shards", "pin", "3", "--to", "n9"], 2, "no node `n9`"),
        (&["shards", "place", "--pool", "no", "/dev/null"], 2, "no pool `no`"),
        (&["shards", "place", "/no/such/file"], 2, "cannot read"),
    ] {
        let (exit, text) = run(&cluster, arguments).await;
        assert!(exit == Some(code) && text.contains(expected), "{arguments:?}: {exit:?} {text}");
    }
    let (code, text) = run(&cluster, &["shards", "unpin", "1-4"]).await;
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&cluster, &["shards", "pins"]).await;
    assert!(code == Some(0) && text.contains("no shard is pinned"), "{text}");
    let (code, text) = run(&cluster, &["audit"]).await;
    assert!(
        code == Some(0) && text.contains("shards pin") && text.contains("shards move"),
        "{text}"
    );
    cluster.stop().expect("stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_shards_with_many_turns_are_spread_over_the_hosts() {
    let settings = "[rebalance]\nstrategy = \"load\"\nload-interval = \"1 s\"\ninterval = \"1 s\"";
    let options = Options {
        proxied: false,
        settings: settings.into(),
        ..Options::new("load", &["store,manager,gateway", NO_STORE, NO_STORE])
    };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let client = cluster.client(0).await.expect("a client");
    let manifest = "type = \"counter\"\ncomponent = \"counter.wasm\"\n";
    let component = artifacts::component("counter").expect("a component");
    client.deploy(manifest, component, None).await.expect("deployed");

    // All the work is in shards of one host.
    let busy = cluster.name(1);
    let mut shards = BTreeSet::new();
    let mut ids = Vec::new();
    for id in cluster.ids_owned_by(1, "hot", 40).await.expect("ids") {
        let shard = shard_of(&id, SHARDS).0;
        if shards.insert(shard) {
            ids.push(id);
        }
    }
    assert!(ids.len() >= 6, "{shards:?}");
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = ids
        .into_iter()
        .map(|id| {
            let (session, stop) = (client.session(), stop.clone());
            tokio::spawn(async move {
                let entity = Entity::new("counter", id);
                let mut sent = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    session.command(&entity, "add", "1").await.expect("a reply");
                    sent += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                sent
            })
        })
        .collect();
    let most = shards.len() * 7 / 10;
    let spread = |view: &View| {
        let hot = shards.iter().filter(|shard| view.owner(**shard) == Some(&*busy)).count();
        view.settled(SHARDS) && hot <= most
    };
    let view = cluster.wait("the busy shards are spread", spread).await.expect("spread");
    println!("busy shards: {shards:?}; {view}");

    // The owners say what their shards do (K37, K38). An entity that was only queried is live too.
    let asked = (0..).map(|number| format!("cold{number}"));
    let cold = asked.into_iter().find(|id| !shards.contains(&shard_of(id, SHARDS).0));
    let cold = cold.expect("an id in another shard");
    let session = client.session();
    session.query(&Entity::new("counter", cold.as_str()), "get", "").await.expect("a reply");
    let (code, text) = run(&cluster, &["shards", "--stats", "--output", "json"]).await;
    assert_eq!(code, Some(0), "{text}");
    let stats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let all = stats["shards"].as_array().expect("shards");
    assert_eq!(all.len(), SHARDS as usize, "{text}");
    let of = |shard: u32| all.iter().find(|it| it["shard"] == shard).expect("a shard");
    for shard in &shards {
        let (live, rate) = (&of(*shard)["live"]["counter"], &of(*shard)["turns_per_second"]);
        assert!(*live == 1 && rate.as_u64() > Some(0), "shard {shard}: {}", of(*shard));
    }
    assert_eq!(of(shard_of(&cold, SHARDS).0)["live"]["counter"], 1);
    let (code, text) = run(&cluster, &["shards", "--stats"]).await;
    assert!(code == Some(0) && text.contains("LAST PAUSE") && text.contains("counter"), "{text}");
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        assert!(sender.await.expect("no panic") > 0);
    }
    client.close().await;
    cluster.stop().expect("stop");
}

/// The manager here tolerates any difference, and the other nodes would tolerate none: only the manager's plan counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_shows_what_the_manager_would_move() {
    let roles = ["store,manager,host,gateway", "host,gateway", "host,gateway"];
    let options = Options { proxied: false, at_once: 0, ..Options::new("plan", &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let tolerant = "[rebalance]\nstrategy = \"least-shard\"\nleast-shard-threshold = 1000";
    cluster.home(0).set(tolerant).expect("a strategy");
    let first = cluster.name(0);
    let has_all = |view: &View| view.settled(SHARDS) && view.owned_by(&first) == SHARDS as usize;
    cluster.start_node(0).expect("start");
    cluster.wait("the first node has all shards", has_all).await.expect("all");
    for node in [1, 2] {
        cluster.start_node(node).expect("start");
    }
    cluster.wait("all are there", |view| view.nodes.nodes.len() == 3).await.expect("nodes");
    // By then, each node knows the others.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for node in 0..3 {
        let client = cluster.client(node).await.expect("a client");
        let mut moves = 1;
        // A busy machine may answer too late for the other node.
        for _ in 0..20 {
            moves = client.rebalance_plan().await.expect("a plan").moves.len();
            if moves == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(moves, 0, "node {node} shows a plan of its own");
        client.close().await;
    }
    let view = cluster.view().await.expect("a view");
    assert!(has_all(&view), "{view}");
    cluster.stop().expect("stop");
}
