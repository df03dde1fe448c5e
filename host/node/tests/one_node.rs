//! The whole path in one process: a guest built from source, a real store, a real endpoint, a real client.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{COUNTER, counter, make};
use ostraca_client::{CallError, Client};
use ostraca_node::{Initialised, Node};
use ostraca_sharding::hash::shard_of;
use ostraca_sharding::ids::{Entity, ShardId};

struct Running {
    node: Node,
    client: Client,
}

async fn start(dir: &Path, made: &Initialised) -> Running {
    let node = common::start(dir).await;
    let client = common::client(&node, made).await;
    Running { node, client }
}

async fn stop(running: Running) {
    running.client.close().await;
    running.node.stop(Duration::from_secs(20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_counts_and_remembers_over_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("node");
    let made = make(&dir);
    let running = start(&dir, &made).await;
    let deployed = running.client.deploy(COUNTER, counter(), None).await.expect("deployed");
    assert_eq!((deployed.revision, deployed.unchanged), (1, false));
    let again = running.client.deploy(COUNTER, counter(), None).await;
    assert!(again.expect("deployed again").unchanged);

    let alice = Entity::new("counter", "alice");
    let session = running.client.session();
    for by in 1..=100_u64 {
        let answer = session.command(&alice, "add", by.to_string()).await.expect("added");
        assert_eq!(answer.version, by);
    }
    let got = session.query(&alice, "get", "").await.expect("read");
    assert_eq!((&got.body[..], got.version), (&b"5050"[..], 100));
    stop(running).await;

    let running = start(&dir, &made).await;
    let got =
        running.client.session().query(&alice, "get", "").await.expect("read after a restart");
    assert_eq!((&got.body[..], got.version), (&b"5050"[..], 100));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_count_every_command_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("node");
    let made = make(&dir);
    let running = start(&dir, &made).await;
    running.client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let calls = (0..16).map(|_| {
        let session = running.client.session();
        async move {
            let mut pending = Vec::new();
            for n in 0..200 {
                let entity = Entity::new("counter", format!("c{}", n % 10));
                pending.push(session.command(&entity, "add", "1"));
            }
            for call in pending {
                call.await.expect("added");
            }
        }
    });
    futures::future::join_all(calls).await;
    let session = running.client.session();
    for n in 0..10 {
        let entity = Entity::new("counter", format!("c{n}"));
        let got = session.query(&entity, "get", "").await.expect("read");
        assert_eq!(&got.body[..], b"320");
    }
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_are_refused_with_what_is_known() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("node");
    let made = make(&dir);
    let running = start(&dir, &made).await;
    running.client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let session = running.client.session();
    let not_run = |result: Result<_, CallError>| match result.map(|_: ostraca_client::Answer| ()) {
        Err(CallError::NotRun { code, help, .. }) => (code, help),
        other => panic!("not run, but {other:?}"),
    };
    let (code, help) = not_run(session.command(&Entity::new("couter", "a"), "add", "1").await);
    assert_eq!(&*code, "unknown-type");
    assert!(help.contains("`counter`"), "{help}");
    let (code, help) = not_run(session.command(&Entity::new("counter", "a"), "ad", "1").await);
    assert_eq!(&*code, "unknown-method");
    assert!(help.contains("did you mean `add`"), "{help}");
    let (code, _) = not_run(session.query(&Entity::new("counter", "a"), "add", "1").await);
    assert_eq!(&*code, "wrong-kind");
    let fits = session.command(&Entity::new("counter", "a"), "add", "1").await;
    assert_eq!(fits.expect("the neighbour of all these answers").version, 1);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_a_types_binding_is_fixed_from_its_first_deployment() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("node");
    let made = make(&dir);
    let running = start(&dir, &made).await;
    let by_prefix = format!("{COUNTER}shard-key = \"until:/\"\n");
    let deploy = |text: String, expected| {
        let client = &running.client;
        async move { client.deploy(&text, counter(), expected).await }
    };
    deploy(by_prefix.clone(), None).await.expect("deployed");
    let refused = deploy(COUNTER.to_owned(), None).await.expect_err("nobody lives there yet");
    assert_eq!(refused.code(), "binding-fixed");
    let text = refused.to_string();
    assert!(text.contains("until:/") && text.contains("\"id\""), "{text}");
    let session = running.client.session();
    session.command(&Entity::new("counter", "a/1"), "add", "1").await.expect("added");
    let refused = deploy(COUNTER.to_owned(), None).await.expect_err("somebody lives there");
    assert_eq!(refused.code(), "binding-fixed");
    let raced = deploy(format!("{by_prefix}[life]\nidle = \"1 min\"\n"), Some(9)).await;
    assert_eq!(raced.expect_err("another revision stands").code(), "revision-changed");
    let next = deploy(format!("{by_prefix}[life]\nidle = \"1 min\"\n"), Some(1)).await;
    assert_eq!(next.expect("the revision that stands was named").revision, 2);
    let same = session.command(&Entity::new("counter", "a/1"), "add", "1").await.expect("added");
    assert_eq!((&same.body[..], same.version), (&b"2"[..], 2));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_ids_with_one_prefix_share_a_shard() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("node");
    let made = make(&dir);
    let running = start(&dir, &made).await;
    let by_prefix = format!("{COUNTER}shard-key = \"until:/\"\n");
    running.client.deploy(&by_prefix, counter(), None).await.expect("deployed");
    let session = running.client.session();
    let ids = ["a/1", "a/2", "a/2/x", "a", "b/1"];
    for (by, id) in (1..).zip(ids) {
        let entity = Entity::new("counter", id);
        session.command(&entity, "add", by.to_string()).await.expect("added");
    }
    let mut shards = Vec::new();
    for (by, id) in (1..).zip(ids) {
        let entity = Entity::new("counter", id);
        let got = session.query(&entity, "get", "").await.expect("read");
        assert_eq!((&got.body[..], got.version), (by.to_string().as_bytes(), 1), "{id}");
        let detail = running.client.inspect(&entity).await.expect("inspected");
        assert!(detail.exists, "{id} is stored where it is looked for");
        shards.push(ShardId(detail.shard));
    }
    let of = |key| shard_of(key, 64);
    assert_eq!(shards, [of("a"), of("a"), of("a"), of("a"), of("b")]);
    // By the whole id they would not share one.
    assert!(of("a") != of("b") && of("a/1") != of("a/2") && of("a/1") != of("a"));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_with_too_little_room_refuses_turns_that_write_and_status_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("node");
    let made = make(&dir);
    let file = dir.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    assert!(!text.contains("[store]"), "it is added here");
    std::fs::write(&file, text + "\n[store]\nlow-water-bytes = \"1048576 GiB\"\n")
        .expect("written");
    let running = start(&dir, &made).await;
    running.client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let refused = running.client.session().command(&Entity::new("counter", "a"), "add", "1").await;
    match refused {
        Err(CallError::NotRun { code, message, .. }) => {
            assert_eq!(&*code, "store-full");
            assert!(message.contains("low_water_bytes"), "{message}");
        }
        other => panic!("not run, but {other:?}"),
    }
    let status = running.client.status().await.expect("a status");
    let low = status.problems.iter().find(|problem| problem.code == "store-low");
    assert!(low.is_some_and(|it| it.text.contains("bytes of disk are free")), "{status:?}");
    stop(running).await;
}
