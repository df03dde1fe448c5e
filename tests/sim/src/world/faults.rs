//! Injects faults.

use ostraca_core::shard::{Event, StopReason};

use super::event::{Fault, SimEvent};
use super::{LEASE, World};
use crate::store;
use crate::store::Request;

impl World {
    pub(super) fn inject_fault(&mut self, fault: Fault) {
        let owner = self.owner.map_or(0, |(node, _)| node);
        match fault {
            Fault::NodeCrash => {
                self.tally.count("fault: node crash");
                let node = if self.rng.chance(80) { owner } else { 1 - owner };
                self.nodes[node].alive = false;
                self.nodes[node].machine = None;
                let incarnation = self.nodes[node].incarnation;
                let delay = self.rng.range(10, 2_000);
                self.at(delay, SimEvent::NodeUp { node, incarnation });
            }
            Fault::StoreCrash { power } => {
                self.tally.count(if power {
                    "fault: store power loss"
                } else {
                    "fault: store crash"
                });
                self.store.crash(power, &mut self.rng);
                self.store_down();
            }
            Fault::SyncFails => self.sync_fails = true,
            Fault::Reset => {
                self.tally.count("fault: store connection reset");
                self.reset(owner);
            }
            Fault::Pause { millis } => {
                self.tally.count("fault: owner paused");
                if millis > LEASE * 3 / 2 {
                    self.tally.count("fault: owner paused past its lease");
                }
                self.nodes[owner].paused_until = self.now + millis;
            }
            Fault::DropRenewals { millis } => {
                self.tally.count("fault: renewals lost");
                self.nodes[owner].drop_renewals_until = self.now + millis;
                if self.rng.chance(40) {
                    // The failure is noticed, and the shard moves.
                    let when = self.rng.range(LEASE, LEASE * 2);
                    self.at(when, SimEvent::InjectFault(Fault::Move));
                }
            }
            Fault::Move => {
                if self.nodes[owner].machine.is_some() {
                    self.when_awake(
                        owner,
                        self.nodes[owner].incarnation,
                        Event::Stop(StopReason::HandedOff),
                    );
                }
            }
            Fault::Redeploy => {
                self.tally.count("transition: redeployed");
                self.redeploy();
            }
        }
    }

    pub(super) fn store_down(&mut self) {
        self.store_up = false;
        for node in 0..2 {
            self.reset(node);
        }
        let delay = self.rng.range(5, 400);
        self.at(delay, SimEvent::StoreUp);
    }

    /// Gives up a connection to the store: its requests may still arrive, but their answers are lost.
    pub(super) fn reset(&mut self, node: usize) {
        self.nodes[node].connection += 1;
        for (_, request) in std::mem::take(&mut self.nodes[node].asked) {
            let answer = match &request {
                Request::Commit(_) => {
                    store::unknown(store::refusal(&request, "reset"), "the connection broke")
                }
                _ => store::refusal(&request, "the connection broke"),
            };
            self.answered(node, answer);
        }
    }
}
