//! How a node starts while the store does not respond: what it answers to others, and what it knows afterwards.

mod common;

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ostraca_ca::Ca;
use ostraca_client::{
    AdminError, CallError, CallOptions, Client, MessageKind, NodeStatus, Profile, StatusProblem,
};
use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_node::config::{ClusterSettings, Role};
use ostraca_node::{Config, InitOptions, InitializedCluster, JoinOptions, Node, init, join};
use ostraca_store::{ClusterStore, CompareAndSet};
use ostraca_store_sled::SledStore;
use ostraca_wire::identity;
use time::OffsetDateTime;

const GRACE: Duration = Duration::from_secs(20);
/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The directories of a node with the store, and of one that joins it.
struct Two {
    dir: tempfile::TempDir,
    cluster: InitializedCluster,
    addresses: [String; 2],
}

impl Two {
    fn prepare() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let addresses = [free(), free()];
        let [first, second] = addresses.each_ref().map(|text| text.parse().expect("an address"));
        let options = InitOptions {
            cluster_name: "test".into(),
            node: "n1".into(),
            listen: first,
            shards: 8,
            settings: ClusterSettings::default(),
            postgres: None,
            rows: None,
        };
        let cluster = init(&dir.path().join("n1"), &options).expect("a new node");
        let options = JoinOptions {
            node: "n2".into(),
            listen: second,
            roles: vec![Role::Host, Role::Gateway],
            join: vec![first.to_string()],
            ca: cluster.ca.clone(),
            postgres: None,
            rows: None,
        };
        join(&dir.path().join("n2"), &options).expect("a node that joins");
        Self { dir, cluster, addresses }
    }

    fn home(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn start(&self, name: &str) -> Node {
        Node::start(config(&self.home(name))).await.expect("a node")
    }

    fn profile(&self, node: usize) -> Profile {
        Profile::new(vec![self.addresses[node].clone()], &self.cluster.ca_pem, &self.cluster.admin)
    }

    async fn client(&self, node: usize) -> Client {
        Client::connect(self.profile(node)).await.expect("a connection")
    }
}

/// An unused address of this machine.
fn free() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.local_addr().expect("an address").to_string()
}

fn config(home: &Path) -> Config {
    Config::load(&home.join("ostraca.toml")).expect("the configuration that was written")
}

/// Retries until `found` returns a value. Panics with `what` after the timeout.
async fn comes_about<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let tried = async {
        loop {
            if let Some(it) = found().await {
                return it;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, tried).await.unwrap_or_else(|_| panic!("{what}"))
}

/// Waits until the client's node sees the node `name` as live.
async fn wait_until_live(client: &Client, name: &str) {
    let live = async || {
        let nodes = client.nodes().await.ok()?;
        nodes
            .nodes
            .iter()
            .any(|node| node.name == name && node.status() == NodeStatus::Live)
            .then_some(())
    };
    comes_about(&format!("{name} must be live"), live).await;
}

/// Cluster time as the node reports it with its events.
async fn time_of(client: &Client) -> u64 {
    let mut events = client.events(false, 0).await.expect("events");
    let mut time = 0;
    while let Some(page) = events.next().await.expect("events") {
        time = page.cluster_time_ms;
    }
    time
}

#[tokio::test(flavor = "multi_thread")]
async fn s9_2_a_starting_node_is_reachable_before_any_row_access() {
    let two = Two::prepare();
    // A socket at the store's address never responds, so the node can neither read rows nor register.
    let silent = UdpSocket::bind(&two.addresses[0]).expect("a socket");
    let started = AtomicBool::new(false);
    let starting = async {
        let node = Node::start(config(&two.home("n2"))).await;
        started.store(true, Ordering::Relaxed);
        node.expect("it starts once the store responds")
    };
    let meanwhile = async {
        let connected = async || Client::connect(two.profile(1)).await.ok();
        let client = comes_about("the node must be reachable", connected).await;
        let options = CallOptions {
            timeout: Duration::from_secs(1),
            kind: MessageKind::Command,
            ..CallOptions::default()
        };
        let entity = Entity::new("counter", "c");
        match client.session().send(&entity, "add", Bytes::from_static(b"1"), &options).await {
            Err(CallError::NotRun { code, .. }) => assert_eq!(&*code, "rebalancing"),
            other => panic!("expected `rebalancing`, got {other:?}"),
        }
        match client.nodes().await {
            Err(AdminError::Refused(problem)) => assert_eq!(problem.code, "rebalancing"),
            other => panic!("expected `rebalancing`, got {other:?}"),
        }
        assert!(!started.load(Ordering::Relaxed), "the start waits for the store");
        drop(silent);
        let first = two.start("n1").await;
        wait_until_live(&client, "n2").await;
        (first, client)
    };
    let (second, (first, client)) = futures::join!(starting, meanwhile);
    client.close().await;
    second.stop(GRACE).await;
    first.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_a_node_started_without_store_adopts_cluster_time() {
    let two = Two::prepare();
    let (first, second) = (two.start("n1").await, two.start("n2").await);
    second.stop(GRACE).await;
    first.stop(GRACE).await;
    // The cluster is eleven days old.
    const OLD: u64 = 1_000_000_000;
    let own = config(&two.home("n1"));
    let store = SledStore::open(&own.store_dir(), &own.store_options()).expect("the store");
    let expected = store.get("time").await.expect("read").map(|row| row.revision);
    let value = [&[3][..], &postcard::to_stdvec(&(OLD, 0_u8)).expect("encodes")].concat();
    let cas = CompareAndSet { key: "time".into(), expected, value: Some(value.into()) };
    store.compare_and_set(cas).await.expect("written");
    drop(store);

    // The node remembers where shards were, so it starts without the store.
    let second = two.start("n2").await;
    let client = two.client(1).await;
    assert!(time_of(&client).await < OLD, "the node has not read it yet");
    let lapsed = comes_about("status must report the lapsed lease", async || {
        let status = client.status().await.ok()?;
        status.problems.into_iter().find(|problem| problem.code == "lease-lapsed")
    });
    let text = lapsed.await.message;
    assert!(text.contains("has not been able to register since it started"), "{text}");
    let first = two.start("n1").await;
    wait_until_live(&client, "n2").await;
    // Lanes are stamped with this time. If it were too early, the shard's next owner would drop the lanes and run
    // copies of their messages again.
    assert!(time_of(&client).await >= OLD, "a node with rows must have the time");
    client.close().await;
    second.stop(GRACE).await;
    first.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_a_rolled_back_store_is_reported_and_blocks_no_stop() {
    let two = Two::prepare();
    let (home, copied) = (two.home("n1"), two.home("copy"));
    let (first, second) = (two.start("n1").await, two.start("n2").await);
    let client = two.client(1).await;
    wait_until_live(&client, "n2").await;
    first.stop(GRACE).await;
    common::copy_directory(&home, &copied);
    // What is written from here on is lost when the copy is restored.
    let first = two.start("n1").await;
    comes_about("n2 must renew its lease again", async || {
        let problems = client.status().await.ok()?.problems;
        // The tests of this file run concurrently in one process, whose address space is too small for every node's
        // pool.
        problems.iter().all(|it| it.code == "allocator-fallback").then_some(())
    })
    .await;
    first.stop(GRACE).await;
    std::fs::remove_dir_all(&home).expect("removed");
    common::copy_directory(&copied, &home);
    let first = two.start("n1").await;

    let refused = comes_about("status must report the refused store", async || {
        let status = client.status().await.ok()?;
        let lease = |problem: &StatusProblem| problem.code == "lease-lapsed";
        let refused = status.problems.iter().find(|problem| problem.code == "store-refused")?;
        assert!(!status.problems.iter().any(lease), "its advice would be wrong: {status:?}");
        Some(refused.clone())
    })
    .await;
    let witness = two.home("n2").join("joined-store.witness").display().to_string();
    assert!(refused.help.contains(&witness), "{refused:?}");
    client.close().await;
    // Nothing can be handed over: a stop that waited for it would take the whole grace period and a quarter more.
    let stop = tokio::time::timeout(GRACE * 3 / 4, second.stop(GRACE)).await;
    stop.expect("it stops without a hand-off");
    first.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_start_with_a_certificate_not_valid_now() {
    let two = Two::prepare();
    let home = two.home("n1");
    let ca = Ca::load(&two.cluster.ca).expect("the authority");
    let now = OffsetDateTime::now_utc();
    let (day, over) = (time::Duration::days(1), now - time::Duration::days(1));
    for (from, until) in [(over - day, over), (now + day, now + day * 2)] {
        let identity =
            ca.issue(identity::PrincipalKind::Node, "n1", &[], from, until).expect("issued");
        identity.save(&home, "node").expect("saved");
        let error = Node::start(config(&home)).await.err().expect("refused");
        assert_eq!((error.code(), error.exit_code()), (codes::CERTIFICATE_EXPIRED, 7));
        let (text, help) = (error.to_string(), error.help_text().expect("help"));
        assert!(text.contains("node/n1"), "{text}");
        assert!(help.contains("ostraca ca issue node"), "{help}");
    }
    let identity = ca.issue_node("n1", &[]).expect("issued");
    identity.save(&home, "node").expect("saved");
    two.start("n1").await.stop(GRACE).await;
}
