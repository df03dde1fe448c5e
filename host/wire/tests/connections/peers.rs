//! Which nodes are peers: nodes of the cluster that agree where they must, each identified by its certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::peers::{PeerNode, pair, peer_descriptor, small, until};
use crate::common::{self, authority, frame, in_time};
use ostraca_ca::Ca;
use ostraca_codes::codes;
use ostraca_core::ids::Incarnation;
use ostraca_wire::close_code::CloseCode;
use ostraca_wire::hello;
use ostraca_wire::identity::PrincipalKind;
use ostraca_wire::peer::{Alpn, PeerDescriptor, StreamKind};
use ostraca_wire::proto::{Hello, PeerOpen, peer_open};
use ostraca_wire::{ALPN_CONTROL, ALPN_PEER, Error, Limits};
use time::{Duration, OffsetDateTime};
use tokio::runtime::Handle;

#[tokio::test]
async fn two_nodes_identify_each_other_by_certificate_and_hello() {
    in_time(async {
        let (one, two) = pair();
        for alpn in [Alpn::Bulk, Alpn::Control] {
            let link = one.to(&two, alpn).await.expect("link");
            assert_eq!(link.info.member.to_string(), "two#1");
            assert_eq!(link.info.addresses, ["127.0.0.1:9"]);
            assert_eq!((link.info.remote, link.info.shards), (two.address, 256));
            let kind =
                if alpn == Alpn::Bulk { StreamKind::EntityStore } else { StreamKind::Control };
            let calls = link.open_rpc(kind).await.expect("calls");
            assert_eq!(calls.call("hi".into()).await.expect("response"), "hi");
            let peer = two.streams.peers.lock().expect("peers").last().cloned().expect("peer");
            assert_eq!(peer.member.to_string(), "one#1");
            assert!(peer.roles.host && peer.roles.gateway && !peer.roles.store);
            // The node dialled from the port on which it listens.
            assert_eq!(peer.remote, one.address);
        }
        // Later connections see the later announcement.
        let mut later = peer_descriptor(&one.ca, "one");
        later.node.incarnation = Incarnation { counter: 2, nonce: 3 };
        one.server.set_node_descriptor(later.node);
        let link = two.to(&one, Alpn::Control).await.expect("link");
        assert_eq!(link.info.member.to_string(), "one#2");
        assert_eq!(link.info.shards, 256);
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_certificate_is_refused_by_name_among_nodes() {
    in_time(async {
        let (one, two) = pair();
        let alice = one.ca.issue_client("alice").expect("identity");
        for alpn in [ALPN_PEER, ALPN_CONTROL] {
            let (_endpoint, connection) = one.raw(&alice, alpn).await.expect("handshake");
            match Error::from(connection.closed().await) {
                Error::Closed { code, reason } => {
                    assert_eq!(code, CloseCode::NodesOnly);
                    assert_eq!(reason, "client/alice is not a node");
                }
                other => panic!("{other:?}"),
            }
        }
        // Nor is a peer without a certificate a node: only a client may show a token instead.
        for alpn in [ALPN_PEER, ALPN_CONTROL] {
            let (_endpoint, connection) = one.raw_as(None, alpn).await.expect("handshake");
            match Error::from(connection.closed().await) {
                Error::Closed { code, reason } => {
                    assert_eq!(code, CloseCode::InvalidHello);
                    assert!(reason.contains("the peer sent none"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        // A node that dials refuses a client's certificate, too.
        let mallory = one.ca.issue_client("mallory").expect("identity");
        let false_node = PeerNode::start_as(
            &one.ca,
            &mallory,
            small(),
            peer_descriptor(&one.ca, "mallory"),
            Handle::current(),
        );
        let error = one.to(&false_node, Alpn::Bulk).await.expect_err("refused");
        assert_eq!(error.code(), "not-a-node", "{error}");
        one.to(&two, Alpn::Bulk).await.expect("other nodes connect");
        false_node.stop().await;
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn foreign_and_expired_certificates_are_refused_with_advice() {
    in_time(async {
        let (one, two) = pair();
        // Another cluster's node, dialling and dialled.
        let other = Arc::new(authority());
        let foreign = PeerNode::start(&other, "three");
        for error in [one.to(&foreign, Alpn::Bulk).await, foreign.to(&one, Alpn::Bulk).await] {
            let error = error.expect_err("refused");
            assert_eq!(error.code(), "unknown-ca", "{error}");
            assert!(error.to_string().contains("`join`") && !error.is_retryable(), "{error}");
        }
        foreign.stop().await;

        // A node that trusts the node that it dials, but has a certificate from another authority.
        let stranger = other.issue_node("three", &[]).expect("identity");
        let peer_descriptor = |name: &str| peer_descriptor(&one.ca, name);
        let half = PeerNode::start_as(
            &one.ca,
            &stranger,
            small(),
            peer_descriptor("three"),
            Handle::current(),
        );
        let error = half.to(&one, Alpn::Control).await.expect_err("refused");
        assert_eq!(error.code(), "unknown-ca", "{error}");
        half.stop().await;

        let now = OffsetDateTime::now_utc();
        let (from, to) = (now - Duration::days(2), now - Duration::days(1));
        let old = one.ca.issue(PrincipalKind::Node, "three", &[], from, to).expect("identity");
        let old =
            PeerNode::start_as(&one.ca, &old, small(), peer_descriptor("three"), Handle::current());
        for error in [one.to(&old, Alpn::Control).await, old.to(&one, Alpn::Control).await] {
            let error = error.expect_err("refused");
            assert_eq!(error.code(), "certificate-expired", "{error}");
        }
        old.stop().await;
        one.to(&two, Alpn::Control).await.expect("other nodes connect");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_shard_count_or_hash_mismatch_is_refused_at_both_ends() {
    in_time(async {
        let (one, two) = pair();
        type Change = fn(&mut PeerDescriptor);
        let cases: [(Change, CloseCode, [&str; 2]); 2] = [
            (|f| f.shards = 128, CloseCode::ShardCountMismatch, ["256", "128"]),
            (|f| f.hash = "java".into(), CloseCode::HashMismatch, ["murmur3", "java"]),
        ];
        for (change, code, values) in cases {
            let mut other = peer_descriptor(&one.ca, "three");
            change(&mut other);
            let identity = one.ca.issue_node("three", &[]).expect("identity");
            let three =
                PeerNode::start_as(&one.ca, &identity, small(), other.clone(), Handle::current());
            for error in [one.to(&three, Alpn::Bulk).await, three.to(&one, Alpn::Bulk).await] {
                let error = error.expect_err("refused");
                assert_eq!(error.code(), code.code());
                let text = error.to_string();
                assert!(values.iter().all(|value| text.contains(value)), "{text}");
            }
            // A value that a node does not know yet is not a mismatch.
            (other.shards, other.hash) = (0, String::new());
            three.server.set_peer_descriptor(other);
            let link = three.to(&one, Alpn::Control).await.expect("link");
            assert_eq!((link.info.shards, link.info.hash.as_str()), (256, "murmur3"));
            three.stop().await;
        }
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_mismatched_hello_is_refused_with_both_values() {
    in_time(async {
        let (one, two) = pair();
        let identity = one.ca.issue_node("three", &[]).expect("identity");
        let cluster = one.ca.cluster().to_string();
        let refused = async |bytes: Vec<u8>| {
            let (_endpoint, connection) =
                one.raw(&identity, ALPN_CONTROL).await.expect("handshake");
            let (mut send, _recv) = connection.open_bi().await.expect("stream");
            send.write_all(&bytes).await.expect("write");
            match Error::from(connection.closed().await) {
                Error::Closed { code, reason } => (code, reason),
                other => panic!("{other:?}"),
            }
        };
        type Change = fn(&mut Hello);
        let cases: [(Change, CloseCode, [&str; 2]); 4] = [
            (
                |h| h.cluster_id = 1_u128.to_be_bytes().to_vec().into(),
                CloseCode::ClusterMismatch,
                [&cluster, "00000000000000000000000000000001"],
            ),
            (|h| h.protocol_min = 3, CloseCode::UnsupportedProtocol, ["2 to 2", "3 to 2"]),
            (|h| h.node = "four".into(), CloseCode::NodeMismatch, ["three", "four"]),
            (|h| h.store_id.clear(), CloseCode::InvalidHello, ["store", "0 bytes"]),
        ];
        for (change, code, values) in cases {
            let mut hello = peer_descriptor(&one.ca, "three").hello(&Limits::default());
            change(&mut hello);
            let open = PeerOpen { stream: Some(peer_open::Stream::Hello(hello)) };
            let (found, reason) = refused(frame(&open)).await;
            assert_eq!(found, code);
            assert!(values.iter().all(|value| reason.contains(value)), "{reason}");
        }
        let mut client = hello::client_hello(Some(one.ca.cluster()), &Limits::default());
        let open = PeerOpen { stream: Some(peer_open::Stream::Hello(client.clone())) };
        assert_eq!(refused(frame(&open)).await.0, CloseCode::UnsupportedProtocol);
        client.protocol_max = 2;
        let open = PeerOpen { stream: Some(peer_open::Stream::Hello(client)) };
        assert_eq!(refused(frame(&open)).await.0, CloseCode::NodeMismatch);
        assert_eq!(refused(vec![0xff; 9]).await.0, CloseCode::FrameTooLarge);
        assert_eq!(refused(b"\0\0\0\x05GET /".to_vec()).await.0, CloseCode::InvalidHello);
        two.to(&one, Alpn::Control).await.expect("other nodes connect");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_unexpected_node_is_refused_with_both_names() {
    in_time(async {
        let (one, two) = pair();
        one.to_node(&two, "two").await.expect("expected");
        let error = one.to_node(&two, "three").await.expect_err("not expected");
        assert_eq!(error.code(), "node-mismatch");
        let text = error.to_string();
        assert!(text.contains("three") && text.contains("two"), "{text}");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_node_without_peers_does_not_speak_peer_protocols() {
    in_time(async {
        let directory = tempfile::tempdir().expect("directory");
        let alone = common::Node::start();
        alone.ca.save(directory.path()).expect("saved");
        let ca = Arc::new(Ca::load(directory.path()).expect("read"));
        let two = PeerNode::start(&ca, "two");
        let error = two.dialer.connect(alone.address, Alpn::Bulk, None).await.expect_err("refused");
        assert_eq!(error.code(), "unknown-protocol", "{error}");
        alone.assert_responsive().await;
        alone.stop().await;
        two.stop().await;
    })
    .await;
}

/// The control thread has its own single-threaded runtime, which also runs the streams that it serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn links_work_from_another_runtime_than_the_endpoints() {
    in_time(async {
        let ca = Arc::new(authority());
        let (give, take) = std::sync::mpsc::channel();
        let stop = Arc::new(tokio::sync::Notify::new());
        let stopping = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("runtime");
            give.send(runtime.handle().clone()).expect("sent");
            runtime.block_on(stopping.notified());
        });
        let control = take.recv().expect("handle");
        let node = |name| {
            let identity = ca.issue_node(name, &[]).expect("identity");
            PeerNode::start_as(&ca, &identity, small(), peer_descriptor(&ca, name), control.clone())
        };
        let (one, two) = (node("one"), node("two"));
        let (dialer, address) = (one.dialer.clone(), two.address);
        let work = control.spawn(async move {
            assert_eq!(std::thread::current().name(), Some("control"));
            let link = dialer.connect(address, Alpn::Control, None).await.expect("link");
            let calls = link.open_rpc(StreamKind::ClusterStore).await.expect("calls");
            for number in 0..100_u32 {
                let body = number.to_be_bytes().to_vec();
                assert_eq!(calls.call(body.clone().into()).await.expect("response"), body);
            }
        });
        work.await.expect("done");
        let bulk = one.to(&two, Alpn::Bulk).await.expect("link");
        let calls = bulk.open_rpc(StreamKind::EntityStore).await.expect("calls");
        calls.call("bulk".into()).await.expect("response");
        let threads = two.streams.threads.lock().expect("threads").clone();
        assert_eq!(threads.iter().filter(|name| *name == "control").count(), 100);
        assert_eq!(threads.iter().filter(|name| *name != "control").count(), 1);
        drop((calls, bulk));
        one.stop().await;
        two.stop().await;
        stop.notify_one();
        thread.expect("thread").join().expect("joined");
    })
    .await;
}

#[tokio::test]
async fn nodes_may_connect_when_clients_use_all_connections() {
    in_time(async {
        let ca = Arc::new(authority());
        let limits = Limits { max_connections: 2, ..small() };
        let identity = ca.issue_node("one", &[]).expect("identity");
        let peer_descriptor = |name: &str| peer_descriptor(&ca, name);
        let one =
            PeerNode::start_as(&ca, &identity, limits, peer_descriptor("one"), Handle::current());
        let two = PeerNode::start(&ca, "two");
        let mut clients = Vec::new();
        for name in ["a", "b"] {
            let client = ca.issue_client(name).expect("identity");
            clients.push(one.raw(&client, ostraca_wire::ALPN_CLIENT).await.expect("client"));
        }
        let third = ca.issue_client("c").expect("identity");
        let (_endpoint, connection) =
            one.raw(&third, ostraca_wire::ALPN_CLIENT).await.expect("handshake");
        let error = Error::from(connection.closed().await);
        assert_eq!(error.code(), "too-many-connections");
        two.to(&one, Alpn::Bulk).await.expect("capacity for a node");
        until(|| one.server.connections() <= 4).await;
        one.stop().await;
        two.stop().await;
    })
    .await;
}

/// Forwards packets between its clients and one node, until it is cut.
async fn forwarder(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("socket");
    let address = socket.local_addr().expect("address");
    let cut = Arc::new(AtomicBool::new(false));
    let is_cut = Arc::clone(&cut);
    tokio::spawn(async move {
        let (mut packet, mut from) = ([0; 65_536], to);
        while let Ok((size, sender)) = socket.recv_from(&mut packet).await {
            if is_cut.load(Ordering::Relaxed) {
                continue;
            }
            let target = if sender == to { from } else { to };
            if sender != to {
                from = sender;
            }
            socket.send_to(&packet[..size], target).await.expect("sent");
        }
    });
    (address, cut)
}

#[tokio::test]
async fn an_idle_link_is_kept_alive_and_a_dead_one_is_closed() {
    in_time(async {
        let ca = Arc::new(authority());
        let mut limits = small();
        limits.peers.keep_alive_interval = std::time::Duration::from_millis(50);
        limits.peers.idle_timeout = std::time::Duration::from_millis(400);
        let node = |name| {
            let identity = ca.issue_node(name, &[]).expect("identity");
            let peer_descriptor = peer_descriptor(&ca, name);
            PeerNode::start_as(&ca, &identity, limits.clone(), peer_descriptor, Handle::current())
        };
        let (one, two) = (node("one"), node("two"));
        let (address, cut) = forwarder(two.address).await;
        let link = one.dialer.connect(address, Alpn::Control, None).await.expect("link");
        let calls = link.open_rpc(StreamKind::Control).await.expect("calls");
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        calls.call("still here".into()).await.expect("response");
        let held = calls.call("hold".into());
        until(|| two.streams.calls() == 2).await;
        cut.store(true, Ordering::Relaxed);
        let error = held.await.expect_err("lost");
        assert!(matches!(error, Error::ConnectionLost(_)), "{error:?}");
        assert!(matches!(link.closed().await, Error::ConnectionLost(_)));
        until(|| *two.streams.ended.lock().expect("ended") == [Some(codes::CONNECTION_LOST)]).await;
        one.stop().await;
        two.stop().await;
    })
    .await;
}
