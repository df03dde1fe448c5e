//! Tenants with the same type and the same ids, over the command line and QUIC, across a kill of a node.

use anyhow::Result;
use ostraca_client::{Client, Entity, Profile};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::{Cluster, artifacts};

const SHARDS: u32 = 24;
const ENTITIES: u64 = 30;
const MANIFEST: &str = "type = \"counter\"\ncomponent = \"counter.wasm\"\n";

async fn tenant(cluster: &Cluster, node: usize, namespace: &str) -> Result<Client> {
    let profile = Profile { namespace: namespace.into(), ..cluster.profile(node) };
    Ok(Client::connect(profile).await?)
}

/// Whether a command succeeds, and what it prints.
fn command(cluster: &Cluster, arguments: &[&str]) -> (bool, String) {
    let output = cluster.home(0).command(arguments).expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
}

fn entities() -> impl Iterator<Item = Entity> {
    (0..ENTITIES).map(|id| Entity::new("counter", format!("e{id}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tenants_share_nothing_across_a_kill() {
    let options = Options { proxied: false, ..Options::three("namespaces") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait("all shards are served", |view| view.settled(SHARDS)).await.expect("settled");
    let command = |arguments: &[&str]| command(&cluster, arguments);
    let (refused, text) = command(&["--namespace", "acme", "send", "counter/e0", "add", "1"]);
    assert!(!refused && text.contains("unknown-namespace"), "{text}");
    for name in ["acme", "other"] {
        let (created, text) = command(&["namespace", "create", name]);
        assert!(created, "{text}");
    }
    let (listed, text) = command(&["namespace", "list"]);
    assert!(listed && ["acme", "default", "other"].iter().all(|it| text.contains(it)), "{text}");

    let component = artifacts::component("counter").expect("built");
    let acme = tenant(&cluster, 0, "acme").await.expect("a client");
    let other = tenant(&cluster, 1, "other").await.expect("a client");
    for tenant in [&acme, &other] {
        tenant.deploy(MANIFEST, component.clone(), None).await.expect("deployed");
    }
    for entity in entities() {
        let reply = acme.session().command(&entity, "add", "5").await.expect("added");
        assert_eq!(reply.body, "5");
        let reply = other.session().command(&entity, "add", "2").await.expect("added");
        assert_eq!(reply.body, "2", "{entity}");
    }
    let (sent, text) = command(&["--namespace", "acme", "send", "counter/e0", "add", "1"]);
    assert!(sent && text.contains('6'), "{text}");
    let (sent, text) = command(&["send", "other:counter/e0", "get"]);
    assert!(sent && text.contains('2'), "{text}");
    let (unknown, text) = command(&["send", "counter/e0", "get"]);
    assert!(!unknown && text.contains("unknown-type"), "{text}");

    cluster.kill_9(2).expect("killed");
    cluster.start_node(2).expect("started");
    cluster.wait("all shards are served", |view| view.settled(SHARDS)).await.expect("settled");
    for entity in entities() {
        let more = u64::from(&*entity.id == "e0");
        let read = acme.session().query(&entity, "get", "").await.expect("read");
        assert_eq!(read.body, (5 + more).to_string(), "{entity}");
        let read = other.session().query(&entity, "get", "").await.expect("read");
        assert_eq!(read.body, "2", "{entity}");
    }
}
