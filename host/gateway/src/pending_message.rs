//! A message on its way through the gateway: as received, as forwarded to another node, and grouped by
//! destination.

use std::sync::{Arc, Mutex};

use ostraca_core::ids::{Epoch, ScopedSessionId, ShardId};
use ostraca_core::rows::Member;
use ostraca_trace::Span;
use ostraca_wire::clock::BootInstant;
use ostraca_wire::outcome::outcome_for_reply;
use ostraca_wire::peer::forwarding::Forward;
use ostraca_wire::proto::{Envelope, Reply};
use ostraca_wire::server::{Charge, IncomingMessage, Ticket};
use ostraca_workers::{Caller, Delivery, Input, worker_of};
use tokio::sync::{mpsc, oneshot};

use super::entity_ticket::EntityTicket;
use super::{lock, spans};

/// A message with the path for its reply. Clones represent the same message.
#[derive(Clone)]
pub(crate) struct PendingMessage(pub(super) Arc<PendingMessageInner>);

pub(super) struct PendingMessageInner {
    pub(super) shard: ShardId,
    pub(super) session: ScopedSessionId,
    pub(super) envelope: Envelope,
    pub(super) received: BootInstant,
    /// Its charge against the sender's budget.
    pub(super) charge: Arc<Charge>,
    ticket: Mutex<Option<ReplyPath>>,
    /// Ends with the reply.
    span: Mutex<Option<Span>>,
}

/// Where the answer to a message goes.
enum ReplyPath {
    /// To the client or the node that sent it.
    Ticket(Ticket),
    /// To an entity of this node.
    Entity(EntityTicket),
    /// To a task of this node.
    Query(oneshot::Sender<Reply>),
}

impl PendingMessage {
    pub(super) fn new(
        shard: ShardId,
        session: ScopedSessionId,
        request: IncomingMessage,
        span: Option<Span>,
    ) -> Self {
        let IncomingMessage { envelope, received, ticket } = request;
        let charge = (received, Arc::clone(ticket.charge()));
        Self::waiting(shard, session, envelope, charge, ReplyPath::Ticket(ticket), span)
    }

    /// A message from an entity of this node.
    pub(super) fn of_entity(
        shard: ShardId,
        session: ScopedSessionId,
        envelope: Envelope,
        ticket: EntityTicket,
        span: Option<Span>,
    ) -> Self {
        let charge = (BootInstant::now(), Charge::unmetered());
        Self::waiting(shard, session, envelope, charge, ReplyPath::Entity(ticket), span)
    }

    /// A query of this node itself.
    pub(super) fn of_query(
        shard: ShardId,
        session: ScopedSessionId,
        envelope: Envelope,
        reply: oneshot::Sender<Reply>,
    ) -> Self {
        let charge = (BootInstant::now(), Charge::unmetered());
        Self::waiting(shard, session, envelope, charge, ReplyPath::Query(reply), None)
    }

    fn waiting(
        shard: ShardId,
        session: ScopedSessionId,
        envelope: Envelope,
        (received, charge): (BootInstant, Arc<Charge>),
        path: ReplyPath,
        span: Option<Span>,
    ) -> Self {
        let (ticket, span) = (Mutex::new(Some(path)), Mutex::new(span));
        Self(Arc::new(PendingMessageInner {
            shard,
            session,
            envelope,
            received,
            charge,
            ticket,
            span,
        }))
    }

    pub(super) fn reply(&self, reply: Reply) {
        // A message is answered once: a later reply belongs to another copy.
        let path = lock(&self.0.ticket).take();
        if path.is_some() {
            spans::end(lock(&self.0.span).take(), &reply);
        }
        match path {
            Some(ReplyPath::Ticket(ticket)) => ticket.reply(reply),
            Some(ReplyPath::Entity(ticket)) => ticket.answer(outcome_for_reply(reply)),
            // The task may have ended.
            Some(ReplyPath::Query(sender)) => drop(sender.send(reply)),
            None => {}
        }
    }

    /// Milliseconds since this node accepted the message.
    pub(super) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.received.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The envelope that is forwarded to another node.
    pub(super) fn to_forwarded_envelope(&self, node: &str, epoch: Epoch) -> Envelope {
        self.0.envelope.to_forwarded(self.0.session, node, epoch, self.elapsed_ms())
    }
}

impl Caller for PendingMessageInner {
    fn is_abandoned(&self) -> bool {
        match &*lock(&self.ticket) {
            Some(ReplyPath::Ticket(ticket)) => ticket.is_closed(),
            Some(ReplyPath::Entity(_)) => false,
            Some(ReplyPath::Query(sender)) => sender.is_closed(),
            None => true,
        }
    }
}

/// The messages of one round of steps, grouped by destination.
pub(super) struct StepBatches {
    local: Vec<Vec<Delivery>>,
    pub(super) remote: Vec<(Member, Vec<Forward>)>,
}

impl StepBatches {
    pub(super) fn new(workers: usize) -> Self {
        let mut local = Vec::new();
        local.resize_with(workers, Vec::new);
        Self { local, remote: Vec::new() }
    }

    /// Requires that a worker exists: see [`Gateway::workers`](super::Gateway).
    pub(super) fn local(&mut self, shard: ShardId, delivery: Delivery) {
        let worker = worker_of(shard, self.local.len());
        if let Some(of_worker) = self.local.get_mut(worker) {
            of_worker.push(delivery);
        }
    }

    pub(super) fn remote(&mut self, to: Member, forward: Forward) {
        match self.remote.iter_mut().find(|(member, _)| *member == to) {
            Some((_, forwards)) => forwards.push(forward),
            None => self.remote.push((to, vec![forward])),
        }
    }

    pub(super) fn deliver(self, workers: &[mpsc::UnboundedSender<Input>]) {
        for (worker, deliveries) in workers.iter().zip(self.local) {
            // If a worker has ended, dropping the tickets answers `unknown`, and the node is ending too.
            if !deliveries.is_empty() {
                let _ = worker.send(Input::Messages(deliveries));
            }
        }
    }
}
