//! The right to answer a message from an entity of this node.

use ostraca_core::message::Outcome;
use ostraca_workers::{EntityMessage, Input};
use tokio::sync::mpsc;

/// The right and the duty to answer an entity's message. If it is dropped unused, it answers that the outcome is
/// unknown.
pub(crate) struct EntityTicket {
    message: Option<EntityMessage>,
    worker: mpsc::UnboundedSender<Input>,
}

impl EntityTicket {
    /// Answers go to the worker of the sender's shard.
    pub(super) fn new(message: EntityMessage, worker: mpsc::UnboundedSender<Input>) -> Self {
        Self { message: Some(message), worker }
    }

    pub(super) fn answer(mut self, outcome: Outcome) {
        self.send(outcome);
    }

    fn send(&mut self, outcome: Outcome) {
        let Some(message) = self.message.take() else { return };
        let Some(event) = message.answer(outcome).map(Box::new) else { return };
        let EntityMessage { shard, epoch, .. } = message;
        // A worker that has ended needs no answer: its entities' outboxes are in the store.
        let _ = self.worker.send(Input::EntityAnswer { shard, epoch, event });
    }
}

impl Drop for EntityTicket {
    fn drop(&mut self) {
        self.send(Outcome::Unknown { message: "the node dropped the message".into() });
    }
}
