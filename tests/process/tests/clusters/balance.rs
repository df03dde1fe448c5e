//! Shards are spread evenly after each node joins or leaves, with no more moves than necessary.

use std::time::{Duration, Instant};

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

/// Moves shards of the second node to the first one until it has 18 of the 24. The rebalance that follows a join may
/// take some of them back.
async fn make_uneven(cluster: &mut Cluster) -> View {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < until, "the shards are never uneven");
        let view = cluster.wait_settled().await.expect("settled");
        let to_move = (1..=24).filter(|shard| view.owner(*shard) == Some("n2")).skip(6);
        let mut moved = false;
        for shard in to_move {
            let shard = shard.to_string();
            let words = ["shards", "move", &shard, "--to", "n1"];
            let output = cluster.command(0, &words).await.expect("a command");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            moved = true;
        }
        if !moved && view.owned_by("n1") == 18 {
            return view;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// The manager would balance only in an hour, so that what a dry run lists can be compared with what was done: nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_lists_the_moves_and_makes_none() {
    let options = Options {
        shards: 24,
        proxied: false,
        settings: "[rebalance]\ninterval = \"1 h\"\n".into(),
        ..Options::new("dry-run", &[ALL, "host,gateway"])
    };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let even = |view: &View| view.settled(24) && view.owned_by("n2") == 12;
    cluster.wait("both hosts have as many shards", even).await.expect("even");
    let before = make_uneven(&mut cluster).await;

    for node in 0..2 {
        let words = ["rebalance", "--dry-run", "--output", "json"];
        let output = cluster.command(node, &words).await.expect("a command");
        let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let moves = plan["moves"].as_array().expect("moves");
        assert_eq!((moves.len(), &plan["dry_run"]), (6, &true.into()), "{plan}");
        let mut shards: Vec<_> = moves.iter().map(|it| it["shard"].as_u64()).collect();
        shards.sort_unstable();
        shards.dedup();
        assert_eq!(shards.len(), 6, "no shard twice: {plan}");
        assert!(moves.iter().all(|it| it["from"] == "n1" && it["to"] == "n2"), "{plan}");
    }
    let after = cluster.view().await.expect("a view");
    assert_eq!(after.moved_since(&before), 0, "nothing was moved: {after}");
    assert_eq!(after.owned_by("n1"), 18);
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
