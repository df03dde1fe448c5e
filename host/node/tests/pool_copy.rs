//! A pool is copied to another number of shards and another hash while its node runs (K4, M1, R23).

mod common;

use std::time::Duration;

use common::{COUNTER, counter};
use ostraca_client::{
    AdminError, CallOptions, Client, Entity, MessageKind, NewPool, PoolCopyEnd, PoolCopyStep,
};
use ostraca_node::repair_rows;

const GRACE: Duration = Duration::from_secs(20);
const RELEASE: Duration = Duration::from_secs(60);
/// Those of the pool `default`, as `common::make` creates it.
const SHARDS: u32 = 64;
const WIDE: u32 = 101;
const ENTITIES: u32 = 150;

fn entity(number: u32) -> Entity {
    Entity::new("counter", format!("c{number}"))
}

/// Copies the pool `default`. Returns the steps that were shown, without repetition, and how it ended.
async fn copy(client: &Client, to: &str) -> Result<(Vec<PoolCopyStep>, PoolCopyEnd), AdminError> {
    let mut updates = client.copy_pool("default", to, RELEASE).await?;
    let mut steps = Vec::new();
    while let Some(progress) = updates.next().await? {
        match progress.end.clone() {
            Some(end) => return Ok((steps, end)),
            None if steps.last() == Some(&progress.step()) => {}
            None => steps.push(progress.step()),
        }
    }
    panic!("no end");
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
    // Commands go on meanwhile: those that find no owner wait, and follow their entities.
    let (copied, during) = tokio::join!(copy(&client, "wide"), add_to_all(&client, |_| 1));
    assert_eq!(during, (2..=ENTITIES + 1).collect::<Vec<_>>(), "nothing is lost or doubled");
    let (steps, end) = copied.expect("copied");
    assert_eq!(end.types.len(), 1);
    assert_eq!((end.types[0].r#type.as_str(), end.types[0].entities), ("counter", ENTITIES.into()));
    // The pool is checked again once it is closed. Progress that is not read in time is left out.
    let releasing = steps.iter().position(|step| *step == PoolCopyStep::Releasing);
    let rest = &steps[releasing.expect("owners give their shards up")..];
    assert!(
        rest.is_sorted_by_key(|step| if *step == PoolCopyStep::Checking {
            2
        } else {
            *step as i32
        }),
        "{steps:?}"
    );
    assert!(copy(&client, "wide").await.expect("it was copied").1.was_done);
    for (to, code) in [("spare", "pool-not-copied"), ("none", "unknown-pool")] {
        let refused = copy(&client, to).await.expect_err("refused");
        assert_eq!(refused.code(), code, "{refused}");
    }
    check(&client).await;
    client.close().await;
    node.stop(GRACE).await;
    let checked = repair_rows(&common::config(&home), false, &|_| ()).expect("checked");
    assert!(checked.remaining.is_empty(), "{:?}", checked.remaining);

    let node = common::start(&home).await;
    let client = common::client(&node, &cluster).await;
    let after = add_to_all(&client, |_| 1).await;
    assert_eq!(after, (3..=ENTITIES + 2).collect::<Vec<_>>(), "nothing is lost or doubled");
    check(&client).await;
    let wide = format!("{COUNTER}pool = \"wide\"\n");
    client.deploy(&wide, counter(), None).await.expect("both names are the same pool");
    client.close().await;
    node.stop(GRACE).await;
}

/// Checks where the pools and their entities are after the copy.
async fn check(client: &Client) {
    let pools = client.pools(None).await.expect("pools");
    let states = pools.iter().map(|it| (it.name.as_str(), it.copied_to.as_str(), it.copied));
    let expected = [("default", "wide", true), ("wide", "", false), ("spare", "", false)];
    assert_eq!(states.collect::<Vec<_>>(), expected);
    assert_eq!(pools[0].shards_owned, 0, "nobody owns the old shards");
    for at in 0..ENTITIES {
        let detail = client.inspect(&entity(at), false).await.expect("seen");
        let of_wide = SHARDS + 1..=SHARDS + WIDE;
        assert!(of_wide.contains(&detail.shard), "c{at} is in shard {}", detail.shard);
    }
}
