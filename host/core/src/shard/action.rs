//! What a shard's machine tells its node to do.

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
        /// Whose.
        entity: Entity,
        /// Comes back with the answer.
        generation: u64,
    },
    /// Find room for one more live instance, evicting one if need be; answered by `Slot`, maybe late.
    RequestSlot {
        /// For whom.
        entity: Entity,
        /// Comes back with the answer.
        generation: u64,
    },
    /// The room asked for, or held, is not needed any more.
    ReleaseSlot {
        /// By whom.
        entity: Entity,
        /// The generation of the `WantSlot` that it answers.
        generation: u64,
    },
    /// The instance that was to be evicted is busy: choose another.
    RefuseEviction {
        /// Whose.
        entity: Entity,
    },
    /// The instance may be evicted again, being idle since now.
    MarkIdle {
        /// Whose.
        entity: Entity,
    },
    /// Make an instance and run its start turn.
    Activate {
        /// Whose.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// Why.
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
        /// What to run; its target is whose.
        message: Arc<Message>,
    },
    /// Call the stop hook.
    CallStopHook {
        /// Whose.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
        /// This turn.
        turn: TurnId,
        /// Why.
        reason: StopReason,
    },
    /// Drop the instance, interrupting it if it runs; its answer, if it comes, is ignored.
    DropInstance {
        /// Whose.
        entity: Entity,
        /// The instance's generation.
        generation: u64,
    },
    /// Make a turn durable. Commits of one machine reach the store in the order of these actions.
    Commit(Box<Commit>),
    /// Answer a request.
    Reply {
        /// Which.
        token: ReplyToken,
        /// How.
        outcome: Outcome,
    },
    /// The claim was refused: the shard is another's. The machine is at its end.
    Lost {
        /// The claim that stands, where the store told it.
        current: Option<Box<Claim>>,
        /// For people.
        message: String,
    },
    /// No instance of the shard lives, and no commit of it is under way. The machine is at its end.
    Stopped,
}
