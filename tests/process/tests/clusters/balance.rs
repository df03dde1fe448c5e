//! Shards are spread evenly after each node joins or leaves, with no more moves than necessary.

use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{ALL, NO_STORE, Options, View};
use ostraca_process_tests::guest_calls::until;

use super::lifecycle::has_event;

const SHARDS: u32 = 100;

async fn balanced(cluster: &mut Cluster, hosts: usize) -> View {
    let wait = cluster.wait("the shards are balanced", |view| {
        view.hosts().len() == hosts && view.settled(SHARDS) && view.balanced()
    });
    wait.await.expect("balanced")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_or_leave_moves_no_more_shards_than_necessary() {
    let roles = [ALL, NO_STORE, NO_STORE, NO_STORE, NO_STORE];
    let options = Options { at_once: 1, shards: SHARDS, ..Options::new("balance", &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let mut before = balanced(&mut cluster, 1).await;
    for nodes in 1..roles.len() {
        cluster.start_node(nodes).expect("start");
        let after = balanced(&mut cluster, nodes + 1).await;
        let (moved, most) = (after.moved_since(&before), (SHARDS as usize).div_ceil(nodes + 1));
        println!("{} nodes: {:?}, {moved} moved of at most {most}", nodes + 1, after.owned());
        assert!(moved <= most, "{moved} moved when the {}th node joined: {after}", nodes + 1);
        before = after;
    }
    // One node leaves gracefully, one dies.
    for (node, dies) in [(4, false), (3, true)] {
        let name = cluster.name(node);
        let owned = before.owned_by(&name);
        if dies { cluster.kill_9(node) } else { cluster.term(node) }.expect("end");
        let after = balanced(&mut cluster, node).await;
        let moved = after.moved_since(&before);
        println!("without {name}: {:?}, {moved} moved, it had {owned}", after.owned());
        assert_eq!(moved, owned, "only shards of {name} move: {after}");
        before = after;
    }
    cluster.stop().expect("stop");
}

/// The manager would balance only in an hour, so that what a dry run lists can be compared with what was done: nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_lists_the_moves_and_makes_none() {
    let options = Options {
        at_once: 0,
        shards: 24,
        proxied: false,
        ..Options::new("dry-run", &[ALL, "host,gateway"])
    };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.home(0).set("[rebalance]\ninterval = \"1 h\"").expect("settings");
    cluster.start_node(0).expect("start");
    let all_on_one = |view: &View| view.settled(24) && view.hosts().len() == 1;
    cluster.wait("one host has all shards", all_on_one).await.expect("all on one");
    cluster.start_node(1).expect("start");
    let joined = |view: &View| view.settled(24) && view.hosts().len() == 2;
    let before = cluster.wait("the other node has joined", joined).await.expect("joined");

    for (node, count) in [(0, 12), (1, 12)] {
        let words = ["rebalance", "--dry-run", "--output", "json"];
        let output = cluster.command(node, &words).await.expect("a command");
        let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let moves = plan["moves"].as_array().expect("moves");
        assert_eq!((moves.len(), &plan["dry_run"]), (count, &true.into()), "{plan}");
        let mut shards: Vec<_> = moves.iter().map(|it| it["shard"].as_u64()).collect();
        shards.sort_unstable();
        shards.dedup();
        assert_eq!(shards.len(), count, "no shard twice: {plan}");
        assert!(moves.iter().all(|it| it["from"] == "n1" && it["to"] == "n2"), "{plan}");
    }
    let after = cluster.view().await.expect("a view");
    assert_eq!(after.moved_since(&before), 0, "nothing was moved: {after}");
    assert_eq!(after.owned_by("n1"), 24);
    cluster.stop().expect("stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k27_shards_are_first_given_to_enough_hosts() {
    let options = Options {
        at_once: 2,
        shards: 24,
        proxied: false,
        settings: "[rebalance]\nmin-hosts = 3\n".into(),
        ..Options::three("min-hosts")
    };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait("two hosts", |view| view.hosts().len() == 2).await.expect("two");
    let client = cluster.client(0).await.expect("a client");
    let waits = async || Ok(has_event(&client, "allocation-waits", 0).await?.then_some(()));
    until("an event says that shards wait", waits).await.expect("an event");
    assert!(!cluster.logs().contains("not every shard has an owner yet"), "they are ready so");
    let view = cluster.view().await.expect("a view");
    assert_eq!(view.owned().values().sum::<usize>(), 0, "{view}");
    cluster.start_node(2).expect("start");
    let view = cluster.wait("every shard has an owner", |view| view.settled(24)).await;
    assert!(view.expect("owners").balanced(), "each shard went to its place at once");
    client.close().await;
    cluster.stop().expect("stop");
}
