//! Subscribers: each reads a channel page by page, through any gateway, as the gateways do for their clients.

use ostraca_core::ids::{Entity, Epoch, ScopedSessionId, ShardId};
use ostraca_core::message::Outcome;
use ostraca_core::records::GuestReply;
use ostraca_core::shard::{ChannelPage, ChannelPosition, ChannelRead};
use ostraca_wire::proto::Envelope;

use super::admission::SUBSCRIBER;
use super::process::Pid;
use super::tells::{Content, Sent};
use super::{SimEvent, World};
use crate::channels::{CHANNEL, Subscriber};

/// After this time without an answer, a subscriber reads again: its gateway has ended.
const TIMEOUT: u64 = 3_000;

impl World {
    pub(super) fn found_subscribers(&mut self) {
        if !self.channels {
            return;
        }
        for number in 0..4 {
            let kind = if self.rng_of_channels.chance(80) { "counter" } else { "starter" };
            let id = self.rng_of_channels.range(0, self.entities);
            let from = match self.rng_of_channels.chance(50) {
                true => ChannelPosition::Oldest,
                false => ChannelPosition::Now,
            };
            self.subscribers.push(Subscriber::new(Entity::new(kind, format!("e{id}")), from));
            let delay = self.rng_of_channels.range(1, 3_000);
            self.at(delay, SimEvent::ReadChannel { subscriber: number, after: 0 });
        }
    }

    /// Sends a subscriber's next read, unless it has sent one since.
    pub(super) fn read_channel(&mut self, subscriber: usize, after: u64) {
        if self.subscribers[subscriber].read != after {
            return;
        }
        let gateways: Vec<Pid> = self
            .sites
            .iter()
            .filter(|site| site.roles.gateway && !site.copy)
            .filter_map(|site| site.pid)
            .filter(|pid| {
                self.processes[*pid].awake(self.now) && self.processes[*pid].gateway.opened
            })
            .collect();
        if gateways.is_empty() {
            return self.at(400, SimEvent::ReadChannel { subscriber, after });
        }
        let chosen = self.rng_of_channels.range(0, gateways.len() as u64) as usize;
        let (max_items, wait_ms) =
            (self.rng_of_channels.range(1, 5) as u32, self.rng_of_channels.range(0, 1_500) as u32);
        let it = &mut self.subscribers[subscriber];
        it.read += 1;
        it.is_answered = false;
        let (entity, number) = (it.entity.clone(), it.read);
        let next = SimEvent::ReadChannel { subscriber, after: number };
        self.at(TIMEOUT, next);
        let it = &self.subscribers[subscriber];
        let read = ChannelRead {
            channel: CHANNEL.into(),
            from: it.position,
            max_items,
            max_bytes: 1 << 20,
            wait_ms,
            extensions: Default::default(),
        };
        let session = ScopedSessionId::derive("subscriber", &subscriber.to_be_bytes());
        let envelope =
            Envelope::of_channel_read(&entity, SUBSCRIBER, &read, (session.0, number), 2_000);
        let (shard, epoch) = (ShardId(0), Epoch(0));
        let what = Content::ChannelRead(subscriber, number);
        let sent = Sent { shard, epoch, from: Entity::new("subscriber", ""), to: entity, what };
        self.send_between(gateways[chosen], sent, session, envelope);
    }

    /// Handles the answer to a subscriber's read.
    pub(super) fn channel_read(&mut self, subscriber: usize, number: u64, outcome: Outcome) {
        let it = &mut self.subscribers[subscriber];
        if it.read != number || std::mem::replace(&mut it.is_answered, true) {
            return;
        }
        match outcome {
            Outcome::Final { reply: GuestReply::Result(body), .. } => {
                let Ok(page) = ChannelPage::decode(&body) else { return };
                let before = (it.items, it.lost);
                let wrong = it.take(&page);
                let after = (it.items, it.lost);
                (before.0..after.0).for_each(|_| self.tally.count("channel: item"));
                (before.1..after.1).for_each(|_| self.tally.count("channel: item lost"));
                self.violations.extend(wrong);
            }
            _ => self.tally.count("channel: read refused"),
        }
        let delay = self.rng_of_channels.range(1, 200);
        self.at(delay, SimEvent::ReadChannel { subscriber, after: number });
    }

    /// The subscribers that do not have every durable item.
    pub(super) fn subscribers_behind(&self) -> Vec<&Subscriber> {
        let behind = |it: &&Subscriber| {
            !self.stores.iter().any(|store| {
                store.durable().heads.contains_key(&it.entity) && it.has_all(store.durable())
            })
        };
        let exists = |it: &&Subscriber| {
            self.stores.iter().any(|store| store.durable().heads.contains_key(&it.entity))
        };
        self.subscribers.iter().filter(exists).filter(behind).collect()
    }
}
