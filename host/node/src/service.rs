//! Handles client requests: messages go to the gateway, other requests to the [`AdminService`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_wire::envelope::unknown_namespace;
use ostraca_wire::outcome::{node_starting, permanent_problem as problem};
use ostraca_wire::proto::{Envelope, Methods, Problem, Subscribe};
use ostraca_wire::server::{
    AdminOperation, AdminOutput, ClientInfo, IncomingMessage, Service, SessionInfo,
    SubscriptionEvent, TokenHolder, TokenRefused,
};
use tokio::sync::{mpsc, watch};

use ostraca_admin::{AdminService, Caller, describe_methods, is_diagnostic};
use ostraca_catalog::types::unknown_type;
use ostraca_catalog::{AccessRefused, AccessRegistry, AuditLog};
use ostraca_config::policy::ANONYMOUS;
use ostraca_core::ids::ClusterId;
use ostraca_core::names;
use ostraca_gateway::Gateway;

use crate::admission;

/// How long a message waits for its type to become known: after a deploy, the row takes a moment to reach this
/// node.
pub(crate) const TYPE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves clients. Until the backend is set, every request is answered with the error that the node is starting.
pub(crate) struct ClientService {
    /// Who may do what.
    access: AccessRegistry,
    /// The cluster for which tokens must be.
    cluster: ClusterId,
    backend: OnceLock<ClientBackend>,
}

/// The parts that a [`ClientService`] passes requests to.
pub(crate) struct ClientBackend {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) admin: Arc<AdminService>,
    /// Records the commands that operators send to entities.
    pub(crate) audit: Arc<AuditLog>,
    /// Whether the node has the role `gateway`. Without it, operators are served but messages are not accepted.
    pub(crate) accepts_messages: bool,
}

impl ClientService {
    pub(crate) fn new(access: AccessRegistry, cluster: ClusterId) -> Self {
        Self { access, cluster, backend: OnceLock::new() }
    }

    pub(crate) fn set_backend(&self, open: ClientBackend) {
        // A second call would be a bug in this program: the first backend is kept.
        let _ = self.backend.set(open);
    }
}

impl Service for ClientService {
    fn cluster_time_ms(&self) -> u64 {
        self.backend.get().map_or(0, |open| open.gateway.clock.now().cluster_time.max(1))
    }

    fn utc_ms(&self) -> u64 {
        self.backend.get().map_or(0, |open| open.gateway.clock.utc_ms())
    }

    async fn handle_messages(&self, session: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        let Some(backend) = self.backend.get() else {
            for request in batch.drain(..) {
                request.ticket.not_run(node_starting());
            }
            return;
        };
        let ClientBackend { gateway, audit, accepts_messages, .. } = backend;
        if !accepts_messages {
            for request in batch.drain(..) {
                request.ticket.not_run(no_gateway());
            }
            return;
        }
        for request in batch.iter_mut() {
            // The principal comes from the certificate, regardless of the envelope.
            request.envelope.principal = session.client.principal_name.to_string();
            resolve_namespace(&mut request.envelope);
        }
        let client = &*session.client;
        let types = gateway.types.snapshot();
        admission::admit(&self.access, audit, client, &types, batch).await;
        gateway.accept(session.session, &types, batch);
        if batch.is_empty() {
            return;
        }
        // Unknown types were either just deployed through another node, or mistyped. All of them share one wait.
        let until = tokio::time::Instant::now() + TYPE_TIMEOUT;
        for request in batch.iter() {
            let name = request.envelope.r#type.as_str();
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            gateway.types.wait(name, left).await;
        }
        let types = gateway.types.snapshot();
        admission::admit(&self.access, audit, client, &types, batch).await;
        gateway.accept(session.session, &types, batch);
        for request in batch.drain(..) {
            let name = &request.envelope.r#type;
            request.ticket.not_run(unknown(gateway, name));
        }
    }

    async fn handle_subscription(
        &self,
        peer: &Arc<ClientInfo>,
        mut request: Subscribe,
    ) -> Result<mpsc::Receiver<SubscriptionEvent>, Problem> {
        let Some(ClientBackend { gateway, accepts_messages, .. }) = self.backend.get() else {
            return Err(node_starting());
        };
        if !accepts_messages {
            return Err(no_gateway());
        }
        let namespace = std::mem::take(&mut request.namespace);
        request.r#type = names::qualified(&namespace, &request.r#type).into_owned();
        // Before anything that depends on whether the namespace or the type exists.
        let subjects = &peer.subjects;
        let principal = &peer.principal_name;
        admission::admit_to_namespace(&self.access, principal, subjects, &request.r#type)?;
        // The type may just have been deployed through another node.
        gateway.types.wait(&request.r#type, TYPE_TIMEOUT).await;
        if !gateway.types.snapshot().contains_key(request.r#type.as_str()) {
            return Err(unknown(gateway, &request.r#type));
        }
        admission::admit_subscription(&self.access, peer, &request.r#type)?;
        gateway.subscribe(peer, request)
    }

    async fn handle_admin(
        &self,
        peer: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        let Some(ClientBackend { admin, .. }) = self.backend.get() else {
            return Err(node_starting());
        };
        let permissions = admission::permissions(&self.access, peer, is_diagnostic(&request))?;
        let caller = Caller { principal: &peer.principal_name, subjects: &peer.subjects };
        admin.handle_request(caller, &permissions, request).await
    }

    fn check_token(&self, token: &str) -> Result<TokenHolder, TokenRefused> {
        let Some(ClientBackend { gateway, .. }) = self.backend.get() else {
            return Err(TokenRefused::NotReady("the node is starting".into()));
        };
        let utc_ms = gateway.clock.utc_ms();
        if utc_ms == 0 {
            let text = "the node does not know the cluster's time yet";
            return Err(TokenRefused::NotReady(text.into()));
        }
        let token = self.access.check_token(token, self.cluster, utc_ms)?;
        let valid_for = Duration::from_millis(token.expires_ms.saturating_sub(utc_ms));
        Ok(TokenHolder { principal: token.principal, subjects: token.subjects, valid_for })
    }

    fn check_connection(&self, peer: &ClientInfo) -> Result<(), String> {
        // What the node does not know refuses requests, not connections.
        if let Err(AccessRefused::Revoked(subject)) =
            self.access.check_revocations(&peer.principal_name, &peer.subjects)
        {
            return Err(format!("{subject} is revoked"));
        }
        // The policy may have another issuer or other keys by now.
        match peer.token.as_ref().map(|token| self.check_token(&token.0)) {
            Some(Err(TokenRefused::Invalid(reason))) => Err(reason),
            Some(Ok(holder)) if holder.principal != *peer.principal_name => {
                Err(format!("the token is now one of {}", holder.principal))
            }
            Some(Ok(_) | Err(TokenRefused::NotReady(_))) | None => Ok(()),
        }
    }

    fn admits_anonymous(&self) -> Result<bool, Problem> {
        let policy = self.access.policy().map_err(|refused| refused.problem(ANONYMOUS))?;
        Ok(policy.admits_anonymous())
    }

    fn admits_origin(&self, origin: &str) -> Result<bool, Problem> {
        let policy = self.access.policy().map_err(|refused| refused.problem(origin))?;
        Ok(policy.admits_origin(origin))
    }

    fn describe_types(
        &self,
        peer: &ClientInfo,
        name: Option<&str>,
    ) -> Result<Vec<Methods>, Problem> {
        let Some(ClientBackend { gateway, .. }) = self.backend.get() else {
            return Err(node_starting());
        };
        let permissions = admission::permissions(&self.access, peer, false)?;
        let types = gateway.types.snapshot();
        let wanted = types.values().filter(|it| name.is_none_or(|name| *it.name == *name));
        let permitted = wanted.filter(|it| {
            permissions.allow_any_on(&it.name) && it.manifest.access.allows(&peer.principal_name)
        });
        let mut listed: Vec<_> = permitted.map(|entry| describe_methods(entry)).collect();
        listed.sort_by(|one, other| one.r#type.cmp(&other.r#type));
        Ok(listed)
    }

    fn access_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.access.changes())
    }

    fn check_namespace(
        &self,
        principal: &str,
        subjects: &[String],
        entity_type: &str,
    ) -> Result<(), Problem> {
        match self.backend.get() {
            None => Err(node_starting()),
            // Whether or not the type exists: the refusal must not show that.
            Some(_) => {
                admission::admit_to_namespace(&self.access, principal, subjects, entity_type)
            }
        }
    }

    fn check_subscription(&self, peer: &ClientInfo, entity_type: &str) -> Result<(), Problem> {
        admission::admit_subscription(&self.access, peer, entity_type)
    }

    fn check_upload(&self, peer: &ClientInfo, manifest: &str) -> Result<(), Problem> {
        let Some(ClientBackend { admin, .. }) = self.backend.get() else {
            return Err(node_starting());
        };
        let permissions = admission::permissions(&self.access, peer, false)?;
        admin.check_upload(&peer.principal_name, &permissions, manifest)
    }
}

/// Gives a message to a type of another namespace than `default` the type's name in the cluster.
fn resolve_namespace(envelope: &mut Envelope) {
    if !matches!(envelope.namespace.as_str(), "" | names::DEFAULT_NAMESPACE) {
        let namespace = std::mem::take(&mut envelope.namespace);
        envelope.r#type = names::qualified(&namespace, &envelope.r#type).into_owned();
    }
}

/// The refusal of what names a type that is not deployed.
fn unknown(gateway: &Gateway, name: &str) -> Problem {
    match names::split(name) {
        (namespace, _) if !gateway.types.has_namespace(namespace) => unknown_namespace(namespace),
        _ => unknown_type(&gateway.types.snapshot(), name),
    }
}

fn no_gateway() -> Problem {
    problem(
        codes::NO_GATEWAY,
        "this node does not accept client messages: it lacks the `gateway` role",
        "send to a node that has it: `ostraca nodes` lists the roles",
    )
}
