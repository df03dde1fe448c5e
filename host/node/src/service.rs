//! Handles requests of clients: messages go to the gateway, other requests are answered here or in
//! [`crate::admin`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_catalog::types::{DeployedType, unknown_type};
use ostraca_gateway::Gateway;
use ostraca_wire::outcome::{node_starting, permanent_problem as problem, wire_kind};
use ostraca_wire::proto::{self, Problem};
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, Service, SessionInfo,
};

use crate::admin::AdminService;

/// How long a message waits for its type to become known: a row takes a moment to spread after a deploy.
const TYPE_TIMEOUT: Duration = Duration::from_secs(2);

/// The node, as its network side sees it. Until the backend is set, it answers that the node is starting.
#[derive(Default)]
pub(crate) struct ClientService(OnceLock<ClientBackend>);

/// What a [`ClientService`] passes requests to.
pub(crate) struct ClientBackend {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) admin: AdminService,
    /// Whether the node has the role `gateway`. Without it, operators are served but messages are not accepted.
    pub(crate) accepts_messages: bool,
}

impl ClientService {
    pub(crate) fn set_backend(&self, open: ClientBackend) {
        // A second call would be a bug in this program: the first backend stays.
        let _ = self.0.set(open);
    }
}

impl Service for ClientService {
    fn cluster_time_ms(&self) -> u64 {
        self.0.get().map_or(0, |open| open.gateway.clock.now().cluster_time.max(1))
    }

    async fn handle_messages(&self, session: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        let Some(ClientBackend { gateway, accepts_messages: takes_messages, .. }) = self.0.get()
        else {
            for request in batch.drain(..) {
                request.ticket.not_run(node_starting());
            }
            return;
        };
        if !takes_messages {
            for request in batch.drain(..) {
                request.ticket.not_run(problem(
                    "no-gateway",
                    "this node takes no messages of clients: it has not the role `gateway`",
                    "send to a node that has it: `ostraca nodes` shows which do",
                ));
            }
            return;
        }
        for request in batch.iter_mut() {
            // The principal comes from the certificate, whatever the envelope says.
            request.envelope.principal = session.client.principal_name.to_string();
        }
        gateway.accept(session.session, batch);
        if batch.is_empty() {
            return;
        }
        // Unknown types are either just deployed elsewhere, or mistyped. There is one wait for all of them.
        let until = tokio::time::Instant::now() + TYPE_TIMEOUT;
        for request in batch.iter() {
            let name = request.envelope.r#type.as_str();
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            gateway.types.wait(name, left).await;
        }
        gateway.accept(session.session, batch);
        let types = gateway.types.snapshot();
        for request in batch.drain(..) {
            let problem = unknown_type(&types, &request.envelope.r#type);
            request.ticket.not_run(problem);
        }
    }

    async fn handle_admin(
        &self,
        peer: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        let Some(ClientBackend { gateway, admin: desk, .. }) = self.0.get() else {
            return Err(node_starting());
        };
        match request {
            AdminOperation::Deploy(upload) => {
                let deployed = desk.deployer.deploy(&peer.principal_name, upload).await?;
                Ok(AdminOutput::Deployed(desk.wait_for_hosts(gateway, deployed).await))
            }
            AdminOperation::Deployments => {
                let types = gateway.types.snapshot();
                let mut list: Vec<_> = types.values().map(|entry| deployment(entry)).collect();
                list.sort_by(|a, b| a.r#type.cmp(&b.r#type));
                Ok(AdminOutput::Deployments(list))
            }
            AdminOperation::Methods(name) => {
                let entry = gateway.types.wait(&name, TYPE_TIMEOUT).await;
                let entry = entry.ok_or_else(|| unknown_type(&gateway.types.snapshot(), &name))?;
                Ok(AdminOutput::Methods(methods(&entry)))
            }
            AdminOperation::Node => Ok(AdminOutput::Node(desk.status.node_info())),
            other => desk.handle_request(gateway, peer.principal_name.as_ref(), other).await,
        }
    }
}

fn deployment(entry: &DeployedType) -> proto::Deployment {
    proto::Deployment {
        namespace: ostraca_catalog::pool::NAMESPACE.into(),
        r#type: entry.name.to_string(),
        revision: entry.revision,
        digest: entry.component_digest.to_vec().into(),
        pool: entry.manifest.pool.clone(),
        component_size: entry.component_size,
    }
}

fn methods(entry: &DeployedType) -> proto::Methods {
    let methods = entry.methods().iter().zip(entry.summaries());
    let methods = methods.map(|((name, kind), summary)| proto::Method {
        name: name.to_string(),
        kind: wire_kind(*kind).into(),
        summary: summary.clone(),
    });
    proto::Methods {
        r#type: entry.name.to_string(),
        revision: entry.revision,
        methods: methods.collect(),
    }
}
