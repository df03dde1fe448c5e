//! The gateway over TLS, with HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Gateway, SOON};

pub(super) const HOST: &str = "api.example.com";

/// A gateway with a certificate for `api.example.com`, and that certificate.
pub(super) async fn with_tls() -> (Gateway, CertificateDer<'static>) {
    with_tls_and("").await
}

/// The same, with more settings of `[http]`.
pub(super) async fn with_tls_and(more: &str) -> (Gateway, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed([HOST.to_owned()]).expect("a certificate");
    let dir = tempfile::tempdir().expect("a directory");
    let (certificate, key) = (dir.path().join("https.pem"), dir.path().join("https.key"));
    std::fs::write(&certificate, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let settings =
        format!("certificate = {certificate:?}\nkey = {key:?}\nhosts = [\"{HOST}\"]\n{more}");
    // They are read at the start.
    (Gateway::start(&settings).await, made.cert.der().clone())
}

async fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    protocols: &[&str],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a root");
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(address).await.expect("a connection");
    let name = ServerName::try_from(HOST).expect("a name");
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    connected.expect("a handshake")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_of_http_2_serves_many_calls() {
    let (gateway, certificate) = with_tls().await;
    let stream = connect(gateway.address, &certificate, &["h2", "http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let token = gateway.token("web", 3_600);
    let calls = (0..200).map(|_| {
        let mut sender = sender.clone();
        let request = Request::post(format!("https://{HOST}/v1/default/counter/h2/call/add"))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(b"1")))
            .expect("a request");
        async move {
            let response = sender.send_request(request).await.expect("a response");
            assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_2));
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            String::from_utf8(body.to_vec()).expect("text").parse::<u64>().expect("a number")
        }
    });
    let mut sums = futures::future::join_all(calls).await;
    sums.sort_unstable();
    assert_eq!(sums, (1..=200).collect::<Vec<_>>(), "each call has run once");
    // In HTTP/2, the host is a part of the target.
    let mut evil = sender.clone();
    let request = Request::get("https://evil.example/v1/default/counter/h2/call/get")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::new(Bytes::new()))
        .expect("a request");
    let refused = evil.send_request(request).await.expect("a response");
    assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST);
    // The node's stop ends the connection once nothing is in progress.
    gateway.stop().await;
    let ended = tokio::time::timeout(SOON, connection).await.expect("the connection ends");
    ended.expect("a task").expect("gracefully");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_works_over_tls_and_never_without_it() {
    let (gateway, certificate) = with_tls().await;
    assert!(gateway.node.http_url().is_some_and(|url| url.starts_with("https://")));
    let stream = connect(gateway.address, &certificate, &["http/1.1"]).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    let request = Request::get("/livez").header("host", HOST).body(Empty::<Bytes>::new());
    let alive = sender.send_request(request.expect("a request")).await.expect("a response");
    let http3 = format!("h3=\":{}\"; ma=86400", gateway.address.port());
    assert_eq!(alive.headers()["alt-svc"], http3, "browsers learn of HTTP/3");
    assert_eq!((alive.status(), alive.version()), (StatusCode::OK, Version::HTTP_11));
    let mut plain = gateway.connect().await;
    let request = format!("GET /livez HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    plain.write_all(request.as_bytes()).await.expect("sent");
    let mut received = Vec::new();
    // The connection is closed, perhaps with an alert, but with nothing that HTTP would understand.
    let _ = tokio::time::timeout(SOON, plain.read_to_end(&mut received)).await.expect("an end");
    assert!(!received.starts_with(b"HTTP"), "{received:?}");
    gateway.stop().await;
}
