//! Concurrent deploys of one type through two nodes: the type's row decides, and neither deploy waits for the other.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use common::{COUNTER, client, counter, joined, make, start};
use ostraca_client::{AdminError, Client, DeployResult, Entity};
use ostraca_node::{InitializedCluster, Node};

const GRACE: Duration = Duration::from_secs(20);
/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);
const ROUNDS: u32 = 6;

/// A manifest of the counter, different for each number.
fn manifest(number: u32) -> String {
    format!("{COUNTER}[lifecycle]\nidle-timeout = \"{} min\"\n", number + 1)
}

async fn second(dir: &Path, first: &Node, cluster: &InitializedCluster) -> Node {
    start(&joined(dir, first, cluster)).await
}

/// Appends to a node's configuration.
fn configure(home: &Path, more: &str) {
    let file = home.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration that was written");
    std::fs::write(&file, text + more).expect("written");
}

/// The result of a deploy; `None` if it lost to another deploy, which must be reported as `revision-mismatch`.
fn accepted(done: Result<DeployResult, AdminError>) -> Option<DeployResult> {
    match done {
        Ok(done) => Some(done),
        Err(error) => {
            assert_eq!(error.code(), "revision-mismatch", "{error}");
            None
        }
    }
}

/// Waits until the client's node reports that revision.
async fn wait_for_revision(client: &Client, revision: u64) {
    let shown = async {
        let found = async || {
            let deployments = client.deployments().await.expect("deployments");
            deployments.first().map(|it| it.revision)
        };
        while found().await != Some(revision) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, shown).await.expect("the revision reaches the node");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_revision_has_one_winner_among_concurrent_deploys() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = make(&dir.path().join("n1"));
    let first = start(&dir.path().join("n1")).await;
    let second = second(dir.path(), &first, &cluster).await;
    let (one, two) = (client(&first, &cluster).await, client(&second, &cluster).await);

    let mut revisions = BTreeMap::new();
    for round in 0..ROUNDS {
        let (a, b) = (manifest(2 * round), manifest(2 * round + 1));
        let (by_one, by_two) =
            tokio::join!(one.deploy(&a, counter(), None), two.deploy(&b, counter(), None));
        let winners: Vec<_> = [(by_one, a), (by_two, b)]
            .into_iter()
            .filter_map(|(done, text)| Some((accepted(done)?, text)))
            .collect();
        assert!(!winners.is_empty(), "at least one deploy wins");
        for (done, text) in winners {
            assert!(!done.unchanged, "{text}");
            let before = revisions.insert(done.revision, text);
            assert_eq!(before, None, "revision {} was accepted twice", done.revision);
        }
    }
    let count = u64::try_from(revisions.len()).expect("a few");
    assert!(revisions.keys().copied().eq(1..=count), "{revisions:?}");
    let (last, text) = revisions.pop_last().expect("the last one");
    wait_for_revision(&one, last).await;
    wait_for_revision(&two, last).await;
    for node in [&one, &two] {
        let again = node.deploy(&text, counter(), None).await.expect("deployed");
        assert_eq!((again.revision, again.unchanged), (last, true));
    }

    // The same deploy through both nodes: one of them writes it, and both report it as deployed.
    let text = manifest(100);
    let (by_one, by_two) =
        tokio::join!(one.deploy(&text, counter(), None), two.deploy(&text, counter(), None));
    let done = [by_one.expect("deployed"), by_two.expect("deployed")];
    assert!(done.iter().all(|done| done.revision == last + 1), "{done:?}");
    assert_eq!(done.iter().filter(|done| done.unchanged).count(), 1, "{done:?}");

    // Of two deploys that expect the same revision, exactly one wins.
    let (a, b) = (manifest(101), manifest(102));
    let expected = Some(last + 1);
    let (by_one, by_two) =
        tokio::join!(one.deploy(&a, counter(), expected), two.deploy(&b, counter(), expected));
    let winners: Vec<_> = [by_one, by_two].into_iter().filter_map(accepted).collect();
    assert!(winners.len() == 1 && winners[0].revision == last + 2, "{winners:?}");

    one.close().await;
    two.close().await;
    second.stop(GRACE).await;
    first.stop(GRACE).await;
}

/// The counter under another name, with another shard key.
fn bound(number: u32, key: &str) -> String {
    format!("type = \"counter-{number}\"\ncomponent = \"counter.wasm\"\nshard-key = \"{key}\"\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_of_two_concurrent_shard_keys_exactly_one_wins() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = make(&dir.path().join("n1"));
    let first = start(&dir.path().join("n1")).await;
    let second = second(dir.path(), &first, &cluster).await;
    let (one, two) = (client(&first, &cluster).await, client(&second, &cluster).await);
    for round in 0..ROUNDS {
        let (a, b) = (bound(round, "id"), bound(round, "until:/"));
        let session = one.session();
        let entity = Entity::new(format!("counter-{round}"), "a/1");
        // The first entity is activated as soon as either deployment exists.
        let added = async {
            loop {
                match session.command(&entity, "add", "1").await {
                    Ok(reply) => return reply.version,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let added = tokio::time::timeout(TIMEOUT, added);
        let (by_one, by_two, version) =
            tokio::join!(one.deploy(&a, counter(), None), two.deploy(&b, counter(), None), added);
        assert_eq!(version.expect("one of them is deployed"), 1);
        let done = [by_one, by_two];
        let accepted = done.iter().filter(|done| done.is_ok()).count();
        assert_eq!(accepted, 1, "{done:?}");
        for (text, done) in [(a, &done[0]), (b, &done[1])] {
            // The deploy that lost is still refused, through either node.
            for node in [&one, &two] {
                let again = node.deploy(&text, counter(), None).await;
                match done {
                    Ok(_) => assert!(again.expect("deployed").unchanged),
                    Err(_) => {
                        assert_eq!(again.expect_err("bound").code(), "binding-immutable");
                    }
                }
            }
        }
        let version = session.command(&entity, "add", "1").await.expect("added").version;
        assert_eq!(version, 2, "the entity is where it was");
    }
    one.close().await;
    two.close().await;
    second.stop(GRACE).await;
    first.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_deploy_checks_the_expected_revision() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("n1");
    let cluster = make(&home);
    let node = start(&home).await;
    let admin = client(&node, &cluster).await;
    for number in 0..3 {
        admin.deploy(&manifest(number), counter(), None).await.expect("deployed");
    }
    // Repeat the third deploy, expecting its own revision, and then the revision that it replaced.
    for expected in [3, 2] {
        let again = admin.deploy(&manifest(2), counter(), Some(expected)).await.expect("again");
        assert!(again.unchanged && again.revision == 3);
    }
    for expected in [0, 1, 4] {
        let refused = admin.deploy(&manifest(2), counter(), Some(expected)).await;
        assert_eq!(
            refused.expect_err("another revision is current").code(),
            "revision-mismatch",
            "{expected}"
        );
    }
    let long = format!("{}# {}", manifest(2), "x".repeat(100_000));
    let refused = admin.deploy(&long, counter(), None).await.expect_err("too long");
    assert_eq!(refused.code(), "deployment-too-large");

    // There is nothing to move: the first progress report says so.
    let mut parts = admin.rebalance().await.expect("a rebalance");
    let began = std::time::Instant::now();
    let first = parts.next().await.expect("no problem").expect("progress");
    assert!(first.done, "{first:?} after {:?}", began.elapsed());
    admin.close().await;
    node.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_that_waits_for_hosts_keeps_no_upload_permit() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("n1");
    let cluster = make(&home);
    configure(
        &home,
        "\n[guests]\ndeploy-wait-timeout = \"3 s\"\n[network]\nprincipal-uploads = 1\n",
    );
    let first = start(&home).await;
    let admin = client(&first, &cluster).await;
    // A host whose compiler does not finish in time.
    let home = joined(dir.path(), &first, &cluster);
    let compiler = dir.path().join("compiler");
    std::fs::write(&compiler, "#!/bin/sh\nexec sleep 60\n").expect("written");
    std::fs::set_permissions(&compiler, PermissionsExt::from_mode(0o755)).expect("a program");
    configure(&home, &format!("\n[compiler]\nprogram = {compiler:?}\ntimeout = \"20 s\"\n"));
    let other = start(&home).await;

    let next = async {
        wait_for_revision(&admin, 1).await;
        admin.deploy(&manifest(2), counter(), None).await
    };
    let wanted = manifest(1);
    let (waited, next) = tokio::join!(admin.deploy(&wanted, counter(), None), next);
    for (done, revision) in [(waited, 1), (next, 2)] {
        let done = done.expect("deployed");
        assert_eq!(done.revision, revision);
        assert_eq!(done.pending_hosts.iter().map(|it| &*it.node).collect::<Vec<_>>(), ["n2"]);
    }
    admin.close().await;
    other.stop(GRACE).await;
    first.stop(GRACE).await;
}
