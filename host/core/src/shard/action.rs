//! What a shard's machine asks its node to do.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::settings::{StartReason, StopReason};
use crate::ids::{Entity, TurnId};
use crate::message::{Message, Outcome, ReplyToken};
use crate::records::{Claim, Commit};

/// One thing to do. Actions are executed in order; their results arrive as events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Claim the shard.
    Claim(Arc<Claim>),
    /// Read an entity's head and lanes.
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
