//! The whole path in one process: a guest built from source, a real store, a real endpoint, a real client.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{COUNTER, counter, make};
use ostraca_client::{CallError, CallOptions, Client, MessageId};
use ostraca_core::hash::shard_of;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_node::{InitializedCluster, Node};

struct Running {
    node: Node,
    client: Client,
}

async fn start(dir: &Path, cluster: &InitializedCluster) -> Running {
    let node = common::start(dir).await;
    let client = common::client(&node, cluster).await;
    Running { node, client }
}

/// Starts the node with these settings in the section `[entities]`.
async fn start_with(dir: &Path, cluster: &InitializedCluster, entities: &str) -> Running {
    let path = dir.join("ostraca.toml");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    std::fs::write(&path, format!("{text}\n[entities]\n{entities}\n")).expect("written");
    start(dir, cluster).await
}

async fn stop(running: Running) {
    running.client.close().await;
    running.node.stop(Duration::from_secs(20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_keeps_its_value_across_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
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

    let running = start(&dir, &cluster).await;
    let got =
        running.client.session().query(&alice, "get", "").await.expect("read after a restart");
    assert_eq!((&got.body[..], got.version), (&b"5050"[..], 100));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_count_every_command_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
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
async fn r17_a_message_resent_at_any_time_never_runs_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start_with(&dir, &cluster, "max-lanes = 2").await;
    let client = &running.client;
    client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let alice = Entity::new("counter", "alice");
    let first = client.session().command(&alice, "add", "1").await.expect("added");
    let again = |id: MessageId| {
        let options = CallOptions { resend: Some(id), ..CallOptions::default() };
        let session = client.session_with_id(id.session, id.sequence);
        async move { session.send(&alice_again(), "add", "1", &options).await }
    };
    assert_eq!(again(first.id).await.expect("the recorded reply"), first);
    for _ in 0..3 {
        client.session().command(&alice, "add", "1").await.expect("added by another session");
    }
    let refused = again(first.id).await.expect_err("its session is forgotten");
    assert!(matches!(refused, CallError::Unknown { .. }), "{refused:?}");
    assert_eq!((refused.code(), refused.id()), ("too-old", first.id));
    let got = client.session().query(&alice, "get", "").await.expect("read");
    assert_eq!(&got.body[..], b"4");
    // A message that never arrived runs: its creation time is above the watermark.
    let unsent = MessageId {
        sequence: 7,
        created_ms: client
            .session()
            .command(&alice, "add", "1")
            .await
            .expect("added")
            .id
            .created_ms
            + 1,
        ..first.id
    };
    assert_eq!(again(unsent).await.expect("it never ran").version, 6);
    stop(running).await;
}

fn alice_again() -> Entity {
    Entity::new("counter", "alice")
}

/// `ONE_SHOTS=1000000` runs this with that many calls and the default bounds.
#[tokio::test(flavor = "multi_thread")]
async fn r17_an_entity_serves_one_shot_sessions_without_end() {
    let many: Option<u64> = std::env::var("ONE_SHOTS").ok().and_then(|many| many.parse().ok());
    let calls = many.unwrap_or(2_000);
    let (lanes, bounds) = match many {
        Some(_) => (10_000, String::new()),
        None => (20, "max-lanes = 20\nunsettled-bytes = \"1 KiB\"".to_owned()),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start_with(&dir, &cluster, &bounds).await;
    let client = &running.client;
    client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let hot = Entity::new("counter", "hot");
    let mut resident = Vec::new();
    let began = std::time::Instant::now();
    for batch in 0..calls / 50 {
        let calls_now = (0..50).map(|_| client.session().command(&hot, "add", "1"));
        for answer in futures::future::join_all(calls_now).await {
            answer.expect("every session is served");
        }
        if (batch + 1) % (calls / 500).max(1) == 0 {
            resident.push(resident_kib());
        }
    }
    println!("{calls} calls in {:?}; KiB resident by tenths: {resident:?}", began.elapsed());
    let detail = client.inspect(&hot, false).await.expect("inspected");
    assert_eq!(detail.version, calls);
    assert!(detail.lane_count <= lanes, "{} lanes", detail.lane_count);
    // From the second tenth on: by then the bounds are reached, including the default ones.
    let grown = resident[resident.len() - 1].saturating_sub(resident[1]);
    assert!(grown < 128 << 10, "grew by {grown} KiB: {resident:?}");
    stop(running).await;
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_are_refused_with_suggestions() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
    running.client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let session = running.client.session();
    let not_run = |result: Result<_, CallError>| match result.map(|_: ostraca_client::Reply| ()) {
        Err(CallError::NotRun { code, help, .. }) => (code, help),
        other => panic!("expected `not-run`, got {other:?}"),
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
    assert_eq!(fits.expect("a correct call is accepted").version, 1);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_a_types_binding_is_fixed_from_its_first_deployment() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
    let by_prefix = format!("{COUNTER}shard-key = \"until:/\"\n");
    let deploy = |text: String, expected| {
        let client = &running.client;
        async move { client.deploy(&text, counter(), expected).await }
    };
    deploy(by_prefix.clone(), None).await.expect("deployed");
    let refused = deploy(COUNTER.to_owned(), None).await.expect_err("bound without entities");
    assert_eq!(refused.code(), "binding-immutable");
    let text = refused.to_string();
    assert!(text.contains("until:/") && text.contains("\"id\""), "{text}");
    let session = running.client.session();
    session.command(&Entity::new("counter", "a/1"), "add", "1").await.expect("added");
    let refused = deploy(COUNTER.to_owned(), None).await.expect_err("bound with entities");
    assert_eq!(refused.code(), "binding-immutable");
    let raced =
        deploy(format!("{by_prefix}[lifecycle]\nidle-timeout = \"1 min\"\n"), Some(9)).await;
    assert_eq!(raced.expect_err("another revision is current").code(), "revision-mismatch");
    let next = deploy(format!("{by_prefix}[lifecycle]\nidle-timeout = \"1 min\"\n"), Some(1)).await;
    assert_eq!(next.expect("the expected revision is current").revision, 2);
    let same = session.command(&Entity::new("counter", "a/1"), "add", "1").await.expect("added");
    assert_eq!((&same.body[..], same.version), (&b"2"[..], 2));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r24_an_undeployed_type_continues_its_revisions() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
    let client = &running.client;
    client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let (alice, session) = (Entity::new("counter", "alice"), client.session());
    session.command(&alice, "add", "5").await.expect("added");
    let refused = client.undeploy("counter").await.expect_err("alice is left");
    assert_eq!(refused.code(), "type-in-use");
    assert!(refused.to_string().contains("counter/alice"), "{refused}");
    session.delete_entity(&alice, &CallOptions::default()).await.expect("deleted");
    let undeployed = loop {
        match client.undeploy("counter").await {
            Ok(undeployed) => break undeployed,
            // The deletion's records are being removed.
            Err(error) => assert_eq!(error.code(), "type-in-use"),
        }
    };
    assert_eq!((undeployed.revision, undeployed.left), (1, 0));
    let refused = session.command(&alice, "add", "1").await.expect_err("no such type");
    assert_eq!(refused.code(), "unknown-type");
    let again = client.undeploy("counter").await.expect_err("it is gone");
    assert_eq!(again.code(), "unknown-type");
    // The head of the deleted entity names revision 1, which must not be reached again from below.
    let deployed = client.deploy(COUNTER, counter(), None).await.expect("deployed again");
    assert_eq!((deployed.revision, deployed.unchanged), (2, false));
    let anew = client.session().command(&alice, "add", "3").await.expect("added");
    assert_eq!(&anew.body[..], b"3", "it starts anew");
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_entity_is_imported_under_another_id() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
    let client = &running.client;
    client.deploy(COUNTER, counter(), None).await.expect("deployed");
    let (alice, bob) = (Entity::new("counter", "alice"), Entity::new("counter", "bob"));
    let session = client.session();
    for by in ["5", "7"] {
        session.command(&alice, "add", by).await.expect("added");
    }
    let missing = client.export(&bob).await.expect_err("it does not exist");
    assert_eq!(missing.code(), "unknown-entity");
    let export = client.export(&alice).await.expect("exported");
    assert_eq!((export.version, export.id.as_str(), export.state.len()), (2, "alice", 1));
    let file = ostraca_client::encode_export(&export);
    let export = ostraca_client::decode_export(&file).expect("the same");
    let options = CallOptions::default();
    let imported = session.import_entity(&bob, export.clone(), &options).await.expect("imported");
    assert_eq!(imported.version, 1);
    let got = session.query(&bob, "get", "").await.expect("read");
    assert_eq!((&got.body[..], got.version), (&b"12"[..], 1));
    session.command(&bob, "add", "1").await.expect("added");
    let refused = session.import_entity(&bob, export.clone(), &options).await;
    assert_eq!(refused.expect_err("it exists").code(), "entity-exists");
    // In place of an entity that was deleted.
    session.delete_entity(&bob, &options).await.expect("deleted");
    session.import_entity(&bob, export, &options).await.expect("imported");
    let got = session.query(&bob, "get", "").await.expect("read");
    assert_eq!(&got.body[..], b"12");
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_ids_with_one_prefix_share_a_shard() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
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
        let detail = running.client.inspect(&entity, false).await.expect("inspected");
        assert!(detail.exists, "{id} is stored where it is looked for");
        shards.push(ShardId(detail.shard));
    }
    let of = |key| shard_of(key, 64);
    assert_eq!(shards, [of("a"), of("a"), of("a"), of("a"), of("b")]);
    // With the whole id as the shard key, they would not share a shard.
    assert!(of("a") != of("b") && of("a/1") != of("a/2") && of("a/1") != of("a"));
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_free_disk_refuses_writes_and_shows_in_status() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("node");
    let cluster = make(&dir);
    let running = start(&dir, &cluster).await;
    running.client.deploy(COUNTER, counter(), None).await.expect("deployed");
    stop(running).await;
    let file = dir.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    assert!(!text.contains("[store]"), "the section is added below");
    std::fs::write(&file, text + "\n[store]\nlow-water-bytes = \"1048576 GiB\"\n")
        .expect("written");
    let running = start(&dir, &cluster).await;
    let other = [counter().as_ref(), &[0, 2, 1, b'x']].concat();
    let kept = running.client.deploy(COUNTER, other.into(), None).await.expect_err("no space");
    assert!(kept.to_string().contains("store.low-water-bytes"), "{kept}");
    let refused = running.client.session().command(&Entity::new("counter", "a"), "add", "1").await;
    match refused {
        Err(CallError::NotRun { code, message, .. }) => {
            assert_eq!(&*code, "store-full");
            assert!(message.contains("store.low-water-bytes"), "{message}");
        }
        other => panic!("expected `not-run`, got {other:?}"),
    }
    let status = running.client.status().await.expect("a status");
    let low = status.problems.iter().find(|problem| problem.code == "store-disk-low");
    assert!(low.is_some_and(|it| it.message.contains("bytes of disk are free")), "{status:?}");
    stop(running).await;
}
