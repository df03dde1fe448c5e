//! The state of one entity of the shard in the machine's memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::action::TurnRecords;
use super::asks::Asks;
use super::calls::Calls;
use super::channel_feed::ChannelFeed;
use super::lanes::Lanes;
use super::mailbox::{Mailbox, QueuedTotal};
use super::outbox::{Outbox, OutboxSize};
use super::second_instance::{SecondInstance, SecondStage};
use super::settings::{SlotPurpose, StopReason};
use super::stored::Amount;
use super::subscriptions::Subscriptions;
use super::timers::{Firing, Timers};
use crate::ids::{Entity, MessageId, TurnId};
use crate::message::{Message, ReplyToken};
use crate::records::{GuestReply, Head, JournalExtent};

/// The stage of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its head and lanes must be loaded before its next turn.
    Unloaded,
    /// Its head and lanes are being read.
    Loading,
    /// Head and lanes are in memory; there is no instance.
    Loaded,
    /// It has been waiting for an instance slot since this time.
    AwaitingSlot(u64),
    /// An instance of this revision is being created that migrates its state to this schema, and is then dropped.
    Migrating(TurnId, u64, u32),
    /// Its instance is being created and started.
    Starting(TurnId),
    /// Its instance waits for messages.
    Idle,
    /// Its instance runs this message.
    Running(TurnId, MessageId),
    /// Its instance runs a timer's firing.
    Firing(TurnId, Arc<Firing>),
    /// Its instance runs the stop hook.
    Stopping(TurnId),
    /// It was deleted, and the keys of its state are being read, to remove them.
    Purging,
    /// Its instance was dropped; commits are still pending.
    AwaitingCommits,
}

impl Stage {
    /// Whether an instance exists or is being created.
    pub(super) fn has_instance(&self) -> bool {
        matches!(
            self,
            Self::Migrating(..)
                | Self::Starting(_)
                | Self::Idle
                | Self::Running(..)
                | Self::Firing(..)
                | Self::Stopping(_)
        )
    }

    /// Whether head and lanes are in memory.
    pub(super) fn is_loaded(&self) -> bool {
        !matches!(self, Self::Unloaded | Self::Loading | Self::AwaitingCommits)
    }

    /// Whether it holds a slot or has requested one.
    pub(super) fn has_slot(&self) -> bool {
        self.has_instance() || matches!(self, Self::AwaitingSlot(_))
    }
}

/// A pending message, and all requests that wait for its outcome (R18).
#[derive(Clone, Debug)]
pub(super) struct PendingMessage {
    pub(super) message: Arc<Message>,
    pub(super) reply_tokens: Vec<ReplyToken>,
    /// The latest deadline of its copies; `None` if any copy has no deadline.
    pub(super) deadline: Option<u64>,
}

impl PendingMessage {
    pub(super) fn expired(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A turn that has run but is not durable yet.
#[derive(Clone, Debug)]
pub(super) struct GatedTurn {
    pub(super) turn: TurnId,
    /// The command that it ran, if any.
    pub(super) message: Option<MessageId>,
    pub(super) reply: GuestReply,
    pub(super) version: u64,
    /// Whether it leaves its entity a remembered one.
    pub(super) remembered: bool,
    /// Queries that read its effects, with their replies and the version that they read. Commit outcomes may arrive out
    /// of order, so a later turn's outcome may be known before this one's.
    pub(super) queries: Vec<(MessageId, GuestReply, u64)>,
    /// The firing that it ran, or whose failure it recorded, if any.
    pub(super) firing: Option<Arc<Firing>>,
    /// How it changes what the entity counts for, and what it counts for afterwards (K38).
    pub(super) stored: Amount,
    pub(super) leaves: Amount,
}

#[derive(Clone, Debug)]
pub(super) struct ResidentEntity {
    pub(super) stage: Stage,
    /// Distinguishes the instances, loads and slots of one entity.
    pub(super) generation: u64,
    /// The revision that its instance runs; until there is an instance, the revision in the loaded head.
    pub(super) revision: u64,
    /// The schema of that revision; until there is an instance, the schema in the loaded head.
    pub(super) schema: u32,
    /// The head after the last turn that ran; its lanes are in `lanes`.
    pub(super) head: Head,
    pub(super) lanes: Lanes,
    /// All pending messages: queued, parked, running or gated.
    pub(super) entries: BTreeMap<MessageId, PendingMessage>,
    /// The queued and parked messages.
    pub(super) mailbox: Mailbox,
    /// When the machine examines the entity next if no event concerns it before then.
    pub(super) timer: Option<u64>,
    pub(super) gate: VecDeque<GatedTurn>,
    pub(super) last_used: u64,
    /// Why the instance will be stopped as soon as it is idle, if it will.
    pub(super) pending_stop: Option<StopReason>,
    /// When its stop hook is interrupted.
    pub(super) stop_hook_deadline: Option<u64>,
    /// Whether the instance asked for passivation in its start turn. It is then dropped after one message, or if no
    /// message can run. So an activation for a message serves it even if the guest asks for passivation at once.
    pub(super) passivates: bool,
    /// How long after its last message or firing the instance is dropped, in milliseconds, if the guest asked for that.
    pub(super) passivate_after: Option<u64>,
    /// The start turn whose commit is pending.
    pub(super) start_turn: Option<TurnId>,
    /// The migration whose commit is pending, its revision, and the schema before it.
    pub(super) migration: Option<(TurnId, u64, u32)>,
    /// Set after a start failed or the store refused a start turn, until a start or a commit succeeds.
    pub(super) start_backoff: Option<StartBackoff>,
    /// The timers after the last turn that ran.
    pub(super) timers: Timers,
    /// The outbox after the last turn that ran.
    pub(super) outbox: Outbox,
    /// The extent of the journal after the last turn that ran.
    pub(super) journal: JournalExtent,
    /// The channels, and the reads of them.
    pub(super) channels: ChannelFeed,
    /// The subscriptions of other entities after the last turn that ran.
    pub(super) subscriptions: Subscriptions,
    /// The running turn's pending asks, and what detects their cycles.
    pub(super) asks: Asks,
    /// The outgoing HTTP calls of the running turn.
    pub(super) calls: Calls,
    /// The second instance, which runs queries while the running turn waits.
    pub(super) second: Option<Box<SecondInstance>>,
    /// The stored wake-up after the last turn that ran.
    pub(super) wake_up: Option<u64>,
    /// Whether `timers` and `outbox` are valid: read from the store, and changed by the turns since.
    pub(super) is_read: bool,
    /// Whether the entity must be loaded for its timers or its outbox: it was woken, or a turn that changed them was
    /// not committed.
    pub(super) must_read: bool,
    /// Whether the last turn was a firing. If so, a queued message runs before the next firing.
    pub(super) fired_last: bool,
    /// Why its slot was requested.
    pub(super) slot_purpose: SlotPurpose,
    /// Whether an instance must be started although no message arrived and no timer is due, because the entity is
    /// remembered.
    pub(super) must_start: bool,
    /// Whether the store holds its mark; `head.remembered` may be ahead of it.
    pub(super) is_marked: bool,
    /// A firing whose turn is too large for any store, and the store's reason.
    pub(super) refused_firing: Option<(Arc<Firing>, String)>,
    /// Whether the entity was deleted, and records from before the deletion may remain.
    pub(super) is_purged: bool,
    /// Whether the entity expires, according to the store or to a turn since the last read.
    pub(super) expires: bool,
    /// Whether the entity had no head when it was loaded, and no turn since: its head is made from the shard's floor.
    pub(super) is_headless: bool,
    /// What it counts for once all turns in the gate are durable (K38): those that leave it without effect are taken off.
    pub(super) stored: Amount,
}

/// The pause before an entity is started again, because its start failed through the guest's fault, or because the
/// store refused its start turn due to a limit.
#[derive(Clone, Debug)]
pub(super) struct StartBackoff {
    /// When the pause ends, on the node's clock.
    pub(super) until: u64,
    /// Length of the pause in milliseconds; 0 after the first failures.
    pub(super) span: u64,
    /// Whether the entity is being started again.
    pub(super) retrying: bool,
    /// Number of consecutive failures through the guest's fault.
    pub(super) failures: u32,
    /// The reason for the last failure.
    pub(super) why: Arc<str>,
}

impl StartBackoff {
    /// Number of consecutive failures that are not followed by a pause. A single trap must not slow down a busy entity.
    const IMMEDIATE_RETRIES: u32 = 2;
    /// Maximum number of times that the pause is doubled.
    const DOUBLINGS: u32 = 5;

    /// The pause after the store refused the start: `first` milliseconds, doubled each time, up to 32 times `first`.
    pub(super) fn after_refusal(last: Option<Self>, now: u64, first: u64, why: &str) -> Self {
        let longest = first << Self::DOUBLINGS;
        let span = last.map_or(first, |last| (last.span * 2).clamp(first, longest));
        Self { until: now + span, span, retrying: false, failures: 0, why: why.into() }
    }

    /// The pause after a failure of the guest. The first failures are not followed by a pause.
    pub(super) fn after_failure(last: Option<Self>, now: u64, first: u64, why: &str) -> Self {
        let failures = last.map_or(0, |last| last.failures).saturating_add(1);
        let span = match failures.checked_sub(Self::IMMEDIATE_RETRIES + 1) {
            None => 0,
            Some(doublings) => first << doublings.min(Self::DOUBLINGS),
        };
        Self { until: now + span, span, retrying: false, failures, why: why.into() }
    }

    /// When the pause ends. If the entity is needed (`waits`), it is started again at `until`; otherwise the pause is
    /// forgotten two spans later (of at least `first` each), so that the next pause is as short as the first.
    pub(super) fn ends_at(&self, waits: bool, first: u64) -> u64 {
        if waits { self.until } else { self.until + self.span.max(first) * 2 }
    }
}

impl ResidentEntity {
    pub(super) fn new(now: u64, waiting: &QueuedTotal) -> Self {
        Self {
            stage: Stage::Unloaded,
            generation: 0,
            revision: 0,
            schema: 0,
            head: Head::default(),
            lanes: Lanes::default(),
            entries: BTreeMap::new(),
            mailbox: Mailbox::new(waiting.clone()),
            timer: None,
            gate: VecDeque::new(),
            last_used: now,
            pending_stop: None,
            stop_hook_deadline: None,
            passivates: false,
            passivate_after: None,
            start_turn: None,
            migration: None,
            start_backoff: None,
            timers: Timers::default(),
            outbox: Outbox::default(),
            journal: JournalExtent::default(),
            channels: ChannelFeed::default(),
            subscriptions: Subscriptions::default(),
            asks: Asks::default(),
            calls: Calls::default(),
            second: None,
            wake_up: None,
            is_read: false,
            must_read: false,
            fired_last: false,
            slot_purpose: SlotPurpose::Message,
            must_start: false,
            is_marked: false,
            refused_firing: None,
            is_purged: false,
            expires: false,
            is_headless: false,
            stored: Amount::default(),
        }
    }

    /// When it must be examined whether the head of a deleted entity can be removed, if it is to be.
    pub(super) fn sweep_at(&self) -> Option<u64> {
        let is_gone = self.head.deleted && self.is_read && !self.is_purged;
        self.head.expires_at.filter(|_| is_gone && !self.stage.has_slot())
    }

    /// Whether that time has come, even if the entity is in use.
    pub(super) fn sweep_has_come(&self, utc: u64) -> bool {
        self.head.deleted && self.head.expires_at.is_some_and(|at| at <= utc)
    }

    /// Whether anything of a deleted entity is left besides its head, and records that its next commit deletes.
    pub(super) fn has_remains(&self) -> bool {
        self.outbox.counts() != (0, 0)
            || !self.subscriptions.is_empty()
            || !self.timers.map().is_empty()
            || self.lanes.has_remains()
    }

    /// The wake-up that must be stored: when the first timer fires, the entity expires or its head is to be removed, or
    /// 0 if there are tells in the outbox or records to purge. A tell that is done counts until its deletion is written.
    pub(super) fn needed_wake_up(&self) -> Option<u64> {
        let (waiting, _) = self.outbox.counts();
        if waiting > 0 || self.is_purged {
            return Some(0);
        }
        self.timers.first().into_iter().chain(self.head.expires_at).min()
    }

    /// What the entity has besides its state, as its next turn sees it; `None` if it has nothing.
    pub(super) fn turn_records(&self) -> Option<Box<TurnRecords>> {
        let expires = self.head.expires_at.is_some() && !self.head.deleted;
        let has_records = !self.timers.map().is_empty()
            || self.outbox.size() != OutboxSize::default()
            || self.journal != JournalExtent::default()
            || !self.channels.current().is_empty()
            || self.head.remembered
            || expires
            || !self.subscriptions.is_empty();
        has_records.then(|| Box::new(self.all_records()))
    }

    /// Like [`ResidentEntity::turn_records`], whether or not there is anything.
    pub(super) fn all_records(&self) -> TurnRecords {
        TurnRecords {
            timers: self.timers.map().clone(),
            outbox: self.outbox.size(),
            journal: self.journal.clone(),
            channels: self.channels.current().clone(),
            remembered: self.head.remembered,
            expires_at: self.head.expires_at.filter(|_| !self.head.deleted),
            has_subscribers: !self.subscriptions.is_empty(),
        }
    }

    /// Whether there may be something to do besides starting a turn: for readers of channels, for tells, asks or calls,
    /// or on the second instance.
    pub(super) fn has_work_beside_turns(&self) -> bool {
        self.channels.reader_count() > 0
            || !self.outbox.is_empty()
            || self.outbox.has_done()
            || self.lanes.has_unsaved_drop()
            || !self.asks.is_empty()
            || self.calls.has_unreleased()
            || self.second.is_some()
            || self.mailbox.front_query().is_some()
    }

    /// The running turn of the instance with this generation, if it runs a message or a firing.
    pub(super) fn turn_of(&self, generation: u64) -> Option<TurnId> {
        match (&self.second, &self.stage) {
            (_, Stage::Running(turn, _) | Stage::Firing(turn, _))
                if self.generation == generation =>
            {
                Some(*turn)
            }
            (Some(second), _) if second.generation == generation => second.turn(),
            _ => None,
        }
    }

    /// The generation of the instance that runs this turn.
    pub(super) fn generation_of(&self, turn: TurnId) -> Option<u64> {
        let second = self.second.as_ref().map(|second| second.generation);
        let mut generations = std::iter::once(self.generation).chain(second);
        generations.find(|generation| self.turn_of(*generation) == Some(turn))
    }

    /// The generation of the instance whose turn handles this message.
    pub(super) fn generation_running(&self, id: &MessageId) -> Option<u64> {
        let second = self.second.as_ref();
        match (&self.stage, second.map(|second| (&second.stage, second.generation))) {
            (Stage::Running(_, running), _) if running == id => Some(self.generation),
            (_, Some((SecondStage::Running(_, running), generation))) if running == id => {
                Some(generation)
            }
            _ => None,
        }
    }

    /// The asks of the instance with this generation.
    pub(super) fn asks_of(&mut self, generation: u64) -> Option<&mut Asks> {
        match &mut self.second {
            _ if self.generation == generation => Some(&mut self.asks),
            Some(second) if second.generation == generation => Some(&mut second.asks),
            _ => None,
        }
    }

    /// The entities that wait for the answer to a pending message.
    pub(super) fn chain_of(&self, id: &MessageId) -> &[Entity] {
        let origin = self.entries.get(id).and_then(|entry| entry.message.asked_by.as_ref());
        origin.map_or(&[], |origin| &origin.chain)
    }

    /// The number of queued and parked messages.
    pub(super) fn queued_messages(&self) -> usize {
        self.mailbox.len()
    }

    /// Whether messages, timers, subscribers or recovery need the entity to be loaded.
    pub(super) fn is_wanted(&self) -> bool {
        !self.entries.is_empty()
            || self.must_read
            || self.must_start
            || self.channels.reader_count() > 0
    }

    /// Whether everything that the lanes in memory say of sending entities is durable.
    pub(super) fn has_durable_lanes(&self) -> bool {
        self.gate.is_empty() && !self.lanes.has_unsaved_drop()
    }

    /// Whether the entity may leave memory, unless its timers or tells need it.
    pub(super) fn is_spent(&self) -> bool {
        matches!(self.stage, Stage::Unloaded | Stage::Loaded | Stage::AwaitingCommits)
            && self.entries.is_empty()
            && self.gate.is_empty()
            && !self.must_start
            && self.channels.is_unused()
            && self.start_backoff.as_ref().is_none_or(|pause| pause.retrying)
    }
}
