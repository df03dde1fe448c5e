//! A client that sends many requests and reads no replies costs a node a bounded amount of memory, on the entity's
//! owner and on a gateway in front of it, and does not affect other clients.
//!
//! The memory of the whole process is measured, so this file has only one test.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{COUNTER, client, config, counter, guest, make};
use ostraca_ca::Ca;
use ostraca_client::{CallOptions, Client, Session};
use ostraca_core::ids::Entity;
use ostraca_node::config::Role;
use ostraca_node::{InitializedCluster, JoinOptions, Node, join};
use ostraca_wire::Limits;
use ostraca_wire::dial::{ClientConnection, Dialer};
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::{Envelope, Outcome, Reply};
use prost::Message;

const GRACE: Duration = Duration::from_secs(20);
const SESSIONS: u8 = 24;
const MESSAGES: u64 = 256;
/// Size of a reply in bytes; 6 GB are requested in total.
const REPLY: &str = "1000000";
/// Maximum memory in bytes that one connection that reads nothing may cost: twice `connection-bytes`, `send-window`,
/// and what is in flight between the two nodes; the rest is headroom for allocators.
const BOUND: u64 = 400 << 20;
/// Maximum duration of another client's message during the attack, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Duration of the attack.
const ATTACK: Duration = Duration::from_secs(10);

const MISBEHAVING: &str = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n";

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kib: u64 = line.split_whitespace().nth(1).expect("a size").parse().expect("a number");
    kib << 10
}

/// A connection of a principal other than the operator. Its small windows prevent replies from being sent unread.
async fn attacker(node: &Node, cluster: &InitializedCluster) -> ClientConnection {
    let ca = Ca::load(&cluster.ca).expect("the authority");
    let (identity, trust) = (ca.issue_client("mallory").expect("identity"), ca.trust());
    let limits = Limits {
        stream_receive_window: 16 << 10,
        connection_receive_window: 64 << 10,
        ..Limits::default()
    };
    let trust = trust.expect("trust");
    let dialer = Dialer::new(Some(&identity), &trust, node.address(), limits).expect("dialer");
    dialer.connect(node.address()).await.expect("a connection")
}

/// Waits up to the maximum.
fn slow() -> CallOptions {
    CallOptions { timeout: TIMEOUT, ..CallOptions::default() }
}

/// Each session has its own entity, since one mailbox cannot hold all the requests.
fn query(session: u8, sequence: u64) -> Envelope {
    Envelope {
        r#type: "misbehaving".into(),
        id: format!("a{session}"),
        sequence,
        settled: sequence,
        method: "reply".into(),
        created_ms: 1_000 + sequence,
        content_type: "application/json".into(),
        body: Bytes::from_static(REPLY.as_bytes()),
        ..Envelope::default()
    }
}

/// A well-behaved client.
struct Other<'a> {
    name: &'a str,
    session: Session,
    entity: Entity,
    value: u64,
    added: u64,
    slowest: Duration,
}

impl<'a> Other<'a> {
    fn new(name: &'a str, client: &Client) -> Self {
        let entity = Entity::new("counter", name);
        let (session, slowest) = (client.session(), Duration::ZERO);
        Self { name, session, entity, value: 0, added: 0, slowest }
    }

    async fn add(&mut self) {
        let (name, asked) = (self.name, Instant::now());
        let answer = self.session.send(&self.entity, "add", "1", &slow()).await;
        let answer = answer.unwrap_or_else(|error| panic!("{name} after {}: {error}", self.added));
        let sum: u64 = std::str::from_utf8(&answer.body).expect("text").parse().expect("a number");
        assert!(self.value == 0 || sum == self.value + 1, "{name}: {}, then {sum}", self.value);
        (self.added, self.value) = (self.added + 1, sum);
        self.slowest = self.slowest.max(asked.elapsed());
    }
}

/// Requests far more than it reads, while other clients continue. Returns the peak increase in memory, in bytes.
async fn attack(node: &Node, cluster: &InitializedCluster, others: &[(&str, &Client)]) -> u64 {
    let before = resident();
    let link = attacker(node, cluster).await;
    let mut streams: Vec<(FrameWriter, FrameReader)> = Vec::new();
    for session in 0..SESSIONS {
        let (mut writer, reader) = link.session([session; 16]).await.expect("a stream");
        for sequence in 1..=MESSAGES {
            writer.put(&query(session, sequence));
        }
        writer.flush().await.expect("sent");
        streams.push((writer, reader));
    }
    let (began, mut most) = (Instant::now(), before);
    let mut going: Vec<_> = others.iter().map(|(name, client)| Other::new(name, client)).collect();
    while began.elapsed() < ATTACK {
        for other in &mut going {
            other.add().await;
        }
        most = most.max(resident());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The attacked entity still answers others.
    let shared = Entity::new("misbehaving", "a0");
    for (name, client) in others {
        let answer = client.session().send(&shared, "list", "1", &slow()).await;
        answer.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // Every request without a result was refused with a code.
    // The other streams are dropped first: as long as they are not read, they fill the connection's window.
    let (_writer, mut reader) = streams.swap_remove(0);
    drop(streams);
    let mut refused = 0;
    for _ in 0..MESSAGES {
        let frame = reader.next().await.expect("a reply").expect("a reply");
        let reply = Reply::decode(frame).expect("a reply");
        if reply.outcome() != Outcome::Result {
            let problem = reply.problem.expect("a problem");
            assert_eq!(problem.code, "overloaded", "{}", problem.message);
            refused += 1;
        }
    }
    for Other { name, added, slowest, .. } in going {
        eprintln!("{name}: {added} commands, the slowest took {slowest:?}");
        assert!(slowest < TIMEOUT, "{name}: {slowest:?}");
    }
    eprintln!("{} MiB more; {refused} refused", (most - before) >> 20);
    most - before
}

async fn first(home: &Path) -> (InitializedCluster, Node, Client) {
    let cluster = make(home);
    let node = common::start(home).await;
    let admin = client(&node, &cluster).await;
    admin.deploy(COUNTER, counter(), None).await.expect("deployed");
    admin.deploy(MISBEHAVING, guest("misbehaving"), None).await.expect("deployed");
    (cluster, node, admin)
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_replies_cost_a_bounded_amount() {
    let dir = tempfile::tempdir().expect("a directory");
    let (cluster, node, admin) = first(&dir.path().join("n1")).await;
    let on_owner = attack(&node, &cluster, &[("on-owner", &admin)]).await;
    assert!(on_owner < BOUND, "{} MiB on the owner", on_owner >> 20);

    // Repeat the attack through a node that owns nothing.
    let home = dir.path().join("n2");
    let options = JoinOptions {
        node: "n2".into(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        roles: vec![Role::Gateway],
        join: vec![node.address().to_string()],
        ca: cluster.ca.clone(),
        postgres: None,
        rows: None,
    };
    join(&home, &options).expect("a node that joins");
    let gateway = Node::start(config(&home)).await.expect("a gateway");
    let through = client(&gateway, &cluster).await;
    through.session().query(&Entity::new("counter", "bob"), "get", "").await.expect("a route");
    // Other clients of that gateway are served, and so are those of another node.
    let others = [("on-gateway", &through), ("on-owner", &admin)];
    let on_both = attack(&gateway, &cluster, &others).await;
    assert!(on_both < BOUND, "{} MiB on a gateway and the owner", on_both >> 20);

    through.close().await;
    admin.close().await;
    gateway.stop(GRACE).await;
    node.stop(GRACE).await;
}
