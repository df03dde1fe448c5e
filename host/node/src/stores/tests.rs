use std::path::Path;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ca::Ca;
use ostraca_codes::codes;
use ostraca_core::ids::Incarnation;
use ostraca_core::rows::{NodeRow, Roles, Row, RowKey};
use ostraca_store::{CompareAndSet, EntityStore, MemoryStore};
use ostraca_store_peer::{ChannelError, ClusterServer, EntityServer, ServerOptions};
use ostraca_wire::Limits;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::peer::rpc_server::serve_rpc;
use ostraca_wire::peer::{PeerDescriptor, PeerInfo, PeerService, StreamKind};
use ostraca_wire::proto::Problem;
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, PeerConfig, Server, Service,
    SessionInfo,
};

use super::channel::failure;
use super::locator::StoreLocator;
use super::*;
use ostraca_catalog::rows;
use ostraca_config::config::ClusterSettings;
use ostraca_core::pools::Pools;
use ostraca_wire::peer::{Alpn, PeerDialer};

const CLUSTER: ClusterId = ClusterId(7);

/// A node that serves its stores and accepts no clients.
#[derive(Clone, Default)]
struct Serves {
    entities: Option<Arc<EntityServer>>,
    rows: Option<Arc<ClusterServer>>,
}

impl Serves {
    fn store(store: &MemoryStore) -> Self {
        let store = Arc::new(store.clone());
        let entities = Some(EntityServer::new(store.clone(), ServerOptions::default()));
        let rows = Some(ClusterServer::new(store, ServerOptions::default()));
        Self { entities, rows }
    }
}

impl Service for Serves {
    async fn handle_messages(&self, _: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        batch.clear();
    }

    async fn handle_admin(
        &self,
        _: &Arc<ClientInfo>,
        _: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        Err(Problem::default())
    }
}

impl PeerService for Serves {
    fn serve_stream(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> BoxFuture<'static, ()> {
        let Self { entities, rows } = self.clone();
        async move {
            // The other side learns how the stream ended.
            let _ = match (kind, entities, rows) {
                (StreamKind::EntityStore, Some(server), _) => {
                    let mut link = server.link(&peer.member);
                    serve_rpc(reader, writer, &peer, move |_, call| link.call(&call)).await
                }
                (StreamKind::ClusterStore, _, Some(server)) => {
                    let mut link = server.link(&peer.member);
                    serve_rpc(reader, writer, &peer, move |_, call| link.call(&call)).await
                }
                _ => Ok(()),
            };
        }
        .boxed()
    }

    fn runtime(&self, _: Alpn) -> Handle {
        Handle::current()
    }
}

struct Running {
    server: Arc<Server<Serves>>,
    dialer: PeerDialer,
    address: String,
}

fn run(ca: &Ca, name: &str, roles: Roles, serves: Serves) -> Running {
    let identity = ca.issue_node(name, &["localhost".to_owned()]).expect("an identity");
    let node = NodeDescriptor {
        cluster: ca.cluster(),
        store_id: 0,
        node: name.into(),
        incarnation: Incarnation::default(),
    };
    let descriptor = PeerDescriptor { roles, ..PeerDescriptor::from(node) };
    let peers = PeerConfig { descriptor, service: Arc::new(serves.clone()) };
    let trust = ostraca_wire::identity::TrustRoot::from_pem(ca.certificate_pem()).expect("trust");
    let listen = ([127, 0, 0, 1], 0).into();
    let (server, dialer) = Server::bind_with_peers(
        listen,
        "listen",
        &identity,
        &trust,
        Limits::default(),
        peers,
        Arc::new(serves),
    )
    .expect("bound");
    let (server, address) = {
        let address = server.local_addr().expect("an address").to_string();
        (Arc::new(server), address)
    };
    let running = server.clone();
    tokio::spawn(async move { running.run().await });
    Running { server, dialer, address }
}

fn config(dir: &Path, join: &[&str], cluster: &str) -> Config {
    let text =
        format!("node = \"n2\"\nroles = [\"host\"]\njoin = {join:?}\n[cluster]\n{cluster}\n");
    let name = dir.join("ostraca.toml");
    Config::parse(&text, &name.display().to_string()).expect("a configuration")
}

async fn founded(shards: u32) -> MemoryStore {
    let store = MemoryStore::new(9, CLUSTER, "test");
    ostraca_catalog::bootstrap::initialize_cluster(&store, 9, shards, &ClusterSettings::default())
        .await
        .expect("initialized");
    store
}

async fn register(store: &MemoryStore, name: &str, address: &str) {
    let row = NodeRow {
        roles: Roles { store: true, ..Roles::default() },
        addresses: vec![address.into()],
        ..NodeRow::for_tests(Incarnation::default())
    };
    let value = rows::encode_row(&Row::Node(row)).expect("encodes");
    let key = rows::key_text(&RowKey::Node(name.into()));
    store
        .compare_and_set(CompareAndSet { key, expected: None, value: Some(value) })
        .await
        .expect("written");
}

async fn join(config: &Config, from: &Running) -> Result<ReachedStores, NodeError> {
    connect(config, CLUSTER, None, &from.dialer, &Handle::current(), Duration::ZERO).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_found_through_any_node_and_remembered() {
    let dir = tempfile::tempdir().expect("a directory");
    let ca = Ca::create(CLUSTER).expect("an authority");
    let store = founded(64).await;
    let first = run(&ca, "n1", Roles { store: true, ..Roles::default() }, Serves::store(&store));
    register(&store, "n1", &first.address).await;
    // This node relays the store's rows, as every joined node does.
    let rows = Serves { entities: None, ..Serves::store(&store) };
    let other = run(&ca, "n3", Roles::default(), rows);
    let own = run(&ca, "n2", Roles { host: true, ..Roles::default() }, Serves::default());

    let config = config(dir.path(), &[&other.address], "shards = 64");
    let remote = join(&config, &own).await.expect("joined");
    let ClusterInfo { identity, pools, cluster_time, .. } = &remote.cluster_info;
    assert_eq!((identity.store_id, &*pools.get(), *cluster_time), (9, &Pools::one(64), 0));
    let digest = remote.entity_store.put_blob(Bytes::from_static(b"component")).await.expect("put");
    let found = store.get_blob(digest).await.expect("read");
    assert_eq!(found.as_deref(), Some(&b"component"[..]));
    let row = remote.cluster_store.get("cluster").await.expect("read");
    assert_eq!(row, store.get("cluster").await.expect("read"));
    drop(remote);

    // Another store replaces the first one (R5).
    first.server.shut_down(Duration::ZERO).await;
    let strange = MemoryStore::new(10, CLUSTER, "test");
    ostraca_catalog::bootstrap::initialize_cluster(&strange, 10, 64, &ClusterSettings::default())
        .await
        .expect("initialized");
    let stranger =
        run(&ca, "n1", Roles { store: true, ..Roles::default() }, Serves::store(&strange));
    let config = self::config(dir.path(), &[&stranger.address], "");
    let error = join(&config, &own).await.err().expect("another store");
    assert_eq!((error.code(), error.is_retryable()), (codes::STORE_REFUSED, false));
    assert!(error.to_string().contains("another store"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mismatch_is_refused_at_the_join_with_both_values() {
    let dir = tempfile::tempdir().expect("a directory");
    let ca = Ca::create(CLUSTER).expect("an authority");
    let store = founded(64).await;
    let roles = Roles { store: true, ..Roles::default() };
    let first = run(&ca, "n1", roles, Serves::store(&store));
    let own = run(&ca, "n2", Roles { host: true, ..Roles::default() }, Serves::default());

    let shards = config(dir.path(), &[&first.address], "shards = 128");
    let error = join(&shards, &own).await.err().expect("refused");
    assert_eq!(error.code(), "shard-count-mismatch");
    let text = error.to_string();
    assert!(text.contains("shards = 64") && text.contains("with 128"), "{text}");

    let strange = Ca::create(ClusterId(8)).expect("an authority");
    let foreigner = run(&strange, "n2", Roles::default(), Serves::default());
    let plain = config(dir.path(), &[&first.address], "");
    let error = join(&plain, &foreigner).await.err().expect("refused");
    assert_eq!((error.code(), error.is_retryable()), (codes::UNKNOWN_CA, false));
    assert!(error.to_string().contains(&first.address), "{error}");
}

/// Replaces a row's value.
async fn put(store: &MemoryStore, key: &str, value: &'static [u8]) {
    let expected = store.get(key).await.expect("read").map(|row| row.revision);
    let cas = CompareAndSet { key: key.into(), expected, value: Some(Bytes::from_static(value)) };
    store.compare_and_set(cas).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_an_unreadable_row_is_refused_by_name() {
    let ca = Ca::create(CLUSTER).expect("an authority");
    let own = run(&ca, "n2", Roles { host: true, ..Roles::default() }, Serves::default());
    let join_that = async |key: &str, value: &'static [u8]| {
        let (store, dir) = (founded(64).await, tempfile::tempdir().expect("a directory"));
        put(&store, key, value).await;
        let roles = Roles { store: true, ..Roles::default() };
        let first = run(&ca, "n1", roles, Serves::store(&store));
        join(&config(dir.path(), &[&first.address], ""), &own).await
    };
    let newer: &[u8] = &[99, 0];
    for (key, value, expected_text) in [
        ("cluster", &[3, 4, 4, 0][..], "writes format 4, but this program reads 3 to 3"),
        ("cluster", &[3, 3, 4, 0], "writes format 4, but this program reads 3 to 3"),
        ("cluster", newer, "`cluster` cannot be read: it has format 99"),
        ("pools/default", newer, "`pools/default` cannot be read: it has format 99"),
        ("nodes/n2", newer, "`nodes/n2` cannot be read: it has format 99"),
        ("manager", newer, "`manager` cannot be read: it has format 99"),
        ("shards/default/00000", newer, "`shards/default/00000` cannot be read: it has format 99"),
    ] {
        let refused = join_that(key, value).await.err();
        let error = refused.unwrap_or_else(|| panic!("the unreadable row {key} was accepted"));
        assert_eq!((error.code(), error.is_retryable()), (codes::INVALID_ROW, false), "{error}");
        let text = error.to_string();
        assert!(text.contains(expected_text) && text.contains("use a newer release"), "{text}");
    }
    // Another node's row does not prevent a start, although its name starts with this node's name.
    join_that("nodes/n22", newer).await.expect("joined");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_know_the_store_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let ca = Ca::create(CLUSTER).expect("an authority");
    let other = run(&ca, "n3", Roles::default(), Serves::default());
    let own = run(&ca, "n2", Roles { host: true, ..Roles::default() }, Serves::default());
    let config = config(dir.path(), &[&other.address], "");
    let error = join(&config, &own).await.err().expect("the store is unknown");
    assert_eq!((error.code(), error.is_retryable()), (codes::NO_STORE_NODE, true));
    assert!(error.to_string().contains("is node n3"), "{error}");

    let nobody = ["127.0.0.1:9".to_owned()];
    let locator =
        StoreLocator::new(own.dialer.clone(), CLUSTER, &nobody, Duration::from_millis(100));
    let error = locator.connect(Alpn::Bulk).await.expect_err("no node responds");
    assert_eq!((error.code(), error.is_retryable()), (codes::STORE_UNREACHABLE, true));
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
}

#[test]
fn requests_not_sent_are_distinguished_from_those_in_doubt() {
    use ostraca_wire::Error;
    let too_large = |what| Error::TooLarge { what, bytes: 2, limit: 1, setting: "peers.max-frame" };
    assert!(matches!(failure(Error::NotSent("x".into())), ChannelError::NotSent(_)));
    let overloaded =
        Error::Overloaded { what: "calls", limit: 1, setting: "peers.in-flight-requests" };
    assert!(matches!(failure(overloaded), ChannelError::NotSent(_)));
    assert!(matches!(failure(too_large("a call")), ChannelError::NotSent(_)));
    assert!(matches!(failure(too_large("an answer")), ChannelError::ResponseTooLarge(_)));
    for in_doubt in
        [Error::ConnectionLost("x".into()), Error::Reset(ostraca_wire::close_code::CloseCode::Done)]
    {
        assert!(matches!(failure(in_doubt), ChannelError::Disconnected(_)));
    }
}
