//! Nodes that serve each other's streams: calls that echo, hold or get a large response, and messages that echo, hold,
//! are dropped, or are queries with a reply of the size in their body ("big").

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ca::Ca;
use ostraca_codes::Code;
use ostraca_core::ids::{Incarnation, NodeId};
use ostraca_core::rows::Roles;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::identity::Identity;
use ostraca_wire::peer::forwarding::{
    self, Forward, ForwardedMessageHandler, ReplyHandler, UnansweredMessages,
};
use ostraca_wire::peer::rpc_server::serve_rpc;
use ostraca_wire::peer::{
    Alpn, PeerDescriptor, PeerDialer, PeerInfo, PeerLink, PeerService, StreamKind,
};
use ostraca_wire::proto::{Envelope, MessageKind, Outcome, Reply};
use ostraca_wire::server::{IncomingMessage, PeerConfig, Server};
use ostraca_wire::{Error, Limits, endpoint, tls};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::{Echo, authority, envelope, limits};

/// Serves other nodes' streams, and records what it has seen.
pub(crate) struct Streams {
    bulk: Handle,
    control: Handle,
    /// Bodies of calls in the order in which the handler was called.
    pub(crate) called: Mutex<Vec<Bytes>>,
    /// Threads on which the handler was called.
    pub(crate) threads: Mutex<Vec<String>>,
    /// Notified to let the calls of `hold` respond.
    pub(crate) release: Notify,
    pub(crate) peers: Mutex<Vec<Arc<PeerInfo>>>,
    pub(crate) held: Mutex<Vec<IncomingMessage>>,
    pub(crate) ended: Mutex<Vec<Option<Code>>>,
}

impl Streams {
    fn call(self: Arc<Self>, body: Bytes) -> BoxFuture<'static, Bytes> {
        self.called.lock().expect("called").push(body.clone());
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().expect("threads").push(thread);
        match &body[..] {
            b"hold" => async move {
                self.release.notified().await;
                body
            }
            .boxed(),
            b"large" => async { Bytes::from(vec![7; 200_000]) }.boxed(),
            _ => async move { body }.boxed(),
        }
    }

    pub(crate) fn calls(&self) -> usize {
        self.called.lock().expect("called").len()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.lock().expect("held").len()
    }
}

impl ForwardedMessageHandler for Streams {
    async fn handle_messages(&self, peer: &Arc<PeerInfo>, batch: &mut Vec<IncomingMessage>) {
        for request in batch.drain(..) {
            match request.envelope.method.as_str() {
                "hold" => self.held.lock().expect("held").push(request),
                "drop" => drop(request),
                "big" => {
                    let bytes = std::str::from_utf8(&request.envelope.body).expect("a number");
                    let body = vec![0; bytes.parse().expect("a number")].into();
                    let (outcome, kind) = (Outcome::Result.into(), MessageKind::Query.into());
                    request.ticket.reply(Reply { outcome, kind, body, ..Reply::default() });
                }
                _ => {
                    let Envelope { body, principal, origin, .. } = request.envelope;
                    let content_type = format!("{principal} by {} at {origin}", peer.member);
                    let outcome = Outcome::Result.into();
                    request.ticket.reply(Reply { outcome, content_type, body, ..Reply::default() });
                }
            }
        }
    }
}

/// The service that a node's server holds. Its state is shared with the test.
struct Serving(Arc<Streams>);

impl PeerService for Serving {
    fn serve_stream(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> BoxFuture<'static, ()> {
        let streams = Arc::clone(&self.0);
        streams.peers.lock().expect("peers").push(Arc::clone(&peer));
        async move {
            let done = match kind {
                StreamKind::Forwarding {
                    max_in_flight_messages: messages,
                    max_in_flight_bytes: bytes,
                } => forwarding::serve(reader, writer, &peer, (messages, bytes), &*streams).await,
                _ => {
                    let calling = Arc::clone(&streams);
                    let handler = move |_, body| Arc::clone(&calling).call(body);
                    serve_rpc(reader, writer, &peer, handler).await
                }
            };
            streams.ended.lock().expect("ended").push(done.err().map(|error| error.code()));
        }
        .boxed()
    }

    fn runtime(&self, alpn: Alpn) -> Handle {
        match alpn {
            Alpn::Bulk => self.0.bulk.clone(),
            Alpn::Control => self.0.control.clone(),
        }
    }
}

pub(crate) struct PeerNode {
    pub(crate) ca: Arc<Ca>,
    pub(crate) server: Arc<Server<Echo>>,
    pub(crate) dialer: PeerDialer,
    pub(crate) streams: Arc<Streams>,
    pub(crate) address: SocketAddr,
    tasks: TaskTracker,
}

pub(crate) fn peer_descriptor(ca: &Ca, name: &str) -> PeerDescriptor {
    PeerDescriptor {
        node: NodeDescriptor {
            cluster: ca.cluster(),
            store_id: 7,
            node: name.into(),
            incarnation: Incarnation { counter: 1, nonce: 2 },
        },
        roles: Roles { host: true, gateway: true, ..Roles::default() },
        shards: 256,
        hash: "murmur3".into(),
        addresses: vec!["127.0.0.1:9".into()],
        format: 1,
    }
}

/// Small limits, so that tests reach them.
pub(crate) fn small() -> Limits {
    let mut limits = Limits { hello_timeout: Duration::from_secs(3), ..limits() };
    limits.peers.max_frame = 100_000;
    limits.peers.in_flight_requests = 64;
    limits.peers.in_flight_messages = 64;
    limits
}

impl PeerNode {
    pub(crate) fn start(ca: &Arc<Ca>, name: &str) -> Self {
        let identity = ca.issue_node(name, &[]).expect("identity");
        Self::start_as(ca, &identity, small(), peer_descriptor(ca, name), Handle::current())
    }

    pub(crate) fn start_as(
        ca: &Arc<Ca>,
        identity: &Identity,
        limits: Limits,
        peer_descriptor: PeerDescriptor,
        control: Handle,
    ) -> Self {
        let streams = Arc::new(Streams {
            bulk: Handle::current(),
            control,
            called: Mutex::default(),
            threads: Mutex::default(),
            release: Notify::new(),
            peers: Mutex::default(),
            held: Mutex::default(),
            ended: Mutex::default(),
        });
        let (server, dialer) = Server::bind_with_peers(
            "127.0.0.1:0".parse().expect("address"),
            "listen",
            identity,
            &ca.trust().expect("trust"),
            limits,
            PeerConfig {
                descriptor: peer_descriptor,
                service: Arc::new(Serving(Arc::clone(&streams))),
            },
            Arc::new(Echo::default()),
        )
        .expect("bind");
        let server = Arc::new(server);
        let tasks = TaskTracker::new();
        let running = Arc::clone(&server);
        tasks.spawn(async move { running.run().await });
        let address = server.local_addr().expect("address");
        Self { ca: Arc::clone(ca), server, dialer, streams, address, tasks }
    }

    pub(crate) async fn to(&self, other: &Self, alpn: Alpn) -> Result<PeerLink, Error> {
        self.dialer.connect(other.address, alpn, None).await
    }

    pub(crate) async fn to_node(&self, other: &Self, node: &str) -> Result<PeerLink, Error> {
        self.dialer.connect(other.address, Alpn::Bulk, Some(NodeId::from(node))).await
    }

    /// A connection with this identity, without a hello.
    pub(crate) async fn raw(
        &self,
        identity: &Identity,
        alpn: &[u8],
    ) -> Result<(quinn::Endpoint, quinn::Connection), Error> {
        self.raw_as(Some(identity), alpn).await
    }

    pub(crate) async fn raw_as(
        &self,
        identity: Option<&Identity>,
        alpn: &[u8],
    ) -> Result<(quinn::Endpoint, quinn::Connection), Error> {
        let trust = self.ca.trust().expect("trust");
        let tls = tls::client(identity, &trust, alpn).expect("tls");
        let config = endpoint::client_config(tls, &Limits::default()).expect("config");
        let any = "127.0.0.1:0".parse().expect("address");
        let endpoint = endpoint::bind(any, "test", &Limits::default(), None).expect("bind");
        let connecting =
            endpoint.connect_with(config, self.address, tls::SERVER_NAME).expect("connect");
        Ok((endpoint, connecting.await?))
    }

    pub(crate) async fn stop(self) {
        self.server.shut_down(Duration::from_millis(200)).await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

pub(crate) fn pair() -> (PeerNode, PeerNode) {
    let ca = Arc::new(authority());
    (PeerNode::start(&ca, "one"), PeerNode::start(&ca, "two"))
}

/// Collects a link's replies.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) replies: Mutex<Vec<(u64, Reply)>>,
    pub(crate) lost: Mutex<Option<UnansweredMessages>>,
}

impl ReplyHandler for Sink {
    fn on_replies(&self, batch: &mut Vec<(u64, Reply)>) {
        self.replies.lock().expect("replies").append(batch);
    }

    fn on_closed(&self, lost: UnansweredMessages) {
        assert_eq!(self.lost.lock().expect("lost").replace(lost), None);
    }
}

impl Sink {
    pub(crate) fn count(&self) -> usize {
        self.replies.lock().expect("replies").len()
    }
}

/// A message as a node forwards it.
pub(crate) fn forward(tag: u64, method: &str, body: &[u8]) -> Forward {
    let envelope = Envelope {
        session: vec![9; 16].into(),
        principal: "client/alice".into(),
        // Deliberately wrong: the link's certificate names another node.
        origin: "nine".into(),
        hops: 1,
        route_epoch: 3,
        ..envelope(tag, method, body)
    };
    Forward { tag, envelope }
}

/// Waits until a condition holds.
pub(crate) async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
