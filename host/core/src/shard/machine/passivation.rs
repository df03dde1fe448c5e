//! When an idle instance is dropped, and why an entity has an instance (K29, K30).
//!
//! An instance is dropped when no message and no firing has run for the type's idle timeout. A guest may choose another
//! delay for its instance. That delay also applies to a remembered entity, which is otherwise not dropped for being
//! idle: like `passivate`, it is the guest's own request. The delay is a property of the instance: it is not stored, and
//! the next instance starts without it.

use super::{Entity, Machine, Mutation};
use crate::shard::StopReason;
use crate::shard::activity::{AwakeReason, EntityActivity};
use crate::shard::entity::{ResidentEntity, Stage};

impl Machine {
    /// When an idle instance without pending messages is dropped, on the node's clock, and for which reason.
    pub(super) fn idle_end(
        &self,
        entity: &Entity,
        state: &ResidentEntity,
    ) -> Option<(u64, StopReason)> {
        if state.stage != Stage::Idle || !state.entries.is_empty() {
            return None;
        }
        let (delay, reason) = match state.passivate_after {
            Some(delay) => (delay.saturating_sub(self.early()), StopReason::Passivated),
            None if state.head.remembered => return None,
            None => (self.types.of(entity)?.idle_timeout, StopReason::Idle),
        };
        Some((state.last_used.saturating_add(delay), reason))
    }

    fn early(&self) -> u64 {
        if self.context.has_mutation(Mutation::PassivateEarly) { 50 } else { 0 }
    }

    /// What the machine has in memory about an entity, for operators.
    #[must_use]
    pub fn activity(&self, entity: &Entity) -> EntityActivity {
        let state = self.residents.get(entity);
        let pause = state.and_then(|state| state.start_backoff.as_ref());
        EntityActivity {
            awake: state.map_or_else(Vec::new, |state| self.awake_reasons(entity, state)),
            on_failure: self.types.of(entity).map(|settings| settings.on_failure),
            stopped_by: self.supervision.stopped_by(entity).cloned(),
            start_pause: self.start_pause(entity),
            failed_starts: pause.map_or(0, |pause| pause.failures),
        }
    }

    fn awake_reasons(&self, entity: &Entity, state: &ResidentEntity) -> Vec<AwakeReason> {
        let mut reasons = match state.stage {
            Stage::AwaitingSlot(_) => vec![AwakeReason::AwaitsSlot],
            Stage::Migrating(..) | Stage::Starting(_) => vec![AwakeReason::Starting],
            Stage::Running(..) => vec![AwakeReason::RunsMessage],
            Stage::Firing(..) => vec![AwakeReason::RunsTimer],
            Stage::Stopping(_) => vec![AwakeReason::Stopping],
            Stage::Idle => Vec::new(),
            Stage::Unloaded
            | Stage::Loading
            | Stage::Loaded
            | Stage::Purging
            | Stage::AwaitingCommits => return Vec::new(),
        };
        let counted = [
            (state.asks.len(), AwakeReason::Asks as fn(usize) -> AwakeReason),
            (state.calls.len(), AwakeReason::HttpCalls),
            (state.queued_messages(), AwakeReason::Messages),
            (state.gate.len(), AwakeReason::Commits),
        ];
        reasons
            .extend(counted.iter().filter(|(count, _)| *count > 0).map(|(count, of)| of(*count)));
        let now = self.context.mono();
        let end = self.idle_end(entity, state);
        let due = self.timers_due(entity, state).map(|at| at.saturating_sub(now));
        let is_soon = |due: &u64| end.is_none_or(|(at, _)| *due < at.saturating_sub(now));
        reasons.extend(due.filter(is_soon).map(AwakeReason::TimerDue));
        if state.head.remembered {
            reasons.push(AwakeReason::Remembered);
        }
        reasons.extend(end.map(|(at, reason)| match reason {
            StopReason::Passivated => AwakeReason::PassivatesIn(at.saturating_sub(now)),
            _ => AwakeReason::Idle(at.saturating_sub(now)),
        }));
        reasons
    }
}
