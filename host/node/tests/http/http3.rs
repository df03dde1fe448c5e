//! The gateway over HTTP/3.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use h3::client::SendRequest;
use h3::error::{Code, StreamError};
use http::{HeaderValue, Request, StatusCode, header};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::rustls;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::SOON;
use super::tls::{HOST, with_tls};

/// A QUIC connection to the gateway.
pub(super) async fn dial(address: SocketAddr, trusted: &CertificateDer<'static>) -> Connection {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a root");
    let mut tls =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = QuicClientConfig::try_from(tls).expect("TLS 1.3");
    let mut endpoint = Endpoint::client("127.0.0.1:0".parse().expect("an address")).expect("UDP");
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(tls)));
    endpoint.connect(address, HOST).expect("a name").await.expect("a handshake")
}

type Sender = SendRequest<h3_quinn::OpenStreams, Bytes>;

/// A client, and the task of its connection.
async fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
) -> (Sender, JoinHandle<()>) {
    let connection = h3_quinn::Connection::new(dial(address, trusted).await);
    let (mut driver, sender) = h3::client::new(connection).await.expect("HTTP/3");
    let driven = tokio::spawn(async move {
        // How it ends is up to the gateway.
        let _ = poll_fn(|context| driver.poll_close(context)).await;
    });
    (sender, driven)
}

/// Sends a request, and returns the status and the body of the response.
async fn send(mut sender: Sender, request: Request<()>, body: Bytes) -> (StatusCode, String) {
    let exchange = async {
        let mut stream = sender.send_request(request).await.expect("sent");
        // A refused body is not received to its end.
        if stream.send_data(body).await.is_ok() {
            let _ = stream.finish().await;
        }
        let response = stream.recv_response().await.expect("a response");
        let mut text = Vec::new();
        while let Some(mut data) = stream.recv_data().await.expect("a body") {
            text.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        (response.status(), String::from_utf8(text).expect("text"))
    };
    timeout(SOON, exchange).await.expect("an answer")
}

fn post(host: &str, path: &str, token: &str) -> Request<()> {
    let request = Request::post(format!("https://{host}{path}"))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "application/json");
    request.body(()).expect("a request")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_3_serves_the_same_requests() {
    let (gateway, certificate) = with_tls().await;
    let token = gateway.token("web", 3_600);
    let (sender, driven) = connect(gateway.address, &certificate).await;
    let add = "/v1/default/counter/h3/call/add";
    let calls =
        (0..200).map(|_| send(sender.clone(), post(HOST, add, &token), Bytes::from_static(b"1")));
    let mut sums: Vec<u64> = futures::future::join_all(calls)
        .await
        .into_iter()
        .map(|(status, body)| {
            assert_eq!(status, StatusCode::OK, "{body}");
            body.parse().expect("a number")
        })
        .collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=200).collect::<Vec<_>>(), "each call has run once");

    let one = Bytes::from_static(b"1");
    let refused = async |request, body| {
        let (status, body) = send(sender.clone(), request, body).await;
        let problem: serde_json::Value = serde_json::from_str(&body).expect("a problem document");
        (status.as_u16(), problem["code"].as_str().expect("a code").to_owned())
    };
    let evil = refused(post("evil.example", add, &token), one.clone()).await;
    assert_eq!(evil, (421, "wrong-host".into()));
    let bad = refused(post(HOST, add, &format!("{token}x")), one.clone()).await;
    assert_eq!(bad, (401, "invalid-token".into()));
    let large = refused(post(HOST, add, &token), vec![b'1'; (1 << 20) + 1].into()).await;
    assert_eq!(large, (413, "message-too-large".into()));
    let no_json = refused(post(HOST, add, &token), Bytes::from_static(b"{]")).await;
    assert_eq!(no_json, (400, "not-json".into()));
    // `h3` compares no body with its declared length.
    for (length, code) in [
        ("2", "truncated-body"),
        ("0", "truncated-body"),
        ("1, 1", "invalid-header"),
        ("+1", "invalid-header"),
        ("", "invalid-header"),
    ] {
        let mut request = post(HOST, add, &token);
        request.headers_mut().insert(header::CONTENT_LENGTH, length.parse().expect("a value"));
        assert_eq!(refused(request, one.clone()).await, (400, code.into()), "{length:?}");
    }
    let mut longer = post(HOST, add, &token);
    longer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("1"));
    let longer = refused(longer, Bytes::from_static(b"12")).await;
    assert_eq!(longer, (400, "truncated-body".into()));
    // Nothing of that has harmed the connection.
    let (status, sum) = send(sender.clone(), post(HOST, add, &token), one).await;
    assert_eq!((status, sum.as_str()), (StatusCode::OK, "201"));

    drop(sender);
    gateway.stop().await;
    timeout(SOON, driven).await.expect("the connection ends").expect("a task");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_refused_before_its_end_is_no_error() {
    let (gateway, certificate) = with_tls().await;
    let token = gateway.token("web", 3_600);
    let (mut sender, _driven) = connect(gateway.address, &certificate).await;
    for path in ["/v1/default/counter/h3/call/add", "/none"] {
        let mut stream = sender.send_request(post(HOST, path, &token)).await.expect("sent");
        let sending = async {
            loop {
                let sent = stream.send_data(Bytes::from_static(&[b'1'; 10_000])).await;
                if let Err(error) = sent {
                    return error;
                }
            }
        };
        // A browser that is told anything else drops the response.
        let stopped = timeout(SOON, sending).await.expect("it is not read to its end");
        let StreamError::RemoteTerminate { code, .. } = stopped else { panic!("{stopped:?}") };
        assert_eq!(code, Code::H3_NO_ERROR);
        let response = timeout(SOON, stream.recv_response()).await.expect("in time");
        let expected = if path == "/none" { 404 } else { 413 };
        assert_eq!(response.expect("a response").status().as_u16(), expected);
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_over_quic_harms_no_neighbour() {
    let (gateway, certificate) = with_tls().await;
    let token = gateway.token("web", 3_600);
    let (sender, _driven) = connect(gateway.address, &certificate).await;
    for garbage in [&b"\0"[..], b"\x01\xff\xff\xff\xff", b"\x00\x40\x00\x00", &[0xff; 70_000]] {
        let hostile = dial(gateway.address, &certificate).await;
        // The gateway may end the connection at any time.
        if let Ok((mut writer, _reader)) = hostile.open_bi().await {
            let _ = writer.write_all(garbage).await;
            let _ = writer.finish();
        }
        if let Ok(mut writer) = hostile.open_uni().await {
            let _ = writer.write_all(garbage).await;
        }
        let add = "/v1/default/counter/neighbour/call/add";
        let (status, body) =
            send(sender.clone(), post(HOST, add, &token), Bytes::from_static(b"1")).await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
    // A stream on which no request comes does not keep a connection open.
    let silent = dial(gateway.address, &certificate).await;
    let (mut writer, _reader) = silent.open_bi().await.expect("a stream");
    writer.write_all(&[1]).await.expect("sent");
    drop(sender);
    gateway.stop().await;
    timeout(SOON, silent.closed()).await.expect("it is closed");
}
