//! A subscriber that takes no more pages does not keep the node following its channel, whose pages are charged to the
//! node alone. Once it reads again, it gets every kept item, in order.

mod common;

use std::time::{Duration, Instant};

use common::{client, guest, make};
use ostraca_ca::Ca;
use ostraca_client::{Client, Session};
use ostraca_core::ids::Entity;
use ostraca_node::{InitializedCluster, Node};
use ostraca_wire::Limits;
use ostraca_wire::dial::{ClientConnection, Dialer};
use ostraca_wire::proto::{Subscribe, SubscriptionFrame, subscription_frame};
use prost::Message;

const GRACE: Duration = Duration::from_secs(20);
/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);
const ITEMS: u64 = 60;
const MANIFEST: &str = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n
[channels]\nkeep-items = 100\nkeep-bytes = \"8 MiB\"\n";

/// A connection whose windows, and the node's, hold only a few of the items.
async fn small_connection(node: &Node, cluster: &InitializedCluster) -> ClientConnection {
    let ca = Ca::load(&cluster.ca).expect("the authority");
    let identity = ca.issue_client("slow").expect("identity");
    let trust = ca.trust().expect("trust");
    let limits = Limits {
        stream_receive_window: 16 << 10,
        connection_receive_window: 64 << 10,
        ..Limits::default()
    };
    let dialer = Dialer::new(Some(&identity), &trust, node.address(), limits).expect("dialer");
    dialer.connect(node.address()).await.expect("a connection")
}

/// Emits an item, and returns the entity's version.
async fn emit(session: &Session, room: &Entity) -> u64 {
    let body = r#"{"channel": "news", "size": 60000, "count": 1}"#;
    session.command(room, "emit", body).await.expect("emitted").version
}

/// Waits until the node follows this many channels.
async fn follows(client: &Client, wanted: u64) {
    let since = Instant::now();
    loop {
        let found = client.status().await.expect("a status").metrics["channel_feeds"];
        if found == wanted {
            return;
        }
        assert!(since.elapsed() < TIMEOUT, "{found} channels instead of {wanted}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_subscriber_leaves_its_channels_feed() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = make(dir.path());
    let file = dir.path().join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let network = "\n[network]\nsend-window = \"16 KiB\"\n";
    std::fs::write(&file, text + network).expect("written");
    let node = common::start(dir.path()).await;
    let admin = client(&node, &cluster).await;
    admin.deploy(MANIFEST, guest("misbehaving"), None).await.expect("deployed");
    let (session, room) = (admin.session(), Entity::new("misbehaving", "room"));
    let before = emit(&session, &room).await;

    let link = small_connection(&node, &cluster).await;
    let request = Subscribe {
        r#type: "misbehaving".into(),
        id: "room".into(),
        channel: "news".into(),
        ..Subscribe::default()
    };
    let (mut writer, mut reader) = link.subscribe(request).await.expect("a stream");
    writer.flush().await.expect("sent");
    let first = reader.next().await.expect("a frame").expect("a frame");
    let first = SubscriptionFrame::decode(first).expect("a frame").frame;
    assert!(matches!(first, Some(subscription_frame::Frame::Position(_))), "{first:?}");
    follows(&admin, 1).await;

    // It reads nothing while these are emitted.
    for _ in 0..ITEMS {
        emit(&session, &room).await;
    }
    follows(&admin, 0).await;
    let mut versions = Vec::new();
    while versions.len() < ITEMS as usize {
        let frame = tokio::time::timeout(TIMEOUT, reader.next()).await.expect("in time");
        let frame = SubscriptionFrame::decode(frame.expect("a frame").expect("a frame"));
        match frame.expect("a frame").frame {
            Some(subscription_frame::Frame::Items(page)) => {
                versions.extend(page.items.iter().map(|item| item.version));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(versions.iter().copied().eq(before + 1..=before + ITEMS), "{versions:?}");
    follows(&admin, 1).await;

    admin.close().await;
    node.stop(GRACE).await;
}
