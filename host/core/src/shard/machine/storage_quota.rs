//! Refuses what would let the entities of a namespace grow beyond its quotas.
//!
//! The node counts, and says which namespaces are full. A turn that starts an entity, or leaves its state larger, is
//! then refused; all others go on, so that a tenant can still read, shrink and delete. A migration and the last turn of
//! an instance are never refused: nobody could repeat them.

use ostraca_codes::{Code, codes};

use super::{Entity, Machine, Outcome};
use crate::message::{Message, MessageKind};
use crate::names;
use crate::quota::{Full, FullNamespaces};
use crate::shard::stored::Amount;
use crate::shard::{OperatorCommand, TurnOutput, TurnResult};

/// After how many milliseconds a refused message may be tried again.
const RETRY_AFTER: u32 = 1_000;

/// Which namespaces are full.
#[derive(Clone, Debug, Default)]
pub(super) struct StorageQuota {
    full: FullNamespaces,
}

impl StorageQuota {
    pub(super) fn set(&mut self, full: FullNamespaces) {
        self.full = full;
    }

    fn of(&self, entity: &Entity) -> Full {
        if self.full.is_empty() {
            return Full::default();
        }
        let namespace = names::namespace(&entity.entity_type);
        self.full.get(namespace).copied().unwrap_or_default()
    }
}

fn too_many(entity: &Entity, limit: u64) -> (Code, String) {
    let namespace = names::namespace(&entity.entity_type);
    let text =
        format!("{entity} would be a new entity, and the namespace `{namespace}` may have {limit}");
    (codes::QUOTA_ENTITIES, text)
}

impl Machine {
    /// Refuses a message that would create an entity in a full namespace, before anything is started for it.
    pub(super) fn creation_refusal(&self, entity: &Entity, message: &Message) -> Option<Outcome> {
        let limit = self.storage_quota.of(entity).entities?;
        let state = self.residents.get(entity)?;
        if message.kind != MessageKind::Command
            || OperatorCommand::of_method(&message.method).is_some()
            || Amount::of(&state.head).entities > 0
        {
            return None;
        }
        let (code, text) = too_many(entity, limit);
        Some(Outcome::not_run_retryable(code, text, RETRY_AFTER))
    }

    /// The output of a turn, or that the turn failed because its namespace is full.
    pub(super) fn within_quota(&self, entity: &Entity, output: TurnOutput) -> TurnOutput {
        let full = self.storage_quota.of(entity);
        if full == Full::default() || output.delete || output.changes_nothing() {
            return output;
        }
        let Some(state) = self.residents.get(entity) else { return output };
        let before = Amount::of(&state.head);
        let grows = output
            .state_bytes
            .is_some_and(|now| i64::try_from(now).is_ok_and(|now| now > before.bytes));
        let (code, message) = match full {
            Full { entities: Some(limit), .. } if before.entities == 0 => too_many(entity, limit),
            Full { state_bytes: Some(limit), .. } if grows => {
                let namespace = names::namespace(&entity.entity_type);
                let text = format!(
                    "the state of {entity} would grow, and the entities of the namespace `{namespace}` may store {limit} bytes"
                );
                (codes::QUOTA_STATE, text)
            }
            _ => return output,
        };
        let retry_after = Some(RETRY_AFTER);
        TurnOutput::without_effects(TurnResult::Failed { code: code.into(), message, retry_after })
    }
}
