//! The state machine itself: events in, actions out.

mod claim;
mod gate;
mod instance;
mod mailbox;
mod suspend;
mod time;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::action::Action;
use super::entity::{GatedTurn, PendingMessage, ResidentEntity, Stage, StartBackoff};
use super::event::{ActivationOutcome, Event, TurnOutput, TurnResult};
use super::lanes::LaneDecision;
use super::mailbox::QueuedTotal;
use super::settings::{Mutation, Settings, StartReason, StopReason, TypeSettings};
use crate::extensions::Extensions;
use crate::ids::{ClusterId, Entity, Epoch, Incarnation, MessageId, NodeId, ShardPath, TurnId};
use crate::message::{Message, MessageKind, Now, Outcome, OwnerHint, ReplyToken, codes};
use crate::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, GuestReply, Head, LoadedEntity,
    RecordKey, RecordWrite, RecordedReply,
};

/// Whose machine it is: the parts of its claims.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ownership {
    /// The cluster.
    pub cluster: ClusterId,
    /// The shard.
    pub shard: ShardPath,
    /// The epoch under which it was assigned.
    pub epoch: Epoch,
    /// The node.
    pub node: NodeId,
    /// Its present life.
    pub incarnation: Incarnation,
}

/// Where a shard stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its claim is under way: the first one, or a new one after an unknown outcome (R3).
    Claiming,
    /// It serves.
    Serving,
    /// It gives its instances up.
    Stopping,
    /// No instance lives and no commit is under way.
    Stopped,
    /// The store knows another owner.
    Lost,
}

/// One shard's machine. Deterministic: the same events give the same actions.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    ownership: Ownership,
    phase: Phase,
    claim: Arc<Claim>,
    /// When to claim again, after a claim that failed; and how long to wait the next time.
    claim_at: Option<u64>,
    claim_wait: u64,
    /// A claim is asked for and not answered.
    claim_pending: bool,
    stop_at: Option<u64>,
    lease_start: Option<u64>,
    /// How long that may be relied on.
    lease: u64,
    suspended: bool,
    /// Whose the shard is, once it was lost and the store told it.
    owner_hint: Option<OwnerHint>,
    types: BTreeMap<Arc<str>, TypeSettings>,
    entities: BTreeMap<Entity, ResidentEntity>,
    /// Commits asked for and not answered.
    outstanding: usize,
    /// Commits that wait for the shard to be claimed again.
    unsent_commits: Vec<Commit>,
    last_turn: u64,
    last_generation: u64,
    next_wake: Option<u64>,
    /// The entities that time changes, by [`ResidentEntity::timer`].
    timers: BTreeSet<(u64, Entity)>,
    /// Entities that could go on, but for the shard's claim or the node's lease.
    stalled: BTreeSet<Entity>,
    /// Messages that wait for a turn.
    queued_total: QueuedTotal,
    /// Entities looked at, for tests.
    #[cfg(test)]
    pub(super) visits: usize,
    actions: VecDeque<Action>,
}

impl Machine {
    /// A machine for an assigned shard; it asks for its claim at once.
    #[must_use]
    pub fn new(settings: Settings, owner: Ownership) -> Self {
        let claim = Arc::new(Claim {
            cluster: owner.cluster,
            shard: owner.shard.clone(),
            epoch: owner.epoch,
            node: owner.node.clone(),
            incarnation: owner.incarnation,
            number: 1,
            extensions: Extensions::default(),
        });
        Self {
            claim_wait: settings.claim_backoff,
            settings,
            ownership: owner,
            phase: Phase::Claiming,
            claim_at: None,
            claim_pending: true,
            stop_at: None,
            lease_start: None,
            lease: 0,
            suspended: false,
            owner_hint: None,
            types: BTreeMap::new(),
            entities: BTreeMap::new(),
            outstanding: 0,
            unsent_commits: Vec::new(),
            last_turn: 0,
            last_generation: 0,
            next_wake: None,
            timers: BTreeSet::new(),
            stalled: BTreeSet::new(),
            queued_total: QueuedTotal::default(),
            #[cfg(test)]
            visits: 0,
            actions: VecDeque::from([Action::Claim(claim.clone())]),
            claim,
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Now, event: Event) {
        self.apply(now, event);
        #[cfg(debug_assertions)]
        if self.entities.len() <= 64 {
            assert_eq!(self.find_stuck_entity(), None, "it would wait for ever");
        }
    }

    fn apply(&mut self, now: Now, event: Event) {
        match event {
            Event::Tick => self.tick(now),
            Event::LeaseRenewed { sent_at: sent, lease } => {
                self.lease_start = self.lease_start.max(Some(sent));
                self.lease = lease;
                self.advance_stalled(now);
            }
            Event::TypeDeployed { entity_type: kind, settings } => {
                self.on_type(now, kind, settings)
            }
            Event::ClaimResult { number, outcome } => self.on_claimed(now, number, outcome),
            Event::Message(message) => self.on_message(now, message),
            Event::Loaded { entity, generation, result } => {
                self.on_loaded(now, &entity, generation, result);
            }
            Event::SlotGranted { entity, generation } => self.on_slot(now, &entity, generation),
            Event::Evict { entity } => self.on_evict(now, &entity),
            Event::ActivationResult { entity, generation, result } => {
                self.on_activated(now, &entity, generation, result);
            }
            Event::TurnDone { entity, generation, turn, result } => {
                self.on_turn_done(now, &entity, generation, turn, result);
            }
            Event::QueryAbandoned { entity, generation, turn } => {
                self.on_abandoned(now, &entity, generation, turn);
            }
            Event::CommitResults(outcomes) => {
                for (entity, turn, outcome) in outcomes {
                    self.on_committed(now, &entity, turn, outcome);
                }
                self.maybe_claim();
            }
            Event::Suspend => self.on_suspend(),
            Event::Resume => self.on_resume(now),
            Event::Stop(reason) => self.on_stop(now, reason),
            Event::Drop => self.on_drop(),
        }
        // An entity is forgotten only when it has neither an instance nor a commit under way; the unanswered claim
        // and the commits of turns that were given up are counted apart.
        if self.phase == Phase::Stopping
            && self.entities.is_empty()
            && self.outstanding == 0
            && !self.claim_pending
        {
            self.phase = Phase::Stopped;
            self.actions.push_back(Action::Stopped);
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send [`Event::Tick`], on the clock of [`Now::mono`].
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        self.next_wake.into_iter().chain(timer).min()
    }

    /// Where the shard stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether it was suspended, and starts no turn (R9). In any phase: a suspended machine may claim or stop.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Whose machine it is.
    #[must_use]
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// The settings that it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The claim that it works under.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Entities in memory, and messages that wait for a turn.
    #[must_use]
    pub fn stats(&self) -> (usize, usize) {
        (self.entities.len(), self.queued_total.load(Ordering::Relaxed))
    }

    /// Messages that wait for a turn of an entity; none if nothing of it is in memory.
    #[must_use]
    pub fn queued_messages(&self, entity: &Entity) -> Option<usize> {
        self.entities.get(entity).map(ResidentEntity::queued_messages)
    }

    /// Messages of an entity's mailbox that were looked at.
    #[cfg(test)]
    pub(super) fn touched(&self, entity: &Entity) -> usize {
        self.entities.get(entity).map_or(0, |state| state.mailbox.touched.get())
    }

    fn has_mutation(&self, mutation: Mutation) -> bool {
        self.settings.has_mutation(mutation)
    }

    fn lease_good(&self, now: Now) -> bool {
        let lease = self.lease;
        let good = if self.has_mutation(Mutation::DoubleLease) { lease * 2 } else { lease / 5 * 4 };
        self.lease_start.is_some_and(|sent| now.mono.saturating_sub(sent) < good)
    }

    fn wake_by(&mut self, at: u64) {
        self.next_wake = Some(self.next_wake.map_or(at, |wake| wake.min(at)));
    }

    /// Nothing is left of an entity in memory.
    fn drop_entity(&mut self, entity: &Entity) {
        if let Some(timer) = self.entities.remove(entity).and_then(|state| state.timer) {
            self.timers.remove(&(timer, entity.clone()));
        }
        self.stalled.remove(entity);
    }

    fn reply(&mut self, token: ReplyToken, outcome: Outcome) {
        self.actions.push_back(Action::Reply { token, outcome });
    }

    fn next_turn(&mut self) -> TurnId {
        self.last_turn += 1;
        TurnId {
            nonce: self.ownership.incarnation.nonce,
            shard: self.ownership.shard.shard.0,
            epoch: self.ownership.epoch,
            number: self.last_turn,
        }
    }
}

fn deadline_outcome() -> Outcome {
    Outcome::not_run(
        codes::DEADLINE_EXCEEDED,
        "the sender's deadline passed before the turn could start",
    )
}

fn id_reused_text(id: &MessageId) -> String {
    format!(
        "message {:?}/{} was sent before with another target, method or body: give each message an id of its own",
        id.session, id.sequence
    )
}

fn final_outcome(recorded: RecordedReply) -> Outcome {
    Outcome::Final { reply: recorded.reply, version: recorded.version }
}
