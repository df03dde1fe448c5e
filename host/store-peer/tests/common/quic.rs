//! Real nodes on loopback: one has the store, and `a` and `b` reach it over QUIC.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ca::Ca;
use ostraca_core::ids::Incarnation;
use ostraca_core::rows::Roles;
use ostraca_store::conformance::CLUSTER;
use ostraca_store::{ClusterStore, EntityStore};
use ostraca_store_peer::wire::{serve_cluster, serve_entity};
use ostraca_store_peer::{
    Channel, ClusterServer, Connect, EntityServer, QuicChannel, ServerOptions,
};
use ostraca_wire::Limits;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::peer::{
    Alpn, PeerDescriptor, PeerDialer, PeerInfo, PeerLink, PeerService, StreamKind,
};
use ostraca_wire::proto::Problem;
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, PeerConfig, Server, Service,
    SessionInfo,
};
use tokio::runtime::Handle;

use super::net::LinkFaults;
use super::remote::{Remote, quick, runtime};

/// Clients are not served here.
struct NoClients;

impl Service for NoClients {
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

/// Serves the stores, if the node has them.
struct Streams {
    stores: Option<(Arc<EntityServer>, Arc<ClusterServer>)>,
    runtime: Handle,
}

impl PeerService for Streams {
    fn serve_stream(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> BoxFuture<'static, ()> {
        let stores = self.stores.clone();
        async move {
            // The other side learns how the stream ended.
            let _ = match (stores, kind) {
                (Some((entity, _)), StreamKind::EntityStore) => {
                    serve_entity(&entity, reader, writer, &peer).await
                }
                (Some((_, cluster)), StreamKind::ClusterStore) => {
                    serve_cluster(&cluster, reader, writer, &peer).await
                }
                _ => Ok(()),
            };
        }
        .boxed()
    }

    fn runtime(&self, _: Alpn) -> Handle {
        self.runtime.clone()
    }
}

fn node(ca: &Ca, name: &str, streams: Streams) -> (SocketAddr, PeerDialer) {
    let descriptor = PeerDescriptor {
        roles: Roles::ALL,
        ..PeerDescriptor::from(NodeDescriptor {
            cluster: CLUSTER,
            store_id: 1,
            node: name.into(),
            incarnation: Incarnation { counter: 1, nonce: 11 },
        })
    };
    let runtime = streams.runtime.clone();
    let (server, dialer) = Server::bind_with_peers(
        "127.0.0.1:0".parse().unwrap(),
        "listen",
        &ca.issue_node(name, &[]).unwrap(),
        &ca.trust().unwrap(),
        Limits::default(),
        PeerConfig { descriptor, service: Arc::new(streams) },
        Arc::new(NoClients),
    )
    .unwrap();
    let address = server.local_addr().unwrap();
    runtime.spawn(async move { server.run().await });
    (address, dialer)
}

struct Dial {
    dialer: PeerDialer,
    to: SocketAddr,
    alpn: Alpn,
    links: Arc<Mutex<Vec<PeerLink>>>,
}

impl Connect for Dial {
    fn connect(&self) -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
        let (dialer, to, alpn) = (self.dialer.clone(), self.to, self.alpn);
        let links = self.links.clone();
        async move {
            let kind = match alpn {
                Alpn::Bulk => StreamKind::EntityStore,
                Alpn::Control => StreamKind::ClusterStore,
            };
            let link = dialer.connect(to, alpn, Some("store".into())).await;
            let link = link.map_err(|error| error.to_string())?;
            let channel =
                QuicChannel::open(&link, kind).await.map_err(|error| error.to_string())?;
            links.lock().unwrap().push(link);
            Ok(Box::new(channel) as Box<dyn Channel>)
        }
        .boxed()
    }
}

/// A backend behind QUIC. With `breaking`, its connections are closed repeatedly.
pub(crate) fn remote<B: EntityStore + ClusterStore>(backend: &Arc<B>, breaking: bool) -> Remote {
    let runtime = runtime();
    let handle = runtime.handle().clone();
    let guard = handle.enter();
    let ca = Ca::create(CLUSTER).unwrap();
    let entity = EntityServer::new(backend.clone(), ServerOptions::default());
    let cluster = ClusterServer::new(backend.clone(), ServerOptions::default());
    let stores = Some((entity, cluster));
    let (to, _) = node(&ca, "store", Streams { stores, runtime: handle.clone() });
    let links = Arc::new(Mutex::new(Vec::new()));
    let streams = || Streams { stores: None, runtime: handle.clone() };
    let [a, b] = ["a", "b"].map(|name| node(&ca, name, streams()).1);
    let dial =
        |dialer: &PeerDialer, alpn| Dial { dialer: dialer.clone(), to, alpn, links: links.clone() };
    let entities = [dial(&a, Alpn::Bulk), dial(&b, Alpn::Bulk)];
    let rows = dial(&a, Alpn::Control);
    let weather = LinkFaults::new(0, 1);
    drop(guard);
    let control = LinkFaults::new(0, 2);
    let weathers = [weather.clone(), control];
    let remote = Remote::reach(entities, rows, quick(), runtime, weathers, backend.clone());
    if breaking {
        // A failed first link is not retried, so breaking starts only now.
        remote.spawn(async move {
            // The maximum interval doubles with each round, so that eventually the largest call succeeds even on a
            // slow machine.
            for millis in (9..=13).flat_map(|longest| (1..=longest).map(|power| 1 << power)).cycle()
            {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                for link in std::mem::take(&mut *links.lock().unwrap()) {
                    link.close();
                    weather.broken.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    remote
}
