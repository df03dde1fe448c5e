//! The example of `docs/protocol.md`, exchanged with a real node; `docs/protocol-example.txt` contains its bytes.
//!
//! `BLESS=1` rewrites that file.

mod common;

use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::{COUNTER, client, counter, make};
use ostraca_ca::Ca;
use ostraca_wire::Limits;
use ostraca_wire::dial::Dialer;
use ostraca_wire::frame::put_frame;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::{Envelope, MessageKind, Open, SessionOpen, open};
use prost::Message;

const HEAD: &str = "# A session's frames as a client sends them (>) and a real node answers (<), in hexadecimal: 4 bytes of length, then\n\
# the message. `docs/protocol.md` explains them. Made and checked by `host/node/tests/protocol_example.rs`.\n";

const SESSION: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn framed<M: Message>(message: &M) -> String {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, message);
    hex(&bytes)
}

fn message(sequence: u64, method: &str, body: &'static str) -> Envelope {
    Envelope {
        r#type: "counter".into(),
        id: "alice".into(),
        sequence,
        settled: sequence,
        remaining_ms: 10_000,
        content_type: "application/json".into(),
        method: method.into(),
        created_ms: 5_000,
        body: Bytes::from_static(body.as_bytes()),
        ..Envelope::default()
    }
}

async fn exchange(
    what: &str,
    envelope: &Envelope,
    (writer, reader): &mut (FrameWriter, FrameReader),
    text: &mut String,
) {
    writer.put(envelope);
    writer.flush().await.expect("sent");
    let reply = reader.next().await.expect("a reply").expect("a reply");
    let length = u32::try_from(reply.len()).expect("short").to_be_bytes();
    let reply = format!("{}{}", hex(&length), hex(&reply));
    text.push_str(&format!("\n# {what}\n> {}\n< {reply}\n", framed(envelope)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_node_responds_as_the_example_shows() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("n1");
    let cluster = make(&home);
    let node = common::start(&home).await;
    let admin = client(&node, &cluster).await;
    admin.deploy(COUNTER, counter(), None).await.expect("deployed");
    let ca = Ca::load(&cluster.ca).expect("the authority");
    let (identity, trust) = (ca.issue_client("alice").expect("identity"), ca.trust());
    let trust = trust.expect("trust");
    let dialer = Dialer::new(Some(&identity), &trust, node.address(), Limits::default());
    let link = dialer.expect("dialer").connect(node.address()).await.expect("a connection");
    let mut stream = link.session(SESSION).await.expect("a stream");

    let session = SessionOpen { session: Bytes::copy_from_slice(&SESSION) };
    let opened = framed(&Open { stream: Some(open::Stream::Session(session)) });
    let mut text =
        format!("{HEAD}\n# the stream's first frame: which session it is for\n> {opened}\n");
    let command = Envelope { kind: MessageKind::Command.into(), ..message(1, "add", "1") };
    exchange("a command, and its result", &command, &mut stream, &mut text).await;
    exchange("the same again: the recorded result", &command, &mut stream, &mut text).await;
    exchange("a query", &message(2, "get", ""), &mut stream, &mut text).await;
    exchange("an error of the method's own", &message(3, "limit", "0"), &mut stream, &mut text)
        .await;
    let unknown = Envelope { method: "ad".into(), ..message(4, "add", "1") };
    exchange("a refusal", &unknown, &mut stream, &mut text).await;
    exchange(
        "a fault: settled is above sequence",
        &Envelope { settled: 9, ..message(5, "get", "") },
        &mut stream,
        &mut text,
    )
    .await;

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol-example.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let shown = std::fs::read_to_string(&path).expect("docs/protocol-example.txt");
    assert_eq!(text, shown, "BLESS=1 rewrites it");
    // The page shows the first three frames, with spaces.
    let page = include_str!("../../../docs/protocol.md").replace([' ', '\n'], "");
    for frame in text
        .lines()
        .filter_map(|line| line.get(2..))
        .filter(|line| line.starts_with("0000"))
        .take(3)
    {
        assert!(page.contains(frame), "{frame}");
    }
    admin.close().await;
    node.stop(Duration::from_secs(20)).await;
}
