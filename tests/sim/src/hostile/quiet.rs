//! The end of a run: everything completes, and nothing remains in memory.

use ostraca_core::shard::{Event, Phase};

use super::Harness;
use crate::timers;

impl Harness {
    /// Completes everything, without new messages or failures. Every request must be answered.
    pub(super) fn quiet(&mut self) {
        self.faults = false;
        for shard in 0..self.shards.len() {
            self.handle_event(shard, Event::Resume);
        }
        for _ in 0..2_000 {
            for shard in 0..self.shards.len() {
                self.store(shard);
                self.turn(shard);
            }
            self.pass(1, 30);
            self.renew();
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let (entities, _) = shard.machine.stats();
            if entities > 0 {
                let phase = shard.machine.phase();
                let text = format!(
                    "shard {number}, {phase:?}: {entities} entities are left: {:?}",
                    shard.machine
                );
                self.report.violations.push(text);
            }
            if shard.machine.phase() == Phase::Stopping || !shard.instances.is_empty() {
                self.report.violations.push(format!("shard {number} did not finish stopping"));
            }
        }
        for shard in &self.shards {
            let pending = timers::pending(shard.store.durable());
            if !pending.is_empty() && shard.machine.phase() == Phase::Serving {
                self.report.violations.push(format!("timers have not fired: {pending:?}"));
            }
        }
        if !self.open.is_empty() {
            self.report.violations.push(format!("never answered: {:?}", self.open));
        }
        if self.cap.granted() > 0 {
            self.report
                .violations
                .push(format!("{} slots were never released", self.cap.granted()));
        }
    }
}
