//! An operator's commands that remove the marks of remembered entities (K31).

use bytes::Bytes;
use ostraca_core::ids::{Entity, ScopedSessionId};
use ostraca_core::shard::OperatorCommand;

use super::{SimEvent, World};

/// A command to forget an entity, or a copy of it.
#[derive(Clone, Debug)]
pub(super) struct ForgetCommand {
    entity: Entity,
    session: ScopedSessionId,
    created_ms: u64,
}

impl World {
    /// Handles the start of a remembered entity: sometimes, an operator forgets it later. Some of these commands are
    /// duplicated.
    pub(super) fn plan_forgetting(&mut self, entity: Entity) {
        if !self.rng_of_marks.chance(10) {
            return;
        }
        self.tokens += 1;
        let session = ScopedSessionId::derive("operator", &self.tokens.to_be_bytes());
        let command = ForgetCommand { entity, session, created_ms: self.now.max(1) };
        for _ in 0..self.rng_of_marks.range(1, 3) {
            let delay = self.rng_of_marks.range(1, 1_500);
            self.at(delay, SimEvent::ForgetEntity { command: command.clone() });
        }
    }

    pub(super) fn forget_entity(&mut self, command: ForgetCommand) {
        let gateways = self.awake_gateways();
        let count = gateways.len() as u64;
        if count == 0 {
            return;
        }
        let pid = gateways[self.rng_of_marks.range(0, count) as usize];
        let ForgetCommand { entity, session, created_ms } = command;
        let command = (OperatorCommand::ForgetEntity, Bytes::new());
        self.send_command(pid, entity, command, session, created_ms);
    }
}
