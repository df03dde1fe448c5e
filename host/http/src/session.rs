//! A principal's session: the calls of all its HTTP requests on this node, in the order in which they arrive.
//!
//! The ledger of the Rust client decides what is sent when, what is sent again, and how each call ends. So over HTTP,
//! too, a message that is in doubt is asked about until its deadline, under the same id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_client::ledger::{CallAdmission, Ledger, OutgoingMessage, SessionLimits};
use ostraca_client::{CallError, Entity, Reply, SessionId};
use ostraca_codes::codes;
use ostraca_wire::flags::KEYED;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, MessageKind, Problem};
use ostraca_wire::server::{Charge, ClientInfo, LocalReceiver, LocalSession, Server, Service};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// A call of an entity.
pub(crate) struct NewCall {
    pub(crate) entity: Entity,
    pub(crate) method: String,
    pub(crate) kind: MessageKind,
    pub(crate) body: Bytes,
    pub(crate) content_type: String,
    pub(crate) traceparent: String,
    pub(crate) tracestate: String,
    pub(crate) timeout: Duration,
    /// The request has an idempotency key, from which the session is made.
    pub(crate) is_keyed: bool,
    /// The request's place among those of its principal, until its outcome is known or has been sent.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// How a call ended, and what its result still counts for.
pub(crate) struct Outcome {
    pub(crate) result: Result<Reply, CallError>,
    pub(crate) held: Held,
}

/// What a result counts for until it has been sent: its bytes, and the request's place.
#[derive(Default)]
pub(crate) struct Held {
    _charge: Option<Arc<Charge>>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// The session of a principal on this node. Its task ends when it is dropped and all calls have ended.
pub(crate) struct CallSession<S: Service> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Service> {
    id: SessionId,
    local: LocalSession<S>,
    inbox: Mutex<Inbox>,
    called: Notify,
}

struct Inbox {
    admission: CallAdmission,
    calls: Vec<(u64, OutgoingMessage, Waiter)>,
    closed: bool,
}

struct Waiter {
    sequence: u64,
    outcome: oneshot::Sender<Outcome>,
    size: usize,
    permit: OwnedSemaphorePermit,
}

impl<S: Service> CallSession<S> {
    /// Opens a session on the current runtime. Once `ending` is cancelled, its calls end.
    pub(crate) fn open(
        server: &Server<S>,
        client: Arc<ClientInfo>,
        id: SessionId,
        ending: CancellationToken,
    ) -> Self {
        let (local, replies) = server.open_local_session(client, id.0);
        let inbox =
            Inbox { admission: CallAdmission::new(id, 1), calls: Vec::new(), closed: false };
        let shared =
            Arc::new(Shared { id, local, inbox: Mutex::new(inbox), called: Notify::new() });
        tokio::spawn(drive(Arc::clone(&shared), replies, ending));
        Self { shared }
    }

    /// Makes a call, in order after the earlier ones. It goes on if the future is dropped.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn call(
        &self,
        call: NewCall,
    ) -> Result<impl Future<Output = Outcome> + Send + use<S>, Box<Problem>> {
        let shared = &self.shared;
        let service = shared.local.service();
        let cluster_ms = service.cluster_time_ms();
        if cluster_ms == 0 {
            return Err(Box::new(ostraca_wire::outcome::node_starting()));
        }
        let utc_ms = service.utc_ms();
        let (outcome, answered) = oneshot::channel();
        let size = call.body.len();
        let deadline = Instant::now() + call.timeout;
        let mut inbox = shared.inbox();
        let id =
            inbox.admission.admit(None, cluster_ms, size).map_err(|refused| refused.problem)?;
        let envelope = Envelope {
            r#type: call.entity.entity_type.to_string(),
            id: call.entity.id.to_string(),
            kind: call.kind.into(),
            method: call.method,
            body: call.body,
            content_type: call.content_type,
            traceparent: call.traceparent,
            tracestate: call.tracestate,
            utc_ms,
            flags: if call.is_keyed { KEYED } else { 0 },
            ..Envelope::default()
        };
        let message = OutgoingMessage {
            entity: call.entity,
            envelope,
            created_ms: id.created_ms,
            deadline,
            is_resend: false,
        };
        let (sequence, permit) = (id.sequence, call.permit);
        inbox.calls.push((sequence, message, Waiter { sequence, outcome, size, permit }));
        drop(inbox);
        shared.called.notify_one();
        Ok(async move {
            answered.await.unwrap_or_else(|_| {
                let (code, message) = (codes::ABANDONED.as_str().into(), "the node stopped".into());
                let result = Err(CallError::Unknown { id, code, message });
                Outcome { result, held: Held::default() }
            })
        })
    }
}

impl<S: Service> Drop for CallSession<S> {
    fn drop(&mut self) {
        self.shared.inbox().closed = true;
        self.shared.called.notify_one();
    }
}

impl<S: Service> Shared<S> {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn drive<S: Service>(
    shared: Arc<Shared<S>>,
    mut replies: LocalReceiver,
    ending: CancellationToken,
) {
    let mut ledger = Ledger::new(shared.id, 1, rand::random());
    let limits = shared.local.limits();
    // The callers share nothing but the principal: its places and its budgets bound what is in flight, and one slow
    // entity must not keep the others' calls back.
    ledger.set_limits(SessionLimits {
        messages: u32::MAX,
        bytes: u64::MAX,
        max_message: limits.max_message,
        max_frame: limits.max_frame,
    });
    let mut charges = HashMap::new();
    // Messages that are being delivered. That takes a while if their type is not known.
    let mut sending: Option<BoxFuture<'static, ()>> = None;
    loop {
        let now = Instant::now();
        while let Some(reply) = replies.try_recv() {
            let (reply, charge) = reply.into_parts();
            charges.insert(reply.sequence, charge);
            ledger.on_reply(reply, now);
        }
        let closed = take_calls(&shared, &mut ledger);
        ledger.tick(now);
        if ending.is_cancelled() {
            let why = problem(codes::SHUTTING_DOWN, "the node is stopping");
            ledger.complete_all(&why, now);
        }
        if sending.is_none() {
            let mut batch = Vec::new();
            while let Some(envelope) = ledger.next_to_send(now) {
                batch.push(envelope.clone());
            }
            if !batch.is_empty() {
                let shared = Arc::clone(&shared);
                sending = Some(async move { shared.local.send(batch).await }.boxed());
            }
        }
        hand_out(&shared, &mut ledger, &mut charges);
        if closed && ledger.is_empty() && sending.is_none() {
            return;
        }
        let wake = ledger.next_wake();
        tokio::select! {
            () = shared.called.notified() => {}
            () = ending.cancelled(), if !ending.is_cancelled() => {}
            () = sleep(wake) => {}
            () = delivered(&mut sending) => sending = None,
            Some(reply) = replies.recv() => {
                let (reply, charge) = reply.into_parts();
                charges.insert(reply.sequence, charge);
                ledger.on_reply(reply, Instant::now());
            }
        }
    }
}

async fn delivered(sending: &mut Option<BoxFuture<'static, ()>>) {
    match sending {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Submits new calls to the ledger; returns true once the session is dropped.
fn take_calls<S: Service>(shared: &Shared<S>, ledger: &mut Ledger<Waiter>) -> bool {
    let mut inbox = shared.inbox();
    let calls = std::mem::take(&mut inbox.calls);
    let closed = inbox.closed;
    inbox.admission.stamped(ledger.highest_restamp());
    drop(inbox);
    for (sequence, message, waiter) in calls {
        ledger.push(sequence, message, waiter);
    }
    closed
}

/// Delivers outcomes to their callers, with what they count for.
fn hand_out<S: Service>(
    shared: &Shared<S>,
    ledger: &mut Ledger<Waiter>,
    charges: &mut HashMap<u64, Arc<Charge>>,
) {
    let (mut messages, mut bytes) = (0, 0);
    for (waiter, result) in ledger.take_completed() {
        messages += 1;
        bytes += waiter.size;
        let charge = charges.remove(&waiter.sequence);
        let held = Held { _charge: charge, _permit: Some(waiter.permit) };
        // The caller may have gone.
        let _ = waiter.outcome.send(Outcome { result, held });
    }
    // Those of replies after which the message is sent again.
    charges.clear();
    if messages > 0 {
        shared.inbox().admission.release(messages, bytes);
    }
}
