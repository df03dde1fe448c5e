//! What the machine holds of one entity of its shard.

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
    /// Head and lanes are in memory; there is no instance.
    Loaded,
    /// It has been waiting for an instance slot since this time.
    AwaitingSlot(u64),
    /// Its instance is being created and started.
    Starting(TurnId),
    /// Its instance waits for messages.
    Idle,
    /// Its instance runs this message.
    Running(TurnId, MessageId),
    /// Its instance runs the stop hook.
    Stopping(TurnId),
    /// Its instance was dropped; commits are still pending.
    AwaitingCommits,
}

impl Stage {
    /// Whether an instance exists or is being created.
    pub(super) fn has_instance(&self) -> bool {
        matches!(self, Self::Starting(_) | Self::Idle | Self::Running(..) | Self::Stopping(_))
    }

    /// Whether it holds a slot or has requested one.
    pub(super) fn has_slot(&self) -> bool {
        self.has_instance() || matches!(self, Self::AwaitingSlot(_))
    }
}

/// A pending message, and all the requests that wait for it (R18).
#[derive(Debug)]
pub(super) struct PendingMessage {
    pub(super) message: Arc<Message>,
    pub(super) reply_tokens: Vec<ReplyToken>,
    /// The latest deadline of its copies; none if any copy has none.
    pub(super) deadline: Option<u64>,
}

impl PendingMessage {
    pub(super) fn expired(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A turn that has run but is not durable yet.
#[derive(Debug)]
pub(super) struct GatedTurn {
    pub(super) turn: TurnId,
    /// The command that it ran; none for a start or stop turn.
    pub(super) message: Option<MessageId>,
    pub(super) reply: GuestReply,
    pub(super) version: u64,
    /// Queries that have read its effects, and the version that they read. Outcomes may arrive out of order, so a
    /// later turn's may be known before this one's.
    pub(super) queries: Vec<(MessageId, GuestReply, u64)>,
}

#[derive(Debug)]
pub(super) struct ResidentEntity {
    pub(super) stage: Stage,
    /// Distinguishes instances, loads and slots of one entity.
    pub(super) generation: u64,
    /// The revision that its instance runs.
    pub(super) revision: u64,
    /// The head after the last turn that ran; its lanes are in `lanes`.
    pub(super) head: Head,
    pub(super) lanes: Lanes,
    /// All pending messages: waiting, parked, running or gated.
    pub(super) entries: BTreeMap<MessageId, PendingMessage>,
    /// Waiting messages.
    pub(super) mailbox: Mailbox,
    /// When the machine examines the entity next, unless an event concerns it earlier.
    pub(super) timer: Option<u64>,
    pub(super) gate: VecDeque<GatedTurn>,
    pub(super) last_used: u64,
    /// Why the instance will be stopped as soon as it is idle.
    pub(super) pending_stop: Option<StopReason>,
    /// When its stop hook is interrupted.
    pub(super) stop_hook_deadline: Option<u64>,
    /// Whether the instance asked for passivation in its start turn. It is then dropped after one message, or if no
    /// message can run. So each activation serves a message, whatever the guest asks for.
    pub(super) passivates: bool,
    /// The start turn whose commit is pending.
    pub(super) start_turn: Option<TurnId>,
    /// Set when the store refused a start turn because of a limit.
    pub(super) start_backoff: Option<StartBackoff>,
}

/// The pause before an entity is started again after the store refused its start turn because of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartBackoff {
    /// On the node's clock.
    pub(super) until: u64,
    /// Milliseconds.
    pub(super) span: u64,
    /// Whether the entity is being started again.
    pub(super) retrying: bool,
}

impl StartBackoff {
    /// The next pause: `first` milliseconds, doubled each time, up to 32 times that.
    pub(super) fn after(last: Option<Self>, now: u64, first: u64) -> Self {
        let span = last.map_or(first, |last| (last.span * 2).min(first * 32));
        Self { until: now + span, span, retrying: false }
    }

    /// When the pause ends. With waiting messages, the entity is then started again; without any, the pause is
    /// forgotten two spans later, so that the next pause is a first one.
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

    /// The number of waiting messages.
    pub(super) fn queued_messages(&self) -> usize {
        self.mailbox.len()
    }

    /// Whether nothing of it needs to stay in memory.
    pub(super) fn is_spent(&self) -> bool {
        matches!(self.stage, Stage::Unloaded | Stage::Loaded | Stage::AwaitingCommits)
            && self.entries.is_empty()
            && self.gate.is_empty()
            && self.start_backoff.is_none_or(|pause| pause.retrying)
    }
}
