//! Bad input to a real node: each kind gets its stable code, and another entity still answers immediately
//! afterwards.

use std::time::Duration;

use bytes::Bytes;
use ostraca_ca::Ca;
use ostraca_client::{AdminError, CallError, CallOptions, Client, Entity, MessageKind, Session};
use ostraca_process_tests::guest_calls::until;
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use ostraca_wire::dial::Dialer;
use ostraca_wire::identity::{Identity, TrustRoot};
use ostraca_wire::proto::Reply;
use ostraca_wire::{ALPN_CLIENT, Error, Limits, endpoint, tls};
use prost::Message as _;
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

const WIT: &str = include_str!("../../../../wit/ostraca-entity.wit");

struct World {
    home: NodeDir,
    node: NodeProcess,
    client: Client,
    session: Session,
    neighbour: Session,
}

impl World {
    async fn start(name: &str, misbehaving: &str) -> Self {
        let home = NodeDir::init(name).expect("init");
        let node = NodeProcess::start(&home).expect("start");
        let profile = home.profile(node.address).expect("profile");
        let client = Client::connect(profile).await.expect("connect");
        deploy_example(&client, "counter").await.expect("deploy");
        deploy_guest(&client, "misbehaving", misbehaving).await.expect("deploy");
        deploy_guest(&client, "rubbish", "").await.expect("deploy");
        let (session, neighbour) = (client.session(), client.session());
        Self { home, node, client, session, neighbour }
    }

    /// Checks that a well-behaved entity answers, and that its command runs.
    async fn neighbour_answers(&self, after: &str) {
        let entity = Entity::new("counter", "neighbour");
        let answer = self.neighbour.command(&entity, "add", "1").await;
        assert!(answer.is_ok(), "after {after}, the neighbour answered {answer:?}");
    }

    async fn refused(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> CallError {
        self.session.call(entity, method, body).await.expect_err("bad input is refused")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_message_has_a_stable_code_and_affects_no_other() {
    let limits = "[limits]\nmessage = \"4 KiB\"\nstate = \"64 KiB\"\nreply = \"16 KiB\"";
    let world = World::start("bad-messages", limits).await;
    let odd = Entity::new("misbehaving", "odd");
    let rubbish = Entity::new("rubbish", "odd");
    let counter = Entity::new("counter", "odd");
    let long = "x".repeat(513);
    let large = format!("\"{}\"", "x".repeat(5_000));
    for (entity, method, body, code, expected_text) in [
        (&Entity::new("countr", "a"), "add", "1", "unknown-type", "counter"),
        (&counter, "ad", "1", "unknown-method", "add"),
        (&counter, "add", "{\"by\":", "invalid-arguments", "add"),
        (&counter, "add", "\"one\"", "invalid-arguments", "by"),
        (&counter, "add", "{\"of\":1}", "invalid-arguments", "by"),
        (&Entity::new("counter", ""), "add", "1", "invalid-entity-id", "512"),
        (&Entity::new("counter", long.as_str()), "add", "1", "invalid-entity-id", "512"),
        (&odd, "refuse", large.as_str(), "message-too-large", "4096"),
        (&odd, "fill", "{\"keys\":40,\"bytes\":4000}", "state-too-large", "state"),
        (&odd, "reply", "20000", "reply-too-large", "16384"),
        (&odd, "query_that_sets", "", "write-in-query", ""),
        (&odd, "query_that_deletes", "", "write-in-query", ""),
        (&odd, "trap", "", "trap", ""),
        (&odd, "panic", "\"oh no\"", "panicked", "oh no"),
        (&odd, "panic", "\"where\"", "panicked", "guests/misbehaving/src/lib.rs"),
        (&odd, "spin_for_ever", "", "turn-time-limit", "100"),
        (&odd, "spin_for_ever_in_a_query", "", "turn-time-limit", "100"),
        (&odd, "allocate", "", "memory-limit", "16"),
        (&odd, "recurse", "", "stack-overflow", ""),
        (&odd, "set_key_of", "513", "invalid-host-call", ""),
        (
            &Entity::new("misbehaving", "no-start"),
            "add",
            "{\"key\":\"k\",\"by\":1}",
            "start-failed",
            "refuses",
        ),
        (&Entity::new("rubbish", "no-start"), "bytes", "", "start-failed", "fails"),
        (&rubbish, "code", "x".repeat(129).leak(), "invalid-error-code", ""),
        (&rubbish, "nothing", "", "unknown-method", "bytes"),
    ] {
        let error = world.refused(entity, method, body.to_owned()).await;
        let text = format!("{error:?}");
        assert_eq!(error.code(), code, "{entity} {method}: {text}");
        assert!(
            text.contains(expected_text),
            "{entity} {method} does not mention {expected_text}: {text}"
        );
        world.neighbour_answers(method).await;
    }
    // Any bytes are a valid result for the node; an endless log is truncated, which is not an error.
    let answer = world.session.call(&rubbish, "bytes", "").await.expect("bytes");
    assert_eq!(answer.body.as_ref(), [0xff, 0xfe, 0x00, b'{', 0xc3]);
    let logged = world.node.log().len();
    let log = "{\"lines\":2000,\"bytes\":200}";
    world.session.call(&odd, "log", log).await.expect("logs");
    world.neighbour_answers("log").await;
    let more = world.node.log().len() - logged;
    assert!(more < 100 * 400, "{more} bytes were logged, of 400,000");
    // The misbehaving entity still answers a valid message, and kept nothing from the failed turns.
    let add = world.session.call(&odd, "add", "{\"key\":\"k\",\"by\":1}").await.expect("add");
    assert_eq!(add.body, "1");
    for key in ["panicked", "trapped", "fill/0"] {
        let read = world.session.call(&odd, "read", format!("\"{key}\"")).await.expect("read");
        assert_eq!(read.body, "null", "{key} was left by a failed turn");
    }
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_refuses_without_affecting_neighbours() {
    let world = World::start("mailbox", "[limits]\nmailbox = 3\nturn-time = \"5 s\"").await;
    let odd = Entity::new("misbehaving", "odd");
    // Long enough for all messages to arrive, even on a busy machine, but shorter than the first turn.
    let short = CallOptions { timeout: Duration::from_secs(3), ..CallOptions::default() };
    // It may begin late on a busy machine.
    let patient = CallOptions { timeout: Duration::from_secs(60), ..CallOptions::default() };
    let busy = world.session.send(&odd, "spin_for_ever", "", &patient);
    // Each session has its own stream: without this wait, the other messages may run before this one.
    until("the entity spins", async || {
        Ok((world.client.inspect(&odd, false).await?.active == Some(true)).then_some(()))
    })
    .await
    .expect("active");
    let calls: Vec<_> = (0..30)
        .map(|_| world.client.session().send(&odd, "add", "{\"key\":\"k\",\"by\":1}", &short))
        .collect();
    world.neighbour_answers("thirty messages to a busy entity").await;
    let mut full = 0;
    for call in calls {
        if let Err(CallError::NotRun { code, message, .. }) = call.await
            && &*code == "mailbox-full"
        {
            assert!(message.contains('3'), "{message}");
            full += 1;
        }
    }
    assert!(full > 0, "the mailbox accepted more messages than its limit");
    let Err(busy) = busy.await else { panic!("the endless turn succeeded") };
    assert_eq!(busy.code(), "turn-time-limit");
    world.session.call(&odd, "add", "{\"key\":\"k\",\"by\":1}").await.expect("add");
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_component_is_refused_at_the_deploy() {
    let world = World::start("bad-components", "").await;
    let counter = artifacts::component("counter").expect("component");
    let telepathy = WIT.replace("/// Why the host", "").replacen(
        "world entity {",
        "interface telepathy { think: func(); }\nworld entity {\n    import telepathy;",
        1,
    );
    for (what, component, code) in [
        ("text", Bytes::from_static(b"type = \"counter\""), "not-wasm"),
        ("nothing", Bytes::new(), "not-wasm"),
        ("a core module", artifacts::module("counter").expect("module").into(), "core-module"),
        ("half a component", counter.slice(..counter.len() / 2), "invalid-component"),
        ("no handler", dummy(&WIT.replacen("    export handler;\n", "", 1)), "missing-export"),
        ("a strange import", dummy(&telepathy), "import-not-granted"),
    ] {
        let manifest = "type = \"odd\"\ncomponent = \"odd.wasm\"\n";
        match world.client.deploy(manifest, component, None).await {
            Err(AdminError::Refused(problem)) => assert_eq!(problem.code, code, "{problem:?}"),
            other => panic!("{what}: {other:?}"),
        }
        world.neighbour_answers(what).await;
    }
    for (manifest, expected_text) in [
        ("type = \"odd\"\ncomponent = \"odd.wasm\"\nlimit = 3\n", "limit"),
        ("type = 7\ncomponent = \"odd.wasm\"\n", "type"),
        ("component = \"odd.wasm\"\n", "type"),
    ] {
        match world.client.deploy(manifest, counter.clone(), None).await {
            Err(AdminError::Refused(problem)) => {
                assert_eq!(problem.code, "invalid-manifest");
                assert!(problem.message.contains(expected_text), "{problem:?}");
            }
            other => panic!("{manifest}: {other:?}"),
        }
    }
    let unknown = world.refused(&Entity::new("odd", "a"), "add", "1").await;
    assert_eq!(unknown.code(), "unknown-type", "none of the refused types was deployed");
    world.client.close().await;
}

/// A component of the world `entity` whose functions all trap.
fn dummy(wit: &str) -> Bytes {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("test.wit", wit).expect("wit");
    let world = resolve.select_world(&[package], Some("entity")).expect("world");
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Legacy(LiftLowerAbi::Sync));
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("embed");
    let mut encoder = ComponentEncoder::default().module(&module).expect("module");
    encoder.encode().expect("encode").into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_clients_are_refused_with_a_reason() {
    let world = World::start("strangers", "").await;
    let (trust, _) = credentials(&world);
    let stranger = Ca::create(ostraca_core::ids::ClusterId(7)).expect("authority");
    let identity = stranger.issue_client("stranger").expect("identity");
    for (who, identity, code) in
        [("nobody", None, "unauthenticated"), ("a stranger", Some(&identity), "unknown-ca")]
    {
        let address = world.node.address;
        let dialer = Dialer::new(identity, &trust, address, Limits::default()).expect("dialer");
        let error = dialer.connect(address).await.expect_err("the connection is refused");
        assert_eq!(error.code(), code, "{error:?}");
        dialer.close().await;
        world.neighbour_answers(who).await;
    }
    // Nor does a client of this cluster accept a foreign node.
    let theirs = stranger.trust().expect("trust");
    let address = world.node.address;
    let dialer = Dialer::new(Some(&identity), &theirs, address, Limits::default()).expect("dialer");
    let error = dialer.connect(address).await.expect_err("the node is not trusted");
    assert_eq!(error.code(), "unknown-ca", "{error:?}");
    world.client.close().await;
}

fn credentials(world: &World) -> (TrustRoot, Identity) {
    let profile = world.home.profile(world.node.address).expect("profile");
    let trust = TrustRoot::from_pem(&profile.ca).expect("trust");
    (trust, Identity::from_pem(&profile.certificate, &profile.key).expect("identity"))
}

/// A connection on which no protocol message has been sent yet.
async fn bare(world: &World) -> quinn::Connection {
    let (trust, identity) = credentials(world);
    let limits = Limits::default();
    let tls = tls::client(Some(&identity), &trust, ALPN_CLIENT).expect("tls");
    let config = endpoint::client_config(tls, &limits).expect("config");
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = endpoint::bind(any, "test", &limits, None).expect("bind");
    let connecting = endpoint.connect_with(config, world.node.address, tls::SERVER_NAME);
    connecting.expect("connect").await.expect("connection")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_wire_ends_only_its_own_connection() {
    let world = World::start("garbage", "").await;
    // Datagrams that are not QUIC, or only resemble QUIC.
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("socket");
    for size in [0, 1, 20, 1_200, 9_000] {
        for first in [0x00, 0x40, 0xc0, 0xff] {
            let mut datagram = vec![first; size];
            datagram.iter_mut().skip(1).enumerate().for_each(|(n, byte)| *byte = (n * 7) as u8);
            socket.send_to(&datagram, world.node.address).await.expect("send");
        }
    }
    world.neighbour_answers("garbage").await;
    // A connection's first stream must begin with a hello.
    for (what, bytes, codes) in [
        ("4 GiB announced", &[0xff, 0xff, 0xff, 0xff, 1, 2, 3][..], &["frame-too-large"][..]),
        ("half a frame", &[0, 0, 0, 9, 1, 2][..], &["truncated-frame", "invalid-hello"]),
        ("half a length", &[0, 0][..], &["truncated-frame", "invalid-hello"]),
        ("no message", &[0, 0, 0, 3, 0xff, 0xff, 0xff][..], &["invalid-frame", "invalid-hello"]),
        ("nothing", &[][..], &["invalid-hello"]),
    ] {
        let connection = bare(&world).await;
        let (mut send, _recv) = connection.open_bi().await.expect("stream");
        send.write_all(bytes).await.expect("write");
        send.finish().expect("finish");
        let closed = tokio::time::timeout(Duration::from_secs(20), connection.closed()).await;
        let error = Error::from(closed.expect("the node closes the connection"));
        assert!(codes.contains(&error.code().as_str()), "{what}: {error:?}");
        world.neighbour_answers(what).await;
    }
    // Abandoned streams, each with the beginning of a frame.
    let connection = bare(&world).await;
    let mut left = Vec::new();
    for _ in 0..50 {
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        send.write_all(&[0]).await.expect("write");
        left.push((send, recv));
    }
    world.neighbour_answers("streams were opened and abandoned").await;
    let closed = tokio::time::timeout(Duration::from_secs(60), connection.closed()).await;
    closed.expect("a connection without a hello is closed");
    world.neighbour_answers("the end of those streams").await;
    world.client.close().await;
}

/// An envelope with an id that may be invalid UTF-8.
#[derive(Clone, PartialEq, prost::Message)]
struct BadEnvelope {
    #[prost(bytes = "bytes", tag = "2")]
    kind: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    id: Bytes,
    #[prost(uint64, tag = "5")]
    sequence: u64,
    #[prost(string, tag = "20")]
    method: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_is_not_utf_8_is_a_bad_message() {
    let world = World::start("utf-8", "").await;
    let (trust, identity) = credentials(&world);
    let address = world.node.address;
    let dialer = Dialer::new(Some(&identity), &trust, address, Limits::default()).expect("dialer");
    let link = dialer.connect(address).await.expect("connect");
    let (mut writer, mut reader) = link.session([7; 16]).await.expect("session");
    let id = Bytes::from_static(&[b'a', 0xff, 0xfe]);
    let kind = Bytes::from_static(b"counter");
    writer.put(&BadEnvelope { kind, id, sequence: 1, method: "get".into() });
    writer.flush().await.expect("flush");
    let frame = reader.next().await.expect("a reply").expect("a frame");
    let reply = Reply::decode(frame).expect("a reply");
    assert_eq!(reply.problem.expect("a problem").code, "invalid-message");
    world.neighbour_answers("an id that is not UTF-8").await;
    dialer.close().await;
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_kind_of_message_is_refused() {
    let world = World::start("kinds", "").await;
    let entity = Entity::new("counter", "a");
    for (kind, method, body) in
        [(MessageKind::Query, "add", "1"), (MessageKind::Command, "get", "")]
    {
        let options = CallOptions { kind, ..CallOptions::default() };
        let error = world.session.send(&entity, method, body, &options).await.expect_err("refused");
        assert_eq!(error.code(), "wrong-kind");
        world.neighbour_answers(method).await;
    }
    world.client.close().await;
}
