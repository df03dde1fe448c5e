//! The shard machines of a process: passes events to them and executes their actions.

use ostraca_core::ids::{Entity, Epoch, ShardId};
use ostraca_core::message::{Outcome, ReplyToken};
use ostraca_core::node;
use ostraca_core::records::{ClaimOutcome, Commit, JournalExtent};
use ostraca_core::shard::{
    Action, ActivationOutcome, Event, Phase, StartReason, StopReason, TurnOutput, TurnResult,
};

use super::net::Frame;
use super::process::{Order, Pid, Process, ReplyTo};
use super::storage::{StoreCall, shard_key};
use super::{SimEvent, World};
use crate::channels;
use crate::deletion;
use crate::guest::{Instance, Work};
use crate::journal;
use crate::remembered;
use crate::schemas::{is_refusal, migrate};
use crate::store::{Request, Response};
use crate::subscriptions::{self, RanTopic};
use crate::tells;
use crate::timers;
use crate::violation::ViolationKind;

/// How long after a lapse a node may still start turns, since its tick may be late and its shards learn of it later.
const SLACK: u64 = 80;

/// A turn in progress, and its work.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) entity: Entity,
    pub(super) generation: u64,
    pub(super) turn: ostraca_core::ids::TurnId,
    /// The entity's version before the turn.
    pub(super) version: u64,
    pub(super) work: Work,
    /// The entity's journal before the turn.
    pub(super) journal: JournalExtent,
    /// Whether it has sent its asks and received the answers.
    pub(super) has_asked: bool,
}

impl World {
    pub(super) fn hosts(&self, pid: Pid, shard: ShardId, epoch: Epoch) -> bool {
        let it = &self.processes[pid];
        it.alive && it.shards.get(&shard).is_some_and(|hosted| hosted.epoch == epoch)
    }

    pub(super) fn handle_shard_event(&mut self, pid: Pid, shard: ShardId, event: Event) {
        let it = &mut self.processes[pid];
        let now = it.reads(self.now);
        let Some(hosted) = it.shards.get_mut(&shard).filter(|_| it.alive) else { return };
        let claimed = matches!(event, Event::ClaimResult { outcome: ClaimOutcome::Granted, .. });
        let traced = (self.options.trace_shard == Some(shard.0)).then(|| format!("{event:?}"));
        hosted.machine.handle(now, event);
        let mut actions = Vec::new();
        while let Some(action) = hosted.machine.poll() {
            actions.push(action);
        }
        self.digest.turn(self.now, pid);
        self.digest.shard(&actions);
        let (epoch, serves) = (hosted.epoch, hosted.machine.phase() == Phase::Serving);
        if claimed && serves {
            self.enqueue_shard_report(pid, node::Event::ShardServing { shard, epoch });
            self.report_misplaced(pid);
        }
        if let Some(event) = traced {
            self.trace_shard(pid, shard, &event, &actions);
        }
        let mut commits = Vec::new();
        for action in actions {
            if !self.hosts(pid, shard, epoch) {
                break;
            }
            self.apply_shard_action(pid, shard, epoch, action, &mut commits);
        }
        if !commits.is_empty() && self.processes[pid].alive {
            self.call(pid, StoreCall::Entity(shard, epoch, 0, Request::Commit(commits)));
        }
        self.check_stopping(pid, shard);
        self.arm_shard(pid, shard);
        self.give_room(pid);
    }

    pub(super) fn arm_shard(&mut self, pid: Pid, shard: ShardId) {
        let it = &self.processes[pid];
        let Some(hosted) = it.shards.get(&shard) else { return };
        let Some(wake) = hosted.machine.next_wake() else { return };
        let when = it.world_time(wake).max(self.now + 1);
        if hosted.armed.is_some_and(|armed| armed <= when) {
            return;
        }
        if let Some(hosted) = self.processes[pid].shards.get_mut(&shard) {
            hosted.armed = Some(when);
        }
        self.at(when - self.now, SimEvent::ShardTick { pid, shard });
    }

    /// Reschedules every tick of a process whose clock was paused.
    pub(super) fn arm_all(&mut self, pid: Pid) {
        for shard in self.processes[pid].shards.keys().copied().collect::<Vec<_>>() {
            self.arm_shard(pid, shard);
        }
        self.arm_node(pid);
        self.arm_router(pid);
    }

    pub(super) fn shard_tick(&mut self, pid: Pid, shard: ShardId) {
        let it = &mut self.processes[pid];
        let mono = it.mono(self.now);
        let Some(hosted) = it.shards.get_mut(&shard) else { return };
        if hosted.armed.is_none_or(|armed| armed > self.now) {
            return;
        }
        hosted.armed = None;
        if hosted.machine.next_wake().is_some_and(|wake| wake <= mono) {
            self.handle_shard_event(pid, shard, Event::Tick);
        } else {
            self.arm_shard(pid, shard);
        }
    }

    pub(super) fn give_room(&mut self, pid: Pid) {
        while let Some(((key, entity), generation)) = self.processes[pid].cap.grant() {
            self.handle_shard_event(pid, key.shard, Event::SlotGranted { entity, generation });
        }
        if let Some((key, entity)) = self.processes[pid].cap.evict() {
            self.handle_shard_event(pid, key.shard, Event::Evict { entity });
        }
    }

    pub(super) fn apply_shard_action(
        &mut self,
        pid: Pid,
        shard: ShardId,
        epoch: Epoch,
        action: Action,
        commits: &mut Vec<Commit>,
    ) {
        let key = shard_key(shard);
        let it = &mut self.processes[pid];
        let Some(hosted) = it.shards.get_mut(&shard) else { return };
        match action {
            Action::Claim(claim) => {
                let number = claim.number;
                let request = self.claim_request(pid, shard, claim);
                self.call(pid, StoreCall::Entity(shard, epoch, number, request));
                self.step(pid, "step: claim requested");
            }
            Action::Commit(commit) => {
                if commit.head.deleted {
                    let utc = it.reads(self.now).utc;
                    self.deleted_at.insert(commit.head.turn, utc);
                }
                if self.subscribes
                    && !self.turns.contains_key(&commit.head.turn)
                    && let Some(ran) = RanTopic::of(&commit)
                {
                    self.topics.ran.insert(commit.head.turn, ran);
                }
                commits.push(*commit);
            }
            Action::Load { entity, generation } => {
                self.call(pid, StoreCall::Entity(shard, epoch, generation, Request::Load(entity)));
            }
            Action::ScanWakes { number, from, max_records } => {
                let request = Request::Wakes { number, from, max_records };
                self.call(pid, StoreCall::Entity(shard, epoch, number, request));
            }
            Action::ScanKeys { entity, generation, max_records } => {
                self.tally.count("deletion: page removed");
                let request = Request::Keys { entity, number: generation, max_records };
                self.call(pid, StoreCall::Entity(shard, epoch, generation, request));
            }
            // Otherwise no entity is remembered, and the run does not depend on the read.
            Action::ScanRemembered { .. } if !self.remembers => {}
            Action::ScanRemembered { number, from, max_records } => {
                let request = Request::Remembered { number, from, max_records };
                self.call(pid, StoreCall::Entity(shard, epoch, number, request));
            }
            Action::ScanHeads { number, after, max_records } => {
                let request = Request::Heads { number, after, max_records };
                self.call(pid, StoreCall::Entity(shard, epoch, number, request));
            }
            Action::ReadChannel { entity, reader, channel, from, max_items, .. } => {
                let request = Request::Channel { entity, channel, from, max_items };
                self.call(pid, StoreCall::Entity(shard, epoch, reader, request));
            }
            Action::RequestSlot { entity, generation, purpose } => {
                hosted.slots.insert((entity.clone(), generation));
                it.cap.request((key, entity), generation, purpose);
            }
            Action::ReleaseSlot { entity, generation } => {
                hosted.slots.remove(&(entity.clone(), generation));
                it.cap.release(&(key, entity), generation);
            }
            Action::RefuseEviction { entity } => it.cap.eviction_refused(&(key, entity)),
            Action::MarkIdle { entity } => it.cap.idle((key, entity)),
            Action::Activate { entity, generation, reason, .. } => {
                if reason == StartReason::Remembered {
                    self.tally.count("remembered: started without a message");
                }
                hosted.migrating.remove(&(entity.clone(), generation));
                hosted.starting.insert((entity.clone(), generation));
                if reason == StartReason::BesideTurn {
                    hosted.second.insert(generation);
                    self.tally.count("ask: second instance started");
                }
                if reason == StartReason::Remembered {
                    self.plan_forgetting(entity.clone());
                }
                self.call(pid, StoreCall::Entity(shard, epoch, generation, Request::State(entity)));
            }
            Action::Migrate { entity, generation, revision, .. } => {
                hosted.migrating.insert((entity.clone(), generation), revision);
                hosted.starting.insert((entity.clone(), generation));
                self.call(pid, StoreCall::Entity(shard, epoch, generation, Request::State(entity)));
            }
            Action::MigrationFailed { .. } => self.tally.count("migration: given up"),
            Action::Run { generation, turn, version, message, records } => {
                it.cap.busy(&(key, message.target.clone()));
                if hosted.second.contains(&generation) {
                    self.tally.count("ask: query ran beside a waiting turn");
                }
                self.check_lease(pid, shard);
                self.check_message(pid, &message);
                self.turns.insert(turn, message.clone());
                let entity = message.target.clone();
                let running = Running {
                    entity,
                    generation,
                    turn,
                    version,
                    work: Work::Message(message),
                    journal: records.map(|it| it.journal).unwrap_or_default(),
                    has_asked: false,
                };
                self.start_turn(pid, shard, epoch, running);
            }
            Action::Fire { entity, generation, turn, version, firing, records } => {
                it.cap.busy(&(key, entity.clone()));
                self.check_lease(pid, shard);
                self.tally.count("timer: fired");
                let utc = self.processes[pid].reads(self.now).utc;
                self.firings.started(turn, &firing, utc);
                let running = Running {
                    entity,
                    generation,
                    turn,
                    version,
                    work: Work::Firing(firing),
                    journal: records.map(|it| it.journal).unwrap_or_default(),
                    has_asked: false,
                };
                self.start_turn(pid, shard, epoch, running);
            }
            Action::TimerGaveUp { .. } => self.tally.count("timer: given up"),
            Action::Ask { asker, turn, ask, remaining } => {
                self.send_ask(pid, (shard, epoch), (asker, turn), &ask, remaining);
            }
            Action::AnswerAsk { entity, generation, place, outcome } => {
                self.ask_answered(pid, (shard, epoch), &entity, generation, place, &outcome);
            }
            Action::SendAskNote { entity, target, note } => {
                self.send_ask_note(pid, (shard, epoch), entity, target, &note);
            }
            // The simulated guests make no calls.
            Action::ReleaseCall { .. } => {}
            Action::Tell { sender, number, tell } => {
                self.send_tell(pid, (shard, epoch), sender, number, &tell);
            }
            Action::AskSender { entity, sender } => {
                self.ask_sender(pid, (shard, epoch), entity, sender);
            }
            Action::Escalate { .. } => {
                self.tally.count("supervision: failure escalated");
                self.enqueue_shard_report(pid, node::Event::ShardEscalated { shard, epoch });
            }
            Action::ForgetStopped { .. } => {}
            Action::TellGaveUp { sender, number, .. } => self.tell_given_up(sender, number),
            Action::CallStopHook { entity, generation, turn, reason, records } => {
                if reason == StopReason::Passivated {
                    self.check_passivation(pid, shard, &entity);
                }
                let (version, has_asked, journal) =
                    (0, false, records.map(|it| it.journal).unwrap_or_default());
                let work = Work::Stop;
                let running =
                    Running { entity, generation, turn, version, work, journal, has_asked };
                if self.rng.chance(4) {
                    // The type's limit ends the hook, later than the shard's own stop deadline.
                    self.tally.count("fault: stop hook hangs");
                    let delay = self.rng.range(300, 900);
                    return self.at(delay, SimEvent::Ran { pid, shard, epoch, running });
                }
                self.start_turn(pid, shard, epoch, running);
            }
            Action::DropInstance { entity, generation } => {
                let is_second = hosted.second.remove(&generation);
                let key = (entity.clone(), generation);
                if hosted.instances.remove(&key).is_some() && !is_second {
                    hosted.delays.remove(&entity);
                }
                hosted.starting.remove(&key);
                if hosted.asking.remove(&key).is_some() {
                    self.tally.count("ask: its turn was abandoned");
                }
            }
            Action::Reply { token, outcome } => self.shard_replied(pid, token, outcome),
            Action::Lost { current: standing, .. } => {
                self.tally.count("transition: shard lost");
                let standing = standing.map(|claim| claim.epoch);
                self.enqueue_shard_report(
                    pid,
                    node::Event::ShardLost { shard, epoch, current_epoch: standing },
                );
            }
            Action::Stopped => {
                self.tally.count("transition: shard stopped for a hand-off");
                if !hosted.instances.is_empty() {
                    self.violations.push(ViolationKind::StoppedEarly.because(
                        "the shard was reported as stopped while an instance was live".into(),
                    ));
                }
                self.drop_shard(pid, shard);
                self.enqueue_shard_report(pid, node::Event::ShardStopped { shard, epoch });
            }
        }
    }

    /// Checks that no turn starts after the lease has lapsed by the node's own clock (R9).
    pub(super) fn check_lease(&mut self, pid: Pid, shard: ShardId) {
        self.check_loser_turn(pid, shard);
        let it = &self.processes[pid];
        let since = it.lease_sent.map_or(u64::MAX, |sent| it.mono(self.now).saturating_sub(sent));
        // Whether the incarnation has ended and the notification is in transit: if the clock was paused, nothing else
        // tells the shard.
        let going = it.orders.iter().any(|it| matches!(it, Order::Forget(of, _) if *of == shard));
        if since >= it.lease + SLACK && self.now.saturating_sub(it.woke_late()) > SLACK && !going {
            let node = it.node.clone();
            self.violations.push(ViolationKind::TurnWithoutLease.because(format!(
                "{node} started a turn of shard {shard} {since} ms after it renewed its lease (R9)"
            )));
        }
    }

    /// Checks that a node whose lease has lapsed by its own clock is suspended (R9).
    pub(super) fn check_lapses(&mut self) {
        // A node that has left has neither shards nor a lease.
        let serves = |it: &&Process| it.member.is_some() && it.gateway.closing.is_none();
        for it in self.processes.iter().filter(|it| it.awake(self.now)).filter(serves) {
            let Some(sent) = it.lease_sent else { continue };
            let since = it.mono(self.now).saturating_sub(sent);
            // Whether the node has just registered, with a delayed write, or has just resumed.
            let slept = self.now.saturating_sub(it.woke_late().max(it.registered_at)) <= SLACK;
            let news = it.orders.iter().any(|order| matches!(order, Order::Renewed(..)));
            if since >= it.lease + SLACK && !slept && !news && !it.machine.is_suspended() {
                self.violations.push(ViolationKind::NotSuspended.because(format!(
                    "{} is not suspended {since} ms after it renewed its lease (R9)",
                    it.node
                )));
            }
        }
    }

    pub(super) fn start_turn(&mut self, pid: Pid, shard: ShardId, epoch: Epoch, running: Running) {
        let delay = self.rng.range(0, 12);
        self.at(delay, SimEvent::Ran { pid, shard, epoch, running });
    }

    /// Runs a turn whose duration has passed, unless its instance is gone.
    pub(super) fn ran(&mut self, pid: Pid, shard: ShardId, epoch: Epoch, running: Running) {
        if !self.hosts(pid, shard, epoch) {
            return;
        }
        if self.start_asks(pid, shard, epoch, &running) {
            return;
        }
        let Running { entity, generation, turn, work, journal, .. } = running;
        let fails = self.rng.chance(1) && !matches!(work, Work::Stop);
        let is_stop = matches!(work, Work::Stop);
        // A subscriber's turn emits nothing and sets no timer, whose firing would emit: two subscribers of each other would
        // never end.
        let is_item =
            matches!(&work, Work::Message(message) if &*message.method == subscriptions::METHOD);
        let passivate = self.rng.chance(2);
        let it = &mut self.processes[pid];
        let utc = it.reads(self.now).utc;
        let hosted = it.shards.get_mut(&shard);
        let key = (entity.clone(), generation);
        let instance = hosted.and_then(|hosted| hosted.instances.get_mut(&key));
        let Some(instance) = instance else { return };
        let mut result = match work {
            _ if fails => {
                self.tally.count("fault: guest failed");
                TurnOutput::without_effects(TurnResult::Failed {
                    code: "trap".into(),
                    message: String::new(),
                    retry_after: None,
                })
            }
            Work::Message(message) => {
                let mut result = instance.message(&message, false, passivate);
                if self.timers && !result.writes.is_empty() && !is_item {
                    result.timers = timers::by_message(&mut self.timer_rng, utc);
                }
                if result.delete {
                    self.tally.count("deletion: by a turn");
                }
                if self.subscribes && message.sender.is_none() && !result.writes.is_empty() {
                    let topics =
                        subscriptions::by_command(&mut self.rng_of_topics, self.entities, utc);
                    result.tells.extend(topics);
                }
                if message.sender.is_some() {
                    self.tally.count("tell: ran");
                } else if message.asked_by.is_some() {
                    self.tally.count("ask: ran");
                } else if self.tells && !result.writes.is_empty() {
                    let tells = tells::by_command(&mut self.tell_rng, self.entities, utc);
                    result.tells.extend(tells);
                    let delayed = tells::delayed_by_command(&mut self.tell_rng, self.entities, utc);
                    result.timers.extend(delayed);
                }
                result
            }
            Work::Firing(firing) => {
                let refuses = self.timer_rng.chance(if firing.attempt > 1 { 60 } else { 5 });
                let mut result = instance.firing(refuses);
                if !refuses {
                    result.timers = timers::by_firing(&mut self.timer_rng, &firing, utc);
                }
                result
            }
            Work::Stop => instance.hook("stops", true),
        };
        if self.journals && !result.writes.is_empty() {
            result.journal = journal::by_turn(&mut self.rng_of_journals, &journal);
        }
        if self.channels && !result.writes.is_empty() && !is_item {
            result.emits = channels::by_turn(&mut self.rng_of_channels, turn);
            if self.subscribes && !result.emits.is_empty() {
                self.topics.emitted.insert(turn, result.emits.len());
            }
        }
        if self.time_to_live > 0 && !result.writes.is_empty() {
            result.expiry = deletion::expiry_by_turn(&mut self.rng_of_deletions, utc);
        }
        if self.remembers && !result.writes.is_empty() {
            result.remember = remembered::by_turn(&mut self.rng_of_marks);
        }
        if !is_stop {
            self.plan_passivation((pid, shard), &entity, generation, &mut result);
        }
        self.handle_shard_event(pid, shard, Event::TurnDone { entity, generation, turn, result });
    }

    /// Passes on a shard machine's answer to a message.
    pub(super) fn shard_replied(&mut self, pid: Pid, token: ReplyToken, outcome: Outcome) {
        let Some((asker, _, epoch)) = self.processes[pid].askers.remove(&token) else {
            return self.violations.push(
                ViolationKind::SecondReply
                    .because(format!("a second reply to {token:?}: {outcome:?}")),
            );
        };
        self.processes[pid].gateway.forwarded.remove(&token);
        match asker {
            ReplyTo::Gateway(tag, kind) => self.ended(pid, tag.0, kind, outcome, epoch),
            ReplyTo::Peer(conn, tag, kind) => {
                let reply = ostraca_wire::outcome::reply_for_outcome(outcome, kind, epoch);
                self.frame(conn, 1, Frame::Forwarded(tag, Box::new(reply)));
            }
        }
    }

    /// Handles the store's answer to a shard's call.
    pub(super) fn shard_answered(
        &mut self,
        pid: Pid,
        shard: ShardId,
        epoch: Epoch,
        generation: u64,
        answer: Response,
    ) {
        if !self.hosts(pid, shard, epoch) {
            return;
        }
        let Some(hosted) = self.processes[pid].shards.get_mut(&shard) else { return };
        let event = match answer {
            Response::Claim(outcome) => {
                let number = generation;
                self.tally.claim(number, &outcome);
                Event::ClaimResult { number, outcome }
            }
            Response::Commit(outcomes) => Event::CommitResults(outcomes),
            Response::Wakes(number, page) => Event::WakesScanned { number, page },
            Response::Remembered(number, page) => Event::RememberedScanned { number, page },
            Response::Heads(number, page) => Event::HeadsScanned { number, page },
            Response::Channel(entity, items) => {
                Event::ChannelRead { entity, reader: generation, items }
            }
            Response::Load(entity, result) => Event::Loaded { entity, generation, result },
            Response::Keys(entity, generation, page) => {
                Event::KeysScanned { entity, generation, page }
            }
            Response::State(entity, result) => {
                // An abandoned activation creates no instance.
                if !hosted.starting.remove(&(entity.clone(), generation)) {
                    return;
                }
                let migrates = hosted.migrating.remove(&(entity.clone(), generation));
                // A second instance must not write when it starts.
                let writes =
                    &*entity.entity_type == "starter" && !hosted.second.contains(&generation);
                let result = match result {
                    Ok(state) if let Some(revision) = migrates => {
                        let mut instance = Instance::new(generation, state);
                        let result = migrate(&mut self.rng_of_migrations, &mut instance, revision);
                        self.tally.count(match is_refusal(&result) {
                            true => "fault: migration failed",
                            false => "migration: ran",
                        });
                        result
                    }
                    Ok(state) => {
                        let mut instance = Instance::new(generation, state);
                        let turn = instance.hook("starts", writes);
                        hosted.started.insert(entity.clone());
                        hosted.instances.insert((entity.clone(), generation), instance);
                        ActivationOutcome::Started(turn)
                    }
                    Err(why) => ActivationOutcome::Failed {
                        code: "store-unavailable".into(),
                        message: why,
                        retry_after: Some(20),
                    },
                };
                Event::ActivationResult { entity, generation, result }
            }
        };
        self.handle_shard_event(pid, shard, event);
    }
}
