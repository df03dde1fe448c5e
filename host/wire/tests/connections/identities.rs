//! Admission: only certificates of the cluster are accepted, and a refusal says what to do.

use crate::common::{Node, authority, in_time, limits, one};
use ostraca_ca::Ca;
use ostraca_wire::Error;
use ostraca_wire::dial::Dialer;
use ostraca_wire::identity::{Identity, PrincipalKind};
use time::{Duration, OffsetDateTime};

/// Returns how a node refuses this certificate, and checks that it still serves others.
async fn refused(node: &Node, identity: Option<&Identity>) -> (String, String) {
    let error = node.dialer(identity).connect(node.address).await.expect_err("refused");
    assert!(!error.is_retryable(), "{error:?}");
    node.assert_responsive().await;
    (error.code().into(), error.to_string())
}

#[tokio::test]
async fn a_client_without_a_valid_certificate_gets_advice() {
    in_time(async {
        let node = Node::start();
        let (code, text) = refused(&node, None).await;
        assert_eq!(code, "unauthenticated");
        assert!(text.contains("neither a certificate nor a token"), "{text}");

        let stranger = authority().issue_client("alice").expect("identity");
        assert_eq!(refused(&node, Some(&stranger)).await.0, "unknown-ca");

        // An authority with the same name and another key.
        let twin = Ca::create(node.ca.cluster()).expect("twin").issue_client("alice");
        assert_eq!(refused(&node, Some(&twin.expect("identity"))).await.0, "unknown-ca");

        let now = OffsetDateTime::now_utc();
        let (from, to) = (now - Duration::days(2), now - Duration::days(1));
        let old = node.ca.issue(PrincipalKind::Client, "alice", &[], from, to).expect("identity");
        assert_eq!(refused(&node, Some(&old)).await.0, "certificate-expired");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_accepts_only_a_node_of_its_cluster() {
    in_time(async {
        // A node of another cluster.
        let node = Node::start();
        let other = authority();
        let identity = other.issue_client("alice").expect("identity");
        let trust = other.trust().expect("trust");
        let dialer = Dialer::new(Some(&identity), &trust, node.address, limits()).expect("dialer");
        let error = dialer.connect(node.address).await.expect_err("refused");
        assert_eq!(error.code(), "unknown-ca", "{error}");
        node.stop().await;

        // A node with a client's certificate.
        let ca = authority();
        let client = ca.issue_client("mallory").expect("identity");
        let node = Node::start_as(ca, &client, limits());
        let alice = node.ca.issue_client("alice").expect("identity");
        let error = node.dialer(Some(&alice)).connect(node.address).await.expect_err("refused");
        assert_eq!(error.code(), "not-a-node", "{error}");
        node.stop().await;

        // A node whose certificate has expired.
        let ca = authority();
        let now = OffsetDateTime::now_utc();
        let old = ca.issue(
            PrincipalKind::Node,
            "one",
            &[],
            now - Duration::days(2),
            now - Duration::days(1),
        );
        let node = Node::start_as(ca, &old.expect("identity"), limits());
        let alice = node.ca.issue_client("alice").expect("identity");
        let error = node.dialer(Some(&alice)).connect(node.address).await.expect_err("refused");
        assert_eq!(error.code(), "certificate-expired", "{error}");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn the_principal_is_what_the_certificate_says() {
    in_time(async {
        let node = Node::start();
        let reply = one(&node.link().await, "echo", b"").await.expect("reply");
        assert_eq!(reply.content_type, "client/alice");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_unanswered_connection_is_a_retryable_error() {
    let ca = authority();
    let identity = ca.issue_client("alice").expect("identity");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("socket");
    let address = socket.local_addr().expect("address");
    let trust = ca.trust().expect("trust");
    let dialer = Dialer::new(Some(&identity), &trust, address, limits()).expect("dialer");
    let error = dialer.connect(address).await.expect_err("no response");
    assert!(matches!(error, Error::ConnectionLost(_)) && error.is_retryable(), "{error:?}");
}
