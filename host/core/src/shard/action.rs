//! What a shard's machine asks its node to do.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::settings::{StartReason, StopReason};
use crate::ids::{Entity, TurnId};
use crate::message::{Message, Outcome, ReplyToken};
use crate::records::{Claim, Commit};

/// One thing to do. Actions are carried out in order; those with an answer get it as an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Claim the shard.
    Claim(Arc<Claim>),
    /// Read an entity's head and lanes.
    Load {
        /// The entity.
        entity: Entity,
        /// Returned with the answer.
        generation: u64,
    },
    /// Get a slot for one more live instance, evicting one if need be: [`Event::SlotGranted`](super::Event::SlotGranted),
    /// maybe late.
    RequestSlot {
        /// The entity.
        entity: Entity,
        /// Returned with the answer.
        generation: u64,
    },
    /// The slot that was requested, or held, is not needed any more.
    ReleaseSlot {
        /// The entity.
        entity: Entity,
        /// The generation of its [`Action::RequestSlot`].
        generation: u64,
    },
    /// The instance that was to be evicted is busy: choose another.
    RefuseEviction {
        /// The entity.
        entity: Entity,
    },
    /// The instance may be evicted again, being idle since now.
    MarkIdle {
        /// The entity.
        entity: Entity,
    },
    /// Make an instance and run its start turn.
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
    /// Drop the instance, interrupting it if it runs; its answer, if it comes, is ignored.
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
    /// The claim was refused: the shard is another's. The machine has ended.
    Lost {
        /// The current claim, where the store named it.
        current: Option<Box<Claim>>,
        /// A message for people.
        message: String,
    },
    /// No instance of the shard lives, and no commit of it is pending. The machine has ended.
    Stopped,
}
