//! Sessions of WebTransport, and requests on their streams.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h3::client::SendRequest;
use h3::ext::Protocol;
use http::{Method, Request};
use ostraca_wire::proto::PolicyRequest;
use quinn::{Connection, VarInt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::SOON;
use super::http3::dial;
use super::tls::{HOST, with_tls, with_tls_and};

const PATH: &str = "/v1/webtransport";
/// `H3_NO_ERROR`: the gateway closed the connection.
const CLOSED: u64 = 0x100;
const ADD: &str = "/v1/default/counter/page/call/add";

/// A client, and its connection.
struct Page {
    quic: Connection,
    sender: SendRequest<h3_quinn::OpenStreams, Bytes>,
    /// Sessions that stay open.
    held: Vec<h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>>,
}

impl Page {
    async fn connect(
        gateway: &super::Gateway,
        certificate: &tokio_rustls::rustls::pki_types::CertificateDer<'static>,
    ) -> Self {
        let quic = dial(gateway.address, certificate).await;
        let mut builder = h3::client::builder();
        builder.enable_extended_connect(true).enable_datagram(true);
        let built = builder.build(h3_quinn::Connection::new(quic.clone())).await;
        let (mut driver, sender) = built.expect("HTTP/3");
        tokio::spawn(async move { poll_fn(|context| driver.poll_close(context)).await });
        Self { quic, sender, held: Vec::new() }
    }

    /// Asks for a session. Returns the status, and the code of an error.
    async fn open(&mut self, request: Request<()>) -> (u16, String) {
        let asking = async {
            let mut stream = self.sender.send_request(request).await.expect("sent");
            let response = stream.recv_response().await.expect("a response");
            let code = response.headers().get("ostraca-error-code");
            let code = code.map(|code| code.to_str().expect("text").to_owned());
            self.held.push(stream);
            (response.status().as_u16(), code.unwrap_or_default())
        };
        timeout(SOON, asking).await.expect("an answer")
    }

    /// Sends bytes on a stream of a session. Returns the head and the body of the response, or the code of a reset.
    async fn stream(&self, session: u8, bytes: &[u8]) -> Result<(Value, String), u64> {
        let exchange = async {
            let (mut writer, mut reader) = self.quic.open_bi().await.expect("a stream");
            // The frame type `WEBTRANSPORT_STREAM`, and the session's id.
            writer.write_all(&[0x40, 0x41, session]).await.expect("sent");
            // It may be refused before it is read.
            let _ = writer.write_all(bytes).await;
            let _ = writer.finish();
            let text = match reader.read_to_end(1 << 20).await {
                Ok(text) => String::from_utf8(text).expect("text"),
                Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => {
                    return Err(code.into_inner());
                }
                Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(_))) => {
                    return Err(CLOSED);
                }
                Err(error) => panic!("{error:?}"),
            };
            let (head, body) = text.split_once('\n').unwrap_or_else(|| panic!("{text:?}"));
            Ok((serde_json::from_str(head).expect("JSON"), body.to_owned()))
        };
        timeout(SOON, exchange).await.expect("an answer")
    }

    /// A call on a stream of the first session. Returns the status, and the body.
    async fn call(&self, path: &str, token: &str, body: &str) -> (u64, String) {
        let headers =
            json!({"authorization": format!("Bearer {token}"), "content-type": "application/json"});
        let head = json!({"method": "POST", "path": path, "headers": headers});
        let (head, body) = self.stream(0, format!("{head}\n{body}").as_bytes()).await.expect("one");
        (head["status"].as_u64().expect("a status"), body)
    }

    async fn is_refused(&self, head: &str, why: &str) {
        let (head, body) = self.stream(0, head.as_bytes()).await.expect("a response");
        assert_eq!(head["status"], 400, "{body}");
        assert_eq!(head["headers"]["ostraca-error-code"], "invalid-header");
        assert!(body.contains(why), "{body}");
    }
}

fn session(host: &str) -> Request<()> {
    asking_for(host, Some(Protocol::WEB_TRANSPORT))
}

fn asking_for(host: &str, protocol: Option<Protocol>) -> Request<()> {
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri(format!("https://{host}{PATH}"))
        .body(())
        .expect("a request");
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(protocol);
    }
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_session_are_requests() {
    let (gateway, certificate) = with_tls().await;
    let token = gateway.token("web", 3_600);
    let mut page = Page::connect(&gateway, &certificate).await;
    assert_eq!(page.open(session(HOST)).await, (200, String::new()));
    let calls = (0..200).map(|_| page.call(ADD, &token, "1"));
    let answers = futures::future::join_all(calls).await;
    let mut sums: Vec<u64> = answers
        .into_iter()
        .map(|(status, body)| {
            assert_eq!(status, 200, "{body}");
            body.parse().expect("a number")
        })
        .collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=200).collect::<Vec<_>>(), "each call has run once");

    let (status, body) = page.call(ADD, &format!("{token}x"), "1").await;
    assert_eq!(status, 401, "{body}");
    let (status, body) = page.call(ADD, &token, &"1".repeat((1 << 20) + 1)).await;
    assert_eq!(status, 413, "{body}");
    let (status, body) = page.call("/v1/default/counter/page", &token, "1").await;
    assert_eq!(status, 404, "{body}");
    let headers = json!({
        "authorization": format!("Bearer {token}"),
        "content-type": "application/json",
        "content-length": "2",
    });
    let head = json!({"method": "POST", "path": ADD, "headers": headers});
    for body in ["1", "100"] {
        let (head, problem) =
            page.stream(0, format!("{head}\n{body}").as_bytes()).await.expect("one");
        assert_eq!(head["headers"]["ostraca-error-code"], "truncated-body", "{body}: {problem}");
    }
    let (status, body) = page.call(ADD, &token, "1").await;
    assert_eq!((status, body.as_str()), (200, "201"), "nothing of that has harmed the session");

    // The page closes its session when the gateway stops, and is not waited for.
    let quic = page.quic.clone();
    gateway.stop().await;
    timeout(SOON, quic.closed()).await.expect("the connection ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_a_valid_head_is_refused() {
    let (gateway, certificate) = with_tls_and("header-timeout = \"1 s\"").await;
    let token = gateway.token("web", 3_600);
    let mut page = Page::connect(&gateway, &certificate).await;
    assert_eq!(page.open(session(HOST)).await.0, 200);
    page.is_refused("", "ended within its first line").await;
    page.is_refused("{\"method\":\"GET\",\"path\":\"/v1\"}", "ended within its first line").await;
    page.is_refused(&"x".repeat(20 << 10), "`http.max-header-bytes`").await;
    page.is_refused("GET /v1\n", "not a request's head").await;
    page.is_refused("{\"method\":\"GET\"}\n", "missing field `path`").await;
    page.is_refused("{\"method\":\"GET\",\"path\":\"/\",\"body\":1}\n", "unknown field `body`")
        .await;
    page.is_refused("{\"method\":\"G T\",\"path\":\"/\"}\n", "not a method").await;
    for path in ["v1", "", "https://evil.example/v1", "/v 1"] {
        page.is_refused(&format!("{}\n", json!({"method": "GET", "path": path})), "not a path")
            .await;
    }
    for (name, value, why) in [
        ("host", "evil.example", "cannot set the header"),
        ("Origin", "https://evil.example", "cannot set the header"),
        ("a b", "c", "not a header's name"),
        ("a", "b\nc: d", "an invalid value"),
    ] {
        let head = json!({"method": "GET", "path": "/v1", "headers": {name: value}});
        page.is_refused(&format!("{head}\n"), why).await;
    }
    // A line that is too long is refused before it ends.
    let (mut writer, mut reader) = page.quic.open_bi().await.expect("a stream");
    writer.write_all(&[0x40, 0x41, 0]).await.expect("sent");
    let _ = writer.write_all(&[b'x'; 20 << 10]).await;
    let refused = timeout(SOON, reader.read_to_end(10_000)).await.expect("it ends").expect("read");
    assert!(String::from_utf8_lossy(&refused).contains("`http.max-header-bytes`"), "{refused:?}");
    // A session that is not open, which may yet come.
    let reset = page.stream(40, b"{}\n").await.expect_err("no session");
    assert_eq!(reset, 0x3994_bd84, "WEBTRANSPORT_BUFFERED_STREAM_REJECTED");
    // A stream that says nothing ends.
    let (mut writer, mut reader) = page.quic.open_bi().await.expect("a stream");
    writer.write_all(&[0x40, 0x41, 0, b'{']).await.expect("sent");
    let silent = timeout(SOON, reader.read_to_end(1_000)).await.expect("it ends");
    assert!(silent.is_ok_and(|text| text.is_empty()));
    let (status, body) = page.call(ADD, &token, "1").await;
    assert_eq!((status, body.as_str()), (200, "1"), "nothing of that has harmed the session");
    // A session without requests is closed, as any connection.
    let ended = timeout(SOON, page.quic.closed()).await;
    ended.expect("the gateway ends an idle session");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_needs_a_known_host_and_page() {
    let (gateway, certificate) = with_tls().await;
    let mut page = Page::connect(&gateway, &certificate).await;
    let refused = |status, code: &str| (status, code.to_owned());
    assert_eq!(page.open(session("evil.example")).await, refused(421, "wrong-host"));
    let mut evil = session(HOST);
    evil.headers_mut().insert("origin", "https://evil.example".parse().expect("a value"));
    assert_eq!(page.open(evil).await, refused(403, "wrong-origin"));
    let other = asking_for(HOST, "connect-udp".parse().ok());
    assert_eq!(page.open(other).await, refused(405, "wrong-method"));
    let get = Request::get(format!("https://{HOST}{PATH}")).body(()).expect("a request");
    assert_eq!(page.open(get).await, refused(405, "wrong-method"));
    // None of these is a session.
    for (id, _) in [0_u8, 4, 8, 12].into_iter().zip(&page.held) {
        let (mut writer, mut reader) = page.quic.open_bi().await.expect("a stream");
        writer.write_all(&[0x40, 0x41, id, b'\n']).await.expect("sent");
        let waits = timeout(Duration::from_millis(200), reader.read_to_end(1_000)).await;
        assert!(waits.is_err(), "a stream of {id} is answered: {waits:?}");
    }
    page.held.clear();

    let mut own = session(HOST);
    own.headers_mut().insert("origin", format!("https://{HOST}").parse().expect("a value"));
    assert_eq!(page.open(own).await.0, 200);
    for _ in 1..16 {
        assert_eq!(page.open(session(HOST)).await.0, 200);
    }
    assert_eq!(page.open(session(HOST)).await, refused(429, "too-many-requests"));
    // A session that is closed makes room.
    page.held.pop();
    let mut closed = page.held.pop().expect("a session");
    closed.finish().await.expect("closed");
    let until = tokio::time::Instant::now() + SOON;
    while page.open(session(HOST)).await.0 != 200 {
        assert!(tokio::time::Instant::now() < until, "a closed session still counts");
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_one_of_its_sessions_page() {
    let (gateway, certificate) = with_tls().await;
    let token = gateway.token("web", 3_600);
    let shop = "https://shop.example";
    gateway.extend_policy(&format!("web-origins = [{shop:?}]"), "").await;
    let mut page = Page::connect(&gateway, &certificate).await;
    let mut asked = session(HOST);
    asked.headers_mut().insert("origin", shop.parse().expect("a value"));
    assert_eq!(page.open(asked).await.0, 200);
    let (status, body) = page.call(ADD, &token, "1").await;
    assert_eq!((status, body.as_str()), (200, "1"));
    let shown = gateway.admin.policy(PolicyRequest::default()).await.expect("a policy").text;
    let text = Some(shown.replace(shop, "https://other.example"));
    gateway
        .admin
        .policy(PolicyRequest { text, ..PolicyRequest::default() })
        .await
        .expect("a policy");
    let (status, body) = page.call(ADD, &token, "1").await;
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("wrong-origin"), "{body}");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_on_later_streams_are_told_apart() {
    let (gateway, certificate) = with_tls_and("header-timeout = \"2 s\"").await;
    let token = gateway.token("web", 3_600);
    let mut page = Page::connect(&gateway, &certificate).await;
    let get = Request::get(format!("https://{HOST}{PATH}")).body(()).expect("a request");
    assert_eq!(page.open(get).await.0, 405);
    // The second stream that a client opens has the id 4, and so on; every other one is a request.
    for id in [4, 12, 20, 28] {
        assert_eq!(page.open(session(HOST)).await.0, 200, "{id}");
        let headers = json!({"authorization": format!("Bearer {token}")});
        let get = "/v1/default/counter/page/call/get";
        let head = json!({"method": "GET", "path": get, "headers": headers});
        let (head, body) = page.stream(id, format!("{head}\n").as_bytes()).await.expect("one");
        assert_eq!((&head["status"], body.as_str()), (&json!(200), "0"), "{id}");
    }
    assert_eq!(page.stream(0, b"{}\n").await.expect_err("no session"), 0x3994_bd84);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_are_too_long_are_not_collected() {
    let (gateway, certificate) = with_tls().await;
    // An unknown frame of 2^40 bytes, on the control stream and in a request.
    let frame = [0x21, 0xc0, 0, 1, 0, 0, 0, 0, 0];
    let hostile = dial(gateway.address, &certificate).await;
    let mut control = hostile.open_uni().await.expect("a stream");
    control.write_all(&[0, 4, 0]).await.expect("settings");
    control.write_all(&frame).await.expect("sent");
    timeout(SOON, hostile.closed()).await.expect("the gateway ends the connection");

    let hostile = dial(gateway.address, &certificate).await;
    let (mut request, mut response) = hostile.open_bi().await.expect("a stream");
    request.write_all(&frame).await.expect("sent");
    let stopped = timeout(SOON, request.stopped()).await.expect("the gateway stops it");
    assert!(stopped.is_err() || stopped.is_ok_and(|code| code.is_some()), "{response:?}");
    let _ = response.stop(VarInt::from_u32(0));

    let mut neighbour = Page::connect(&gateway, &certificate).await;
    assert_eq!(neighbour.open(session(HOST)).await.0, 200);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_takes_a_bounded_number_of_streams() {
    let (gateway, certificate) = with_tls().await;
    let mut page = Page::connect(&gateway, &certificate).await;
    assert_eq!(page.open(session(HOST)).await.0, 200);
    let mut served = 0;
    let ended = loop {
        let some = (0..100).map(|_| page.stream(0, b"\n"));
        let answers = futures::future::join_all(some).await;
        served += answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(served < 20_000, "no end");
        if let Some(Err(code)) = answers.into_iter().find(Result::is_err) {
            break code;
        }
    };
    assert!((10_000..=10_250).contains(&served), "{served}");
    // H3_REQUEST_REJECTED: nothing has run. On a very slow machine, the connection is closed by then.
    assert!(ended == 0x10b || ended == CLOSED, "{ended:#x}");
    let closed = timeout(SOON, page.quic.closed()).await.expect("the gateway closes");
    let code = VarInt::try_from(CLOSED).expect("a code");
    assert!(
        matches!(&closed, quinn::ConnectionError::ApplicationClosed(it) if it.error_code == code),
        "{closed:?}"
    );
    gateway.stop().await;
}
