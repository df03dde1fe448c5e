//! The final check: everything must be served, answered and balanced in time, the history must keep the promises, and
//! a replayed machine must repeat its actions.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_core::ids::{Entity, NodeId, ShardId, TurnId};
use ostraca_core::message::Message;
use ostraca_core::node;
use ostraca_core::pools::Pool;
use ostraca_core::records::Timer;
use ostraca_core::rows::{Assignment, NodeRow, NodeStatus, Row, RowKey, shard_at};
use ostraca_core::shard::Phase;

use super::net::Scope;
use super::{PROGRESS, Report, SERVED, SETTLED, SLOW, SimEvent, World};
use crate::channels::Subscriber;
use crate::deletion;
use crate::history_check::HistoryCheck;
use crate::journal;
use crate::remembered;
use crate::subscriptions::SubscriptionCheck;
use crate::tells::{self, TellCheck};
use crate::timers;
use crate::violation::ViolationKind;

impl World {
    pub(super) fn shard_rows(&self) -> BTreeMap<ShardId, Assignment> {
        let mut all = BTreeMap::new();
        for (key, (row, _)) in self.rows.durable() {
            if let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) {
                let shards = row.assignments.iter().enumerate();
                all.extend(shards.map(|(place, row)| (shard_at(*chunk, place), row.clone())));
            }
        }
        all
    }

    /// The owner of each shard that has one.
    pub(super) fn owners(&self) -> BTreeMap<ShardId, NodeId> {
        let rows = self.shard_rows().into_iter();
        rows.filter_map(|(shard, row)| Some((shard, row.owner?.node))).collect()
    }

    /// The shards that no node serves at present.
    fn unserved(&self) -> Vec<ShardId> {
        let rows = self.shard_rows();
        (1..=self.shards)
            .map(ShardId)
            .filter(|shard| {
                let Some(Assignment { epoch, owner: Some(owner), .. }) = rows.get(shard) else {
                    return true;
                };
                let process = self
                    .processes
                    .iter()
                    .find(|it| it.awake(self.now) && it.member.as_ref() == Some(owner));
                let hosted = process.and_then(|it| it.shards.get(shard));
                let claim = self.stores[shard.0 as usize - 1].durable().claim.as_ref();
                !hosted.is_some_and(|hosted| {
                    hosted.epoch == *epoch
                        && hosted.machine.phase() == Phase::Serving
                        && !hosted.machine.is_suspended()
                        && claim == Some(hosted.machine.claim())
                })
            })
            .collect()
    }

    /// Diagnostics for unserved shards.
    fn why_unserved(&self, shards: &[ShardId]) -> String {
        let rows = self.shard_rows();
        let why = shards.iter().map(|shard| {
            let Some(row) = rows.get(shard) else { return format!("{shard} has no row") };
            let Some(owner) = &row.owner else { return format!("{shard} has no owner") };
            let standing = match self.rows.durable().get(&RowKey::Node(owner.node.clone())) {
                Some((Row::Node(row), _)) if row.incarnation == owner.incarnation => {
                    format!("{:?}", row.status)
                }
                _ => "replaced".into(),
            };
            let process = self
                .processes
                .iter()
                .find(|it| it.alive && it.member.as_ref() == Some(owner));
            let machine = process.and_then(|it| it.shards.get(shard));
            format!(
                "{shard} belongs to {owner} under epoch {:?} ({standing}, {}, {:?}, suspended {:?}), moving {:?}",
                row.epoch.0,
                if process.is_some() { "running" } else { "no process" },
                machine.map(|it| (it.epoch.0, it.machine.phase())),
                process.map(|it| it.machine.is_suspended()),
                row.hand_off
            )
        });
        let manager = self.rows.durable().get(&RowKey::Manager);
        format!("{}; manager {manager:?}", why.collect::<Vec<_>>().join("; "))
    }

    /// The hosts that should own shards of a pool, with the number of its shards that each of them owns.
    pub(super) fn counts(&self, pool: &Pool) -> BTreeMap<NodeId, usize> {
        let rows = self.shard_rows();
        let may = |row: &NodeRow| {
            row.status == NodeStatus::Live
                && row.hosts(pool)
                && !row.is_draining_or_leaving()
                && row.store_available
        };
        let mut counts = BTreeMap::new();
        for (key, (row, _)) in self.rows.durable() {
            if let (RowKey::Node(node), Row::Node(row)) = (key, row)
                && may(row)
                && !self.is_hanging_node(node)
                && self.processes.iter().any(|it| {
                    it.alive
                        && (pool.is_stateless() || !it.has_unrunnable_type)
                        && it.member.as_ref().is_some_and(|member| {
                            member.node == *node && member.incarnation == row.incarnation
                        })
                })
            {
                let owns = |row: &&Assignment| row.owner.as_ref().is_some_and(|o| o.node == *node);
                let rows = rows.range(pool.first..=pool.last()).map(|(_, row)| row);
                counts.insert(node.clone(), rows.filter(owns).count());
            }
        }
        counts
    }

    /// [`Self::counts`] of each pool.
    fn all_counts(&self) -> Vec<BTreeMap<NodeId, usize>> {
        self.pools.all.iter().map(|pool| self.counts(pool)).collect()
    }

    /// Checks the state of the cluster.
    pub(super) fn check_progress(&mut self) {
        self.at(50, SimEvent::CheckProgress);
        self.check_lapses();
        self.check_probations();
        self.check_cycles();
        self.check_counts();
        self.check_losers();
        if self.now < self.healed {
            self.served_at = None;
            return;
        }
        if self.served_at.is_none() {
            let unserved = self.unserved();
            if unserved.is_empty() {
                self.served_at = Some(self.now);
            } else if self.now > self.healed + SERVED {
                let why = self.why_unserved(&unserved);
                self.violations.push(
                    ViolationKind::Unserved
                        .because(format!("unserved {SERVED} ms after the last fault: {why}")),
                );
                self.trace_stuck();
            }
        }
        let bound = self.options.messages * 20 + SETTLED;
        // Shares can be even only once every host may get shards.
        if self.now > self.healed.max(self.on_probation_at) + bound && !self.settled() {
            self.tally.0.entry(SLOW).or_insert(1);
            if self.now <= self.answered_at + PROGRESS {
                return;
            }
            let left: Vec<_> = self
                .sessions
                .iter()
                .flat_map(|it| {
                    it.session.unresolved.iter().map(|(at, sent)| (*at, sent.entity.clone()))
                })
                .collect();
            self.trace_stuck();
            let tells = self.pending_tells();
            if left.is_empty() && !tells.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::TellNotSent.because(format!(
                    "not sent {bound} ms after the last fault or probation: {tells:?}"
                )));
            }
            let misplaced = self.misplaced_shards();
            if left.is_empty() && !misplaced.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::NotRelocated.because(format!(
                    "not relocated {bound} ms after the last fault or probation: {misplaced:?}"
                )));
            }
            let unplaced = self.unplaced();
            if left.is_empty() && !unplaced.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::NotPlaced.because(format!(
                    "not where they are wanted {bound} ms after the last fault or probation: {unplaced:?}"
                )));
            }
            let missing = self.missing_remembered();
            if left.is_empty() && !missing.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::NotRecovered.because(format!(
                    "not started {bound} ms after the last fault or probation: {missing:?}"
                )));
            }
            let behind = self.subscribers_behind();
            if left.is_empty() && !behind.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::SubscriberBehind.because(format!(
                    "behind {bound} ms after the last fault or probation: {behind:?}"
                )));
            }
            let deleted = self.pending_deletions();
            if left.is_empty() && !deleted.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::DeletionLeft.because(format!(
                    "not removed {bound} ms after the last fault or probation: {deleted:?}"
                )));
            }
            let timers = self.pending_timers();
            if left.is_empty() && !timers.is_empty() && self.unserved().is_empty() {
                return self.violations.push(ViolationKind::TimerNotFired.because(format!(
                    "not fired {bound} ms after the last fault or probation, at {}: {timers:?}",
                    timers::utc(self.now, 0)
                )));
            }
            self.violations.push(ViolationKind::Unanswered.because(format!(
                "{bound} ms after the last fault or probation: unanswered {left:?}, open {}, late copies {}, unserved {:?}, shares {:?}",
                self.open(),
                self.late_copies,
                self.unserved(),
                self.all_counts()
            )));
        }
    }

    /// The timers that have not fired.
    fn pending_timers(&self) -> Vec<(Entity, Timer)> {
        self.stores.iter().flat_map(|store| timers::pending(store.durable())).collect()
    }

    /// The deleted entities from which records remain to be removed.
    fn pending_deletions(&self) -> Vec<Entity> {
        let of = |store| deletion::pending(store).cloned().collect::<Vec<_>>();
        self.stores.iter().flat_map(|store| of(store.durable())).collect()
    }

    /// The tells that have not been sent.
    fn pending_tells(&self) -> Vec<(Entity, Entity, u64)> {
        self.stores.iter().flat_map(|store| tells::pending(store.durable())).collect()
    }

    /// The remembered entities whose shard has an owner that has not started them although it has a free slot.
    fn missing_remembered(&self) -> Vec<Entity> {
        let mut missing = Vec::new();
        for (number, store) in self.stores.iter().enumerate() {
            let shard = ShardId(number as u32 + 1);
            for it in self.processes.iter().filter(|it| it.alive) {
                let Some(hosted) = it.shards.get(&shard) else { continue };
                let recovers = hosted.machine.phase() == Phase::Serving;
                let waits = |entity: &Entity| {
                    it.cap.is_full()
                        && (hosted.slots.iter().any(|(held, _)| held == entity)
                            || hosted.machine.awaits_recovery(entity))
                };
                let is_missing =
                    |entity: &&Entity| !hosted.started.contains(*entity) && !waits(entity);
                let marked = remembered::marked(store.durable());
                missing.extend(marked.filter(|_| recovers).filter(is_missing).cloned());
            }
        }
        missing
    }

    /// The number of requests that gateways have not answered.
    fn open(&self) -> usize {
        self.processes.iter().filter(|it| it.alive).map(|it| it.gateway.open.len()).sum()
    }

    pub(super) fn settled(&self) -> bool {
        if self.now < self.healed || self.served_at.is_none() || self.issued < self.options.messages
        {
            return false;
        }
        let counts = self.all_counts();
        let owners = self.owners();
        let balanced =
            self.pools.all.iter().zip(&counts).all(|(pool, counts)| {
                self.is_placed(pool, &counts.keys().cloned().collect(), &owners)
            });
        // A host whose control messages are lost keeps its shards, but gets no others.
        let silenced = self.cuts.iter().any(|cut| cut.what == Scope::ControlMessages);
        let owned: usize = counts.iter().flat_map(BTreeMap::values).sum();
        let no_hosts = counts.iter().all(BTreeMap::is_empty);
        self.sessions.iter().all(|session| session.session.unresolved.is_empty())
            && self.open() == 0
            && self.late_copies == 0
            && self.pending_timers().is_empty()
            && self.pending_tells().is_empty()
            && self.missing_remembered().is_empty()
            && self.subscribers_behind().is_empty()
            && self.pending_deletions().is_empty()
            && !self.any_waits_for_asks()
            && self.misplaced_shards().is_empty()
            && (balanced || silenced)
            && (owned == self.shards as usize
                || no_hosts
                || (silenced && self.any_unrunnable_type()))
            && self.unserved().is_empty()
    }

    pub(super) fn judge(mut self) -> Report {
        if self.violations.is_empty() {
            self.replay();
        }
        // A run that ends early leaves messages without an outcome.
        self.close_clients();
        for store in &mut self.stores {
            store.crash(true, &mut self.rng);
            store.reopen();
        }
        let mut verdict = HistoryCheck::default();
        let mut told = TellCheck::default();
        let mut subscribed = SubscriptionCheck::default();
        for store in &self.stores {
            let of_client = |turn: &TurnId| {
                let of_entity = |it: &&Arc<Message>| it.sender.is_some() || it.asked_by.is_some();
                let message = self.turns.get(turn).filter(|message| !of_entity(message));
                message.map(|message| self.last_id(message.id))
            };
            verdict.durable(store.durable(), of_client);
            let message_of = |turn: &TurnId| self.turns.get(turn).map(|message| &**message);
            self.ask_check.add(store.durable(), message_of);
            let ran_guest = |turn: &TurnId| self.turns.contains_key(turn) || self.firings.ran(turn);
            let topic_of = |turn: &TurnId| self.topics.ran.get(turn);
            told.add(store.durable(), message_of, ran_guest, topic_of);
            subscribed.add(store.durable(), &self.topics, message_of);
            self.violations.extend(self.firings.judge(store.durable()));
            self.violations.extend(remembered::check(store.durable()));
            let follows = |it: &&Subscriber| store.durable().heads.contains_key(&it.entity);
            let wrong = self.subscribers.iter().filter(follows);
            self.violations.extend(wrong.filter_map(|it| it.check(store.durable())));
            self.violations.extend(deletion::check(store.durable()));
            let has_message =
                |turn: &TurnId| self.turns.contains_key(turn) || self.topics.ran.contains_key(turn);
            let ends = &store.durable().ends;
            let expired = ends.iter().filter(|(turn, _)| !has_message(turn)).count();
            (0..expired).for_each(|_| self.tally.count("deletion: expired"));
            (0..store.durable().removals).for_each(|_| self.tally.count("deletion: head removed"));
            let early = deletion::check_ends(store.durable(), &self.deleted_at, has_message);
            self.violations.extend(early);
            let (wrong, events) = journal::check(store.durable());
            self.violations.extend(wrong);
            (0..events).for_each(|_| self.tally.count("journal: event"));
        }
        (0..told.left_later).for_each(|_| self.tally.count("tell: a delayed one left"));
        self.violations.extend(told.judge());
        let (wrong, items) = subscribed.judge(&self.topics);
        (0..items).for_each(|_| self.tally.count("subscription: item ran"));
        self.violations.extend(self.ask_check.judge());
        let seen = self.sessions.into_iter().map(|it| (it.session.key, it.session.history));
        let (broken, history) = verdict.of(seen.collect());
        self.violations.extend(broken);
        // A cluster that broke another promise may not have come to rest, so items may still be on their way.
        if self.violations.is_empty() {
            self.violations.extend(wrong);
        }
        Report {
            violations: self.violations,
            tally: self.tally,
            digest: self.digest.finish(&history),
            history,
            steps: self.steps_taken,
            served_after: self.served_at.map_or(0, |at| at.saturating_sub(self.healed)),
        }
    }

    /// Checks that the same events give the same actions; otherwise recordings could not be replayed.
    fn replay(&mut self) {
        for it in &mut self.processes {
            let strategy = self.placements.build_strategy();
            let mut again = node::Machine::new(it.settings.clone(), it.identity.clone(), strategy);
            for (now, event, actions) in std::mem::take(&mut it.script) {
                again.handle(now, event.clone());
                let same: Vec<_> = std::iter::from_fn(|| again.poll()).collect();
                if same != actions {
                    let node = &it.node;
                    return self.violations.push(ViolationKind::NotReplayed.because(format!(
                        "{node}: on replay, {event:?} gave {same:?}, not {actions:?}"
                    )));
                }
            }
        }
    }
}
