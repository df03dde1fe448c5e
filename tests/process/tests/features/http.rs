//! Outgoing HTTP calls of entities on real processes (R15, R20).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// The path and the idempotency key of a request.
type Request = (String, String);

/// A server on loopback. It answers `/hold` only once it is open, and other paths at once.
struct Server {
    address: SocketAddr,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    open: bool,
    requests: Vec<Request>,
    /// Held requests whose clients still wait.
    held: usize,
}

impl Server {
    async fn start(tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(State::default());
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &state).await,
                        Some(tls) => serve(tls.accept(stream).await?, &state).await,
                    }
                });
            }
        });
        Ok(Self { address, state })
    }

    fn requests(&self) -> Vec<Request> {
        self.state.borrow().requests.clone()
    }

    async fn wait(&self, what: &str, done: impl Fn(&State) -> bool) -> Result<()> {
        until(what, async || Ok(done(&self.state.borrow()).then_some(()))).await
    }

    fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    state: &watch::Sender<State>,
) -> Result<()> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(read)?;
    let path = head.split(' ').nth(1).context("a path")?.to_owned();
    let key = head.lines().find_map(|line| line.strip_prefix("idempotency-key: "));
    let request = (path.clone(), key.context("a key")?.to_owned());
    state.send_modify(|state| state.requests.push(request));
    if path.starts_with("/hold") {
        state.send_modify(|state| state.held += 1);
        let mut states = state.subscribe();
        let answers = tokio::select! {
            _ = states.wait_for(|state| state.open) => true,
            _ = stream.read_u8() => false,
        };
        state.send_modify(|state| state.held -= 1);
        ensure!(answers, "the client has gone");
    }
    if path == "/drip" {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await?;
        loop {
            stream.write_all(b"z").await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let response = match &*path {
        "/redirect" => "HTTP/1.1 302 Found\r\nlocation: /ok\r\ncontent-length: 0\r\n\r\n",
        _ => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    };
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}

/// A server certificate for `localhost`, and the file of the authority that signed it.
fn certificates(dir: &Path) -> Result<(TlsAcceptor, PathBuf)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["localhost".into()])?.signed_by(&key, &authority)?;
    let file = dir.join("outgoing-ca.pem");
    std::fs::write(&file, authority.pem())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    Ok((TlsAcceptor::from(Arc::new(config)), file))
}

/// A manifest's grant of a server by address and as `localhost`, and generous limits.
fn manifest(servers: &[&Server], limits: &str) -> String {
    let hosts = servers.iter().flat_map(|server| {
        let port = server.address.port();
        [format!("127.0.0.1:{port}"), format!("localhost:{port}")]
    });
    format!("[grants]\nhttp = {:?}\n[limits]\n{limits}\n", hosts.collect::<Vec<_>>())
}

async fn calls(client: &Client, id: &str, urls: &[String]) -> Result<Value> {
    let body = json!({ "method": "GET", "urls": urls, "bytes": 0 });
    call(client, MessageKind::Command, id, "call", body).await
}

async fn refusal(client: &Client, kind: MessageKind, method: &str, body: Value) -> Result<String> {
    let refused = call(client, kind, "r", method, body).await;
    Ok(format!("{:#}", refused.err().context("a refusal")?))
}

/// Results, refusals and limits of calls on one node.
async fn outcomes() -> Result<()> {
    let files = tempfile::tempdir()?;
    let (tls, authority) = certificates(files.path())?;
    let (plain, tls) = (Server::start(None).await?, Server::start(Some(tls)).await?);
    let mut options = Options::new("http", &["store,manager,gateway,host"]);
    options.settings =
        format!("[outgoing-http]\nallow-addresses = [\"127.0.0.0/8\"]\nca-file = {authority:?}\n");
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let limits = "http-timeout = \"2 s\"\nhttp-calls = 5";
    deploy_guest(&client, "misbehaving", &manifest(&[&plain, &tls], limits)).await?;
    let (port, tls_port) = (plain.address.port(), tls.address.port());
    let urls = [
        format!("http://127.0.0.1:{port}/ok"),
        format!("http://localhost:{port}/ok"),
        format!("https://localhost:{tls_port}/ok"),
        format!("https://127.0.0.1:{tls_port}/ok"),
        format!("http://localhost:{port}/redirect"),
    ];
    let found = calls(&client, "a", &urls).await?;
    let untrusted = "not sent: TLS-certificate-error";
    ensure!(found == json!(["200 hello", "200 hello", "200 hello", untrusted, "302 "]), "{found}");
    ensure!(plain.requests().len() == 3, "the redirect was followed: {:?}", plain.requests());
    let began = Instant::now();
    let found = calls(&client, "b", &[format!("http://127.0.0.1:{port}/drip")]).await?;
    ensure!(found == json!(["unknown: HTTP-response-timeout"]), "{found}");
    ensure!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let seen = plain.requests().len();
    let url = &urls[0];
    let query = refusal(&client, MessageKind::Query, "call_in_query", json!(url)).await?;
    ensure!(query.contains("http-in-query"), "{query}");
    let other = json!({ "method": "GET", "urls": ["http://127.0.0.1:9/"], "bytes": 0 });
    let other = refusal(&client, MessageKind::Command, "call", other).await?;
    ensure!(other.contains("http-not-granted") && other.contains("127.0.0.1:9"), "{other}");
    let many = json!({ "method": "GET", "urls": vec![url; 6], "bytes": 0 });
    let many = refusal(&client, MessageKind::Command, "call", many).await?;
    ensure!(many.contains("too-many-http-calls"), "{many}");
    let large = json!({ "method": "POST", "urls": [url], "bytes": 2 << 20 });
    let large = refusal(&client, MessageKind::Command, "call", large).await?;
    ensure!(large.contains("http-too-large"), "{large}");
    ensure!(plain.requests().len() <= seen + 5, "{:?}", plain.requests());
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_calls_end_in_responses_or_named_errors() {
    outcomes().await.expect("outcomes");
}

/// A node that allows no special addresses.
async fn private_addresses() -> Result<()> {
    let server = Server::start(None).await?;
    let options = Options::new("http-private", &["store,manager,gateway,host"]);
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", &manifest(&[&server], "")).await?;
    let port = server.address.port();
    let urls = ["127.0.0.1", "localhost"].map(|host| format!("http://{host}:{port}/ok"));
    let found = calls(&client, "a", &urls).await?;
    ensure!(found == json!(vec!["not sent: destination-IP-prohibited"; 2]), "{found}");
    ensure!(server.requests().is_empty());
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_a_private_address_is_refused_whatever_its_name() {
    private_addresses().await.expect("refusals");
}

/// A cluster whose last node owns the returned entity.
async fn with_entity(name: &str, server: &Server) -> Result<(Cluster, Client, String)> {
    let mut options = Options::new(name, &["store,manager,gateway,host", "host,gateway"]);
    options.settings = "[outgoing-http]\nallow-addresses = [\"127.0.0.1\"]\n\
        [entities]\nstop-timeout = \"60 s\"\n[hand-off]\ntimeout = \"90 s\"\n"
        .into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let limits = "http-timeout = \"100 s\"";
    deploy_guest(&client, "misbehaving", &manifest(&[server], limits)).await?;
    let id = cluster.ids_owned_by(1, "e", 1).await?.remove(0);
    Ok((cluster, client, id))
}

/// The keys of each path, in the order of the requests.
fn keys(server: &Server) -> BTreeMap<String, Vec<String>> {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, key) in server.requests() {
        keys.entry(path).or_default().push(key);
    }
    keys
}

/// The node of a turn ends while its calls wait, by a kill or a stop. The turn runs again on the other node.
async fn run_again(name: &str, kill: bool) -> Result<String> {
    let server = Server::start(None).await?;
    let (mut cluster, client, id) = with_entity(name, &server).await?;
    let client = Arc::new(client);
    let port = server.address.port();
    let paths = ["/hold?a", "/hold?a", "/hold?b"];
    let urls = paths.map(|path| format!("http://127.0.0.1:{port}{path}"));
    let waiting = {
        let (client, id, urls) = (client.clone(), id.clone(), urls.clone());
        tokio::spawn(async move { calls(&client, &id, &urls).await })
    };
    server.wait("the first calls", |state| state.held == 3).await?;
    let began = Instant::now();
    if kill {
        cluster.kill_9(1)?;
    } else {
        cluster.term(1)?;
        // The stop timeout and the calls' time limit do not delay the stop.
        let within = began.elapsed();
        ensure!(within < Duration::from_secs(20), "the node stopped only after {within:?}");
    }
    server.wait("the same calls again", |state| state.requests.len() >= 6).await?;
    let within = began.elapsed();
    server.wait("the end of the first calls", |state| state.held == 3).await?;
    server.open();
    let found = waiting.await??;
    ensure!(found == json!(vec!["200 hello"; 3]), "{found}");
    let again = calls(&client, &id, &urls[..1]).await?;
    ensure!(again == json!(["200 hello"]), "{again}");
    let keys = keys(&server);
    let (a, b) = (&keys["/hold?a"], &keys["/hold?b"]);
    ensure!(a.len() == 5 && b.len() == 2, "{keys:?}");
    let sorted = |keys: &[String]| {
        let mut keys = keys.to_vec();
        keys.sort();
        keys
    };
    ensure!(sorted(&a[..2]) == sorted(&a[2..4]) && b[0] == b[1], "other keys: {keys:?}");
    ensure!(a[0] != a[1] && !a.contains(&b[0]), "shared keys: {keys:?}");
    ensure!(!a[..4].contains(&a[4]), "another message has other keys: {keys:?}");
    drop(client);
    cluster.stop()?;
    Ok(format!("the turn ran again within {within:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_a_rerun_call_repeats_its_idempotency_key() {
    println!("{}", run_again("http-kill", true).await.expect("the same keys"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_a_node_stops_while_its_turns_wait_for_calls() {
    println!("{}", run_again("http-stop", false).await.expect("a stop"));
}
