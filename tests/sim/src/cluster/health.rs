//! Health checks of processes (S7): in half of the runs, a check finds out that a process has ended.

use ostraca_core::node::Event;
use ostraca_core::rows::Member;

use super::process::Pid;
use super::{RENEW, SimEvent, World};
use crate::rng::Rng;

impl World {
    /// How often nodes check the processes of others, if they do.
    pub(super) fn draw_health_check(options: &super::Options, seed: u64) -> Option<u64> {
        if options.leases_alone || options.has_one_fault() {
            return None;
        }
        let mut dice = Rng::new(seed ^ 0x6865_616c);
        let checks = dice.chance(50) || options.guesses_health;
        checks.then(|| dice.range(RENEW / 3, RENEW * 2))
    }

    /// A check takes as long as a request to a busy server.
    pub(super) fn check_process(&mut self, pid: Pid, member: Member) {
        let delay = self.rng.range(5, 80);
        self.at(delay, SimEvent::ProcessChecked { pid, member });
    }

    pub(super) fn process_checked(&mut self, pid: Pid, member: Member) {
        let ended = self.has_ended(&member);
        self.tally.count(match ended {
            true => "health check: the process has ended",
            false => "health check: the process may still run",
        });
        if ended {
            self.found_ended.insert((pid, member.clone()));
        }
        if ended || self.options.guesses_health {
            self.enqueue_node_event(pid, Event::ProcessEnded { member });
        }
    }

    /// Whether a process was told that the process of this incarnation has ended, and it has.
    pub(super) fn was_found_ended(&self, by: Pid, member: &Member) -> bool {
        self.found_ended.contains(&(by, member.clone()))
    }

    /// Whether the process of this incarnation has ended.
    fn has_ended(&self, member: &Member) -> bool {
        self.processes.iter().any(|it| !it.alive && it.member.as_ref() == Some(member))
    }
}
