//! Commands with which an operator changes what an entity has besides its state.
//!
//! Such a command is a message to the entity, in a client's session, so it runs once, however often it is sent. The
//! shard's machine executes it in a turn that does not call the guest.

use super::dead_letters::DeadLetterAction;
use crate::message::MessageKind;

/// A command of an operator to an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorCommand {
    /// Resends or drops dead letters (R19). The body names them.
    DeadLetters(DeadLetterAction),
    /// Removes the entity's mark: it is no longer remembered (K31). The body is empty.
    ForgetEntity,
    /// Deletes the entity (E17). The body and the result are empty.
    DeleteEntity,
    /// Imports an entity that was exported elsewhere. The body is an encoded
    /// [`EntityCopy`](super::EntityCopy); the result is empty.
    ImportEntity,
    /// Lets an entity start again that was stopped after a failure (K33), and migrate again if its migration failed
    /// (R24). The body is empty. It changes nothing that is stored, so it is a query; the answer is one byte:
    /// [`WAS_STOPPED`], [`MIGRATION_HAD_FAILED`], or both.
    RestartEntity,
}

/// In the answer to [`OperatorCommand::RestartEntity`]: the entity was stopped.
pub const WAS_STOPPED: u8 = 1;
/// In the answer to [`OperatorCommand::RestartEntity`]: a migration of the entity had failed.
pub const MIGRATION_HAD_FAILED: u8 = 2;

/// The method of [`OperatorCommand::ForgetEntity`].
const FORGET_ENTITY: &str = "\u{1}forget-entity";
/// The method of [`OperatorCommand::DeleteEntity`].
const DELETE_ENTITY: &str = "\u{1}delete-entity";
/// The method of [`OperatorCommand::ImportEntity`].
const IMPORT_ENTITY: &str = "\u{1}import-entity";
/// The method of [`OperatorCommand::RestartEntity`].
const RESTART_ENTITY: &str = "\u{1}restart-entity";

impl OperatorCommand {
    /// The method of the command. No guest can declare it.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::DeadLetters(action) => action.method(),
            Self::ForgetEntity => FORGET_ENTITY,
            Self::DeleteEntity => DELETE_ENTITY,
            Self::ImportEntity => IMPORT_ENTITY,
            Self::RestartEntity => RESTART_ENTITY,
        }
    }

    /// The kind of the command's message.
    #[must_use]
    pub fn kind(self) -> MessageKind {
        match self {
            Self::DeadLetters(_) | Self::ForgetEntity | Self::DeleteEntity | Self::ImportEntity => {
                MessageKind::Command
            }
            Self::RestartEntity => MessageKind::Query,
        }
    }

    /// The command that has this method, if there is one.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        match method {
            FORGET_ENTITY => Some(Self::ForgetEntity),
            DELETE_ENTITY => Some(Self::DeleteEntity),
            IMPORT_ENTITY => Some(Self::ImportEntity),
            RESTART_ENTITY => Some(Self::RestartEntity),
            _ => DeadLetterAction::of_method(method).map(Self::DeadLetters),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_command_has_a_method_that_no_guest_can_declare() {
        let commands = [
            OperatorCommand::DeadLetters(DeadLetterAction::Resend),
            OperatorCommand::DeadLetters(DeadLetterAction::Drop),
            OperatorCommand::ForgetEntity,
            OperatorCommand::DeleteEntity,
            OperatorCommand::ImportEntity,
            OperatorCommand::RestartEntity,
        ];
        for command in commands {
            assert_eq!(OperatorCommand::of_method(command.method()), Some(command));
            assert!(command.method().starts_with('\u{1}'));
        }
        assert_eq!(OperatorCommand::of_method("forget-entity"), None);
    }
}
