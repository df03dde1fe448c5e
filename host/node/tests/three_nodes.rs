//! A cluster of real nodes in one process, with real stores, endpoints, links, guests and clients.
//!
//! This is the cheapest test of the wiring: the simulator tests the core, and these tests cover the threads, queues and
//! connections around it. Liveness bounds are generous; nothing else is timed.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{COUNTER, config, counter, make};
use ostraca_client::{CallError, CallOptions, Client};
use ostraca_core::ids::Entity;
use ostraca_node::config::Role;
use ostraca_node::{InitializedCluster, JoinOptions, Node, NodeError, join};

const GRACE: Duration = Duration::from_secs(20);
/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Cluster {
    dir: tempfile::TempDir,
    created: InitializedCluster,
    first: Node,
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("n1");
        let created = make(&home);
        let first = common::start(&home).await;
        Self { dir, created, first }
    }

    /// Creates the directory of a node that joins.
    fn prepare(&self, name: &str, roles: &[Role]) -> PathBuf {
        let home = self.dir.path().join(name);
        let options = JoinOptions {
            node: name.into(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            roles: roles.to_vec(),
            join: vec![self.first.address().to_string()],
            ca: self.created.ca.clone(),
            postgres: None,
            rows: None,
        };
        join(&home, &options).expect("a node that joins");
        home
    }

    async fn joined(&self, name: &str, roles: &[Role]) -> Node {
        common::start(&self.prepare(name, roles)).await
    }

    async fn client(&self, node: &Node) -> Client {
        common::client(node, &self.created).await
    }
}

const MEMBER: [Role; 3] = [Role::Manager, Role::Host, Role::Gateway];

/// The number of shards per owner.
async fn owners(client: &Client) -> BTreeMap<String, usize> {
    let mut owners = BTreeMap::new();
    for shard in client.shards().await.expect("shards") {
        *owners.entry(shard.owner).or_default() += 1;
    }
    owners
}

/// Waits until every shard has an owner, and the owners are exactly `nodes`.
async fn spread_over(client: &Client, nodes: &[&str]) {
    let spread = async {
        loop {
            let owners = owners(client).await;
            if owners.keys().eq(nodes.iter().copied()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, spread).await;
    assert!(waited.is_ok(), "expected the owners {nodes:?}, got {:?}", owners(client).await);
}

const ENTITIES: usize = 40;

fn entity(number: usize) -> Entity {
    Entity::new("counter", format!("c{number}"))
}

/// Adds one to every entity, through one gateway.
async fn add_to_all(client: &Client) {
    let session = client.session();
    let calls = (0..ENTITIES).map(|n| session.command(&entity(n), "add", "1"));
    for answer in futures::future::join_all(calls).await {
        answer.expect("added");
    }
}

async fn expect_all(client: &Client, count: usize) {
    let session = client.session();
    for n in 0..ENTITIES {
        let got = session.query(&entity(n), "get", "").await.expect("read");
        assert_eq!(got.body, count.to_string(), "{}", entity(n));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_run_once_while_nodes_join_drain_and_leave() {
    let cluster = Cluster::start().await;
    let one = cluster.client(&cluster.first).await;
    one.deploy(COUNTER, counter(), None).await.expect("deployed");
    add_to_all(&one).await;

    // From here on, messages are sent continuously.
    let stop = AtomicBool::new(false);
    let flow = async {
        let mut rounds = 0;
        while !stop.load(Ordering::Relaxed) {
            add_to_all(&one).await;
            rounds += 1;
        }
        rounds
    };
    let changes = async {
        let second = cluster.joined("n2", &MEMBER).await;
        let third = cluster.joined("n3", &MEMBER).await;
        spread_over(&one, &["n1", "n2", "n3"]).await;
        let (two, three) = (cluster.client(&second).await, cluster.client(&third).await);
        add_to_all(&two).await;
        add_to_all(&three).await;

        let mut drain = two.drain("n2", false).await.expect("a drain");
        while let Some(progress) = drain.next().await.expect("progress") {
            if progress.done {
                assert_eq!(progress.remaining, 0);
                break;
            }
        }
        spread_over(&one, &["n1", "n3"]).await;
        // S11: a gateway need not own any shards.
        add_to_all(&two).await;

        three.close().await;
        third.stop(GRACE).await;
        spread_over(&one, &["n1"]).await;
        add_to_all(&two).await;
        two.close().await;
        second.stop(GRACE).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (rounds, ()) = futures::join!(flow, changes);
    expect_all(&one, rounds + 5).await;

    one.close().await;
    cluster.first.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_acts_by_its_roles_and_refuses_the_rest_by_name() {
    let cluster = Cluster::start().await;
    let one = cluster.client(&cluster.first).await;
    one.deploy(COUNTER, counter(), None).await.expect("deployed");

    let gateway = cluster.joined("g", &[Role::Gateway]).await;
    let through = cluster.client(&gateway).await;
    add_to_all(&through).await;
    assert!(
        owners(&through).await.keys().eq(["n1"]),
        "a node without the role `host` owns nothing"
    );
    the_guest_sees_what_the_client_said_of_its_message(&through).await;

    let host = cluster.joined("h", &[Role::Host]).await;
    spread_over(&one, &["h", "n1"]).await;
    add_to_all(&through).await;
    let refusing = cluster.client(&host).await;
    match refusing.session().command(&entity(0), "add", "1").await {
        Err(CallError::NotRun { code, .. }) => assert_eq!(&*code, "no-gateway"),
        other => panic!("expected `no-gateway`, got {other:?}"),
    }
    let nodes = refusing.nodes().await.expect("operators are served");
    assert_eq!(nodes.nodes.len(), 3);
    expect_all(&through, 2).await;

    // All stop at the same time, including the store's node. None of them waits for anything that can no longer arrive.
    for client in [one, through, refusing] {
        client.close().await;
    }
    let began = std::time::Instant::now();
    futures::join!(cluster.first.stop(GRACE), gateway.stop(GRACE), host.stop(GRACE));
    assert!(began.elapsed() < GRACE, "no stop may run into a timeout: {:?}", began.elapsed());
}

/// Also checks this for a message that is forwarded.
async fn the_guest_sees_what_the_client_said_of_its_message(client: &Client) {
    let manifest = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n";
    client.deploy(manifest, common::guest("misbehaving"), None).await.expect("deployed");
    let options = CallOptions {
        content_type: "text/x-note".into(),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        tracestate: "congo=t61rcWkgMzE".into(),
        ..CallOptions::default()
    };
    let entity = Entity { entity_type: "misbehaving".into(), id: "e".into() };
    let reply = client.session().send(&entity, "envelope", "", &options).await.expect("a reply");
    let CallOptions { content_type, traceparent, tracestate, .. } = &options;
    let expected = format!("[{content_type:?},{traceparent:?},{tracestate:?}]");
    assert_eq!(std::str::from_utf8(&reply.body), Ok(&*expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_node_in_a_copied_folder_does_not_start_and_says_why() {
    let cluster = Cluster::start().await;
    let one = cluster.client(&cluster.first).await;
    let home = cluster.prepare("n2", &MEMBER);
    let copied = cluster.dir.path().join("copy");
    common::copy_directory(&home, &copied);
    let second = common::start(&home).await;
    spread_over(&one, &["n1", "n2"]).await;
    match Node::start(config(&copied)).await {
        Err(NodeError::NameInUse { node, addresses }) => {
            assert_eq!((node, addresses), ("n2".to_owned(), second.address().to_string()));
        }
        Err(other) => panic!("expected `NameInUse`, got {other}"),
        Ok(_) => panic!("two processes run as the same node"),
    }
    spread_over(&one, &["n1", "n2"]).await;
    one.close().await;
    second.stop(GRACE).await;
    cluster.first.stop(GRACE).await;
}
