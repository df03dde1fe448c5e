//! Hosts that cannot run a deployed type, for a while or until the end of the run (R24).

use ostraca_core::node::Event;

use super::faults::Fault;
use super::plan::{FROM, TO};
use super::{LEASE, SimEvent, World};
use crate::rng::Rng;

impl World {
    /// Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn plan_unrunnable_types(&mut self, seed: u64) {
        let mut dice = Rng::new(seed ^ 0x0f17_2424);
        let another_alone = self.options.has_one_fault();
        if another_alone || !dice.chance(10) {
            return;
        }
        for _ in 0..dice.range(1, 4) {
            let millis = dice.chance(50).then(|| dice.range(LEASE / 2, LEASE * 4));
            let when = dice.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::UnrunnableType { millis }));
        }
    }

    /// Makes a host find that it cannot run a type, for some time or until the end of the run.
    pub(super) fn cannot_run(&mut self, millis: Option<u64>) {
        let site = self.any_site(false);
        let Some(pid) = self.sites[site].pid.filter(|_| self.spare(site)) else { return };
        if !self.sites[site].is_host() {
            return;
        }
        self.tally.count("fault: host cannot run a type");
        self.enqueue_node_event(pid, Event::UnrunnableTypes(vec!["counter".into()]));
        if let Some(millis) = millis {
            self.heal_by(millis);
            self.at(millis, SimEvent::NodeEvent { pid, event: Event::UnrunnableTypes(Vec::new()) });
        }
    }

    /// Whether a running process cannot run a type.
    pub(super) fn any_unrunnable_type(&self) -> bool {
        self.processes.iter().any(|it| it.alive && it.has_unrunnable_type)
    }
}
