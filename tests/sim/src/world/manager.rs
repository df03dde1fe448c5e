//! The stand-in for the manager: marks owners dead, assigns shards and deploys types. Also replays recorded machines.

use ostraca_core::ids::{ClusterId, Epoch, Incarnation, NodeId, ShardId, ShardPath};
use ostraca_core::rows::Member;
use ostraca_core::shard::{Event, Machine, Ownership, Settings, TypeSettings, WorkerSlots};

use super::event::SimEvent;
use super::{LEASE, World};
use crate::violation::ViolationKind;

/// Milliseconds after which node b learns of a redeployment, and node a receives the previous one again.
const LATE_NEWS: u64 = 400;
const OLD_NEWS: u64 = 30;

impl World {
    /// Assigns the shard to a live node once its owner is known to be dead.
    pub(super) fn manage(&mut self) {
        self.at(40, SimEvent::Manage);
        if let Some((node, incarnation)) = self.owner {
            if self.now <= self.renewed[node] + LEASE + LEASE / 5 {
                return;
            }
            self.tally.count("transition: assigned again after a lapse");
            self.owner = None;
            self.dead.insert(incarnation.counter);
            let it = &self.nodes[node];
            if it.alive && it.incarnation == incarnation {
                // A paused owner wakes as a zombie, and learns after a while that it was marked dead.
                let delay = it.paused_until.saturating_sub(self.now) + 700;
                self.at(delay, SimEvent::NodeUp { node, incarnation });
            }
        }
        let first = self.rng.range(0, 2) as usize;
        for node in [first, 1 - first] {
            let it = &self.nodes[node];
            let live = it.alive && !self.dead.contains(&it.incarnation.counter);
            if live && it.paused_until <= self.now && self.renewed[node] + LEASE > self.now {
                self.assign(node);
                return;
            }
        }
    }

    pub(super) fn assign(&mut self, node: usize) {
        self.epoch += 1;
        let incarnation = self.nodes[node].incarnation;
        self.owner = Some((node, incarnation));
        let delay = self.rng.range(1, 15);
        self.at(delay, SimEvent::Assigned { node, incarnation, epoch: Epoch(self.epoch) });
    }

    pub(super) fn assigned(&mut self, node: usize, incarnation: Incarnation, epoch: Epoch) {
        if self.nodes[node].incarnation != incarnation || !self.nodes[node].alive {
            return;
        }
        let settings = Settings {
            order_timeout: 60,
            max_gated_turns: 4,
            max_copies: 6,
            max_lanes: if self.forgetful { self.rng.range(1, 7) as usize } else { 10_000 },
            lane_ttl: if self.forgetful && self.rng.chance(50) { 300 } else { 60_000 },
            idempotency_ttl: 60_000,
            idempotency_keys: if self.forgetful { 8 } else { 10_000 },
            idempotency_bytes: if self.forgetful { 600 } else { 8 << 20 },
            max_clock_skew: 60,
            unsettled_bytes: if self.forgetful && self.rng.chance(50) { 400 } else { 4 << 20 },
            inline_lane_bytes: self.rng.range(0, 600) as usize,
            instance_slot_timeout: 400,
            claim_backoff: 20,
            start_backoff: 250,
            stop_timeout: 300,
            max_timer_entities: self.timer_rng.range(1, 4) as usize,
            timer_page: self.timer_rng.range(2, 6) as usize,
            timer_attempts: 3,
            timer_backoff: 20,
            timer_max_backoff: 80,
            tell_attempts: 3,
            tell_backoff: 20,
            tell_max_backoff: 80,
            tell_targets: 2,
            max_ask_depth: 3,
            max_channel_reads: 10_000,
            channel_buffer: 2_000,
            recovery_starts: 2,
            recovery_rate: 0,
            max_stopped: 10,
            purge_page: 2,
            fan_out_page: 2,
            mutations: self.options.mutations.clone(),
        };
        let shard =
            ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(1) };
        let owner = Ownership {
            cluster: ClusterId(1),
            shard,
            epoch,
            owner: Member { node: NodeId::from(["a", "b"][node]), incarnation },
        };
        let machine = Machine::new(settings.clone(), owner.clone());
        if let Some(old) = self.nodes[node].machine.replace(machine) {
            self.replay(node, old);
        }
        self.nodes[node].script.clear();
        self.nodes[node].instances.clear();
        self.nodes[node].starting.clear();
        let most = self.rng.range(1, 5) as usize;
        self.nodes[node].cap = WorkerSlots::with_instances(most);
        self.deploy(node);
        let sent = self.nodes[node].mono(self.renewed[node].saturating_sub(20));
        self.handle_event(node, Event::LeaseRenewed { sent_at: sent, lease: LEASE });
        if self.nodes[node].suspended {
            self.handle_event(node, Event::Suspend);
        }
    }

    pub(super) fn deploy(&mut self, node: usize) {
        self.tell_revision(node, self.revisions[node]);
    }

    /// Deploys a new revision of the types.
    pub(super) fn redeploy(&mut self) {
        let revision = self.revisions[0] + 1;
        if self.options.late_redeployments {
            self.redeployed(0, revision);
            self.at(OLD_NEWS, SimEvent::Redeployed { node: 0, revision: revision - 1 });
            return self.at(LATE_NEWS, SimEvent::Redeployed { node: 1, revision });
        }
        for node in 0..2 {
            self.redeployed(node, revision);
        }
    }

    /// Tells a node of a revision. A late revision does not replace a newer one.
    pub(super) fn redeployed(&mut self, node: usize, revision: u64) {
        self.revisions[node] = self.revisions[node].max(revision);
        if self.nodes[node].alive && self.nodes[node].machine.is_some() {
            self.tell_revision(node, revision);
        }
    }

    fn tell_revision(&mut self, node: usize, revision: u64) {
        for (kind, has_stop) in [("counter", false), ("starter", true)] {
            let settings = TypeSettings {
                revision,
                mailbox_capacity: 8,
                idle_timeout: 250,
                has_stop_hook: has_stop,
                ..TypeSettings::default()
            };
            self.handle_event(node, Event::TypeDeployed { entity_type: kind.into(), settings });
        }
    }

    /// Checks that the same events give the same actions; otherwise recordings could not be replayed.
    pub(super) fn replay(&mut self, node: usize, old: Machine) {
        let script = std::mem::take(&mut self.nodes[node].script);
        let Some(settings) = script.first().map(|_| old.settings().clone()) else { return };
        let mut again = Machine::new(settings, old.ownership().clone());
        for (now, event, actions) in script {
            again.handle(now, event.clone());
            let mut same = Vec::new();
            while let Some(action) = again.poll() {
                same.push(action);
            }
            if same != actions {
                self.violations.push(
                    ViolationKind::NotReplayed
                        .because(format!("on replay, {event:?} gave {same:?}, not {actions:?}")),
                );
                return;
            }
        }
    }
}
