//! A node with a real network side. Each test defines how the node handles messages.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_ca::Ca;
use ostraca_client::{Client, Problem, Profile};
use ostraca_codes::codes;
use ostraca_core::ids::{ClusterId, Incarnation};
use ostraca_wire::Limits;
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::proto::{Envelope, Outcome, Reply};
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, Server, Service, SessionInfo,
};
use ostraca_wire::{Error, problem};
use tokio_util::task::TaskTracker;

pub(crate) type Behaviour = Box<dyn Fn(&Node, IncomingMessage) + Send + Sync>;
pub(crate) type AdminBehaviour =
    Box<dyn Fn(AdminOperation) -> Result<AdminOutput, Problem> + Send + Sync>;

/// Handles each message as the test defines, and keeps the received envelopes.
pub(crate) struct Node {
    pub(crate) seen: Mutex<Vec<Envelope>>,
    behaviour: Behaviour,
    admin: AdminBehaviour,
}

impl Service for Node {
    async fn handle_messages(&self, _: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        for request in batch.drain(..) {
            self.seen.lock().expect("seen").push(request.envelope.clone());
            (self.behaviour)(self, request);
        }
    }

    async fn handle_admin(
        &self,
        _: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        (self.admin)(request)
    }
}

impl Node {
    pub(crate) fn new(
        behaviour: impl Fn(&Node, IncomingMessage) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_admin(behaviour, |_| Err(problem(codes::UNKNOWN_REQUEST, "not in this test")))
    }

    pub(crate) fn with_admin(
        behaviour: impl Fn(&Node, IncomingMessage) + Send + Sync + 'static,
        admin: impl Fn(AdminOperation) -> Result<AdminOutput, Problem> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::default(),
            behaviour: Box::new(behaviour),
            admin: Box::new(admin),
        })
    }
}

/// A cluster's authority.
pub(crate) fn authority() -> Ca {
    Ca::create(ClusterId(rand::random())).expect("authority")
}

/// A running node.
pub(crate) struct Running {
    pub(crate) server: Arc<Server<Node>>,
    pub(crate) address: String,
    tasks: TaskTracker,
}

impl Running {
    /// Starts a node on the port of one that has just stopped. Retries, since QUIC's task may still hold the port.
    pub(crate) async fn restart(ca: &Ca, node: &Arc<Node>, address: &str) -> Self {
        loop {
            match Self::try_start(ca, node, address) {
                Ok(running) => return running,
                Err(Error::AddressInUse { .. }) => {
                    tokio::time::sleep(Duration::from_millis(1)).await
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn start(ca: &Ca, node: &Arc<Node>, address: &str) -> Self {
        Self::try_start(ca, node, address).expect("bind")
    }

    fn try_start(ca: &Ca, node: &Arc<Node>, address: &str) -> Result<Self, Error> {
        let descriptor = NodeDescriptor {
            cluster: ca.cluster(),
            store_id: 7,
            node: "one".into(),
            incarnation: Incarnation { counter: 1, nonce: 2 },
        };
        let identity = ca.issue_node("one", &[]).expect("identity");
        let server = Server::bind(
            address.parse().expect("address"),
            "listen",
            &identity,
            &ca.trust().expect("trust"),
            Limits::default(),
            descriptor,
            Arc::clone(node),
        )?;
        let server = Arc::new(server);
        let tasks = TaskTracker::new();
        let running = Arc::clone(&server);
        tasks.spawn(async move { running.run().await });
        let address = server.local_addr().expect("address").to_string();
        Ok(Self { server, address, tasks })
    }

    pub(crate) async fn stop(self) {
        self.server.shut_down(Duration::ZERO).await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

pub(crate) async fn client(ca: &Ca, address: &str) -> Client {
    let identity = ca.issue_client("test").expect("identity");
    let profile = Profile::new(vec![address.into()], ca.certificate_pem(), &identity);
    Client::connect(profile).await.expect("connect")
}

pub(crate) fn result(version: u64, body: impl Into<bytes::Bytes>) -> Reply {
    Reply {
        outcome: Outcome::Result.into(),
        entity_version: version,
        body: body.into(),
        ..Reply::default()
    }
}

/// Fails a test that hangs: nothing else takes this long.
pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("in time")
}
