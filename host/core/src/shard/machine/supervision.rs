//! What follows a failure of an entity's guest (K33): its type's manifest decides.
//!
//! Only a failure through the guest's own fault counts: a trap, an exceeded limit, or a start that fails. The instance
//! is dropped in any case, since a guest cannot continue after a trap. An application error is an answer and no failure;
//! it keeps the instance, whatever the strategy.
//!
//! With `restart` and `resume`, the next message or timer starts a new instance, after a pause if starts keep failing
//! ([`backoff`](super::backoff)). With `escalate`, the machine also asks once for its shard to be moved; the manager
//! decides. With `stop`, the entity stays without an instance: messages are refused, and its
//! timers wait, until an operator restarts it, a new revision is deployed, or the shard gets another owner. The owner
//! knows this only in memory: the next one starts the entity once more.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Action, Entity, GuestReply, Machine, Outcome, codes};
use crate::message::Message;
use crate::shard::operator_commands::{MIGRATION_HAD_FAILED, WAS_STOPPED};
use crate::shard::settings::OnFailure;

/// The entities that stay without an instance after a failure.
#[derive(Clone, Debug, Default)]
pub(super) struct Supervision {
    stopped: BTreeMap<Entity, Stopped>,
    /// The stopped entities in the order in which they were stopped.
    order: BTreeMap<u64, Entity>,
    last: u64,
    /// Whether the machine has asked for its shard to be moved.
    has_escalated: bool,
}

#[derive(Clone, Debug)]
struct Stopped {
    order: u64,
    /// Code and message of the failure.
    why: Arc<str>,
}

impl Supervision {
    pub(super) fn is_stopped(&self, entity: &Entity) -> bool {
        !self.stopped.is_empty() && self.stopped.contains_key(entity)
    }

    /// Code and message of the failure after which the entity was stopped, if it was.
    pub(super) fn stopped_by(&self, entity: &Entity) -> Option<&Arc<str>> {
        self.stopped.get(entity).map(|stopped| &stopped.why)
    }

    /// Stops an entity. Returns the one that is forgotten for lack of space, if there is one.
    fn stop(&mut self, entity: &Entity, why: &str, most: usize) -> Option<Entity> {
        self.last += 1;
        let stopped = Stopped { order: self.last, why: why.into() };
        if let Some(old) = self.stopped.insert(entity.clone(), stopped) {
            self.order.remove(&old.order);
        }
        self.order.insert(self.last, entity.clone());
        if self.stopped.len() <= most.max(1) {
            return None;
        }
        let (_, first) = self.order.pop_first()?;
        self.stopped.remove(&first);
        Some(first)
    }

    /// Lets the entity start again. Returns whether it was stopped.
    pub(super) fn release(&mut self, entity: &Entity) -> bool {
        let stopped = self.stopped.remove(entity);
        stopped.is_some_and(|stopped| self.order.remove(&stopped.order).is_some())
    }

    /// Lets the entities of a type start again: another revision was deployed.
    pub(super) fn release_type(&mut self, entity_type: &str) {
        let of_type: Vec<_> =
            self.stopped.keys().filter(|it| *it.entity_type == *entity_type).cloned().collect();
        for entity in of_type {
            self.release(&entity);
        }
    }
}

impl Machine {
    /// Handles a failure of the entity's guest, before its instance is dropped.
    pub(super) fn on_guest_failure(&mut self, entity: &Entity, code: &str, message: &str) {
        let strategy = self.types.of(entity).map_or(OnFailure::Restart, |it| it.on_failure);
        match strategy {
            OnFailure::Restart | OnFailure::Resume => {}
            OnFailure::Stop => {
                let most = self.context.settings.max_stopped;
                let why = format!("{code}: {message}");
                let forgotten = self.supervision.stop(entity, &why, most);
                if let Some(entity) = forgotten {
                    self.context.push(Action::ForgetStopped { entity });
                }
            }
            OnFailure::Escalate => {
                if !std::mem::replace(&mut self.supervision.has_escalated, true) {
                    let (entity, why) = (entity.clone(), format!("{code}: {message}").into());
                    self.context.push(Action::Escalate { entity, why });
                }
            }
        }
    }

    /// The refusal of all messages to a stopped entity.
    pub(super) fn stopped_outcome(&self, entity: &Entity) -> Option<Outcome> {
        let why = self.supervision.stopped_by(entity)?;
        let text = format!(
            "{entity} was stopped after a failure (`on-failure = \"stop\"`): {why}; restart it with `ostraca restart-entity`, or deploy another revision"
        );
        Some(Outcome::not_run(codes::ENTITY_STOPPED, text))
    }

    /// Handles an operator's request to restart a stopped entity, or to repeat its failed migration. It changes only what
    /// this owner has in memory, so it is answered like a query: [`WAS_STOPPED`], [`MIGRATION_HAD_FAILED`], or both.
    pub(super) fn restart_entity(&mut self, entity: &Entity, message: &Message) {
        let was_stopped = self.supervision.release(entity);
        let has_failed = self.failed_migrations.remove(entity);
        let most = self.context.settings.max_lanes;
        let Some(state) = self.residents.get_mut(entity) else { return };
        state.lanes.record_query_answered(message, most);
        state.mailbox.remove(&message.id);
        state.mailbox.unpark(&message.id);
        let (version, is_remembered) = (state.head.version, state.head.remembered);
        let flags = if was_stopped { WAS_STOPPED } else { 0 }
            | if has_failed { MIGRATION_HAD_FAILED } else { 0 };
        let answer = GuestReply::Result(Bytes::copy_from_slice(&[flags]));
        self.finish_query(entity, &message.id, answer, version);
        // Its timers may have waited. The entity is being examined, so it need not be advanced.
        self.wakes.end_pauses(&self.context, |it| was_stopped && it == entity);
        if was_stopped && is_remembered {
            self.start_again_at(entity, self.context.mono());
        }
    }
}
