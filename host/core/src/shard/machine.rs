//! The state machine itself: its parts, and how an event reaches them.
//!
//! The state of the whole shard is divided into parts that own their fields: [`ShardClaim`] (the right to write),
//! [`Lease`] (the right to answer), [`Gate`] (commits), [`Schedule`] (due times), [`Wakes`] (entities to wake for their
//! timers), [`Recovery`] (remembered entities to start), [`Supervision`] (entities that were stopped),
//! [`DeployedTypes`] (types), [`StorageQuota`] (namespaces that are full), [`FailedMigrations`] (entities that stay on an earlier revision), [`Residents`] (entities
//! in memory) and [`Floor`] (the heads that were removed). Most events concern one entity and need several parts, so the
//! machine itself handles them.

mod asks;
mod backoff;
mod calls;
mod channels;
mod claim;
mod context;
mod deletion;
mod gate;
mod import;
mod instance;
mod lease;
mod mailbox;
mod operator_commands;
mod ownership;
mod passivation;
mod recovery;
mod residents;
mod revisions;
mod schedule;
mod second_instance;
mod steps;
mod storage_quota;
mod stored_count;
mod subscriptions;
mod supervision;
mod suspend;
mod sweep;
pub(super) mod tells;
mod time;
mod timers;
mod types;
mod wakes;

use ostraca_codes::codes;

use super::action::Action;
use super::entity::ResidentEntity;
use super::event::Event;
use super::settings::{Mutation, Settings};
use crate::ids::{ClusterId, Entity, Epoch, MessageId, ShardPath, TurnId};
use crate::message::{Message, Now, Outcome, OwnerHint};
use crate::records::{Claim, GuestReply, Head, RecordedReply};
use crate::rows::Member;
use claim::ShardClaim;
use context::Context;
use gate::Gate;
use lease::Lease;
use recovery::Recovery;
use residents::Residents;
use revisions::FailedMigrations;
use schedule::Schedule;
use storage_quota::StorageQuota;
use stored_count::StoredCount;
use supervision::Supervision;
use sweep::Floor;
use types::DeployedTypes;
use wakes::Wakes;

/// The owner of a shard, as its claims name it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ownership {
    /// The cluster.
    pub cluster: ClusterId,
    /// The shard.
    pub shard: ShardPath,
    /// The epoch under which it was assigned.
    pub epoch: Epoch,
    /// Who owns it.
    pub owner: Member,
}

/// The phase of a shard's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its claim is pending: the first one, or a new one after an unknown outcome (R3).
    Claiming,
    /// It serves messages.
    Serving,
    /// It is stopping its instances.
    Stopping,
    /// It has no live instance and no pending commit.
    Stopped,
    /// The shard belongs to another owner, according to the store.
    Lost,
}

/// The machine of one shard. It is deterministic: the same events at the same times produce the same actions.
#[derive(Clone, Debug)]
pub struct Machine {
    context: Context,
    claim: ShardClaim,
    lease: Lease,
    gate: Gate,
    types: DeployedTypes,
    schedule: Schedule,
    wakes: Wakes,
    recovery: Recovery,
    supervision: Supervision,
    failed_migrations: FailedMigrations,
    residents: Residents,
    floor: Floor,
    stored: StoredCount,
    storage_quota: StorageQuota,
}

impl Machine {
    /// Creates the machine of an assigned shard. It requests its claim immediately.
    #[must_use]
    pub fn new(settings: Settings, ownership: Ownership) -> Self {
        let mut context = Context::new(settings);
        Self {
            claim: ShardClaim::new(&mut context, ownership),
            context,
            lease: Lease::default(),
            gate: Gate::default(),
            types: DeployedTypes::default(),
            schedule: Schedule::default(),
            wakes: Wakes::default(),
            recovery: Recovery::default(),
            supervision: Supervision::default(),
            failed_migrations: FailedMigrations::default(),
            residents: Residents::default(),
            floor: Floor::default(),
            stored: StoredCount::default(),
            storage_quota: StorageQuota::default(),
        }
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Now, event: Event) {
        self.context.now = now;
        self.apply(event);
        self.wake_entities();
        self.recover_entities();
        #[cfg(debug_assertions)]
        if self.residents.len() <= 64 {
            let stuck = self.find_stuck_entity();
            let state = stuck.and_then(|entity| self.residents.get(entity));
            assert!(stuck.is_none(), "{stuck:?} would wait forever: {state:?}");
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::LeaseRenewed { sent_at, lease } => {
                self.lease.on_renewed(sent_at, lease);
                self.advance_stalled();
            }
            Event::ShardLeaseRenewed { sent_at, lease } => {
                self.lease.on_own_renewed(sent_at, lease);
                self.advance_stalled();
            }
            Event::TypeDeployed { entity_type, settings } => self.on_type(entity_type, settings),
            Event::ClaimResult { number, outcome } => self.on_claimed(number, outcome),
            Event::Message(message) => self.on_message(message),
            Event::WakesScanned { number, page } => self.on_wakes(number, page),
            Event::RememberedScanned { number, page } => self.on_remembered(number, page),
            Event::CountStored => self.count_stored(),
            Event::NamespacesFull(full) => self.storage_quota.set(full),
            Event::HeadsScanned { number, page } => self.on_heads(number, page),
            Event::ChannelRead { entity, reader, items } => {
                self.on_channel_read(&entity, reader, items);
            }
            Event::AskStarted { entity, generation, place, ask } => {
                self.on_ask_started(&entity, generation, place, ask);
            }
            Event::AskAnswered { asker, turn, id, outcome } => {
                self.on_ask_answered(&asker, turn, &id, outcome);
            }
            Event::AskNoteLost { entity, target, note } => {
                self.on_note_lost(&entity, target, note);
            }
            Event::CallStarted { entity, turn, place, digest } => {
                self.on_call_started(&entity, turn, place, &digest);
            }
            Event::CallEnded { entity, turn, place } => self.on_call_ended(&entity, turn, place),
            Event::TellAnswered { sender, target, number, created_ms, outcome } => {
                self.on_tell_answered(&sender, &target, (number, created_ms), outcome);
            }
            Event::SenderAnswered { entity, sender, first } => {
                self.on_sender_answered(&entity, &sender, first);
            }
            Event::KeysScanned { entity, generation, page } => {
                self.on_keys(&entity, generation, page);
            }
            Event::Loaded { entity, generation, result } => {
                self.on_loaded(&entity, generation, result);
            }
            Event::SlotGranted { entity, generation } => self.on_slot(&entity, generation),
            Event::Evict { entity } => self.on_evict(&entity),
            Event::ActivationResult { entity, generation, result } => {
                self.on_activated(&entity, generation, result);
            }
            Event::TurnDone { entity, generation, turn, result } => {
                self.on_turn_done(&entity, generation, turn, result);
            }
            Event::QueryAbandoned { entity, generation, turn } => {
                self.on_abandoned(&entity, generation, turn);
            }
            Event::CommitResults(outcomes) => {
                for (entity, turn, outcome) in outcomes {
                    self.on_committed(&entity, turn, outcome);
                }
                if !self.gate.has_outstanding() {
                    self.claim.claim_again(&mut self.context);
                }
            }
            Event::Suspend => self.on_suspend(),
            Event::Resume => self.on_resume(),
            Event::Stop(reason) => self.on_stop(reason),
            Event::Drop => self.on_drop(),
        }
        // An entity leaves memory only when it has neither an instance nor a pending commit. The pending claim and the
        // commits of abandoned turns are counted separately.
        if self.claim.is_stopping()
            && self.residents.is_empty()
            && !self.gate.has_outstanding()
            && !self.claim.is_awaited()
        {
            self.claim.on_stopped(&mut self.context);
        }
    }

    /// Returns the next action, if there is one.
    pub fn poll(&mut self) -> Option<Action> {
        self.context.poll()
    }

    /// When to send [`Event::Tick`], on the clock of [`Now::mono`].
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let others = self.next_timer_wake().into_iter().chain(self.next_recovery());
        self.schedule.next_wake().into_iter().chain(others).min()
    }

    /// The shard's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.claim.phase()
    }

    /// Whether the machine is suspended and starts no turn (R9). It can be suspended in any phase: a suspended machine
    /// may still claim or stop.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.lease.is_suspended()
    }

    /// The owner on whose behalf the machine runs the shard.
    #[must_use]
    pub fn ownership(&self) -> &Ownership {
        self.claim.ownership()
    }

    /// The machine's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.context.settings
    }

    /// The machine's current claim.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        self.claim.current()
    }

    /// The number of entities in memory, and of messages that wait for a turn.
    #[must_use]
    pub fn stats(&self) -> (usize, usize) {
        (self.residents.len(), self.residents.queued_messages())
    }

    /// Whether a remembered entity waits to be started.
    #[must_use]
    pub fn awaits_recovery(&self, entity: &Entity) -> bool {
        self.recovery.awaits(entity)
    }

    /// Code and message of the failure after which an entity was stopped, if it was (K33).
    #[must_use]
    pub fn stopped_by(&self, entity: &Entity) -> Option<&str> {
        self.supervision.stopped_by(entity).map(|why| &**why)
    }

    /// In how many milliseconds an entity is started again whose start failed, if it pauses.
    #[must_use]
    pub fn start_pause(&self, entity: &Entity) -> Option<u64> {
        let pause = self.residents.get(entity)?.start_backoff.as_ref();
        let left = pause?.until.checked_sub(self.context.mono());
        left.filter(|left| *left > 0)
    }

    /// The number of an entity's messages that wait for a turn; `None` if the entity is not in memory.
    #[must_use]
    pub fn queued_messages(&self, entity: &Entity) -> Option<usize> {
        self.residents.get(entity).map(ResidentEntity::queued_messages)
    }

    /// The number of messages in an entity's mailbox that were examined.
    #[cfg(test)]
    pub(super) fn touched(&self, entity: &Entity) -> usize {
        self.residents.get(entity).map_or(0, |state| state.mailbox.touched.get())
    }

    /// The number of entities that were examined since the last call.
    #[cfg(test)]
    pub(super) fn take_visits(&mut self) -> usize {
        std::mem::take(&mut self.context.visits)
    }

    /// Removes an entity from memory.
    fn drop_entity(&mut self, entity: &Entity) {
        let Some(state) = self.residents.remove(entity) else { return };
        self.schedule.forget(entity, state.timer);
        self.on_left_memory(entity, &state);
    }
}

fn deadline_outcome() -> Outcome {
    Outcome::not_run(
        codes::DEADLINE_EXCEEDED,
        "the sender's deadline passed before the turn could start",
    )
}

fn id_reused(message: &Message) -> Outcome {
    if message.is_keyed {
        let text = "the idempotency key was already used for another method or body: give each request its own key";
        return Outcome::not_run(codes::IDEMPOTENCY_KEY_REUSED, text);
    }
    let MessageId { session, sequence } = message.id;
    let text = format!(
        "message {session:?}/{sequence} was already used with another target, method or body: give each message its own id"
    );
    Outcome::not_run(codes::ID_REUSED, text)
}

fn final_outcome(recorded: RecordedReply) -> Outcome {
    Outcome::Final { reply: recorded.reply, version: recorded.version }
}
