//! A pool is copied to another number of shards and another hash while its node is stopped, and goes on (K4, M1, R23).

mod common;

use std::path::Path;
use std::time::Duration;

use common::{COUNTER, counter};
use ostraca_client::{CallOptions, Client, Entity, MessageKind, NewPool};
use ostraca_node::{CopiedPool, NodeError, PoolCopyProgress, PoolCopyStep, copy_pool, repair_rows};

const GRACE: Duration = Duration::from_secs(20);
/// Those of the pool `default`, as `common::make` creates it.
const SHARDS: u32 = 64;
const WIDE: u32 = 101;
const ENTITIES: u32 = 150;

fn entity(number: u32) -> Entity {
    Entity::new("counter", format!("c{number}"))
}

fn copy(
    home: &Path,
    to: &str,
    steps: &mut Vec<PoolCopyStep>,
) -> Result<CopiedPool, Box<NodeError>> {
    let mut on_progress = |progress: PoolCopyProgress| {
        if steps.last() != Some(&progress.step) {
            steps.push(progress.step);
        }
    };
    copy_pool(&common::config(home), ("default", to), &|_| (), &mut on_progress).map_err(Box::new)
}

/// Adds a number to each counter, as soon as its shard has an owner. Returns the sums.
async fn add_to_all(client: &Client, number: impl Fn(u32) -> u32) -> Vec<u32> {
    let options = CallOptions {
        kind: MessageKind::Command,
        timeout: Duration::from_secs(60),
        ..CallOptions::default()
    };
    let mut sums = Vec::new();
    for at in 0..ENTITIES {
        let (session, body) = (client.session(), number(at).to_string());
        let reply = session.send(&entity(at), "add", body, &options).await.expect("added");
        let text = String::from_utf8(reply.body.to_vec()).expect("a number");
        sums.push(text.parse().expect("a number"));
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn m1_a_nodes_pool_gets_another_count_and_hash() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("n1");
    let cluster = common::make(&home);
    let node = common::start(&home).await;
    let client = common::client(&node, &cluster).await;
    client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let before = add_to_all(&client, |at| at + 1).await;
    assert_eq!(before, (1..=ENTITIES).collect::<Vec<_>>());
    for (name, shards) in [("wide", WIDE), ("spare", 3)] {
        let hash = "java_string".to_owned();
        let pool = NewPool { name: name.into(), shards, hash, ..NewPool::default() };
        client.pools(Some(pool)).await.expect("created");
    }
    let mut steps = Vec::new();
    let refused = copy(&home, "wide", &mut steps).expect_err("its node runs");
    assert_eq!(refused.code().to_string(), "store-in-use", "{refused}");
    client.close().await;
    node.stop(GRACE).await;

    let copied = copy(&home, "wide", &mut steps).expect("copied");
    assert_eq!(copied.types.len(), 1);
    assert_eq!(
        (copied.types[0].name.as_str(), copied.types[0].entities),
        ("counter", ENTITIES.into())
    );
    use PoolCopyStep::{Checking, Copying, Finishing, Marking, ReadingNew, ReadingOld, Removing};
    let all = [Checking, Marking, Copying, ReadingOld, ReadingNew, Finishing, Removing];
    assert_eq!(steps, all);
    assert!(copy(&home, "wide", &mut steps).expect("it was copied").was_done);
    let refused = copy(&home, "spare", &mut steps).expect_err("it was copied elsewhere");
    assert_eq!(refused.code().to_string(), "pool-not-copied", "{refused}");
    let checked = repair_rows(&common::config(&home), false, &|_| ()).expect("checked");
    assert!(checked.remaining.is_empty(), "{:?}", checked.remaining);

    let node = common::start(&home).await;
    let client = common::client(&node, &cluster).await;
    let pools = client.pools(None).await.expect("pools");
    let states = pools.iter().map(|it| (it.name.as_str(), it.copied_to.as_str(), it.copied));
    let expected = [("default", "wide", true), ("wide", "", false), ("spare", "", false)];
    assert_eq!(states.collect::<Vec<_>>(), expected);
    let after = add_to_all(&client, |_| 1).await;
    assert_eq!(after, (2..=ENTITIES + 1).collect::<Vec<_>>(), "nothing is lost or doubled");
    for at in 0..ENTITIES {
        let detail = client.inspect(&entity(at), false).await.expect("seen");
        let of_wide = SHARDS + 1..=SHARDS + WIDE;
        assert!(of_wide.contains(&detail.shard), "c{at} is in shard {}", detail.shard);
    }
    let wide = format!("{COUNTER}pool = \"wide\"\n");
    client.deploy(&wide, counter(), None).await.expect("both names are the same pool");
    client.close().await;
    node.stop(GRACE).await;
}
