//! Messages as the core sees them, and their three outcomes (R16).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ostraca_codes::Code;
use serde::{Deserialize, Serialize};

use crate::ids::{Entity, Epoch, MessageDigest, MessageId};
use crate::records::{Claim, GuestReply};
use crate::rows::Member;

/// The clock readings that a node passes in with every event. None of them is the node's own wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Milliseconds of the node's own clock, which also runs during suspension (`CLOCK_BOOTTIME`, R8).
    pub mono: u64,
    /// Milliseconds of cluster time: kept in the `ClusterStore` and advanced only by running clocks, so it may stop
    /// while no node runs but never jumps. Messages are stamped with it (R17).
    pub cluster_time: u64,
    /// UTC in milliseconds since 1970: that of the cluster's row `time`, advanced by the node's clock; never goes back.
    /// Timers fire according to it (R25). 0 until the node has read the row.
    pub utc: u64,
}

/// Whether a message may change something (R16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MessageKind {
    /// May change state; runs once; its outcome is recorded.
    Command,
    /// Changes and records nothing.
    Query,
}

/// Identifies one request to this node, and thus where its reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplyToken(pub u64);

/// A message that has reached the node that may own its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Where the reply is sent.
    pub reply_token: ReplyToken,
    /// The target entity.
    pub target: Entity,
    /// The entity that sent it; `None` if a client did (R19).
    pub sender: Option<Entity>,
    /// If it is an ask: who waits for its answer (R20).
    pub asked_by: Option<Arc<AskOrigin>>,
    /// Its id (R17).
    pub id: MessageId,
    /// The session's last unresolved sequence to this entity before this one; 0 if there is none.
    pub after: u64,
    /// All the session's sequences below this are resolved.
    pub settled: u64,
    /// Whether its session is made from an idempotency key, and has no other message. If it is a command, its reply is
    /// kept for `idempotency_ttl` (R17).
    pub is_keyed: bool,
    /// Command or query, as the method declares.
    pub kind: MessageKind,
    /// The method's name.
    pub method: Arc<str>,
    /// The arguments; opaque to the core.
    pub body: Bytes,
    /// The hash of target, method and body.
    pub digest: MessageDigest,
    /// When its sender created it, in milliseconds of cluster time; the same in every copy (R17).
    pub created_ms: u64,
    /// Its first creation time. Restamping a message raises `created_ms`, but not the creation time of its turn's asks
    /// (R20).
    pub first_created_ms: u64,
    /// When it arrived, on this node's clock ([`Now::mono`]).
    pub arrived_at: u64,
    /// When its sender stops waiting, on this node's clock; a turn does not start later (R22).
    pub deadline: Option<u64>,
    /// Parts that the core passes on without reading them.
    pub context: Arc<MessageMetadata>,
}

impl Message {
    /// Whether it is for the entity's guest. Otherwise the node itself handles it: the names of such methods begin with a
    /// control character, which no guest can declare.
    #[must_use]
    pub fn calls_guest(&self) -> bool {
        !self.method.starts_with('\u{1}')
    }
}

/// Who waits for the answer to an ask (R20).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskOrigin {
    /// The entities that wait, outermost first; the last one sent the ask.
    pub chain: Vec<Entity>,
    /// When the ask was started, in milliseconds of cluster time. In a cycle of asks, the youngest one is refused.
    pub started: u64,
    /// How much later the creation time may be in another copy, in milliseconds. No sender fixes the time of a firing,
    /// so each attempt computes it from its node's clocks.
    pub created_skew: u64,
}

/// The parts of an envelope that only the guest and tracing use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageMetadata {
    /// The sender's principal.
    pub principal: Arc<str>,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// W3C trace context.
    pub traceparent: Arc<str>,
    /// W3C trace context.
    pub tracestate: Arc<str>,
    /// The node whose gateway accepted it.
    pub origin: Arc<str>,
    /// When its sender created it, in milliseconds since the Unix epoch (UTC): the time that its turn reads. The same
    /// in every copy.
    pub utc_ms: u64,
}

/// The outcome of one copy of a message (R16).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It ran, durably; every copy gets the same reply.
    Final {
        /// The guest's reply.
        reply: GuestReply,
        /// The entity's version after the command, or the version that the query read.
        version: u64,
    },
    /// This copy did not run and never will.
    NotRun {
        /// The stable code: one of [`ostraca_codes::codes`], or the code of a guest failure.
        code: ErrorCode,
        /// What happened and what to do.
        message: String,
        /// Milliseconds after which a retry may succeed; `None` if it cannot succeed without other changes.
        retry_after: Option<u32>,
        /// With `not-owner` and `rebalancing`: what the sender's gateway may use to update its routes.
        owner_hint: Option<Box<OwnerHint>>,
        /// With `too-old` and `created-in-future`: a creation time that would be accepted.
        suggested_created_ms: Option<u64>,
    },
    /// It may have run: send it again under the same id only.
    Unknown {
        /// What happened.
        message: String,
    },
}

impl Outcome {
    /// A permanent refusal.
    pub fn not_run(code: Code, message: impl Into<String>) -> Self {
        debug_assert!(code.refuses(false), "{code}");
        Self::NotRun {
            code: code.into(),
            message: message.into(),
            retry_after: None,
            owner_hint: None,
            suggested_created_ms: None,
        }
    }

    /// A temporary refusal; a retry may succeed after `millis`.
    pub fn not_run_retryable(code: Code, message: impl Into<String>, millis: u32) -> Self {
        debug_assert!(code.refuses(true), "{code}");
        Self::NotRun {
            code: code.into(),
            message: message.into(),
            retry_after: Some(millis),
            owner_hint: None,
            suggested_created_ms: None,
        }
    }

    /// If this is a refusal, adds a creation time that would be accepted.
    #[must_use]
    pub fn with_suggested_created_ms(mut self, created: u64) -> Self {
        if let Self::NotRun { suggested_created_ms: stamp, .. } = &mut self {
            *stamp = Some(created);
        }
        self
    }

    /// If this is a refusal and there is a hint, adds the hint.
    #[must_use]
    pub fn with_owner_hint(mut self, known: Option<OwnerHint>) -> Self {
        if let Self::NotRun { owner_hint: hint, .. } = &mut self {
            *hint = known.map(Box::new);
        }
        self
    }
}

/// What the refusing node knows about the shard's owner. Routes move only to higher epochs (R13), so an outdated
/// hint does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerHint {
    /// With an owner: the epoch under which it owns the shard. Without one: the epoch that is ending or has ended.
    pub epoch: Epoch,
    /// The owner, if known: the holder of the current claim.
    pub owner: Option<Member>,
}

impl From<&Claim> for OwnerHint {
    fn from(standing: &Claim) -> Self {
        Self { epoch: standing.epoch, owner: Some(standing.owner.clone()) }
    }
}

/// A stable error code.
pub type ErrorCode = Cow<'static, str>;
