//! The HTTP gateway of a node: calls with tokens, outcomes as problem documents, and requests that mean harm.

#[path = "../common/mod.rs"]
mod common;
mod console;
mod dead_letters;
mod http3;
mod keys;
mod metrics;
mod roles;
mod tls;
mod web;
mod webtransport;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{COUNTER, client, config, counter, guest, make};
use ostraca_ca::tokens::signing_key;
use ostraca_client::{Client, Entity};
use ostraca_config::Config;
use ostraca_node::{InitializedCluster, Node};
use ostraca_token::Claims;
use ostraca_wire::proto::{PolicyRequest, RevocationsRequest};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const GRACE: Duration = Duration::from_secs(20);
/// Within this time, whatever is waited for has happened.
const SOON: Duration = Duration::from_secs(20);

const POLICY: &str = r#"
    [[grants]]
    principals = ["client/admin"]
    roles = ["operator"]

    [[grants]]
    principals = ["token/ostraca/web"]
    roles = ["client"]

    [[grants]]
    principals = ["token/ostraca/viewer"]
    roles = ["viewer"]
"#;

struct Gateway {
    _dir: tempfile::TempDir,
    cluster: InitializedCluster,
    node: Node,
    admin: Client,
    address: SocketAddr,
}

/// An HTTP response.
#[derive(Debug)]
struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Response {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(it, _)| it == name).map_or("", |(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A problem document with this status and code.
    #[track_caller]
    fn is_problem(&self, status: u16, code: &str, outcome: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        let document = self.json();
        assert_eq!(document["status"], status);
        assert_eq!(document["code"], code, "{self:?}");
        assert_eq!(document["outcome"], outcome);
        assert_eq!(
            (self.header("ostraca-error-code"), self.header("ostraca-outcome")),
            (code, outcome)
        );
        assert_eq!(document["type"], format!("urn:ostraca:error:{code}"));
    }
}

/// Reads a response with a length, or to the end.
async fn read(stream: &mut TcpStream) -> Option<Response> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
            let mut lines = head.lines();
            let status = lines.next()?.split(' ').nth(1)?.parse().expect("a status");
            let headers: Vec<_> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let length = headers.iter().find(|(name, _)| name == "content-length");
            let length = length.map_or(0, |(_, value)| value.parse().expect("a length"));
            while bytes.len() < end + 4 + length {
                if stream.read_buf(&mut bytes).await.expect("a body") == 0 {
                    return None;
                }
            }
            let body = bytes[end + 4..end + 4 + length].to_vec();
            let body = String::from_utf8(body).expect("text");
            return Some(Response { status, headers, body });
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

impl Gateway {
    async fn start(settings: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("n1");
        let cluster = make(&home);
        let node = Node::start(with_http(&home, settings)).await.expect("a node that serves");
        let admin = client(&node, &cluster).await;
        admin.deploy(COUNTER, counter(), None).await.expect("deployed");
        let jwks = signing_key(&cluster.ca).expect("a key").jwks();
        let text =
            format!("{POLICY}\n[issuers.ostraca]\nissuer = \"ostraca\"\njwks = '''{jwks}'''\n");
        let policy = PolicyRequest { text: Some(text), ..PolicyRequest::default() };
        admin.policy(policy).await.expect("a policy");
        let address = node.http_address().expect("a gateway");
        Self { _dir: dir, cluster, node, admin, address }
    }

    fn token(&self, name: &str, seconds: u64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
        let claims = Claims {
            iss: "ostraca".into(),
            sub: name.into(),
            aud: self.cluster.cluster.to_string(),
            iat: now,
            exp: now + seconds,
            jti: format!("id-{name}"),
        };
        signing_key(&self.cluster.ca).expect("a key").issue(&claims).expect("issued")
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    /// Sends bytes on a connection of their own; `None` if it is closed without a response.
    async fn raw(&self, request: &[u8]) -> Option<Response> {
        let mut stream = self.connect().await;
        // The gateway may refuse and close before it has read everything.
        let _ = stream.write_all(request).await;
        tokio::time::timeout(SOON, read(&mut stream)).await.expect("a response or an end")
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let address = self.address;
        let length = match body.is_empty() {
            true => String::new(),
            false => format!("content-length: {}\r\n", body.len()),
        };
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\n{length}{headers}\r\n{body}");
        self.raw(request.as_bytes()).await.expect("a response")
    }

    /// A call with a valid token.
    async fn call(&self, method: &str, path: &str, body: &str) -> Response {
        let token = self.token("web", 3_600);
        let headers =
            format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
        self.send(method, path, &headers, body).await
    }

    async fn stop(self) {
        self.admin.close().await;
        self.node.stop(GRACE).await;
    }
}

/// The configuration of the node in this directory, with a gateway on any port.
fn with_http(home: &Path, settings: &str) -> Config {
    config(home);
    let file: PathBuf = home.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("a configuration");
    let http = format!("{text}\n[http]\nlisten = \"127.0.0.1:0\"\n{settings}\n");
    std::fs::write(&file, http).expect("written");
    Config::load(&file).expect("a configuration")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_http_answers_with_its_outcome() {
    let gateway = Gateway::start("").await;
    let added = gateway.call("POST", "/v1/default/counter/alice/call/add", "5").await;
    assert_eq!((added.status, added.body.as_str()), (200, "5"), "{added:?}");
    assert_eq!(added.header("content-type"), "application/json");
    assert_eq!(added.header("ostraca-outcome"), "result");
    assert!(added.header("ostraca-message-id").contains('@'), "{added:?}");
    let version: u64 = added.header("ostraca-entity-version").parse().expect("a version");
    assert!(version > 0);
    let read = gateway.call("GET", "/v1/default/counter/alice/call/get", "").await;
    assert_eq!((read.status, read.body.as_str()), (200, "5"), "{read:?}");
    let read = gateway.call("POST", "/v1/default/counter/alice/call/get", "").await;
    assert_eq!((read.status, read.body.as_str()), (200, "5"), "{read:?}");

    // An id may contain anything.
    let added = gateway.call("POST", "/v1/default/counter/a%2Fb%20%C3%A4/call/add", "7").await;
    assert_eq!(added.body, "7", "{added:?}");
    let odd = Entity::new("counter", "a/b ä");
    let reply = gateway.admin.session().query(&odd, "get", "").await.expect("a reply");
    assert_eq!(reply.body, "7");

    let get = |path: &'static str| gateway.call("GET", path, "");
    get("/v1/default/counter/alice/call/add").await.is_problem(405, "wrong-kind", "not-run");
    get("/v1/default/counter/alice/call/nothing").await.is_problem(
        404,
        "unknown-method",
        "not-run",
    );
    get("/v1/default/cuonter/alice/call/get").await.is_problem(404, "unknown-type", "not-run");
    get("/v1/other/counter/alice/call/get").await.is_problem(404, "unknown-namespace", "not-run");
    get("/v1/default/counter/alice").await.is_problem(404, "unknown-path", "not-run");
    get("/v1/default/counter/%ff/call/get").await.is_problem(400, "unknown-path", "not-run");
    get("/v1/default/counter/a/call/get?x=1").await.is_problem(
        400,
        "invalid-query-string",
        "not-run",
    );
    get("/v1/default/counter/a/call/get?args=%7B").await.is_problem(400, "not-json", "not-run");
    let refused = gateway.call("DELETE", "/v1/default/counter/alice/call/get", "").await;
    refused.is_problem(405, "wrong-method", "not-run");
    assert_eq!(refused.header("allow"), "GET, POST");
    // Whatever reads must not change anything.
    let token = gateway.token("web", 3_600);
    let mut stream = gateway.connect().await;
    let head = format!(
        "HEAD /v1/default/counter/alice/call/add HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut received = String::new();
    stream.read_to_string(&mut received).await.expect("received");
    assert!(received.starts_with("HTTP/1.1 405 "), "{received}");
    assert!(received.contains("ostraca-error-code: wrong-kind"), "{received}");
    // The entity's own refusal, which is final.
    let refused = gateway.call("POST", "/v1/default/counter/alice/call/add", "\"five\"").await;
    refused.is_problem(400, "invalid-arguments", "application-error");
    assert!(refused.header("ostraca-entity-version").parse::<u64>().is_ok(), "{refused:?}");
    let help = get("/v1/default/cuonter/alice/call/get").await.json();
    assert!(help["help"].as_str().expect("text").contains("counter"), "{help}");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_calls_without_a_token_that_permits_it() {
    let gateway = Gateway::start("").await;
    let path = "/v1/default/counter/alice/call/add";
    let json = "content-type: application/json\r\n";
    let send =
        async |headers: &str| gateway.send("POST", path, &format!("{json}{headers}"), "1").await;
    let bare = send("").await;
    bare.is_problem(401, "unauthenticated", "not-run");
    assert_eq!(bare.header("www-authenticate"), "Bearer");
    send("authorization: Basic YTpi\r\n").await.is_problem(401, "unauthenticated", "not-run");
    send("authorization: Bearer nonsense\r\n").await.is_problem(401, "invalid-token", "not-run");
    let token = gateway.token("web", 3_600);
    let twice = format!("authorization: Bearer {token}\r\n").repeat(2);
    send(&twice).await.is_problem(401, "unauthenticated", "not-run");
    let viewer = format!("authorization: Bearer {}\r\n", gateway.token("viewer", 3_600));
    send(&viewer).await.is_problem(403, "access-denied", "not-run");
    let nobody = format!("authorization: Bearer {}\r\n", gateway.token("nobody", 3_600));
    send(&nobody).await.is_problem(403, "access-denied", "not-run");

    // A token that was good ends when it expires, and when it is revoked.
    let short = format!("authorization: Bearer {}\r\n", gateway.token("web", 5));
    assert_eq!(send(&short).await.status, 200);
    let since = Instant::now();
    let ended = loop {
        let response = send(&short).await;
        if response.status != 200 {
            break response;
        }
        assert!(since.elapsed() < SOON, "it never expires");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(ended.status, 401, "{ended:?}");
    let good = format!("authorization: Bearer {token}\r\n");
    assert_eq!(send(&good).await.status, 200);
    let revoke = RevocationsRequest {
        revoke: vec!["token-id/ostraca/id-web".into()],
        ..RevocationsRequest::default()
    };
    gateway.admin.revocations(revoke).await.expect("revoked");
    send(&good).await.is_problem(401, "revoked", "not-run");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shot_callers_of_a_principal_are_one_sender() {
    let gateway = Gateway::start("").await;
    let token = gateway.token("web", 3_600);
    let request = format!(
        "POST /v1/default/counter/hot/call/add HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1",
        gateway.address
    );
    let calls = (0..400).map(|_| gateway.raw(request.as_bytes()));
    let mut sums: Vec<u64> = futures::future::join_all(calls)
        .await
        .into_iter()
        .map(|response| {
            let response = response.expect("a response");
            assert_eq!(response.status, 200, "{response:?}");
            response.body.parse().expect("a number")
        })
        .collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=400).collect::<Vec<_>>(), "each call has run once");
    let hot = Entity::new("counter", "hot");
    let detail = gateway.admin.inspect(&hot, false).await.expect("inspected");
    assert_eq!(detail.lane_count, 1, "{detail:?}");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_another_host_are_refused() {
    let gateway = Gateway::start("hosts = [\"api.example.com\"]").await;
    let token = gateway.token("web", 3_600);
    let to = async |hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("host: {host}\r\n")).collect();
        let request = format!(
            "GET /v1/default/counter/a/call/get HTTP/1.1\r\n{hosts}authorization: Bearer {token}\r\n\r\n"
        );
        gateway.raw(request.as_bytes()).await.expect("a response")
    };
    let own = gateway.address.to_string();
    for host in [own.as_str(), "localhost", "api.example.com"] {
        assert_eq!(to(&[host]).await.status, 200, "{host}");
    }
    to(&["evil.example"]).await.is_problem(421, "wrong-host", "not-run");
    to(&["localhost", "evil.example"]).await.is_problem(421, "wrong-host", "not-run");
    to(&[]).await.is_problem(421, "wrong-host", "not-run");
    // Whoever checks the health of the process knows only its address.
    let live = gateway.raw(b"GET /livez HTTP/1.1\r\nhost: evil.example\r\n\r\n").await;
    assert_eq!(live.expect("a response").status, 200);
    let ready = gateway.raw(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(ready.expect("a response").status, 200);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_are_refused_and_others_served() {
    let settings = "header-timeout = \"2 s\"\nbody-timeout = \"2 s\"\nprincipal-requests = 2\nmax-header-bytes = \"16 KiB\"\n";
    let gateway = Gateway::start(settings).await;
    let path = "/v1/default/counter/alice/call/add";
    let token = gateway.token("web", 3_600);
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
    );

    // Two lengths, or a length and chunks: a proxy and this gateway could see different requests.
    let two = format!("{head}content-length: 1\r\ncontent-length: 2\r\n\r\n11");
    let refused = gateway.raw(two.as_bytes()).await;
    assert!(refused.is_none_or(|response| response.status == 400));
    let get = head.replace("alice/call/add", "mixed/call/get");
    let mixed = format!(
        "{get}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    );
    let mut stream = gateway.connect().await;
    stream.write_all(mixed.as_bytes()).await.expect("sent");
    let mut all = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut all)).await.expect("it is closed");
    let answers = String::from_utf8_lossy(&all).matches("HTTP/1.1 ").count();
    assert!(answers <= 1, "a smuggled request was answered: {}", String::from_utf8_lossy(&all));

    let large = format!("{head}x: {}\r\n\r\n", "x".repeat(20 << 10));
    let refused = gateway.raw(large.as_bytes()).await;
    assert!(refused.is_none_or(|response| response.status == 431));
    let body = gateway.call("POST", path, &"1".repeat((1 << 20) + 1)).await;
    body.is_problem(413, "message-too-large", "not-run");
    for chunked in ["transfer-encoding: chunked\r\n\r\n2\r\n{]\r\n0\r\n\r\n"] {
        let refused = gateway.raw(format!("{head}{chunked}").as_bytes()).await;
        refused.expect("a response").is_problem(400, "not-json", "not-run");
    }
    let text = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\n1"
    );
    let refused = gateway.raw(text.as_bytes()).await.expect("a response");
    refused.is_problem(415, "not-json", "not-run");
    for timeout in ["0", "-1", "x", "999999999999"] {
        let refused =
            gateway.raw(format!("{head}ostraca-timeout: {timeout}\r\n\r\n").as_bytes()).await;
        refused.expect("a response").is_problem(400, "invalid-header", "not-run");
    }

    for (kind, status, code) in [("query", 405, "wrong-kind"), ("Command", 400, "invalid-header")] {
        let other = format!("{head}ostraca-kind: {kind}\r\ncontent-length: 1\r\n\r\n1");
        let refused = gateway.raw(other.as_bytes()).await;
        refused.expect("a response").is_problem(status, code, "not-run");
    }

    // Bodies that never come take the principal's places, for a while.
    let slow = format!("{head}content-length: 10\r\n\r\n1");
    let waiting = [gateway.raw(slow.as_bytes()), gateway.raw(slow.as_bytes())];
    let waiting = futures::future::join_all(waiting);
    let next = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gateway.call("POST", path, "1").await
    };
    let (responses, refused) = futures::join!(waiting, next);
    refused.is_problem(429, "too-many-requests", "not-run");
    for response in responses {
        response.expect("a response").is_problem(408, "body-timeout", "not-run");
    }
    // Headers that never end.
    let mut stalled = gateway.connect().await;
    stalled.write_all(b"GET /livez HTTP/1.1\r\nhost: ").await.expect("sent");
    let ended = tokio::time::timeout(SOON, read(&mut stalled)).await.expect("it is closed");
    assert!(ended.is_none_or(|response| response.status == 408));
    // Connections on which nothing ever comes, or nothing but the beginning of HTTP/2.
    for begun in ["", "PRI * HTTP/2.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut silent = gateway.connect().await;
        silent.write_all(begun.as_bytes()).await.expect("sent");
        let mut received = Vec::new();
        let reading = silent.read_to_end(&mut received);
        tokio::time::timeout(SOON, reading).await.expect("it is closed").ok();
    }
    // None of these has run, and the gateway serves.
    let added = gateway.call("POST", path, "1").await;
    assert_eq!((added.status, added.body.as_str()), (200, "1"), "{added:?}");
    gateway.stop().await;
}

/// An endless response, read event by event.
struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    /// Opens a response; its head has been received.
    async fn open(gateway: &Gateway, query: &str, headers: &str) -> Self {
        let token = gateway.token("web", 3_600);
        let mut stream = gateway.connect().await;
        let request = format!(
            "GET /v1/default/misbehaving/room/channel/news{query} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut events = Self { stream, text: String::new() };
        let head = events.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        events
    }

    async fn until(&mut self, end: &str) -> String {
        let reading = async {
            loop {
                if let Some(at) = self.text.find(end) {
                    let rest = self.text.split_off(at + end.len());
                    return std::mem::replace(&mut self.text, rest);
                }
                let mut bytes = Vec::new();
                let read = self.stream.read_buf(&mut bytes).await.expect("received");
                assert!(read > 0, "it ended: {:?}", self.text);
                self.text.push_str(&String::from_utf8(bytes).expect("text"));
            }
        };
        tokio::time::timeout(SOON, reading).await.expect("in time")
    }

    /// The next event with this field, and its id.
    async fn next(&mut self, field: &str) -> (String, String) {
        loop {
            let event = self.until("\n\n").await;
            let lines: Vec<_> = event.lines().collect();
            let value = |name: &str| {
                let line = lines.iter().find_map(|line| line.strip_prefix(name));
                line.map(str::to_owned)
            };
            if let Some(found) = value(field) {
                return (found, value("id: ").unwrap_or_default());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_is_followed_and_resumed_over_http() {
    let gateway = Gateway::start("").await;
    let manifest =
        "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n[channels]\nkeep-items = 100\n";
    gateway.admin.deploy(manifest, guest("misbehaving"), None).await.expect("deployed");
    let (session, room) = (gateway.admin.session(), Entity::new("misbehaving", "room"));
    let emit = async |text: &str| {
        let body = format!("{{\"on\":[\"news\"],\"text\":{text:?}}}");
        session.command(&room, "emit_text", body).await.expect("emitted").version
    };
    let first = emit("one").await;
    let mut events = Events::open(&gateway, "", "").await;
    // Its position, before anything is emitted.
    let (position, _) = events.next("id: ").await;
    emit("two").await;
    emit("three").await;
    let (data, cursor) = events.next("data: ").await;
    let data: Value = serde_json::from_str(&data).expect("JSON");
    assert_eq!(data["item"], "two");
    assert!(data["version"].as_u64() > Some(first) && data["utc-ms"].is_u64(), "{data}");
    let (data, _) = events.next("data: ").await;
    assert!(data.contains("\"three\""), "{data}");
    drop(events);

    // Whoever comes back gets what it has missed, once and in order.
    emit("four").await;
    for (last, expected) in [(cursor, "three"), (position, "two")] {
        let mut events = Events::open(&gateway, "", &format!("last-event-id: {last}\r\n")).await;
        let (data, _) = events.next("data: ").await;
        assert!(data.contains(&format!("{expected:?}")), "{data}");
    }
    for (query, expected) in [("?from=oldest", "one"), (&*format!("?from=version:{first}"), "two")]
    {
        let mut events = Events::open(&gateway, query, "").await;
        let (data, _) = events.next("data: ").await;
        assert!(data.contains(&format!("{expected:?}")), "{query}: {data}");
    }
    let path = "/v1/default/misbehaving/room/channel/news";
    for query in ["?from=1", "?from=version:x", "?to=1"] {
        let refused = gateway.call("GET", &format!("{path}{query}"), "").await;
        refused.is_problem(400, "invalid-query-string", "not-run");
    }
    gateway.call("POST", path, "").await.is_problem(405, "wrong-method", "not-run");
    let anonymous = gateway.send("GET", path, "", "").await;
    anonymous.is_problem(401, "unauthenticated", "not-run");

    // It ends with the right to follow it.
    let mut events = Events::open(&gateway, "", "").await;
    events.next("id: ").await;
    let revoke = RevocationsRequest {
        revoke: vec!["token/ostraca/web".into()],
        ..RevocationsRequest::default()
    };
    gateway.admin.revocations(revoke).await.expect("revoked");
    let (data, _) = events.next("data: ").await;
    assert!(data.contains("\"code\":\"revoked\""), "{data}");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_go_on_end_when_the_node_stops() {
    let gateway = Gateway::start("").await;
    let manifest = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n";
    gateway.admin.deploy(manifest, guest("misbehaving"), None).await.expect("deployed");
    let mut events = Events::open(&gateway, "", "").await;
    events.next("id: ").await;
    let ended = async {
        let mut rest = Vec::new();
        events.stream.read_to_end(&mut rest).await.expect("it ends in order");
        String::from_utf8(rest).expect("text")
    };
    let (rest, ()) = futures::join!(tokio::time::timeout(SOON, ended), gateway.stop());
    // The end of the chunks: it was not cut off.
    assert!(rest.expect("in time").ends_with("0\r\n\r\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tls_only_loopback_addresses_are_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("n1");
    make(&home);
    config(&home);
    let file = home.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("a configuration");
    for (http, expected) in [
        ("listen = \"0.0.0.0:0\"", "in clear"),
        ("listen = \"127.0.0.1:0\"\ncertificate = \"a.pem\"", "http.key"),
    ] {
        std::fs::write(&file, format!("{text}\n[http]\n{http}\n")).expect("written");
        let refused = Config::load(&file).expect_err("refused").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}
