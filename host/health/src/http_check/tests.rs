use std::net::SocketAddr;
use std::sync::Mutex;

use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::suspect::tests::suspect;

const INCARNATION: &str = "7-000000000000c5ab";

fn settings(url: String) -> HttpCheckSettings {
    let (token_file, ca_file) = (None, None);
    HttpCheckSettings { url, token_file, ca_file, timeout: Duration::from_secs(30) }
}

/// Reads a request, and answers it.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &[u8]) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            break;
        }
    }
    // A client that has enough closes the connection.
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
    String::from_utf8_lossy(&request).into_owned()
}

/// A server with one answer to everything. It keeps the requests.
async fn serve(text: Vec<u8>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let request = answer(stream, &text).await;
            kept.lock().expect("requests").push(request);
        }
    });
    (address, requests)
}

fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .into()
}

async fn ask(text: Vec<u8>) -> CheckOutcome {
    let (address, _) = serve(text).await;
    let url = format!("http://{address}/{{node}}?incarnation={{incarnation}}");
    HttpCheck::new(settings(url)).expect("a check").check(&suspect()).await
}

fn ended(incarnation: &str) -> String {
    format!("{{\"ended\": true, \"incarnation\": \"{incarnation}\", \"more\": [1]}}")
}

#[tokio::test]
async fn s7_only_an_answer_about_this_incarnation_says_ended() {
    let found = ask(response("200 OK", &ended(INCARNATION))).await;
    assert!(matches!(found, CheckOutcome::Ended { .. }), "{found:?}");
    for other in ["6-000000000000c5ab", "7-000000000000c5ac", "7", "", "7-000000000000C5AB"] {
        let found = ask(response("200 OK", &ended(other))).await;
        let CheckOutcome::Failed { why } = &found else { panic!("{other}: {found:?}") };
        assert!(why.contains("is about the incarnation"), "{why}");
    }
}

#[tokio::test]
async fn s7_an_answer_that_it_runs_changes_nothing() {
    for body in ["{\"ended\": false}", "{\"ended\":false,\"incarnation\":\"7-000000000000c5ab\"}"] {
        let found = ask(response("200 OK", body)).await;
        assert!(matches!(found, CheckOutcome::NotKnown { .. }), "{body}: {found:?}");
    }
}

#[tokio::test]
async fn s7_any_other_answer_is_not_knowledge() {
    let good = ended(INCARNATION);
    let twice = format!("{good} {good}");
    let long = format!("{good}{}", " ".repeat(MAX_ANSWER));
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: {}\r\n\r\n{good}",
        good.len()
    );
    for (text, case) in [
        (response("201 Created", &good), "status 201"),
        (response("204 No Content", ""), "status 204"),
        (response("404 Not Found", &good), "status 404"),
        (response("500 Internal Server Error", &good), "status 500"),
        (redirect.into(), "status 302"),
        (response("200 OK", ""), "cannot be read"),
        (response("200 OK", "<html>ended</html>"), "cannot be read"),
        (response("200 OK", "true"), "cannot be read"),
        (response("200 OK", "{\"ended\": \"true\"}"), "cannot be read"),
        (response("200 OK", "{\"ended\": 1}"), "cannot be read"),
        (response("200 OK", "{}"), "cannot be read"),
        (response("200 OK", "{\"ended\": true}"), "is about the incarnation \"\""),
        (response("200 OK", "{\"ended\": false, \"ended\": true}"), "duplicate field"),
        (response("200 OK", &twice), "cannot be read"),
        (response("200 OK", &long), "length limit"),
        (format!("HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{good}").into(), "cannot read"),
        (b"garbage\r\n\r\n".to_vec(), ""),
        (Vec::new(), ""),
    ] {
        let found = ask(text).await;
        let CheckOutcome::Failed { why } = &found else { panic!("{case}: {found:?}") };
        assert!(why.contains(case) && why.len() < 1_000, "{case}: {why}");
    }
}

#[tokio::test]
async fn s7_a_server_that_is_silent_or_gone_is_not_knowledge() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", silent.local_addr().expect("an address"));
    let limit = Duration::from_millis(300);
    let check = HttpCheck::new(HttpCheckSettings { timeout: limit, ..settings(url) });
    let check = check.expect("a check");
    let CheckOutcome::Failed { why } = check.check(&suspect()).await else { panic!("it failed") };
    assert!(why.contains("no answer within 300ms"), "{why}");
    drop(silent);
    let CheckOutcome::Failed { why } = check.check(&suspect()).await else { panic!("it failed") };
    assert!(why.to_lowercase().contains("connect"), "{why}");
}

#[tokio::test]
async fn a_server_is_told_which_process_it_is_asked_about() {
    let (address, requests) = serve(response("200 OK", "{\"ended\": false}")).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "secret\n").expect("written");
    let url = format!(
        "http://{address}/a/{{node}}/{{host}}?p={{pid}}&s={{start_ticks}}&i={{incarnation}}"
    );
    let settings = HttpCheckSettings { token_file: Some(file), ..settings(url) };
    let check = HttpCheck::new(settings).expect("a check");
    check.check(&suspect()).await;
    check.check(&Suspect { host: None, ..suspect() }).await;
    let requests = requests.lock().expect("requests").clone();
    let first = requests[0].to_lowercase();
    assert!(
        first.starts_with(&format!("get /a/n1/m%201?p=42&s=99&i={INCARNATION} http")),
        "{first}"
    );
    assert!(first.contains("authorization: bearer secret\r\n"), "{first}");
    assert!(requests[1].starts_with("GET /a/n1/?p=&s=&i=7-"), "{requests:?}");
}

#[tokio::test]
async fn s7_a_server_without_a_trusted_certificate_is_not_knowledge() {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("another one");
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .expect("a certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                answer(stream, &response("200 OK", &ended(INCARNATION))).await;
            }
        }
    });
    let dir = tempfile::tempdir().expect("a directory");
    let (own_file, other_file) = (dir.path().join("own.pem"), dir.path().join("other.pem"));
    std::fs::write(&own_file, own.cert.pem()).expect("written");
    std::fs::write(&other_file, other.cert.pem()).expect("written");
    let mut found = Vec::new();
    for (host, ca_file) in [
        ("localhost", Some(own_file.clone())),
        ("localhost", Some(other_file)),
        ("localhost", None),
        ("127.0.0.1", Some(own_file)),
    ] {
        let url = format!("https://{host}:{port}/");
        let check = HttpCheck::new(HttpCheckSettings { ca_file, ..settings(url) });
        let outcome = check.expect("a check").check(&suspect()).await;
        found.push(matches!(outcome, CheckOutcome::Ended { .. }));
    }
    assert_eq!(found, [true, false, false, false]);
}

#[test]
fn a_url_must_be_safe_and_name_only_known_fields() {
    for good in [
        "https://watchdog.example.org/{node}?i={incarnation}&a={addresses}",
        "https://[fd00::1]:8443/{host}/{boot_id}/{pid}/{start_ticks}",
        "https://watchdog?node={node}",
        "http://127.0.0.1:9000/ended",
        "http://localhost/",
        "http://[::1]:9000/",
    ] {
        assert_eq!(HttpCheckSettings::check_url(good), Ok(()), "{good}");
    }
    for (bad, why) in [
        ("", "no URL"),
        ("/ended", "no server"),
        ("watchdog/ended", ""),
        ("http://watchdog/", "another machine could answer"),
        ("http://10.0.0.1/", "another machine could answer"),
        ("ftp://watchdog/", "neither https"),
        ("https://me:secret@watchdog/", "it has a user"),
        ("https://{host}/", "only the path and the query"),
        ("https://{node}.example.org:1/x", "only the path and the query"),
        ("https://a/{nodes}", "{nodes} is not a field"),
        ("https://a/{node", "no counterpart"),
        ("https://a/node}", "no counterpart"),
        ("https://a/{}", "{} is not a field"),
        ("https://a/a b", "no URL"),
    ] {
        let error = HttpCheckSettings::check_url(bad).expect_err(bad);
        assert!(error.contains(why), "{bad}: {error}");
    }
}

#[test]
fn a_file_without_certificates_is_refused_at_once() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    for path in [file.path(), Path::new("/no/such/file")] {
        let ca_file = Some(path.to_owned());
        let settings = HttpCheckSettings { ca_file, ..settings("https://a/".into()) };
        let error = HttpCheck::new(settings).err().expect("refused").to_string();
        assert!(error.contains("`health-check.ca-file`"), "{error}");
    }
}
