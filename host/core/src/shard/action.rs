//! What a shard's machine asks its node to do.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::outbox::OutboxSize;
use super::settings::{StartReason, StopReason};
use super::timers::{Firing, TimerMap};
use crate::ids::{Entity, TurnId};
use crate::message::{Message, Outcome, ReplyToken};
use crate::records::{Claim, Commit, Tell};

/// One thing to do. Actions are executed in order; their results arrive as events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Claim the shard.
    Claim(Arc<Claim>),
    /// Read the times at which entities of the shard must be woken: from this one on, or from the first.
    /// [`Event::WakesScanned`](super::Event::WakesScanned) answers.
    ScanWakes {
        /// Returned with the result.
        number: u64,
        /// Milliseconds of UTC, and the entity.
        from: Option<(u64, Entity)>,
        /// The most that the answer may have.
        max_records: usize,
    },
    /// Read an entity's head, lanes and timers.
    Load {
        /// The entity.
        entity: Entity,
        /// Returned with the result.
        generation: u64,
    },
    /// Get a slot for one more live instance, evicting another one if needed.
    /// [`Event::SlotGranted`](super::Event::SlotGranted) may follow much later.
    RequestSlot {
        /// The entity.
        entity: Entity,
        /// Returned with the result.
        generation: u64,
        /// Whether only a timer needs it: slots for messages go first (R14). The action may be repeated with the same
        /// generation when a message has arrived.
        for_timer: bool,
    },
    /// Return the slot that was requested or held.
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
    /// The instance may be evicted again: it is idle from now on.
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
        /// Why it starts.
        reason: StartReason,
        /// The entity's timers.
        timers: Arc<TimerMap>,
        /// How much its outbox holds.
        outbox: OutboxSize,
    },
    /// Run a message as one turn.
    Run {
        /// The instance's generation.
        generation: u64,
        /// This turn.
        turn: TurnId,
        /// The entity's version before it.
        version: u64,
        /// The message; its target is the entity.
        message: Arc<Message>,
        /// The entity's timers.
        timers: Arc<TimerMap>,
        /// How much its outbox holds.
        outbox: OutboxSize,
    },
    /// Run a timer's firing as one turn. [`Event::TurnDone`](super::Event::TurnDone) answers.
    Fire {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// This turn.
        turn: TurnId,
        /// The entity's version before it.
        version: u64,
        /// The firing.
        firing: Arc<Firing>,
        /// The entity's timers, without the one that fired or with its next time.
        timers: Arc<TimerMap>,
        /// How much its outbox holds.
        outbox: OutboxSize,
    },
    /// Report that a firing failed too often: it is given up, and its timer keeps the reason.
    TimerGaveUp {
        /// The entity.
        entity: Entity,
        /// The timer.
        name: Arc<str>,
        /// The number of attempts.
        attempts: u32,
        /// Why the last one failed.
        why: Arc<str>,
    },
    /// Send a tell to its target. [`Event::TellAnswered`](super::Event::TellAnswered) answers.
    Tell {
        /// The entity that sends it.
        sender: Entity,
        /// Its number, which is the sequence of its message.
        number: u64,
        /// The tell.
        tell: Arc<Tell>,
    },
    /// Ask a sending entity for the first tell to a target that it may still send.
    /// [`Event::SenderAnswered`](super::Event::SenderAnswered) answers.
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
    /// Call the stop hook.
    CallStopHook {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// This turn.
        turn: TurnId,
        /// Why it stops.
        reason: StopReason,
        /// The entity's timers.
        timers: Arc<TimerMap>,
        /// How much its outbox holds.
        outbox: OutboxSize,
    },
    /// Drop the instance, and interrupt it if it is running. A result that still arrives is ignored.
    DropInstance {
        /// The entity.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
    },
    /// Make a turn durable. Commits of one machine reach the store in the order of these actions.
    Commit(Box<Commit>),
    /// Answer a request.
    Reply {
        /// The request.
        token: ReplyToken,
        /// The answer.
        outcome: Outcome,
    },
    /// The claim was refused, because the shard belongs to another node. The machine has ended.
    Lost {
        /// The current claim, if the store reported it.
        current: Option<Box<Claim>>,
        /// A message for people.
        message: String,
    },
    /// The shard has no live instance and no pending commit. The machine has ended.
    Stopped,
}
