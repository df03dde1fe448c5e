//! Sessions of clients that this process speaks for: those of another protocol, such as HTTP.
//!
//! Their messages are validated, charged and delivered like those that come over QUIC. Only the stream is missing.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{ClientInfo, Server, Service, SessionInfo, SubscriptionEvent, subscription};
use crate::clock::BootInstant;
use crate::limits::Limits;
use crate::message_stream::{IncomingMessage, LocalReceiver, LocalReplies, local_replies};
use crate::proto::{self, Envelope};
use crate::validate;
use ostraca_core::ids::{ClusterId, ScopedSessionId};

/// A session whose messages come from this process.
pub struct LocalSession<S> {
    service: Arc<S>,
    info: Arc<SessionInfo>,
    limits: Limits,
    replies: LocalReplies,
}

impl<S> std::fmt::Debug for LocalSession<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSession").field("info", &self.info).finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// The limits on messages.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The cluster that the node belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.shared.trust.borrow().cluster
    }

    /// What answers clients.
    #[must_use]
    pub fn service(&self) -> &Arc<S> {
        &self.shared.service
    }

    /// A client that this process has authenticated and speaks for. Its traffic is charged to the budgets of the
    /// principal and the node.
    #[must_use]
    pub fn local_client(&self, principal: &str, subjects: Vec<String>) -> Arc<ClientInfo> {
        let account = self.shared.budgets.forwarded_account(principal);
        Arc::new(ClientInfo {
            principal_name: Arc::clone(account.principal()),
            subjects,
            address: self.endpoint.local_addr().unwrap_or_else(|_| ([0, 0, 0, 0], 0).into()),
            limits: proto::Limits::default(),
            token: None,
            account,
        })
    }

    /// Subscribes for such a client.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub async fn subscribe_locally(
        &self,
        client: &Arc<ClientInfo>,
        request: proto::Subscribe,
    ) -> Result<mpsc::Receiver<SubscriptionEvent>, proto::Problem> {
        subscription::check(&request)?;
        self.shared.service.handle_subscription(client, request).await
    }

    /// Opens a session of such a client, with an id that it does not use elsewhere, unless it is that of an idempotency
    /// key. Returns where the replies arrive.
    #[must_use]
    pub fn open_local_session(
        &self,
        client: Arc<ClientInfo>,
        session: [u8; 16],
    ) -> (LocalSession<S>, LocalReceiver) {
        let id = ScopedSessionId::derive(&client.principal_name, &session);
        let info = Arc::new(SessionInfo { client, client_session_id: session, session: id });
        let (replies, received) = local_replies();
        let (service, limits) = (Arc::clone(&self.shared.service), self.shared.limits.clone());
        (LocalSession { service, info, limits, replies }, received)
    }
}

impl<S: Service> LocalSession<S> {
    /// Delivers messages, in their order. Each gets a reply, in any order.
    pub async fn send(&self, envelopes: impl IntoIterator<Item = Envelope>) {
        let mut batch = Vec::new();
        for envelope in envelopes {
            let account = self.info.client.account();
            let (charge, full) = account.admit(prost::Message::encoded_len(&envelope) as u64);
            let ticket = self.replies.ticket(envelope.sequence, charge);
            let invalid = validate::check_client_message(&envelope, &self.limits);
            match full.or(invalid) {
                Some(problem) => ticket.not_run(problem),
                None => {
                    let received = BootInstant::now();
                    batch.push(IncomingMessage { envelope, received, ticket });
                }
            }
        }
        if !batch.is_empty() {
            self.service.handle_messages(&self.info, &mut batch).await;
        }
    }

    /// What answers the session's messages.
    #[must_use]
    pub fn service(&self) -> &Arc<S> {
        &self.service
    }

    /// The limits on messages.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
