//! Asks of running turns, sent through the asking node's own gateway, and checks on waiting turns (R15, R20).

use std::collections::BTreeMap;

use ostraca_core::ids::{Entity, Epoch, MessageId, ScopedSessionId, ShardId, TurnId};
use ostraca_core::message::{MessageKind, Outcome};
use ostraca_core::shard::{Ask, AskNote, Event, Phase};
use ostraca_wire::proto::Envelope;

use super::process::Pid;
use super::shards::Running;
use super::tells::{Content, QUERIES, Sent};
use super::{SimEvent, World};
use crate::asks::{METHOD, TurnKey};
use crate::guest::Work;
use crate::violation::ViolationKind;

/// How long a cycle of asks may last after the last fault, in milliseconds: long enough to send a lost note again.
const CYCLE: u64 = 500;

/// A turn that waits for its asks.
#[derive(Clone, Debug)]
pub(super) struct AskingTurn {
    running: Running,
    key: TurnKey,
    /// By place: the asks without an answer.
    open: BTreeMap<u32, OpenAsk>,
}

impl AskingTurn {}

#[derive(Clone, Debug)]
struct OpenAsk {
    target: Entity,
    is_command: bool,
    /// The time since which a copy has awaited its outcome.
    since: u64,
    /// `None` until it has been sent.
    id: Option<MessageId>,
}

impl World {
    /// Starts the asks of a turn that is about to run. Returns whether the turn waits for asks.
    pub(super) fn start_asks(
        &mut self,
        pid: Pid,
        shard: ShardId,
        epoch: Epoch,
        running: &Running,
    ) -> bool {
        if !self.asks || running.has_asked {
            return false;
        }
        let (key, is_query) = match &running.work {
            Work::Message(message) => {
                (TurnKey::of_message(message), message.kind == MessageKind::Query)
            }
            Work::Firing(firing) => (TurnKey::of_firing(&running.entity, firing), false),
            Work::Stop => return false,
        };
        let asks = key.asks(self.entities, is_query, self.options.long_asks);
        let Some(hosted) = self.processes[pid].shards.get_mut(&shard) else { return false };
        let instance = (running.entity.clone(), running.generation);
        if asks.is_empty() || !hosted.instances.contains_key(&instance) {
            return false;
        }
        let since = self.now;
        let open = (0..).zip(&asks).map(|(place, ask)| {
            let (target, is_command) = (ask.target.clone(), &*ask.method == METHOD);
            (place, OpenAsk { target, is_command, since, id: None })
        });
        let asking = AskingTurn { running: running.clone(), key, open: open.collect() };
        hosted.asking.insert(instance, asking);
        for (place, ask) in (0..).zip(asks) {
            let (entity, generation) = (running.entity.clone(), running.generation);
            if !self.hosts(pid, shard, epoch) {
                break;
            }
            self.tally.count("ask: started");
            let started = Event::AskStarted { entity, generation, place, ask };
            self.handle_shard_event(pid, shard, started);
        }
        true
    }

    pub(super) fn send_ask(
        &mut self,
        pid: Pid,
        (shard, epoch): (ShardId, Epoch),
        (asker, turn): (Entity, TurnId),
        ask: &Ask,
        remaining: u64,
    ) {
        self.tally.count("ask: sent");
        if ask.chain.len() > 1 {
            self.tally.count("ask: sent by a turn that was asked");
        }
        let Some(hosted) = self.processes[pid].shards.get_mut(&shard) else { return };
        let mut asking = hosted.asking.values_mut();
        if let Some(asking) = asking.find(|asking| asking.running.turn == turn) {
            let base = asking.running.version;
            let unsent = asking.open.iter_mut().find(|(_, open)| {
                open.id == Some(ask.id) || open.id.is_none() && open.target == ask.target
            });
            if let Some((place, open)) = unsent {
                open.since = self.now;
                if open.id.replace(ask.id).is_none() && open.is_command {
                    let (key, place) = (asking.key.clone(), *place);
                    self.ask_check.started(&key, place, ask.id);
                }
            }
            let stored = self.stores[shard.0 as usize - 1].durable().heads.get(&asker);
            let stored = stored.map_or(0, |head| head.version);
            if stored < base {
                let why = format!(
                    "{asker} asked {} in a turn after version {base}, but only {stored} is durable",
                    ask.target
                );
                self.violations.push(ViolationKind::AskedUncommitted.because(why));
            }
        }
        let envelope = Envelope::of_ask(ask, remaining);
        let what = Content::Ask(turn, ask.id);
        let sent = Sent { shard, epoch, from: asker, to: ask.target.clone(), what };
        self.send_between(pid, sent, ask.id.session, envelope);
    }

    pub(super) fn send_ask_note(
        &mut self,
        pid: Pid,
        (shard, epoch): (ShardId, Epoch),
        entity: Entity,
        target: Entity,
        note: &AskNote,
    ) {
        self.tally.count(match note {
            AskNote::Probe { .. } => "ask: probe",
            AskNote::Cycle { .. } => "ask: cycle found elsewhere",
        });
        self.tokens += 1;
        let number = QUERIES + self.tokens;
        let envelope = Envelope::of_ask_note(&entity, &target, note, number, 400);
        let session = ScopedSessionId::of_entity(&entity);
        let sent =
            Sent { shard, epoch, from: entity, to: target, what: Content::AskNote(note.clone()) };
        self.send_between(pid, sent, session, envelope);
    }

    /// Passes an answer to the waiting turn. The turn runs once it has all its answers.
    pub(super) fn ask_answered(
        &mut self,
        pid: Pid,
        (shard, epoch): (ShardId, Epoch),
        entity: &Entity,
        generation: u64,
        place: u32,
        outcome: &Outcome,
    ) {
        self.tally.count(match outcome {
            Outcome::Final { .. } => "ask: answered",
            Outcome::NotRun { code, .. } if code == "ask-cycle" => "ask: refused as a cycle",
            Outcome::NotRun { .. } => "ask: not run",
            Outcome::Unknown { .. } => "ask: unknown",
        });
        let Some(hosted) = self.processes[pid].shards.get_mut(&shard) else { return };
        let instance = (entity.clone(), generation);
        let Some(asking) = hosted.asking.get_mut(&instance) else { return };
        let Some(open) = asking.open.remove(&place) else {
            return self.violations.push(
                ViolationKind::SecondReply
                    .because(format!("{entity} got two answers to ask {place}")),
            );
        };
        let done = asking.open.is_empty();
        let running = Running { has_asked: true, ..asking.running.clone() };
        if done {
            hosted.asking.remove(&instance);
        }
        if let (Some(id), Outcome::NotRun { code, .. }) = (open.id, outcome)
            && open.is_command
            && self.has_run(&open.target, id)
        {
            let why = format!("{id:?} has run, but was reported as not run: {code}");
            self.violations.push(ViolationKind::AskRanAfterRefusal.because(why));
        }
        if let Some(id) = open.id.filter(|_| open.is_command)
            && self.ask_check.answered(id, outcome)
        {
            self.tally.count("ask: answered from the record");
        }
        if done {
            let delay = self.rng_of_asks.range(0, 6);
            self.at(delay, SimEvent::Ran { pid, shard, epoch, running });
        }
    }

    /// Records that a copy of an ask was answered. If its outcome is unknown, the ask waits nowhere until it is sent
    /// again.
    pub(super) fn copy_answered(
        &mut self,
        pid: Pid,
        shard: ShardId,
        asker: &Entity,
        id: &MessageId,
    ) {
        let Some(hosted) = self.processes[pid].shards.get_mut(&shard) else { return };
        let of_asker = hosted.asking.iter_mut().filter(|((entity, _), _)| entity == asker);
        let open = of_asker.flat_map(|(_, asking)| asking.open.values_mut());
        let open = open.filter(|open| open.id == Some(*id));
        open.for_each(|open| open.since = u64::MAX);
    }

    /// Whether a durable turn ran the ask.
    fn has_run(&self, target: &Entity, id: MessageId) -> bool {
        let store = &self.stores[self.shard_of(&target.id).0 as usize - 1];
        store.durable().turns.iter().any(|(entity, _, turn)| {
            entity == target && self.turns.get(turn).is_some_and(|message| message.id == id)
        })
    }

    /// Checks that no turn in a stopping shard waits for an ask (R15).
    pub(super) fn check_stopping(&mut self, pid: Pid, shard: ShardId) {
        let Some(hosted) = self.processes[pid].shards.get(&shard) else { return };
        if hosted.machine.phase() == Phase::Stopping
            && let Some((entity, _)) = hosted.asking.keys().next()
        {
            let why = format!("shard {shard} is stopping, but a turn of {entity} waits for an ask");
            self.violations.push(ViolationKind::StopWaitsForAsk.because(why));
        }
    }

    /// Whether a turn in any running process waits for an ask.
    pub(super) fn any_waits_for_asks(&self) -> bool {
        let alive = self.processes.iter().filter(|it| it.alive);
        alive.flat_map(|it| it.shards.values()).any(|hosted| !hosted.asking.is_empty())
    }

    /// Checks that no cycle of asks has lasted for long (R20).
    pub(super) fn check_cycles(&mut self) {
        // A gateway that is full may hold or refuse what would end a cycle: the ask that closes it, or the note that
        // finds it.
        let alive = self.processes.iter().filter(|it| it.alive);
        if alive.map(|it| it.gateway.router.stats()).any(|stats| stats.buffered > 0) {
            self.held_up = self.now;
        }
        if !self.asks || self.now < self.healed.max(self.held_up) + CYCLE {
            return;
        }
        // With other rules broken, such a gateway may also hold them for long.
        let it = &self.options;
        let breaks_rules = !it.shard_mutations.is_empty()
            || !it.node_mutations.is_empty()
            || !it.route_mutations.is_empty()
            || !it.store_mutations.is_empty()
            || !it.client_mutations.is_empty()
            || !it.gateway_mutations.is_empty();
        if breaks_rules && self.small_gateways {
            return;
        }
        // For each waiting instance, those for which it has waited long. A query waits for the second instance, if it
        // can run there.
        let mut waits: BTreeMap<(&Entity, bool), Vec<(&Entity, bool)>> = BTreeMap::new();
        let since = self.now - CYCLE;
        for hosted in self.processes.iter().filter(|it| it.alive).flat_map(|it| it.shards.values())
        {
            for ((entity, generation), asking) in &hosted.asking {
                let old = asking.open.values().filter(|open| open.since < since);
                let is_second = hosted.second.contains(generation);
                let targets = old.map(|open| (&open.target, self.reentrant && !open.is_command));
                waits.entry((entity, is_second)).or_default().extend(targets);
            }
        }
        // An entity that waits for nothing is not in a cycle; nor is one that waits only for such entities.
        loop {
            let before = waits.len();
            let known: Vec<(&Entity, bool)> = waits.keys().copied().collect();
            waits.retain(|_, targets| {
                targets.retain(|target| known.binary_search(target).is_ok());
                !targets.is_empty()
            });
            if waits.len() == before {
                break;
            }
        }
        if let Some((entity, targets)) = waits.first_key_value() {
            let why = format!("{} has waited {CYCLE} ms for {targets:?}; all: {waits:?}", entity.0);
            self.violations.push(ViolationKind::AskCycleKept.because(why));
        }
    }
}
