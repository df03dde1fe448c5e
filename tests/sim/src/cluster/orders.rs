//! Commands from a node's machine to its shards, and notifications in the other direction: each delayed and in order.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::ids::{ClusterId, Epoch, ShardId};
use ostraca_core::message::{Outcome, ReplyToken};
use ostraca_core::node;
use ostraca_core::quota::Full;
use ostraca_core::rows::Member;
use ostraca_core::shard::{Event, Machine, Ownership, Settings, TypeSettings};

use super::process::{Hosted, Order, Pid};
use super::storage::shard_key;
use super::{SimEvent, World};
use crate::schemas::with_schemas;

impl World {
    /// Queues a command from the node's machine to its shards. Commands are delayed and remain in order.
    pub(super) fn order(&mut self, pid: Pid, order: Order) {
        self.processes[pid].orders.push_back(order);
        let delay = self.rng.range(0, 4);
        self.at(delay, SimEvent::Order { pid });
    }

    pub(super) fn ordered(&mut self, pid: Pid) {
        let Some(order) = self.processes[pid].orders.pop_front() else { return };
        match order {
            Order::Adopt(shard, epoch, member) => self.adopt(pid, shard, epoch, member),
            Order::Stop(shard, epoch, reason) => {
                if self.hosts(pid, shard, epoch) {
                    self.step(pid, "step: shard stopping");
                    self.handle_shard_event(pid, shard, Event::Stop(reason));
                }
            }
            Order::Forget(shard, epoch) => {
                if self.hosts(pid, shard, epoch) {
                    self.handle_shard_event(pid, shard, Event::Drop);
                    self.drop_shard(pid, shard);
                }
            }
            Order::Renewed(sent, lease) => {
                let it = &mut self.processes[pid];
                it.lease_sent = it.lease_sent.max(Some(sent));
                it.lease = lease;
                self.tell_shards(pid, &Event::LeaseRenewed { sent_at: sent, lease });
            }
            Order::ShardLease(shard, epoch, sent_at, lease) => {
                if self.hosts(pid, shard, epoch) {
                    self.handle_shard_event(
                        pid,
                        shard,
                        Event::ShardLeaseRenewed { sent_at, lease },
                    );
                }
            }
            Order::Suspend => {
                self.processes[pid].shards_suspended = true;
                self.tell_shards(pid, &Event::Suspend);
            }
            Order::Resume => {
                self.processes[pid].shards_suspended = false;
                self.tell_shards(pid, &Event::Resume);
            }
        }
    }

    pub(super) fn tell_shards(&mut self, pid: Pid, event: &Event) {
        for shard in self.processes[pid].shards.keys().copied().collect::<Vec<_>>() {
            self.handle_shard_event(pid, shard, event.clone());
        }
    }

    pub(super) fn enqueue_shard_report(&mut self, pid: Pid, event: node::Event) {
        self.processes[pid].shard_reports.push_back(event);
        let delay = self.rng.range(0, 4);
        self.at(delay, SimEvent::ShardReport { pid });
    }

    pub(super) fn adopt(&mut self, pid: Pid, shard: ShardId, epoch: Epoch, member: Member) {
        self.drop_shard(pid, shard);
        let settings = Settings {
            order_timeout: 60,
            max_gated_turns: 4,
            max_copies: 6,
            max_lanes: if self.forgetful { self.rng.range(1, 7) as usize } else { 10_000 },
            lane_ttl: if self.forgetful && self.rng.chance(50) { 400 } else { 60_000 },
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
            max_timer_entities: 2,
            timer_page: 4,
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
            mutations: self.options.shard_mutations.clone(),
        };
        let owner =
            Ownership { cluster: ClusterId(1), shard: shard_key(shard), epoch, owner: member };
        let hosted = Hosted {
            epoch,
            machine: Machine::new(settings, owner),
            instances: BTreeMap::new(),
            started: BTreeSet::new(),
            delays: BTreeMap::new(),
            starting: BTreeSet::new(),
            migrating: BTreeMap::new(),
            second: BTreeSet::new(),
            asking: BTreeMap::new(),
            slots: BTreeSet::new(),
            database: None,
            full: Full::default(),
            armed: None,
        };
        let it = &mut self.processes[pid];
        it.shards.insert(shard, hosted);
        let (sent, lease, suspended) = (it.lease_sent, it.lease, it.shards_suspended);
        self.deploy(pid, shard);
        if let Some(sent) = sent {
            self.handle_shard_event(pid, shard, Event::LeaseRenewed { sent_at: sent, lease });
        }
        if suspended {
            self.handle_shard_event(pid, shard, Event::Suspend);
        }
    }

    pub(super) fn deploy(&mut self, pid: Pid, shard: ShardId) {
        for (kind, has_stop) in [("counter", false), ("starter", true)] {
            let settings = TypeSettings {
                revision: self.revision,
                mailbox_capacity: 8,
                idle_timeout: self.idle,
                has_stop_hook: has_stop,
                keep: self.keep,
                time_to_live: self.time_to_live,
                on_failure: self.on_failure,
                reentrant_queries: self.reentrant,
                tells: vec!["counter".into()],
                subscriptions: 6,
                ..TypeSettings::default()
            };
            let settings = if self.migrates { with_schemas(settings) } else { settings };
            self.handle_shard_event(
                pid,
                shard,
                Event::TypeDeployed { entity_type: kind.into(), settings },
            );
        }
    }

    /// Drops a shard's machine that has ended. Its callers get an unknown outcome.
    pub(super) fn drop_shard(&mut self, pid: Pid, shard: ShardId) {
        let it = &mut self.processes[pid];
        let Some(hosted) = it.shards.remove(&shard) else { return };
        for (entity, generation) in hosted.slots {
            it.cap.release(&(shard_key(shard), entity), generation);
        }
        let orphans: Vec<ReplyToken> = it
            .askers
            .iter()
            .filter(|(_, (_, of, epoch))| *of == shard && *epoch == hosted.epoch)
            .map(|(token, _)| *token)
            .collect();
        for token in orphans {
            let message = "the shard was given up while the message was in flight".into();
            self.shard_replied(pid, token, Outcome::Unknown { message });
        }
        self.give_room(pid);
    }
}
