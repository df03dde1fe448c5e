//! Shards that move because a failure of an entity is escalated, and the check that this is bounded (K33).

use ostraca_core::node::Notice;

use super::World;
use super::process::Pid;
use crate::violation::ViolationKind;

/// How often one manager moves a shard for this reason. The period is longer than a run.
pub(super) const MAX: usize = 2;

impl World {
    pub(super) fn check_escalation(&mut self, pid: Pid, notice: &Notice) {
        match notice {
            // A new manager counts anew.
            Notice::ManagerChanged { .. } => self.escalations.retain(|(of, _), _| *of != pid),
            Notice::ShardEscalated { shard, target: Some(_), .. } => {
                self.tally.count("supervision: shard moved");
                let moves = self.escalations.entry((pid, *shard)).or_default();
                *moves += 1;
                if *moves > MAX {
                    let text = format!("shard {shard} was moved {moves} times by one manager");
                    self.violations.push(ViolationKind::EscalatedTooOften.because(text));
                }
            }
            Notice::ShardEscalated { .. } => self.tally.count("supervision: shard stayed"),
            _ => {}
        }
    }
}
