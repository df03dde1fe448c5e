//! Messages that entities of this node send (R19): they take the same path as clients' messages, and their answers go
//! back to the senders' shards.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_core::ids::ScopedSessionId;
use ostraca_trace::Role;
use ostraca_wire::proto::Envelope;
use ostraca_workers::{EntityMessage, EntityMessageContent, worker_of};

use super::Gateway;
use super::entity_ticket::EntityTicket;
use super::pending_message::PendingMessage;
use super::spans;

/// The number of the next query to a target. It is higher than that of any tell, so that no lane mistakes a query for a
/// copy of a tell.
static QUESTIONS: AtomicU64 = AtomicU64::new(1 << 63);

impl Gateway {
    /// Routes the messages that entities of this node send, and drains the list.
    pub(super) fn send_entity_messages(&self, messages: &mut Vec<EntityMessage>) {
        let types = self.types.snapshot();
        let now = self.now();
        let mut accepted = Vec::with_capacity(messages.len());
        for message in messages.drain(..) {
            let Some(worker) = self.workers.get(worker_of(message.shard, self.workers.len()))
            else {
                continue;
            };
            let mut envelope = self.envelope_of(&message);
            self.resolver.apply_limits(&mut envelope, 0);
            let session = match &message.content {
                EntityMessageContent::Ask(_, ask, _) => ask.id.session,
                _ => ScopedSessionId::of_entity(&message.from),
            };
            let shard = self.likely_shard(&types, &envelope);
            let span = match &message.content {
                EntityMessageContent::Ask(..) => {
                    spans::begin(&self.tracer, &mut envelope, Role::Client, "ask ")
                }
                EntityMessageContent::Tell(..) => {
                    spans::begin(&self.tracer, &mut envelope, Role::Producer, "tell ")
                }
                EntityMessageContent::AskNote(_) | EntityMessageContent::FirstTell => None,
            };
            let ticket = EntityTicket::new(message, worker.clone());
            accepted.push(PendingMessage::of_entity(shard, session, envelope, ticket, span));
        }
        let mut steps = Vec::with_capacity(accepted.len());
        let Some(mut router) = self.router() else { return };
        for pending in accepted {
            let envelope = &pending.0.envelope;
            let (bytes, deadline) = (envelope.body.len() + 256, envelope.deadline(now, 0));
            router.route_into(now, pending.0.shard, pending, bytes, deadline, &mut steps);
        }
        drop(router);
        self.execute_steps(steps);
    }

    fn envelope_of(&self, message: &EntityMessage) -> Envelope {
        match &message.content {
            EntityMessageContent::Tell(number, tell) => {
                Envelope::of_tell(&message.from, *number, tell, 0)
            }
            EntityMessageContent::Ask(_, ask, remaining) => Envelope::of_ask(ask, *remaining),
            EntityMessageContent::AskNote(note) => {
                let number = QUESTIONS.fetch_add(1, Ordering::Relaxed);
                Envelope::of_ask_note(&message.from, &message.to, note, number, 0)
            }
            EntityMessageContent::FirstTell => {
                let number = QUESTIONS.fetch_add(1, Ordering::Relaxed);
                Envelope::of_first_tell_query(&message.from, &message.to, number, 0)
            }
        }
    }
}
