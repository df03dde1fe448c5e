//! How long messages wait for a shard that moves, and for one that is used for the first time (K20).

use std::time::{Duration, Instant};

use ostraca_client::{Entity, PlacementRequest, ShardAtNode};
use ostraca_core::hash::shard_of;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::{Cluster, artifacts};

const SHARDS: u32 = 24;
/// Far more than a pause takes on a busy machine: `docs/performance.md` has what was measured.
const BOUND: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k20_no_message_waits_long_for_a_shard_that_moves() {
    let options = Options { proxied: false, ..Options::three("pauses") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let client = cluster.client(0).await.expect("a client");
    let manifest = "type = \"counter\"\ncomponent = \"counter.wasm\"\n";
    let component = artifacts::component("counter").expect("a component");
    client.deploy(manifest, component, None).await.expect("deployed");
    let session = client.session();

    // The first message of each shard: its entity has never had an instance.
    let mut first = Duration::ZERO;
    let mut used = std::collections::BTreeSet::new();
    for number in 0..200 {
        let id = format!("e{number}");
        if used.insert(shard_of(&id, SHARDS)) {
            let start = Instant::now();
            session.command(&Entity::new("counter", id), "add", "1").await.expect("a reply");
            first = first.max(start.elapsed());
        }
    }
    assert_eq!(used.len(), SHARDS as usize);

    // A command is always in flight to an entity whose shard goes round the nodes.
    let (entity, shard) = (Entity::new("counter", "moving"), shard_of("moving", SHARDS).0);
    let mut pauses = Vec::new();
    for round in 0..9 {
        let node = cluster.name(round % 3);
        let mut longest = Duration::ZERO;
        let (began, mut asked) = (Instant::now(), Instant::now());
        let moves = vec![ShardAtNode { shard, node: node.clone() }];
        let request = PlacementRequest { moves, ..PlacementRequest::default() };
        client.placement(request.clone()).await.expect("requested");
        loop {
            let start = Instant::now();
            session.command(&entity, "add", "1").await.expect("a reply");
            longest = longest.max(start.elapsed());
            if client.inspect(&entity, false).await.expect("seen").owner == node {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it does not move to {node}");
            if asked.elapsed() > Duration::from_secs(1) {
                asked = Instant::now();
                client.placement(request.clone()).await.expect("requested");
            }
        }
        pauses.push(longest);
    }
    println!("first message {first:?} at most; while the shard moved {pauses:?}");
    assert!(first < BOUND, "a first message took {first:?}");
    assert!(pauses.iter().all(|pause| *pause < BOUND), "{pauses:?}");
    client.close().await;
    cluster.stop().expect("stop");
}
