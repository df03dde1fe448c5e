//! Nodes of two releases side by side: new owners run the later one, and no shard moves twice (S16.2, S16.5).

use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{Options, Release, View};
use serde_json::{Value, json};

const SHARDS: u32 = 24;
const LATER: Release = Release::Version(9_008_007);

async fn status(cluster: &Cluster) -> Value {
    let arguments = ["--output", "json", "upgrade", "status"];
    let output = cluster.command(0, &arguments).await.expect("it runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s16_in_an_upgrade_new_owners_run_the_later_release() {
    let options = Options { proxied: false, ..Options::three("upgrades") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    let names: Vec<_> = (0..3).map(|node| cluster.name(node)).collect();
    let balanced =
        |view: &View| view.settled(SHARDS) && names.iter().all(|name| view.owned_by(name) == 8);
    let before = cluster.wait("shards are balanced", balanced).await.expect("balanced");
    assert_eq!(status(&cluster).await["in_progress"], false);

    // The node with the store is the last one: all others need it.
    let mut owned = before;
    for (node, done) in [(1, 1), (2, 2)] {
        cluster.install(node, LATER);
        cluster.term(node).expect("stop");
        cluster.start_node(node).expect("start");
        let name = names[node].clone();
        let is_back = |view: &View| view.settled(SHARDS) && view.is_alive(&name);
        let view = cluster.wait("it is back", is_back).await.expect("back");
        for shard in 1..=SHARDS {
            let (was, is) = (owned.owner(shard), view.owner(shard).expect("an owner"));
            // The first one left its shards to the others, which had the same release.
            let moved_rightly = was == Some(&*name) && (done == 1 || is == names[1]);
            assert!(was == Some(is) || moved_rightly, "{shard}: from {was:?} to {is}");
        }
        let shown = status(&cluster).await;
        assert_eq!((&shown["in_progress"], &shown["newest"]), (&json!(true), &json!("9.8.7")));
        assert_eq!(shown["remaining"].as_array().map(Vec::len), Some(3 - done), "{shown}");
        assert_eq!(shown["remaining"][2 - done], names[0], "{shown}");
        owned = view;
    }
    assert_eq!(owned.owned_by(&names[2]), 0, "nothing is balanced among two releases");
    cluster.install(0, LATER);
    cluster.term(0).expect("stop");
    cluster.start_node(0).expect("start");
    cluster.wait("all run it, so shards are balanced", balanced).await.expect("balanced");
    let shown = status(&cluster).await;
    assert_eq!((&shown["in_progress"], &shown["newest"]), (&json!(false), &json!("9.8.7")));
    cluster.stop().expect("stop");
}
