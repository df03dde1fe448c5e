//! Nodes that must not join: of another cluster, with another shard count, hash or protocol, or with an expired or
//! foreign certificate. Each is refused with an error that names both values where there are two, and the cluster
//! continues.

use ostraca_ca::Ca;
use ostraca_core::ids::ClusterId;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::node::refused_start;
use ostraca_process_tests::{Cluster, NodeDir};
use ostraca_wire::frame::FrameBuffer;
use ostraca_wire::identity::{Identity, PrincipalKind, TrustRoot};
use ostraca_wire::proto::{Hello, Incarnation, PeerOpen, peer_open};
use ostraca_wire::{ALPN_PEER, Limits, endpoint, hello, tls};
use prost::Message as _;
use time::{Duration, OffsetDateTime};

const SHARDS: u32 = 24;

/// Starts a cluster of one node, with the directory of a second node that has not started.
async fn start(name: &str) -> Cluster {
    let roles = ["store,manager,host,gateway", "manager,host,gateway"];
    let options = Options { at_once: 1, shards: SHARDS, ..Options::new(name, &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    cluster
}

/// Checks that the second node cannot start, and that its error contains these strings.
fn refused(cluster: &Cluster, expected_texts: &[&str]) {
    let (code, stderr) = refused_start(&cluster.home(1).config()).expect("it ends");
    assert_ne!(code, 0, "{stderr}");
    for text in expected_texts {
        assert!(stderr.contains(text), "{text:?} is not in: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_count_mismatch_is_refused_with_both_values() {
    let mut cluster = start("join-count").await;
    let home = cluster.home(1);
    home.set("[cluster]\nshards = 77").expect("set");
    refused(&cluster, &["77", "24"]);
    cluster.home(1).set(&format!("[cluster]\nshards = {SHARDS}")).expect("set");
    // A matching node joins.
    cluster.start_node(1).expect("start");
    let both = cluster.wait("both nodes are hosts", |view| view.hosts().len() == 2).await;
    both.expect("joined");
    cluster.stop().expect("stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_or_foreign_certificate_is_refused_at_join() {
    let cluster = start("join-certificate").await;
    let home: &NodeDir = cluster.home(1);
    let ca = Ca::load(&cluster.home(0).dir().join("ca")).expect("authority");
    let own = Identity::load(&home.dir().join("node.pem"), &home.dir().join("node.key"));
    let own = own.expect("identity");
    let now = OffsetDateTime::now_utc();
    let (from, to) = (now - Duration::days(20), now - Duration::days(10));
    let expired = ca.issue(PrincipalKind::Node, "n2", &[], from, to).expect("expired");
    expired.save(home.dir(), "node").expect("saved");
    refused(&cluster, &["expired"]);

    // A certificate from another authority, together with that authority's own: neither side trusts the other.
    let other = Ca::create(ClusterId(7)).expect("authority");
    other.issue_node("n2", &[]).expect("foreign").save(home.dir(), "node").expect("saved");
    refused(&cluster, &["unknown-ca", "certificates from the same authority"]);
    own.save(home.dir(), "node").expect("saved");
    cluster.stop().expect("stop");
}

/// Sends a hello to a node in the name of another node, and returns the code and reason of the refusal.
async fn said_to(cluster: &Cluster, change: impl FnOnce(&mut Hello)) -> (String, String) {
    let home = cluster.home(1);
    let identity = Identity::load(&home.dir().join("node.pem"), &home.dir().join("node.key"));
    let ca = std::fs::read_to_string(cluster.home(0).dir().join("ca/ca.pem")).expect("authority");
    let (identity, trust) = (identity.expect("identity"), TrustRoot::from_pem(&ca).expect("trust"));
    let limits = Limits::default();
    let tls = tls::client(Some(&identity), &trust, ALPN_PEER).expect("tls");
    let config = endpoint::client_config(tls, &limits).expect("config");
    let any = "0.0.0.0:0".parse().expect("address");
    let endpoint = endpoint::bind(any, "test", &limits, None).expect("endpoint");
    let address = cluster.profile(0).addresses[0].parse().expect("address");
    let connecting = endpoint.connect_with(config, address, tls::SERVER_NAME).expect("connect");
    let connection = connecting.await.expect("connection");
    let (mut send, mut recv) = connection.open_bi().await.expect("stream");
    let mut hello = Hello {
        cluster_id: trust.cluster.0.to_be_bytes().to_vec().into(),
        node: "n2".into(),
        store_id: vec![0; 16].into(),
        incarnation: Some(Incarnation { counter: 0, nonce: 1 }),
        roles: vec!["host".into()],
        shards: SHARDS,
        hash: "murmur3_x86_32".into(),
        addresses: vec!["127.0.0.1:7411".into()],
        protocol_min: 2,
        protocol_max: 2,
        ..hello::client_hello(None, &limits)
    };
    change(&mut hello);
    let open = PeerOpen { stream: Some(peer_open::Stream::Hello(hello)) }.encode_to_vec();
    let length = u32::try_from(open.len()).expect("short").to_be_bytes();
    send.write_all(&[&length, open.as_slice()].concat()).await.expect("sent");
    let mut buffer = FrameBuffer::new(1 << 20);
    while let Ok(Some(chunk)) = recv.read_chunk(1 << 16, true).await {
        buffer.push(&chunk.bytes);
        if let Ok(Some(_)) = buffer.next_frame() {
            return ("welcome".into(), String::new());
        }
    }
    match connection.closed().await {
        quinn::ConnectionError::ApplicationClosed(closed) => {
            let code =
                ostraca_wire::close_code::CloseCode::from_number(closed.error_code.into_inner());
            let reason = String::from_utf8_lossy(&closed.reason).into_owned();
            (code.map_or(String::new(), |code| code.code().into()), reason)
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mismatched_hello_is_refused_by_code_with_both_values() {
    let cluster = start("join-hello").await;
    let ours = {
        let ca = Ca::load(&cluster.home(0).dir().join("ca")).expect("authority");
        ca.cluster().to_string()
    };
    let theirs = ClusterId(0xabc).to_string();
    let other = |hello: &mut Hello| hello.cluster_id = 0xabc_u128.to_be_bytes().to_vec().into();
    let (code, text) = said_to(&cluster, other).await;
    assert_eq!(code, "cluster-mismatch", "{text}");
    assert!(text.contains(&ours) && text.contains(&theirs), "{text}");

    let (code, text) = said_to(&cluster, |hello| hello.shards = 77).await;
    assert_eq!(code, "shard-count-mismatch", "{text}");
    assert!(text.contains("77") && text.contains("24"), "{text}");

    let (code, text) = said_to(&cluster, |hello| hello.hash = "crc32".into()).await;
    assert_eq!(code, "hash-mismatch", "{text}");
    assert!(text.contains("crc32") && text.contains("murmur3"), "{text}");

    let newer = |hello: &mut Hello| (hello.protocol_min, hello.protocol_max) = (90, 91);
    let (code, text) = said_to(&cluster, newer).await;
    assert_eq!(code, "unsupported-protocol");
    assert!(text.contains("90 to 91") && text.contains("2 to 2"), "{text}");

    let (code, text) = said_to(&cluster, |hello| hello.node = "n9".into()).await;
    assert_eq!(code, "node-mismatch", "{text}");
    assert!(text.contains("n9") && text.contains("n2"), "{text}");

    let (code, text) = said_to(&cluster, |_| {}).await;
    assert_eq!(code, "welcome", "{text}");
    cluster.stop().expect("stop");
}
