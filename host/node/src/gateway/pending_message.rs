//! A message on its way through the gateway: as it came, as another node gets it, and by where it goes.

use std::sync::{Arc, Mutex};

use ostraca_core::ids::{Epoch, ScopedSessionId, ShardId};
use ostraca_core::rows::Member;
use ostraca_wire::clock::BootInstant;
use ostraca_wire::peer::forwarding::Forward;
use ostraca_wire::proto::{Envelope, Reply};
use ostraca_wire::server::{Charge, IncomingMessage, Ticket};
use tokio::sync::mpsc;

use super::{Gateway, lock};
use crate::worker::{Delivery, Input};

/// A message, and the right to answer it. Copies are one message.
#[derive(Clone)]
pub(crate) struct PendingMessage(pub(super) Arc<PendingMessageInner>);

/// What a parcel is of.
pub(super) struct PendingMessageInner {
    pub(super) shard: ShardId,
    pub(super) session: ScopedSessionId,
    pub(super) envelope: Envelope,
    pub(super) received: BootInstant,
    /// What it costs its sender.
    pub(super) charge: Arc<Charge>,
    ticket: Mutex<Option<Ticket>>,
}

impl PendingMessage {
    pub(super) fn new(shard: ShardId, session: ScopedSessionId, request: IncomingMessage) -> Self {
        let IncomingMessage { envelope, received, ticket } = request;
        let charge = Arc::clone(ticket.charge());
        let ticket = Mutex::new(Some(ticket));
        Self(Arc::new(PendingMessageInner { shard, session, envelope, received, charge, ticket }))
    }

    /// One that was answered.
    #[cfg(test)]
    pub(crate) fn already_replied() -> Self {
        let (shard, session) = (ShardId(1), ScopedSessionId::derive("client/x", b"s"));
        let (envelope, received) = (Envelope::default(), BootInstant::now());
        let (charge, ticket) = (Charge::unmetered(), Mutex::new(None));
        Self(Arc::new(PendingMessageInner { shard, session, envelope, received, charge, ticket }))
    }

    pub(super) fn reply(&self, reply: Reply) {
        // Answered once: a later answer is another copy's.
        if let Some(ticket) = lock(&self.0.ticket).take() {
            ticket.reply(reply);
        }
    }

    /// Whether nobody can get its answer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        lock(&self.0.ticket).as_ref().is_none_or(Ticket::is_closed)
    }

    /// For how many milliseconds this node has held it.
    pub(super) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.received.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The envelope as another node gets it.
    pub(super) fn to_forwarded_envelope(&self, node: &str, epoch: Epoch) -> Envelope {
        self.0.envelope.to_forwarded(self.0.session, node, epoch, self.elapsed_ms())
    }
}

/// Steps of one round, by where they go.
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

    /// There is a worker: see [`Gateway::workers`].
    pub(super) fn local(&mut self, shard: ShardId, delivery: Delivery) {
        let worker = Gateway::worker_of(shard, self.local.len());
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
            // A worker that has ended takes its tickets with it: they say `unknown`; and the node ends.
            if !deliveries.is_empty() {
                let _ = worker.send(Input::Messages(deliveries));
            }
        }
    }
}
