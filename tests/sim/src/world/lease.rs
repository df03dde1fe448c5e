//! Leases: their renewal, their lapse by the node's own clock, and how a node resumes afterwards (R8, R9).

use ostraca_core::ids::Incarnation;
use ostraca_core::shard::Event;

use super::event::SimEvent;
use super::{LEASE, RENEW, World};

impl World {
    pub(super) fn renew(&mut self, node: usize) {
        let it = &self.nodes[node];
        if !it.alive {
            return;
        }
        let delay = it.paused_until.saturating_sub(self.now);
        if delay > 0 {
            return self.at(delay, SimEvent::Renew { node });
        }
        let (incarnation, sent) = (it.incarnation, it.mono(self.now));
        if it.drop_renewals_until <= self.now {
            let travel = self.rng.range(1, 20);
            self.at(travel, SimEvent::RenewalSeen { node, incarnation, sent });
        }
        self.at(RENEW, SimEvent::Renew { node });
    }

    /// A dead incarnation cannot renew, and registering over a live lease waits until it lapses (R7).
    pub(super) fn renewal_seen(&mut self, node: usize, incarnation: Incarnation, sent: u64) {
        let held_by_another =
            self.owner.is_some_and(|(at, owner)| at == node && owner != incarnation);
        if self.nodes[node].incarnation == incarnation
            && !self.dead.contains(&incarnation.counter)
            && !held_by_another
        {
            self.renewed[node] = self.now;
            let delay = self.rng.range(1, 10);
            self.at(delay, SimEvent::Renewed { node, incarnation, sent });
        }
    }

    pub(super) fn renewed(&mut self, node: usize, incarnation: Incarnation, sent: u64) {
        let it = &mut self.nodes[node];
        if !it.alive || it.incarnation != incarnation {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, SimEvent::Renewed { node, incarnation, sent });
        }
        it.renewed = it.renewed.max(Some(sent));
        let ends = it.world_time(sent + LEASE);
        let suspended = it.suspended;
        self.lapse_at(ends, node, incarnation);
        self.handle_event(node, Event::LeaseRenewed { sent_at: sent, lease: LEASE });
        if suspended {
            let delay = self.rng.range(1, 40);
            self.at(delay, SimEvent::ReadClaims { node, incarnation });
        }
    }

    /// Schedules a lapse. A separate thread watches the lease, and may be delayed. So shards learn of a lapse some time
    /// after it, and until then rely on their own clock (R8).
    fn lapse_at(&mut self, when: u64, node: usize, incarnation: Incarnation) {
        let delay = when.saturating_sub(self.now) + self.nodes[node].lapse_late;
        self.at(delay, SimEvent::Lapse { node, incarnation });
    }

    fn lease_lapsed(&self, node: usize) -> bool {
        let it = &self.nodes[node];
        it.renewed.is_some_and(|sent| sent + LEASE <= it.mono(self.now))
    }

    pub(super) fn lapse(&mut self, node: usize, incarnation: Incarnation) {
        let it = &self.nodes[node];
        if !it.alive || it.incarnation != incarnation {
            return;
        }
        if it.paused_until > self.now {
            let awake = it.paused_until;
            return self.lapse_at(awake, node, incarnation);
        }
        if self.lease_lapsed(node) && !it.suspended {
            self.tally.count("transition: suspended");
            self.nodes[node].suspended = true;
            self.handle_event(node, Event::Suspend);
        }
    }

    /// The node resumes if no other node has claimed the shard. If the store does not answer, the node asks again after
    /// the next renewal.
    pub(super) fn read_claims(&mut self, node: usize, incarnation: Incarnation) {
        let it = &self.nodes[node];
        if !it.alive || it.incarnation != incarnation || it.paused_until > self.now {
            return;
        }
        let epoch = it.machine.as_ref().map(|machine| machine.ownership().epoch);
        let standing = self.store.durable().claim.as_ref().map(|claim| claim.epoch);
        if it.suspended && self.store_up && standing <= epoch && !self.lease_lapsed(node) {
            self.tally.count("transition: resumed");
            self.nodes[node].suspended = false;
            self.handle_event(node, Event::Resume);
        }
    }
}
