//! Guests that choose how long their instances are kept, and the check that none is dropped earlier (E15).

use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::shard::TurnOutput;

use super::World;
use super::process::Pid;
use crate::passivation;
use crate::violation::ViolationKind;

impl World {
    /// Sometimes lets a turn set the delay of its passivation, and records what the turn says.
    pub(super) fn plan_passivation(
        &mut self,
        (pid, shard): (Pid, ShardId),
        entity: &Entity,
        generation: u64,
        result: &mut TurnOutput,
    ) {
        if !self.passivates {
            return;
        }
        result.passivate_after = passivation::by_turn(&mut self.rng_of_delays);
        let it = &mut self.processes[pid];
        let since = it.mono(self.now);
        let Some(hosted) = it.shards.get_mut(&shard) else { return };
        // A second instance ends with the turn beside which it runs.
        if hosted.second.contains(&generation) {
            return;
        }
        hosted.delays.entry(entity.clone()).or_default().on_turn(since, result);
    }

    /// Checks an instance that is stopped because its guest asked for it.
    pub(super) fn check_passivation(&mut self, pid: Pid, shard: ShardId, entity: &Entity) {
        let it = &self.processes[pid];
        let now = it.mono(self.now);
        let delay = it.shards.get(&shard).and_then(|hosted| hosted.delays.get(entity));
        let Some(delay) = delay.filter(|delay| !delay.is_at_once()) else { return };
        if delay.has_passed(now) {
            return self.tally.count("passivation: after a delay");
        }
        let text = format!("{entity} was passivated at {now}, with {delay:?}");
        self.violations.push(ViolationKind::PassivatedEarly.because(text));
    }
}
