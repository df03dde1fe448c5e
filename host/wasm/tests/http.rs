//! Outgoing HTTP calls: which calls a guest may make, and what a server can do to it (R20, R22).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{command, failed, identity, misbehaving, ok, prepare, query, started, values};
use ostraca_wasm::{
    AskAnswer, AskReply, AskSink, CallRelease, CallSink, GuestAsk, GuestCall, GuestTurnOutput,
    Instance, InstanceLimits, InstanceSpec, MessageContext, NoState, OutgoingHttpSettings, Program,
    RuntimeSettings, StartReason, TurnRecords, WasmRuntime,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Takes the calls of a turn, and releases each as `key-PLACE` unless it holds them.
#[derive(Debug, Default)]
struct Calls {
    hold: bool,
    started: Mutex<Vec<(u32, GuestCall)>>,
    held: Mutex<Vec<CallRelease>>,
    ended: Mutex<Vec<u32>>,
}

impl CallSink for Calls {
    fn start(&self, place: u32, call: GuestCall, release: CallRelease) {
        self.started.lock().unwrap().push((place, call));
        match self.hold {
            true => self.held.lock().unwrap().push(release),
            false => release.release(format!("key-{place}")),
        }
    }

    fn end(&self, place: u32) {
        self.ended.lock().unwrap().push(place);
    }
}

impl AskSink for Calls {
    fn ask(&self, _: u32, _: GuestAsk, reply: AskReply) {
        reply.answer(AskAnswer::Unknown { message: "nobody".into() });
    }
}

/// What a server has seen.
#[derive(Debug, Default)]
struct Seen {
    /// The head and the body of each request.
    requests: Vec<(String, Vec<u8>)>,
    open: usize,
    most_open: usize,
}

/// A server whose response depends on the path.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    async fn start() -> Server {
        Server::start_with(None).await
    }

    async fn start_with(tls: Option<TlsAcceptor>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let shared = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    {
                        let mut seen = seen.lock().unwrap();
                        seen.open += 1;
                        seen.most_open = seen.most_open.max(seen.open);
                    }
                    match tls {
                        None => serve(stream, &seen).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &seen).await;
                            }
                        }
                    }
                    seen.lock().unwrap().open -= 1;
                });
            }
        });
        Server { address, seen }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn requests(&self) -> Vec<(String, Vec<u8>)> {
        std::mem::take(&mut self.seen.lock().unwrap().requests)
    }

    /// Waits until this many connections are open.
    async fn wait_open(&self, count: usize) {
        wait_until(|| self.seen.lock().unwrap().open == count).await;
    }
}

async fn wait_until(done: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("nothing happened");
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, seen: &Mutex<Seen>) {
    let mut read = Vec::new();
    let mut buffer = [0; 4_096];
    let (head, body) = loop {
        match stream.read(&mut buffer).await {
            Ok(count) if count > 0 => read.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&read);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_owned();
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        if read.len() >= head.len() + 4 + length {
            break (head.clone(), read.split_off(head.len() + 4));
        }
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    seen.lock().unwrap().requests.push((head, body.clone()));
    let plain = |body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    let response = match path.split_once('?').unwrap_or((&path, "")) {
        ("/ok", _) => plain(b"hello"),
        ("/echo", _) => plain(&body),
        ("/bytes", count) => plain(&vec![b'y'; count.parse().unwrap()]),
        ("/chunked", _) => b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n\
            3\r\nabc\r\n4\r\ndefg\r\n0\r\ntrailer: x\r\n\r\n"
            .to_vec(),
        ("/redirect", _) => {
            b"HTTP/1.1 302 Found\r\nlocation: /ok\r\ncontent-length: 0\r\n\r\n".to_vec()
        }
        ("/short", _) => b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec(),
        ("/garbage", _) => b"\0\xff\x01 no protocol\r\n\r\n".to_vec(),
        ("/close", _) => Vec::new(),
        ("/long-head", _) => {
            [b"HTTP/1.1 200 OK\r\nx: ", &*vec![b'x'; 64 << 10], b"\r\n\r\n"].concat()
        }
        ("/many-headers", _) => {
            let headers: String = (0..200).map(|number| format!("x{number}: 1\r\n")).collect();
            format!("HTTP/1.1 200 OK\r\n{headers}\r\n").into_bytes()
        }
        ("/switch", _) => b"HTTP/1.1 101 Switching Protocols\r\n\
            connection: upgrade\r\nupgrade: other\r\n\r\n"
            .to_vec(),
        ("/late", millis) => {
            tokio::time::sleep(Duration::from_millis(millis.parse().unwrap())).await;
            plain(b"late")
        }
        ("/drip", _) => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await;
            while stream.write_all(b"z").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            return;
        }
        _ => {
            // Never responds.
            let _ = stream.read(&mut buffer).await;
            return;
        }
    };
    let _ = stream.write_all(&response).await;
    let _ = stream.shutdown().await;
}

fn allowing(ranges: &[&str]) -> OutgoingHttpSettings {
    OutgoingHttpSettings {
        allow_addresses: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..Default::default()
    }
}

fn host_with(outgoing_http: OutgoingHttpSettings) -> WasmRuntime {
    let settings =
        RuntimeSettings { outgoing_http, max_live_instances: Some(50), ..common::settings() };
    WasmRuntime::new(&settings).unwrap()
}

fn limits(granted: &[String]) -> InstanceLimits {
    InstanceLimits { http: granted.to_vec(), http_calls: 3, ..Default::default() }
}

/// A program that may call a server on loopback.
fn program_for(
    server: &Server,
    limits: impl FnOnce(InstanceLimits) -> InstanceLimits,
) -> Arc<Program> {
    let granted = [server.address.to_string(), format!("localhost:{}", server.address.port())];
    let limits = limits(self::limits(&granted));
    prepare(&host_with(allowing(&["127.0.0.0/8"])), misbehaving(), limits)
}

async fn run(
    instance: &mut Instance,
    calls: &Arc<Calls>,
    context: MessageContext,
    method: &str,
    body: Value,
) -> GuestTurnOutput {
    let records = TurnRecords {
        calls: Some(calls.clone()),
        asks: Some(calls.clone()),
        ..TurnRecords::default()
    };
    let context = MessageContext { records: Some(records.into()), ..context };
    instance.message(context, method, Bytes::from(body.to_string())).await
}

fn gets(urls: &[String]) -> Value {
    json!({ "method": "GET", "urls": urls, "bytes": 0 })
}

/// Runs one turn that makes these calls concurrently, and returns their results.
async fn results(program: &Arc<Program>, calls: &Arc<Calls>, body: Value) -> Vec<String> {
    let mut instance = started(program, "e").await;
    let turn = run(&mut instance, calls, command(), "call", body).await;
    serde_json::from_str(ok(&turn)).unwrap()
}

#[tokio::test]
async fn a_call_returns_the_response() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    let calls = Arc::<Calls>::default();
    let urls = [server.url("/ok"), server.url("/chunked?q"), server.url("/bytes?40000")];
    let found = results(&program, &calls, gets(&urls)).await;
    assert_eq!(found[..2], ["200 hello", "201 abcdefg"]);
    assert_eq!(found[2], format!("200 {}", "y".repeat(40_000)));
    let (places, started): (Vec<_>, Vec<_>) = calls.started.lock().unwrap().drain(..).unzip();
    assert_eq!(places, [0, 1, 2]);
    let expected = GuestCall {
        method: "GET".into(),
        scheme: "http",
        authority: server.address.to_string(),
        path: "/chunked?q".into(),
    };
    assert_eq!(started[1], expected);
    wait_until(|| calls.ended.lock().unwrap().len() == 3).await;
    let head = server.requests().remove(0).0.to_ascii_lowercase();
    assert!(head.contains(&format!("\r\nhost: {}", server.address)), "{head}");
    let body = json!({ "method": "POST", "urls": [server.url("/echo")], "bytes": 50_000 });
    let found = results(&program, &calls, body).await;
    assert_eq!(found, [format!("200 {}", "x".repeat(50_000))]);
}

#[tokio::test]
async fn r20_a_call_waits_for_its_release_and_carries_its_key() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    let calls = Arc::new(Calls { hold: true, ..Calls::default() });
    let mut instance = started(&program, "e").await;
    let releasing = async {
        wait_until(|| calls.held.lock().unwrap().len() == 2).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(server.seen.lock().unwrap().most_open, 0, "not even connected");
        for (number, release) in calls.held.lock().unwrap().drain(..).enumerate() {
            release.release(format!("k{number}"));
        }
    };
    let urls = [server.url("/ok"), server.url("/ok?2")];
    let turn = run(&mut instance, &calls, command(), "call", gets(&urls));
    let (turn, ()) = tokio::join!(turn, releasing);
    assert_eq!(ok(&turn), r#"["200 hello","200 hello"]"#);
    let mut keys: Vec<_> = server.requests().into_iter().map(|(head, _)| key_of(&head)).collect();
    keys.sort();
    assert_eq!(keys, ["k0", "k1"]);
}

fn key_of(head: &str) -> String {
    let found = head.lines().find_map(|line| line.strip_prefix("idempotency-key: "));
    found.unwrap_or_else(|| panic!("{head}")).to_owned()
}

#[tokio::test]
async fn a_guest_cannot_set_the_idempotency_key() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
    for (name, value, expected) in [
        ("Idempotency-Key", "mine", "not sent: invalid-request"),
        ("Host", "other.example.com", "not sent: invalid-request"),
        ("X-Mine", "1", "200 hello"),
    ] {
        let body = json!({ "url": server.url("/ok"), "name": name, "value": value });
        let turn = run(&mut instance, &calls, command(), "call_with_header", body).await;
        assert_eq!(ok(&turn), format!("{expected:?}"));
    }
    let requests = server.requests();
    assert_eq!((requests.len(), key_of(&requests[0].0)), (1, "key-0".into()));
}

#[tokio::test]
async fn calls_and_asks_share_their_places() {
    let server = Server::start().await;
    let program =
        program_for(&server, |limits| InstanceLimits { ask: vec!["misbehaving".into()], ..limits });
    let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
    for _ in 0..2 {
        let body = json!({ "id": "a", "url": server.url("/ok") });
        let turn = run(&mut instance, &calls, command(), "call_between_asks", body).await;
        assert_eq!(ok(&turn), r#""200 hello""#);
    }
    let places: Vec<_> = calls.started.lock().unwrap().iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [1, 1], "each turn counts from 0");
}

#[tokio::test]
async fn only_commands_and_firings_make_calls() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| InstanceLimits {
        http: [&limits.http[..], &["127.0.0.1:1".into()]].concat(),
        ..limits
    });
    let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
    let body = json!(server.url("/ok"));
    let turn = run(&mut instance, &calls, query(), "call_in_query", body.clone()).await;
    assert_eq!(failed(&turn).code, *"http-in-query");
    let mut instance = started(&program, "f").await;
    let turn = common::send(&mut instance, "call_and_keep", &body.to_string()).await;
    assert_eq!(failed(&turn).code, *"http-outside-turn");
    let spec = InstanceSpec {
        identity: identity("http-start"),
        state: Box::new(NoState),
        values: values(1),
        records: TurnRecords::default(),
    };
    let mut instance = program.instantiate(spec).await.unwrap();
    let turn = instance.start(StartReason::FirstMessage).await;
    assert_eq!(failed(&turn).code, *"http-outside-turn");
    assert!(server.requests().is_empty() && calls.started.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_host_is_granted_by_its_exact_name_and_port() {
    let host = host_with(OutgoingHttpSettings::default());
    let granted = ["a.example.com".into(), "b.example.com:81".into(), "[::1]:82".into()];
    // Names that do not exist are not resolved in time where there is no network.
    let http_timeout = Duration::from_millis(500);
    let limits = InstanceLimits { http_timeout, ..limits(&granted) };
    let program = prepare(&host, misbehaving(), limits);
    for (url, refused) in [
        ("https://a.example.com/", None),
        ("http://a.example.com:80/", None),
        ("http://A.Example.Com/", None),
        ("https://b.example.com:81/", None),
        ("http://[::1]:82/", None),
        ("http://a.example.com:81/", Some("a.example.com:81")),
        ("http://a.example.com:443/", Some("a.example.com:443")),
        ("http://b.example.com/", Some("b.example.com:80")),
        ("https://x.a.example.com/", Some("x.a.example.com:443")),
        ("https://a.example.com./", Some("a.example.com.:443")),
        ("https://127.0.0.1/", Some("127.0.0.1:443")),
        ("http://[::1]/", Some("[::1]:80")),
    ] {
        let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
        let turn = run(&mut instance, &calls, command(), "call", gets(&[url.into()])).await;
        match refused {
            Some(named) => {
                let failure = failed(&turn);
                assert_eq!(failure.code, *"http-not-granted", "{url}");
                assert!(failure.message.contains(&format!("{named:?}")), "{}", failure.message);
            }
            // No such name resolves, and the address is not public.
            None => assert!(ok(&turn).starts_with("[\"not sent: "), "{url}: {}", ok(&turn)),
        }
        assert_eq!(calls.started.lock().unwrap().is_empty(), refused.is_some(), "{url}");
    }
    for url in ["ftp://a.example.com/", "https://u@a.example.com/", "https://", "a.example.com"] {
        let calls = Arc::<Calls>::default();
        let found = results(&program, &calls, gets(&[url.into()])).await;
        assert!(found[0].starts_with("not sent: "), "{url}: {found:?}");
        assert!(calls.started.lock().unwrap().is_empty(), "{url}");
    }
}

#[tokio::test]
async fn each_limit_on_calls_has_its_own_code() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| InstanceLimits { http_bytes: 20_000, ..limits });
    let calls = Arc::<Calls>::default();
    let mut instance = started(&program, "e").await;
    let urls = vec![server.url("/ok"); 4];
    let turn = run(&mut instance, &calls, command(), "call", gets(&urls)).await;
    assert_eq!(failed(&turn).code, *"too-many-http-calls");
    assert!(failed(&turn).message.contains("limits.http-calls (3)"), "{}", failed(&turn).message);
    for bytes in [19_000, 21_000, 100_000] {
        let body = json!({ "method": "POST", "urls": [server.url("/ok")], "bytes": bytes });
        let mut instance = started(&program, "e").await;
        let turn = run(&mut instance, &calls, command(), "call", body).await;
        if bytes < 20_000 {
            assert_eq!(ok(&turn), r#"["200 hello"]"#);
        } else {
            assert_eq!(failed(&turn).code, *"http-too-large");
        }
    }
    let mut instance = started(&program, "e").await;
    let body = json!({ "url": server.url("/ok"), "name": "x", "value": "x".repeat(17 << 10) });
    let turn = run(&mut instance, &calls, command(), "call_with_header", body).await;
    assert_eq!(failed(&turn).code, *"http-too-large");
    // A server cannot make the turn fail.
    let (large, small) = (server.url("/bytes?30000"), server.url("/bytes?3000"));
    let mut instance = started(&program, "e").await;
    let turn = run(&mut instance, &calls, command(), "call", gets(&[large])).await;
    assert_eq!(ok(&turn), r#"["unknown: HTTP-response-body-size"]"#);
    let turn = run(&mut instance, &calls, command(), "call", gets(&vec![small; 3])).await;
    assert!(ok(&turn).contains("yyy"), "a later turn has its own limit: {}", ok(&turn));
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused() {
    let server = Server::start().await;
    let port = server.address.port();
    let granted = [server.address.to_string(), format!("localhost:{port}")];
    let program = prepare(&host_with(allowing(&["10.0.0.0/8"])), misbehaving(), limits(&granted));
    let urls = [server.url("/ok"), format!("http://localhost:{port}/ok")];
    let found = results(&program, &Arc::default(), gets(&urls)).await;
    assert_eq!(found, vec!["not sent: destination-IP-prohibited"; 2]);
    assert_eq!(server.seen.lock().unwrap().most_open, 0, "no connection was made");
    let program = program_for(&server, |limits| limits);
    let found = results(&program, &Arc::default(), gets(&urls)).await;
    assert_eq!(found, vec!["200 hello"; 2]);
    let head = server.requests().remove(1).0.to_ascii_lowercase();
    assert!(head.contains("host: "), "{head}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    let found = results(&program, &Arc::default(), gets(&[server.url("/redirect")])).await;
    assert_eq!((found, server.requests().len()), (vec!["302 ".to_owned()], 1));
}

#[tokio::test]
async fn a_slow_server_is_cut_off_at_the_deadline() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| InstanceLimits {
        http_timeout: Duration::from_millis(600),
        turn_time: Duration::from_millis(100),
        ..limits
    });
    let began = Instant::now();
    let urls = [server.url("/drip"), server.url("/never"), server.url("/late?300")];
    let found = results(&program, &Arc::default(), gets(&urls)).await;
    let timeout = "unknown: HTTP-response-timeout";
    assert_eq!(found, [timeout, timeout, "200 late"], "waiting is not charged to the guest");
    assert!((600..2_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    server.wait_open(0).await;
}

#[tokio::test]
async fn a_call_that_is_not_released_ends_at_the_deadline() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| InstanceLimits {
        http_timeout: Duration::from_millis(200),
        ..limits
    });
    let calls = Arc::new(Calls { hold: true, ..Calls::default() });
    let found = results(&program, &calls, gets(&[server.url("/ok")])).await;
    assert_eq!(found, ["not sent: connection-timeout"]);
    assert_eq!(server.seen.lock().unwrap().most_open, 0);
}

#[tokio::test]
async fn r22_waiting_for_a_call_is_not_charged() {
    let server = Server::start().await;
    let turn_time = Duration::from_millis(200);
    let program = program_for(&server, |limits| InstanceLimits { turn_time, ..limits });
    let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
    let late = gets(&[server.url("/late?700")]);
    let turn = run(&mut instance, &calls, command(), "call", late).await;
    assert_eq!(ok(&turn), r#"["200 late"]"#);
    assert!(turn.guest_time < turn_time, "{:?}", turn.guest_time);
    let turn = run(&mut instance, &calls, command(), "spin", json!(1_000_000)).await;
    assert_eq!(failed(&turn).code, *"turn-time-limit");
}

#[tokio::test]
async fn whatever_a_server_sends_is_an_error_of_the_call() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    for (path, expected) in [
        ("/short", "unknown: HTTP-response-incomplete"),
        ("/garbage", "unknown: HTTP-protocol-error"),
        ("/close", "unknown: HTTP-response-incomplete"),
        ("/long-head", "unknown: HTTP-response-header-section-size"),
        ("/many-headers", "unknown: HTTP-response-header-section-size"),
        ("/switch", "unknown: HTTP-upgrade-failed"),
    ] {
        let found = results(&program, &Arc::default(), gets(&[server.url(path)])).await;
        assert_eq!(found, [expected], "{path}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let host = host_with(allowing(&["127.0.0.0/8"]));
    let program = prepare(&host, misbehaving(), limits(&[closed.to_string()]));
    let found = results(&program, &Arc::default(), gets(&[format!("http://{closed}/")])).await;
    assert_eq!(found, ["not sent: connection-refused"]);
}

#[tokio::test]
async fn a_call_ends_with_its_turn() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
    let never = json!(server.url("/never"));
    let first = run(&mut instance, &calls, command(), "call_and_keep", never.clone()).await;
    assert_eq!(ok(&first), "null");
    server.wait_open(0).await;
    wait_until(|| *calls.ended.lock().unwrap() == [0]).await;
    let second = run(&mut instance, &calls, command(), "call_and_keep", never).await;
    assert_eq!(ok(&second), r#""unknown: connection-terminated""#);
}

#[tokio::test]
async fn r15_an_interrupted_turn_drops_its_connection() {
    let server = Server::start().await;
    let program = program_for(&server, |limits| limits);
    let (calls, mut instance) = (Arc::<Calls>::default(), started(&program, "e").await);
    let interrupt = instance.interrupt_handle();
    let interrupting = async {
        server.wait_open(1).await;
        interrupt.interrupt();
    };
    let turn = run(&mut instance, &calls, command(), "call", gets(&[server.url("/never")]));
    let (turn, ()) = tokio::join!(turn, interrupting);
    assert_eq!(failed(&turn).code, *"interrupted");
    server.wait_open(0).await;
}

#[tokio::test]
async fn connections_beyond_the_nodes_limit_wait() {
    let server = Server::start().await;
    let settings = OutgoingHttpSettings { max_connections: 1, ..allowing(&["127.0.0.0/8"]) };
    let granted = [server.address.to_string()];
    let program = prepare(&host_with(settings), misbehaving(), limits(&granted));
    let urls = vec![server.url("/late?100"); 3];
    let found = results(&program, &Arc::default(), gets(&urls)).await;
    assert_eq!(found, vec!["200 late"; 3]);
    assert_eq!(server.seen.lock().unwrap().most_open, 1);
}

/// An authority and a server certificate for `localhost`, which it signed.
fn certificates(dir: &Path) -> (TlsAcceptor, std::path::PathBuf) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".into()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let file = dir.join("ca.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), file)
}

#[tokio::test]
async fn a_tls_server_needs_a_trusted_certificate_for_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (acceptor, file) = certificates(dir.path());
    let server = Server::start_with(Some(acceptor)).await;
    let port = server.address.port();
    let granted = [server.address.to_string(), format!("localhost:{port}")];
    let urls = [format!("https://localhost:{port}/ok"), format!("https://127.0.0.1:{port}/ok")];
    let trusting = OutgoingHttpSettings { ca_file: Some(file), ..allowing(&["127.0.0.0/8"]) };
    let untrusted = "not sent: TLS-certificate-error";
    for (settings, expected) in
        [(trusting, ["200 hello", untrusted]), (allowing(&["127.0.0.0/8"]), [untrusted, untrusted])]
    {
        let program = prepare(&host_with(settings), misbehaving(), limits(&granted));
        assert_eq!(results(&program, &Arc::default(), gets(&urls)).await, expected);
    }
    let program = program_for(&server, |limits| limits);
    let found = results(&program, &Arc::default(), gets(&[server.url("/ok")])).await;
    assert!(found[0].starts_with("unknown: "), "plain text to a TLS server: {found:?}");
}

#[test]
fn an_unusable_ca_file_is_an_error_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    for text in [
        None,
        Some("no certificate"),
        Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let outgoing_http =
            OutgoingHttpSettings { ca_file: Some(file.clone()), ..Default::default() };
        let settings = RuntimeSettings { outgoing_http, ..common::settings() };
        let Err(error) = WasmRuntime::new(&settings) else { panic!("{text:?}") };
        assert_eq!(error.code(), "invalid-setting");
        assert!(error.to_string().contains("outgoing-http.ca-file"), "{error}");
    }
}
