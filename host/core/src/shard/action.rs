//! The actions that a shard's machine requests from its node.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::asks::{Ask, AskNote};
use super::calls::IdempotencyKey;
use super::channels::Channels;
use super::outbox::OutboxSize;
use super::settings::{SlotPurpose, StartReason, StopReason};
use super::timers::{Firing, TimerMap};
use crate::ids::{Entity, TurnId};
use crate::message::{Message, Outcome, ReplyToken};
use crate::records::{Claim, Commit, JournalExtent, Tell};

/// A request to the node. Actions are executed in order; their results arrive as events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Claim the shard.
    Claim(Arc<Claim>),
    /// Read the shard's wake-ups in order, starting with `from` or with the first one. The result is an
    /// [`Event::WakesScanned`](super::Event::WakesScanned).
    ScanWakes {
        /// Returned with the result.
        number: u64,
        /// The time of a wake-up in milliseconds since the Unix epoch (UTC), and its entity. `None` for the first
        /// wake-up.
        from: Option<(u64, Entity)>,
        /// Maximum number of wake-ups in the result.
        max_records: usize,
    },
    /// Read the shard's remembered entities in order, starting with `from` or with the first one. The result is an
    /// [`Event::RememberedScanned`](super::Event::RememberedScanned).
    ScanRemembered {
        /// Returned with the result.
        number: u64,
        /// The first entity to read; `None` for the first one.
        from: Option<Entity>,
        /// Maximum number of entities in the result.
        max_records: usize,
    },
    /// Read the shard's heads in order, by type and id. The result is an
    /// [`Event::HeadsScanned`](super::Event::HeadsScanned).
    ScanHeads {
        /// Returned with the result.
        number: u64,
        /// Where the page begins, as the previous page said; `None` for the first one.
        after: Option<Bytes>,
        /// Maximum number of heads in the result.
        max_records: usize,
    },
    /// Read items of a channel in order. The result is an [`Event::ChannelRead`](super::Event::ChannelRead).
    ReadChannel {
        /// The entity.
        entity: Entity,
        /// Returned with the result.
        reader: u64,
        /// The channel.
        channel: Arc<str>,
        /// The number of the first item.
        from: u64,
        /// Maximum number of items in the result.
        max_items: usize,
        /// Maximum size of the result in bytes; it nevertheless holds at least one item if there is one.
        max_bytes: usize,
    },
    /// Read the first keys of an entity's state. The result is an [`Event::KeysScanned`](super::Event::KeysScanned).
    ScanKeys {
        /// The entity.
        entity: Entity,
        /// Returned with the result.
        generation: u64,
        /// Maximum number of keys in the result.
        max_records: usize,
    },
    /// Read an entity's head, lanes and timers.
    Load {
        /// The entity.
        entity: Entity,
        /// Returned with the result.
        generation: u64,
    },
    /// Get a slot for one more live instance, evicting another instance if needed.
    /// [`Event::SlotGranted`](super::Event::SlotGranted) may follow much later.
    RequestSlot {
        /// The entity.
        entity: Entity,
        /// Returned with the result.
        generation: u64,
        /// What needs the slot: messages take precedence (R14). The action may be repeated with
        /// [`SlotPurpose::Message`] and the same generation when a message has arrived.
        purpose: SlotPurpose,
    },
    /// Return a slot, or withdraw the request for it.
    ReleaseSlot {
        /// The entity.
        entity: Entity,
        /// The generation of its [`Action::RequestSlot`].
        generation: u64,
    },
    /// Evict another instance, since the chosen one is busy.
    RefuseEviction {
        /// The entity.
        entity: Entity,
    },
    /// Mark the instance as idle: it may be evicted.
    MarkIdle {
        /// The entity.
        entity: Entity,
    },
    /// Create an instance and run its start turn.
    Activate {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The revision whose component it runs.
        revision: u64,
        /// Why the instance starts.
        reason: StartReason,
        /// What the entity has besides its state; `None` if it has nothing.
        records: Option<Box<TurnRecords>>,
    },
    /// Create an instance and run its migration as a turn (R24). The result is an
    /// [`Event::ActivationResult`](super::Event::ActivationResult), after which the instance is dropped.
    Migrate {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The revision whose component it runs.
        revision: u64,
        /// The schema of the entity's state.
        from_schema: u32,
        /// What the entity has besides its state; `None` if it has nothing.
        records: Option<Box<TurnRecords>>,
    },
    /// Report that an entity could not be migrated: it stays on an earlier revision.
    MigrationFailed {
        /// The entity.
        entity: Entity,
        /// The revision to which it was to be migrated.
        revision: u64,
        /// The schema of its state.
        from_schema: u32,
        /// Why it failed.
        why: Arc<str>,
    },
    /// Run a message as one turn.
    Run {
        /// The instance's generation.
        generation: u64,
        /// The turn's id.
        turn: TurnId,
        /// The entity's version before the turn.
        version: u64,
        /// The message; its target is the entity.
        message: Arc<Message>,
        /// What the entity has besides its state; `None` if it has nothing.
        records: Option<Box<TurnRecords>>,
    },
    /// Run a timer's firing as one turn. The result is an [`Event::TurnDone`](super::Event::TurnDone).
    Fire {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The turn's id.
        turn: TurnId,
        /// The entity's version before the turn.
        version: u64,
        /// The firing.
        firing: Arc<Firing>,
        /// What the entity has besides its state. The timer that fired is removed, or has its next due time.
        records: Option<Box<TurnRecords>>,
    },
    /// Report that a firing failed too often: it is given up, and its timer keeps the reason.
    TimerGaveUp {
        /// The entity.
        entity: Entity,
        /// The timer.
        name: Arc<str>,
        /// The number of attempts.
        attempts: u32,
        /// Why the last attempt failed.
        why: Arc<str>,
    },
    /// Send an ask to its target (R20). The result is an [`Event::AskAnswered`](super::Event::AskAnswered).
    Ask {
        /// The entity that sends it.
        asker: Entity,
        /// The turn that waits for the answer; returned with the answer.
        turn: TurnId,
        /// The ask.
        ask: Arc<Ask>,
        /// How long the turn still waits, in milliseconds.
        remaining: u64,
    },
    /// Pass the outcome of an ask to the turn that waits for it.
    AnswerAsk {
        /// The entity whose turn waits.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The ask's place in the turn.
        place: u32,
        /// The outcome; `Unknown` if the ask may have run.
        outcome: Box<Outcome>,
    },
    /// Make an outgoing HTTP call that a turn has started (R20). When it has ended, an
    /// [`Event::CallEnded`](super::Event::CallEnded) follows.
    ReleaseCall {
        /// The entity whose turn waits.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The call's place in the turn.
        place: u32,
        /// The value of its `Idempotency-Key` header.
        key: IdempotencyKey,
    },
    /// Send a note about asks that may wait for each other (R20). If it is not acknowledged, an
    /// [`Event::AskNoteLost`](super::Event::AskNoteLost) follows.
    SendAskNote {
        /// The entity that sends it.
        entity: Entity,
        /// The entity that receives it.
        target: Entity,
        /// The note.
        note: Box<AskNote>,
    },
    /// Send a tell to its target. The result is an [`Event::TellAnswered`](super::Event::TellAnswered).
    Tell {
        /// The entity that sends it.
        sender: Entity,
        /// The tell's number, which is also the sequence of its message.
        number: u64,
        /// The tell.
        tell: Arc<Tell>,
    },
    /// Ask a sending entity for the number of the first tell that it may still send to a target. The result is an
    /// [`Event::SenderAnswered`](super::Event::SenderAnswered).
    AskSender {
        /// The target, which is an entity of this shard.
        entity: Entity,
        /// The sending entity.
        sender: Entity,
    },
    /// Report that a tell was given up: it is a dead letter now.
    TellGaveUp {
        /// The entity that sent it.
        sender: Entity,
        /// The tell's number.
        number: u64,
        /// The tell's target.
        target: Entity,
        /// Why it was given up.
        why: Arc<str>,
    },
    /// Call an instance's stop hook. The result is an [`Event::TurnDone`](super::Event::TurnDone).
    CallStopHook {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// The turn's id.
        turn: TurnId,
        /// Why the instance stops.
        reason: StopReason,
        /// What the entity has besides its state; `None` if it has nothing.
        records: Option<Box<TurnRecords>>,
    },
    /// The guest of this entity failed, and its type escalates failures: the shard should move to another host (K33).
    /// At most once.
    Escalate {
        /// The entity.
        entity: Entity,
        /// Code and message of the failure.
        why: Arc<str>,
    },
    /// A stopped entity is forgotten, since the shard has too many: it may start again (K33). For the log.
    ForgetStopped {
        /// The entity.
        entity: Entity,
    },
    /// Drop the instance, and interrupt it if it is running. A result that arrives later is ignored.
    DropInstance {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
    },
    /// Make a turn durable. Commits of one machine reach the store in the order of these actions.
    Commit(Box<Commit>),
    /// Reply to a request.
    Reply {
        /// The request's token.
        token: ReplyToken,
        /// The outcome of its message.
        outcome: Outcome,
    },
    /// The shard is lost: according to the store, it belongs to another node or cluster. The machine has ended.
    Lost {
        /// The current claim, if the store reported it.
        current: Option<Box<Claim>>,
        /// A human-readable reason.
        message: String,
    },
    /// The shard has no live instance and no pending commit. The machine has ended.
    Stopped,
}

/// What an entity has besides its state when a turn begins. Most entities have nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRecords {
    /// Its timers.
    pub timers: Arc<TimerMap>,
    /// The size of its outbox.
    pub outbox: OutboxSize,
    /// The extent of its journal.
    pub journal: JournalExtent,
    /// Its channels.
    pub channels: Arc<Channels>,
    /// Whether it is remembered (K31).
    pub remembered: bool,
    /// When it expires, in milliseconds since the Unix epoch (UTC).
    pub expires_at: Option<u64>,
    /// Whether other entities have subscribed to its channels: each item that it emits then takes a place in its
    /// outbox.
    pub has_subscribers: bool,
}
