//! How a run begins: its processes, its clients, and its planned faults.

use std::collections::{BTreeMap, HashMap};

use ostraca_core::ids::Incarnation;
use ostraca_core::shard::WorkerSlots;

use super::event::{Fault, SimEvent};
use super::{LEASE, World};
use crate::node::Node;

impl World {
    pub(super) fn start(&mut self) {
        for _ in 0..2 {
            let node = self.process();
            self.nodes.push(node);
        }
        for node in 0..2 {
            self.at(0, SimEvent::Renew { node });
        }
        self.at(1, SimEvent::Manage);
        for client in 0..self.clients.len() {
            self.at(5, SimEvent::Issue { client });
        }
        for _ in 0..self.rng.range(1, 6) {
            let drawn = self.rng.range(0, 9);
            let fault = match if self.options.zombies { 7 } else { drawn } {
                0 => Fault::NodeCrash,
                1 => Fault::StoreCrash { power: false },
                2 => Fault::StoreCrash { power: true },
                3 => Fault::SyncFails,
                4 => Fault::Reset,
                5 => Fault::Pause { millis: self.rng.range(50, LEASE * 3) },
                6 => Fault::Move,
                7 => Fault::DropRenewals { millis: self.rng.range(LEASE / 2, LEASE * 3) },
                _ => Fault::Redeploy,
            };
            let when = self.rng.range(50, 2_500);
            self.at(when, SimEvent::InjectFault(fault));
        }
    }

    pub(super) fn process(&mut self) -> Node {
        self.incarnations += 1;
        let rate = if self.rng.chance(50) {
            1000
        } else {
            self.tally.count("fault: node clock drifts");
            self.rng.range(950, 1051)
        };
        let late = if self.rng.chance(30) || self.options.zombies { LEASE } else { 20 };
        let lapse_late = self.rng.range(0, late);
        Node {
            incarnation: Incarnation { counter: self.incarnations, nonce: self.rng.draw() },
            alive: true,
            paused_until: 0,
            drop_renewals_until: 0,
            renewed: None,
            lapse_late,
            suspended: false,
            offset: self.rng.range(0, 1_000_000),
            rate,
            machine: None,
            instances: BTreeMap::new(),
            cap: WorkerSlots::with_instances(self.rng.range(1, 5) as usize),
            connection: 0,
            asked: BTreeMap::new(),
            granted: None,
            starting: HashMap::new(),
            tokens: BTreeMap::new(),
            armed: None,
            script: Vec::new(),
        }
    }
}
