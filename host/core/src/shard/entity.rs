//! One entity of a shard, as the machine holds it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::lanes::Lanes;
use super::mailbox::{Mailbox, QueuedTotal};
use super::settings::StopReason;
use crate::ids::{MessageId, TurnId};
use crate::message::{Message, ReplyToken};
use crate::records::{GuestReply, Head};

/// The stage of an entity's instance.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Only the mailbox is in memory.
    Unloaded,
    /// Its head and lanes are being read.
    Loading,
    /// Head and lanes are here; no instance.
    Loaded,
    /// It waits for a slot for its instance, since then.
    AwaitingSlot(u64),
    /// Its instance is being made and started.
    Starting(TurnId),
    /// Its instance waits for messages.
    Idle,
    /// Its instance runs this message.
    Running(TurnId, MessageId),
    /// Its instance runs the stop hook.
    Stopping(TurnId),
    /// Its instance is gone; commits are still pending.
    AwaitingCommits,
}

impl Stage {
    /// Whether an instance exists or is being made.
    pub(super) fn has_instance(&self) -> bool {
        matches!(self, Self::Starting(_) | Self::Idle | Self::Running(..) | Self::Stopping(_))
    }

    /// Whether a slot is held or asked for.
    pub(super) fn has_slot(&self) -> bool {
        self.has_instance() || matches!(self, Self::AwaitingSlot(_))
    }
}

/// A pending message, and all the requests that wait for it (R18).
#[derive(Debug)]
pub(super) struct PendingMessage {
    pub(super) message: Arc<Message>,
    pub(super) reply_tokens: Vec<ReplyToken>,
    /// The latest of its copies' deadlines; none if one has none.
    pub(super) deadline: Option<u64>,
}

impl PendingMessage {
    pub(super) fn expired(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A turn that has run and is not durable yet.
#[derive(Debug)]
pub(super) struct GatedTurn {
    pub(super) turn: TurnId,
    /// The command that it ran; none for a start or stop turn.
    pub(super) message: Option<MessageId>,
    pub(super) reply: GuestReply,
    pub(super) version: u64,
    /// Queries that have read its effects, and the version that they read: outcomes may come out of order,
    /// so that a later turn's is known before this one's.
    pub(super) queries: Vec<(MessageId, GuestReply, u64)>,
}

#[derive(Debug)]
pub(super) struct ResidentEntity {
    pub(super) stage: Stage,
    /// Distinguishes instances, loads and slots of one entity.
    pub(super) generation: u64,
    /// The revision that its instance runs.
    pub(super) revision: u64,
    /// As the last turn that ran left it; its lanes are in `lanes`.
    pub(super) head: Head,
    pub(super) lanes: Lanes,
    /// All pending messages: waiting, parked, running or gated.
    pub(super) entries: BTreeMap<MessageId, PendingMessage>,
    /// Waiting messages.
    pub(super) mailbox: Mailbox,
    /// When the machine examines the entity next, if nothing happens before.
    pub(super) timer: Option<u64>,
    pub(super) gate: VecDeque<GatedTurn>,
    pub(super) last_used: u64,
    /// Set when the instance is to be given up as soon as it is idle.
    pub(super) pending_stop: Option<StopReason>,
    /// When its stop hook is interrupted.
    pub(super) stop_hook_deadline: Option<u64>,
    /// The instance asked for it when it started: it is given up after one message, or if none can be run. Each
    /// activation thus serves a message, whatever the guest asks for.
    pub(super) passivates: bool,
    /// The start turn whose commit is pending.
    pub(super) start_turn: Option<TurnId>,
    /// Set when the store refused a start turn for a limit.
    pub(super) start_backoff: Option<StartBackoff>,
}

/// How long an entity is not started again after the store refused its start turn for a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartBackoff {
    /// On the node's clock.
    pub(super) until: u64,
    /// Milliseconds.
    pub(super) span: u64,
    /// It is being started again.
    pub(super) retrying: bool,
}

impl StartBackoff {
    /// The next pause: `first` milliseconds, doubled each time, up to 32 times that.
    pub(super) fn after(last: Option<Self>, now: u64, first: u64) -> Self {
        let span = last.map_or(first, |last| (last.span * 2).min(first * 32));
        Self { until: now + span, span, retrying: false }
    }

    /// When a message that waits has the entity started again; else when the pause is forgotten, so that the next one is
    /// a first one again.
    pub(super) fn ends_at(self, waits: bool) -> u64 {
        if waits { self.until } else { self.until + self.span * 2 }
    }
}

impl ResidentEntity {
    pub(super) fn new(now: u64, waiting: &QueuedTotal) -> Self {
        Self {
            stage: Stage::Unloaded,
            generation: 0,
            revision: 0,
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
            start_turn: None,
            start_backoff: None,
        }
    }

    /// Messages that wait.
    pub(super) fn queued_messages(&self) -> usize {
        self.mailbox.len()
    }

    /// Whether it could be forgotten.
    pub(super) fn is_spent(&self) -> bool {
        matches!(self.stage, Stage::Unloaded | Stage::Loaded | Stage::AwaitingCommits)
            && self.entries.is_empty()
            && self.gate.is_empty()
            && self.start_backoff.is_none_or(|pause| pause.retrying)
    }
}
