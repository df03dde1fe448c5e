//! Passes asks of running guests from the sandbox to the shard's machine, and the answers back (R20).

use std::sync::Arc;

use ostraca_core::ids::Entity;
use ostraca_core::message::Outcome;
use ostraca_core::shard::{Event, NewAsk};
use ostraca_wasm::{AskReply, AskSink, GuestAsk};
use tokio::sync::mpsc;

use super::Worker;
use super::machines::{InstanceState, MachineId};
use crate::guest_types;

/// An ask that a running guest has started.
pub(super) struct StartedAsk {
    id: MachineId,
    entity: Entity,
    generation: u64,
    place: u32,
    ask: NewAsk,
    reply: AskReply,
}

/// Passes the asks of one turn to the worker that runs it.
#[derive(Debug)]
struct TurnAsks {
    id: MachineId,
    entity: Entity,
    generation: u64,
    traceparent: Arc<str>,
    asks: mpsc::UnboundedSender<StartedAsk>,
}

impl AskSink for TurnAsks {
    fn ask(&self, place: u32, ask: GuestAsk, reply: AskReply) {
        let Self { id, generation, asks, .. } = self;
        let ask = guest_types::new_ask(&self.entity.entity_type, ask, self.traceparent.clone());
        let (id, entity, generation) = (*id, self.entity.clone(), *generation);
        // If the worker has ended, `reply` is dropped and the turn fails as interrupted.
        let _ = asks.send(StartedAsk { id, entity, generation, place, ask, reply });
    }
}

impl Worker {
    /// A sink for the asks of one turn of this instance; `None` if its type may not ask.
    pub(super) fn ask_sink(
        &self,
        id: MachineId,
        entity: &Entity,
        generation: u64,
        traceparent: &Arc<str>,
    ) -> Option<Arc<dyn AskSink>> {
        if !self.types.get(&entity.entity_type).is_some_and(|entry| entry.may_ask()) {
            return None;
        }
        let (entity, traceparent) = (entity.clone(), traceparent.clone());
        let asks = self.started_asks.0.clone();
        Some(Arc::new(TurnAsks { id, entity, generation, traceparent, asks }))
    }

    /// Passes the asks that guests have started to their machines. Returns whether there were any. An ask must arrive
    /// before the completion of its turn, or it would count as one of the next turn.
    pub(super) fn start_asks(&mut self) -> bool {
        let mut found = false;
        while let Ok(ask) = self.started_asks.1.try_recv() {
            self.start_ask(ask);
            found = true;
        }
        found
    }

    pub(super) fn start_ask(&mut self, started: StartedAsk) {
        let StartedAsk { id, entity, generation, place, ask, reply } = started;
        let Some(slot) = self.machines.get_mut(id) else { return };
        // The turn may have ended, or its instance may have been dropped.
        if let Some(InstanceState::Busy(_, waiting)) = slot.instance_mut(&entity, generation) {
            waiting.asks.insert(place, reply);
            self.handle_event(id, Event::AskStarted { entity, generation, place, ask });
        }
    }

    pub(super) fn answer_ask(
        &mut self,
        id: MachineId,
        entity: &Entity,
        generation: u64,
        place: u32,
        outcome: Outcome,
    ) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        if let Some(InstanceState::Busy(_, waiting)) = slot.instance_mut(entity, generation)
            && let Some(reply) = waiting.asks.remove(&place)
        {
            reply.answer(guest_types::ask_answer(outcome));
        }
    }
}
