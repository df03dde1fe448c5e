//! Nodes: they execute a machine's actions, and report the results to it.

use ostraca_core::ids::{Entity, Epoch, Incarnation, TurnId};
use ostraca_core::message::{MessageKind, Now, Outcome, ReplyToken};
use ostraca_core::records::Commit;
use ostraca_core::shard::{Action, Event, Machine, StopReason, TurnOutput, TurnResult};

use super::event::SimEvent;
use super::{World, load_key};
use crate::guest::Work;
use crate::node::ReplyTo;
use crate::store::Request;
use crate::timers;
use crate::violation::ViolationKind;

impl World {
    pub(super) fn when_awake(&mut self, node: usize, incarnation: Incarnation, event: Event) {
        let it = &self.nodes[node];
        if !it.alive || it.incarnation != incarnation {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, SimEvent::Ran { node, incarnation, event, run: None });
        }
        self.handle_event(node, event);
    }

    /// Runs a turn whose duration has passed, unless its instance is gone.
    pub(super) fn ran(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        event: Event,
        run: Option<Work>,
    ) {
        let it = &self.nodes[node];
        if it.alive && it.incarnation == incarnation && it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, SimEvent::Ran { node, incarnation, event, run });
        }
        let event = match (event, run) {
            (Event::TurnDone { entity, generation, turn, result }, run) => {
                let fails = self.rng.chance(2) && !matches!(run, None | Some(Work::Stop));
                let passivate = self.rng.chance(3);
                let keep_errors = self.options.keep_errors;
                let utc = self.utc(node);
                let Some(instance) = self.nodes[node].instances.get_mut(&entity) else { return };
                if instance.generation != generation {
                    return;
                }
                let result = match run {
                    _ if fails => {
                        self.tally.count("fault: guest failed");
                        let failed = TurnResult::Failed {
                            code: "trap".into(),
                            message: String::new(),
                            retry_after: None,
                        };
                        TurnOutput { result: failed, ..result }
                    }
                    Some(Work::Message(message)) => {
                        let mut result = instance.message(&message, keep_errors, passivate);
                        if self.timers && !result.writes.is_empty() {
                            result.timers = timers::by_message(&mut self.timer_rng, utc);
                        }
                        result
                    }
                    Some(Work::Firing(firing)) => {
                        let refuses =
                            self.timer_rng.chance(if firing.attempt > 1 { 60 } else { 5 });
                        let mut result = instance.firing(refuses);
                        if refuses {
                            self.tally.count("timer: refused by the guest");
                        } else {
                            result.timers = timers::by_firing(&mut self.timer_rng, &firing, utc);
                        }
                        result
                    }
                    Some(Work::Stop) | None => instance.hook("stops", true),
                };
                Event::TurnDone { entity, generation, turn, result }
            }
            (event, _) => event,
        };
        self.when_awake(node, incarnation, event);
    }

    pub(super) fn handle_event(&mut self, node: usize, event: Event) {
        let mono = self.nodes[node].mono(self.now);
        let now = Now { mono, cluster_time: self.now, utc: self.utc(node) };
        let Some(machine) = &mut self.nodes[node].machine else { return };
        machine.handle(now, event.clone());
        let mut actions = Vec::new();
        while let Some(action) = machine.poll() {
            actions.push(action);
        }
        self.digest.turn(self.now, node);
        self.digest.shard(&actions);
        self.nodes[node].script.push((now, event, actions.clone()));
        let mut commits: Vec<Commit> = Vec::new();
        for action in actions {
            self.apply_action(node, now, action, &mut commits);
        }
        if !commits.is_empty() {
            self.ask(node, Request::Commit(commits));
        }
        self.arm(node);
        self.give_room(node);
    }

    pub(super) fn arm(&mut self, node: usize) {
        let it = &self.nodes[node];
        if let Some(wake) = it.machine.as_ref().and_then(Machine::next_wake) {
            let when = it.world_time(wake).max(self.now + 1);
            if it.armed.is_some_and(|armed| armed <= when) {
                return;
            }
            let (delay, incarnation) = (when - self.now, it.incarnation);
            self.nodes[node].armed = Some(when);
            self.at(delay, SimEvent::Tick { node, incarnation });
        }
    }

    pub(super) fn give_room(&mut self, node: usize) {
        while let Some(((_, entity), generation)) = self.nodes[node].cap.grant() {
            self.handle_event(node, Event::SlotGranted { entity, generation });
        }
        if let Some((_, entity)) = self.nodes[node].cap.evict() {
            self.tally.count("transition: eviction");
            self.handle_event(node, Event::Evict { entity });
        }
    }

    pub(super) fn apply_action(
        &mut self,
        node: usize,
        now: Now,
        action: Action,
        commits: &mut Vec<Commit>,
    ) {
        let incarnation = self.nodes[node].incarnation;
        let Some(shard) = self.nodes[node].machine.as_ref().map(|m| m.ownership().shard.clone())
        else {
            return;
        };
        let starts = matches!(
            action,
            Action::Activate { .. }
                | Action::Run { .. }
                | Action::Fire { .. }
                | Action::CallStopHook { .. }
        );
        if starts && self.nodes[node].suspended {
            self.violations.push(
                ViolationKind::TurnWithoutLease
                    .because(format!("a turn started while its shard was suspended: {action:?}")),
            );
        }
        match action {
            Action::Claim(claim) => self.ask(node, Request::Claim(claim)),
            Action::Commit(commit) => commits.push(*commit),
            Action::Load { entity, generation } => {
                self.nodes[node].starting.insert(load_key(&entity), generation);
                self.ask(node, Request::Load(entity));
            }
            Action::ScanWakes { number, from, max_records } => {
                self.ask(node, Request::Wakes { number, from, max_records });
            }
            // No entity of this world is remembered.
            Action::ScanRemembered { .. } => {}
            // Nobody counts.
            Action::ScanHeads { .. } => {}
            // Nobody reads a channel.
            Action::ReadChannel { .. } => {}
            // And none is deleted.
            Action::ScanKeys { .. } => {}
            Action::RequestSlot { entity, generation, purpose } => {
                self.nodes[node].cap.request((shard, entity), generation, purpose);
            }
            Action::ReleaseSlot { entity, generation } => {
                self.nodes[node].cap.release(&(shard, entity), generation)
            }
            Action::RefuseEviction { entity } => {
                self.tally.count("transition: eviction refused, busy");
                self.nodes[node].cap.eviction_refused(&(shard, entity));
            }
            Action::MarkIdle { entity } => self.nodes[node].cap.idle((shard, entity)),
            Action::Activate { entity, generation, reason, .. } => {
                self.tally.count("transition: activation");
                if reason == ostraca_core::shard::StartReason::FirstMessage {
                    self.tally.count("transition: first activation");
                }
                self.nodes[node].starting.insert(entity.clone(), generation);
                self.ask(node, Request::State(entity));
            }
            Action::Run { generation, turn, message, .. } => {
                // Sometimes a busy instance remains in the list of idle instances, as after a late event.
                if !self.rng.chance(20) {
                    self.nodes[node].cap.busy(&(shard, message.target.clone()));
                }
                let deadline = self.deadlines.get(&(node, message.id)).copied().flatten();
                if deadline.is_some_and(|deadline| deadline <= now.mono) {
                    self.violations.push(
                        ViolationKind::TurnAfterDeadline.because(format!(
                            "a turn started after its deadline: {:?}",
                            message.id
                        )),
                    );
                }
                self.turns.insert(turn, message.clone());
                self.start_turn(
                    node,
                    incarnation,
                    message.target.clone(),
                    generation,
                    turn,
                    Work::Message(message),
                );
            }
            Action::Fire { entity, generation, turn, firing, .. } => {
                self.nodes[node].cap.busy(&(shard, entity.clone()));
                self.tally.count("timer: fired");
                if firing.missed > 0 {
                    self.tally.count("timer: missed intervals");
                }
                if firing.attempt > 1 {
                    self.tally.count("timer: attempted again");
                }
                self.firings.started(turn, &firing, now.utc);
                let work = Work::Firing(firing);
                self.start_turn(node, incarnation, entity, generation, turn, work);
            }
            Action::TimerGaveUp { .. } => self.tally.count("timer: given up"),
            // The types of this world have no schemas.
            Action::Migrate { .. } | Action::MigrationFailed { .. } => {}
            // The guests of this world send no messages.
            Action::Ask { .. } | Action::AnswerAsk { .. } | Action::SendAskNote { .. } => {}
            Action::ReleaseCall { .. } => {}
            // This world's types restart their entities.
            Action::Escalate { .. } | Action::ForgetStopped { .. } => {}
            Action::Tell { .. } | Action::AskSender { .. } | Action::TellGaveUp { .. } => {}
            Action::CallStopHook { entity, generation, turn, reason, .. } => {
                self.tally.count("transition: stop turn");
                match reason {
                    StopReason::Idle => self.tally.count("transition: idle passivation"),
                    StopReason::Passivated => {
                        self.tally.count("transition: passivation by the guest");
                    }
                    _ => {}
                }
                self.start_turn(node, incarnation, entity, generation, turn, Work::Stop);
            }
            Action::DropInstance { entity, generation } => {
                // The result for an abandoned instance is dropped when it arrives.
                let starting = &mut self.nodes[node].starting;
                if starting.get(&entity) == Some(&generation) {
                    starting.remove(&entity);
                }
                let instances = &mut self.nodes[node].instances;
                if instances.get(&entity).is_some_and(|instance| instance.generation == generation)
                {
                    instances.remove(&entity);
                }
            }
            Action::Reply { token, outcome } => self.reply(node, token, outcome),
            Action::Lost { .. } => {
                self.tally.count("transition: shard lost");
            }
            Action::Stopped => {
                self.tally.count("transition: shard stopped gracefully");
                if !self.nodes[node].instances.is_empty() {
                    self.violations.push(ViolationKind::StoppedEarly.because(
                        "the shard was reported as stopped while an instance was live".into(),
                    ));
                }
                if self.nodes[node].suspended {
                    self.tally.count("transition: shard stopped while suspended");
                }
                if self.asks_the_store(node) {
                    self.violations.push(ViolationKind::StoppedEarly.because(
                        "the shard was reported as stopped with a claim or commit pending".into(),
                    ));
                }
                if self.owner == Some((node, incarnation)) {
                    let to = 1 - node;
                    let to = if self.nodes[to].alive { to } else { node };
                    self.assign(to);
                }
            }
        }
    }

    /// Whether a claim or commit of the current machine is unanswered.
    fn asks_the_store(&self, node: usize) -> bool {
        let it = &self.nodes[node];
        let Some(epoch) = it.machine.as_ref().map(|machine| machine.ownership().epoch) else {
            return false;
        };
        it.asked.values().any(|request| match request {
            // A shard that was never granted its claim has written nothing, and does not wait (K14).
            Request::Claim(claim) => claim.epoch == epoch && it.granted == Some(epoch),
            Request::Commit(commits) => commits.iter().any(|commit| commit.claim.epoch == epoch),
            _ => false,
        })
    }

    pub(super) fn start_turn(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        entity: Entity,
        generation: u64,
        turn: TurnId,
        work: Work,
    ) {
        let result = TurnOutput::without_effects(TurnResult::Replied(
            ostraca_core::records::GuestReply::Result(bytes::Bytes::new()),
        ));
        let delay = self.rng.range(0, 12);
        let event = Event::TurnDone { entity, generation, turn, result };
        self.at(delay, SimEvent::Ran { node, incarnation, event, run: Some(work) });
    }

    pub(super) fn reply(&mut self, node: usize, token: ReplyToken, outcome: Outcome) {
        let Some(asker) = self.nodes[node].tokens.remove(&token) else {
            self.violations.push(
                ViolationKind::SecondReply
                    .because(format!("a second reply to {token:?}: {outcome:?}")),
            );
            return;
        };
        match &outcome {
            Outcome::Final { reply: answer, .. } => {
                self.tally.count("reply: final");
                if matches!(answer, ostraca_core::records::GuestReply::Error { .. }) {
                    self.tally.count("reply: application error");
                }
                if *answer == ostraca_core::records::GuestReply::Dropped {
                    self.tally.count("reply: no longer kept");
                }
                let ReplyTo { client, sequence, .. } = asker;
                let session = &self.clients[client].session;
                if let Some(sent) = session.unresolved.get(&sequence) {
                    if sent.kind == MessageKind::Query {
                        self.tally.count("reply: query");
                    }
                } else if session.history.iter().any(|o| o.sequence == sequence && o.command) {
                    self.tally.count("reply: recorded outcome");
                }
            }
            Outcome::Unknown { .. } => self.tally.count("reply: unknown"),
            Outcome::NotRun { code, .. } => {
                if let Some(kind) = crate::tally::KINDS
                    .iter()
                    .find(|kind| kind.strip_prefix("not run: ") == Some(code))
                {
                    self.tally.count(kind);
                }
            }
        }
        if self.rng.chance(self.loss) {
            self.tally.count("fault: reply lost");
            return;
        }
        let delay = self.rng.range(1, 25);
        let machine = self.nodes[node].machine.as_ref();
        let epoch = machine.map_or(Epoch(0), |machine| machine.ownership().epoch);
        self.at(delay, SimEvent::Reply { asker, epoch, outcome });
    }
}
