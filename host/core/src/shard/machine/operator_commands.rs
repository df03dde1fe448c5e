//! Operators' commands to entities: turns that do not call the guest.

use super::gate::Effects;
#[cfg(debug_assertions)]
use super::subscriptions::waits_for_pages;
use super::{Entity, Machine, Outcome, codes};
use crate::message::Message;
use crate::records::{RecordKey, RecordWrite};
use crate::shard::OperatorCommand;
#[cfg(debug_assertions)]
use crate::shard::entity::ResidentEntity;

impl Machine {
    /// Runs an operator's command. The entity's turns must all be durable: the command must see only durable state, or
    /// it could report what a refused commit undoes. Returns whether the entity's messages must wait.
    pub(super) fn run_operator_command(
        &mut self,
        entity: &Entity,
        command: OperatorCommand,
        message: &Message,
    ) -> bool {
        match command {
            OperatorCommand::DeadLetters(action) => {
                self.handle_dead_letters(entity, action, message);
            }
            OperatorCommand::ForgetEntity => self.forget_entity(entity, message),
            OperatorCommand::DeleteEntity => return self.delete_by_command(entity, message),
            OperatorCommand::ImportEntity => return self.import(entity, message),
            OperatorCommand::RestartEntity => {
                self.restart_entity(entity, message);
                return self.stop_for_migration(entity);
            }
        }
        false
    }

    /// Removes the entity's mark (K31). Its instance, if it has one, is not stopped: it may be dropped when it is idle.
    fn forget_entity(&mut self, entity: &Entity, message: &Message) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        if !state.head.remembered {
            let text = format!("{entity} is not remembered");
            let outcome = Outcome::not_run(codes::NOT_REMEMBERED, text);
            return self.finish(entity, &message.id, outcome, true);
        }
        state.head.remembered = false;
        // If recovery was about to start the entity, it need not do so. If the commit is refused, it starts it again.
        state.must_start = false;
        let records = vec![RecordWrite { key: RecordKey::Remembered, value: None }];
        self.commit_command(entity, message, Effects::of_records(records));
    }

    /// Commits the effects of an operator's command.
    pub(super) fn commit_command(&mut self, entity: &Entity, message: &Message, effects: Effects) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        state.mailbox.remove(&message.id);
        let turn = self.claim.next_turn();
        self.commit(entity, turn, Effects { message: Some(message.id), ..effects });
        if let Some(state) = self.residents.get_mut(entity) {
            state.mailbox.unpark(&message.id);
        }
    }

    /// Whether the next message is an operator's command or a tell, which may wait until all turns are durable, or waits
    /// until the subscriptions have been read.
    #[cfg(debug_assertions)]
    pub(super) fn waits_for_gate(&self, state: &ResidentEntity) -> bool {
        let next = state.mailbox.front().and_then(|id| state.entries.get(&id));
        let reads =
            state.subscriptions.is_reading() && next.is_some_and(|it| waits_for_pages(&it.message));
        // An old tell is refused once that is durable.
        let is_old = next.is_some_and(|it| it.message.sender.is_some());
        reads
            || is_old && !state.has_durable_lanes()
            || !state.gate.is_empty()
                && next.is_some_and(|it| OperatorCommand::of_method(&it.message.method).is_some())
    }
}
