//! An echoing node with short deadlines, and a client that can send anything.

pub(crate) mod peers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use ostraca_ca::Ca;
use ostraca_codes::codes;
use ostraca_core::ids::{ClusterId, Incarnation};
use ostraca_wire::dial::{ClientConnection, Dialer};
use ostraca_wire::frame::put_frame;
use ostraca_wire::framed::FrameReader;
use ostraca_wire::hello::{self, NodeDescriptor};
use ostraca_wire::identity::Identity;
use ostraca_wire::proto::{
    ChannelItem, ChannelItems, DeployResult, Deployment, Envelope, MessageKind, Open, Outcome,
    Problem, Reply, SessionOpen, Status, Subscribe, open,
};
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, Server, Service, SessionInfo,
    SubscriptionEvent,
};
use ostraca_wire::{ALPN_CLIENT, Error, Limits, endpoint, problem, tls};
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// Replies with the body. The method "hold" keeps the ticket, "drop" drops it, "big" is a query whose reply has as many
/// bytes as the body says, and "large" is such a command. A channel has as many pages as its name says.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) held: std::sync::Mutex<Vec<IncomingMessage>>,
}

impl Service for Echo {
    async fn handle_messages(&self, session: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        for request in batch.drain(..) {
            match request.envelope.method.as_str() {
                "hold" => self.held.lock().expect("held").push(request),
                "drop" => drop(request),
                large @ ("big" | "large") => {
                    let kind =
                        if large == "big" { MessageKind::Query } else { MessageKind::Command };
                    let bytes = std::str::from_utf8(&request.envelope.body).expect("a number");
                    let body = vec![0; bytes.parse().expect("a number")].into();
                    let (outcome, kind) = (Outcome::Result.into(), kind.into());
                    request.ticket.reply(Reply { outcome, kind, body, ..Reply::default() });
                }
                _ => {
                    let content_type = session.client.principal_name.to_string();
                    let body = request.envelope.body;
                    let outcome = Outcome::Result.into();
                    request.ticket.reply(Reply { outcome, content_type, body, ..Reply::default() });
                }
            }
        }
    }

    async fn handle_subscription(
        &self,
        peer: &Arc<ClientInfo>,
        request: Subscribe,
    ) -> Result<mpsc::Receiver<SubscriptionEvent>, Problem> {
        let (sender, receiver) = mpsc::channel(1);
        let (account, pages) = (peer.account().clone(), request.channel.parse().unwrap_or(0));
        tokio::spawn(async move {
            let item = ChannelItem { data: vec![0; 100_000].into(), ..ChannelItem::default() };
            let items = Arc::new(ChannelItems { items: vec![item] });
            for _ in 0..pages {
                let event = match account.charge_items(&items) {
                    Ok(charge) => SubscriptionEvent::Items(items.clone(), charge),
                    Err(full) => SubscriptionEvent::Problem(full.problem("a page")),
                };
                if sender.send(event).await.is_err() {
                    return;
                }
            }
            sender.closed().await;
        });
        Ok(receiver)
    }

    async fn handle_admin(
        &self,
        _: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        match request {
            AdminOperation::Deploy(upload) if upload.manifest == "wait" => {
                drop(upload);
                std::future::pending().await
            }
            AdminOperation::Deploy(upload) => Ok(AdminOutput::Deployed(DeployResult {
                r#type: upload.manifest,
                revision: upload.component.len() as u64,
                digest: upload.digest.to_vec().into(),
                ..DeployResult::default()
            })),
            AdminOperation::Deployments(_) => {
                let one = Deployment { r#type: "x".repeat(100), ..Deployment::default() };
                Ok(AdminOutput::Deployments(vec![one; 600]))
            }
            AdminOperation::Status => {
                let status = Status { node: "x".repeat(10_000), ..Status::default() };
                Ok(AdminOutput::Status(Box::new(status)))
            }
            _ => Err(problem(codes::UNKNOWN_TYPE, "not here")),
        }
    }
}

pub(crate) struct Node {
    pub(crate) ca: Ca,
    pub(crate) server: Arc<Server<Echo>>,
    pub(crate) echo: Arc<Echo>,
    pub(crate) address: SocketAddr,
    tasks: TaskTracker,
}

pub(crate) fn authority() -> Ca {
    Ca::create(ClusterId(rand::random())).expect("authority")
}

pub(crate) fn limits() -> Limits {
    Limits {
        hello_timeout: Duration::from_millis(300),
        open_timeout: Duration::from_millis(300),
        frame_timeout: Duration::from_millis(300),
        max_message: 10_000,
        max_frame: 12_000,
        max_component: 1_000_000,
        ..Limits::default()
    }
}

impl Node {
    pub(crate) fn start() -> Self {
        let ca = authority();
        let identity = ca.issue_node("one", &["localhost".into(), "127.0.0.1".into()]);
        Self::start_as(ca, &identity.expect("identity"), limits())
    }

    pub(crate) fn start_with(limits: Limits) -> Self {
        let ca = authority();
        let identity = ca.issue_node("one", &["localhost".into(), "127.0.0.1".into()]);
        Self::start_as(ca, &identity.expect("identity"), limits)
    }

    pub(crate) fn start_as(ca: Ca, identity: &Identity, limits: Limits) -> Self {
        let descriptor = NodeDescriptor {
            cluster: ca.cluster(),
            store_id: 7,
            node: "one".into(),
            incarnation: Incarnation { counter: 1, nonce: 2 },
        };
        let echo = Arc::new(Echo::default());
        let server = Server::bind(
            "127.0.0.1:0".parse().expect("address"),
            "listen",
            identity,
            &ca.trust().expect("trust"),
            limits,
            descriptor,
            Arc::clone(&echo),
        );
        let server = Arc::new(server.expect("bind"));
        let tasks = TaskTracker::new();
        let running = Arc::clone(&server);
        tasks.spawn(async move { running.run().await });
        let address = server.local_addr().expect("address");
        Self { ca, server, echo, address, tasks }
    }

    pub(crate) async fn stop(self) {
        self.server.shut_down(Duration::from_secs(1)).await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(crate) fn dialer(&self, identity: Option<&Identity>) -> Dialer {
        let limits = Limits { hello_timeout: Duration::from_secs(5), ..Limits::default() };
        let trust = self.ca.trust().expect("trust");
        Dialer::new(identity, &trust, self.address, limits).expect("dialer")
    }

    pub(crate) async fn link(&self) -> ClientConnection {
        self.link_of("alice").await
    }

    pub(crate) async fn link_of(&self, name: &str) -> ClientConnection {
        self.try_link_of(name).await.expect("link")
    }

    pub(crate) async fn try_link_of(&self, name: &str) -> Result<ClientConnection, Error> {
        let identity = self.ca.issue_client(name).expect("identity");
        self.dialer(Some(&identity)).connect(self.address).await
    }

    /// A connection with small windows: if the client does not read, it soon receives nothing more.
    pub(crate) async fn narrow_link_of(&self, name: &str) -> ClientConnection {
        let limits = Limits {
            stream_receive_window: 16 << 10,
            connection_receive_window: 64 << 10,
            hello_timeout: Duration::from_secs(5),
            ..Limits::default()
        };
        let (identity, trust) = (self.ca.issue_client(name), self.ca.trust());
        let (identity, trust) = (identity.expect("identity"), trust.expect("trust"));
        let dialer = Dialer::new(Some(&identity), &trust, self.address, limits).expect("dialer");
        dialer.connect(self.address).await.expect("link")
    }

    /// A connection without a hello.
    pub(crate) async fn raw(&self) -> (quinn::Endpoint, quinn::Connection) {
        let identity = self.ca.issue_client("mallory").expect("identity");
        let trust = self.ca.trust().expect("trust");
        let tls = tls::client(Some(&identity), &trust, ALPN_CLIENT).expect("tls");
        let config = endpoint::client_config(tls, &Limits::default()).expect("config");
        let any = "127.0.0.1:0".parse().expect("address");
        let endpoint = endpoint::bind(any, "test", &Limits::default(), None).expect("bind");
        let connection = endpoint
            .connect_with(config, self.address, tls::SERVER_NAME)
            .expect("connect")
            .await
            .expect("handshake");
        (endpoint, connection)
    }

    /// A connection after the exchange of hellos.
    pub(crate) async fn greeted(&self) -> (quinn::Endpoint, quinn::Connection) {
        let (endpoint, connection) = self.raw().await;
        let own = hello::client_hello(Some(self.ca.cluster()), &Limits::default());
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        send.write_all(&frame(&Open { stream: Some(open::Stream::Hello(own)) }))
            .await
            .expect("hello");
        recv.read_to_end(10_000).await.expect("hello");
        (endpoint, connection)
    }

    /// Checks that another client is served immediately afterwards.
    pub(crate) async fn assert_responsive(&self) {
        let link = self.link().await;
        let reply = one(&link, "echo", b"still here").await.expect("reply");
        assert_eq!(&reply.body[..], b"still here");
    }
}

pub(crate) fn frame<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, message);
    bytes.to_vec()
}

/// An unknown field: groups that are nested `deep` levels deep.
pub(crate) fn nested(deep: usize) -> Vec<u8> {
    // The tags that begin and end a group in field 100.
    [[0xa3, 0x06].repeat(deep), [0xa4, 0x06].repeat(deep)].concat()
}

/// The bytes as a frame.
pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes(), body].concat()
}

pub(crate) fn session_open() -> Vec<u8> {
    let session = SessionOpen { session: vec![5; 16].into() };
    frame(&Open { stream: Some(open::Stream::Session(session)) })
}

pub(crate) fn envelope(sequence: u64, method: &str, body: &[u8]) -> Envelope {
    Envelope {
        r#type: "echo".into(),
        id: "one".into(),
        created_ms: 1,
        sequence,
        method: method.into(),
        body: body.to_vec().into(),
        ..Envelope::default()
    }
}

pub(crate) async fn next(reader: &mut FrameReader) -> Result<Reply, Error> {
    let frame = reader.next().await?.ok_or_else(|| Error::ConnectionLost("no reply".into()))?;
    Ok(Reply::decode(frame).expect("reply"))
}

pub(crate) async fn one(
    link: &ClientConnection,
    method: &str,
    body: &[u8],
) -> Result<Reply, Error> {
    let (mut writer, mut reader) = link.session([3; 16]).await?;
    writer.put(&envelope(1, method, body));
    writer.flush().await?;
    next(&mut reader).await
}

pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("in time")
}
