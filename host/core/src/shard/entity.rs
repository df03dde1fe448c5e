//! One entity of a shard, as the machine holds it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::lanes::Lanes;
use super::mailbox::{Mailbox, Total};
use super::settings::StopReason;
use crate::ids::{MessageId, TurnId};
use crate::message::{Message, Token};
use crate::records::{Answer, Head};

/// Where an entity's instance is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing in memory but the mailbox.
    Asleep,
    /// Its head and lanes are being read.
    Loading,
    /// Head and lanes are here; no instance.
    Loaded,
    /// It waits for room for an instance, since then.
    Waiting(u64),
    /// Its instance is being made and started.
    Starting(TurnId),
    /// Its instance waits for messages.
    Idle,
    /// Its instance runs this message.
    Running(TurnId, MessageId),
    /// Its instance runs the stop hook.
    Stopping(TurnId),
    /// Its instance is gone; commits are still under way.
    Closing,
}

impl Stage {
    /// Whether an instance exists or is being made.
    pub(super) fn has_instance(&self) -> bool {
        matches!(self, Self::Starting(_) | Self::Idle | Self::Running(..) | Self::Stopping(_))
    }

    /// Whether a slot is held or asked for.
    pub(super) fn has_slot(&self) -> bool {
        self.has_instance() || matches!(self, Self::Waiting(_))
    }
}

/// A message under way, and all the requests that wait for it (R18).
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) message: Arc<Message>,
    pub(super) tokens: Vec<Token>,
    /// The latest of its copies' deadlines; none if one has none.
    pub(super) deadline: Option<u64>,
}

impl Entry {
    pub(super) fn expired(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A turn that has run and is not durable yet.
#[derive(Debug)]
pub(super) struct Gated {
    pub(super) turn: TurnId,
    /// The command that it ran; none for a start or stop turn.
    pub(super) message: Option<MessageId>,
    pub(super) answer: Answer,
    pub(super) version: u64,
    /// Queries that have read its effects, and the version that they read: outcomes may come out of order,
    /// so that a later turn's is known before this one's.
    pub(super) queries: Vec<(MessageId, Answer, u64)>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) stage: Stage,
    /// Tells instances, loads and slots of one entity apart.
    pub(super) generation: u64,
    /// The revision that its instance runs.
    pub(super) revision: u64,
    /// As the last turn that ran left it; its lanes are in `lanes`.
    pub(super) head: Head,
    pub(super) lanes: Lanes,
    /// All messages under way: waiting, parked, running or gated.
    pub(super) entries: BTreeMap<MessageId, Entry>,
    /// Those that wait.
    pub(super) mailbox: Mailbox,
    /// When the machine looks at the entity next, if nothing happens before.
    pub(super) timer: Option<u64>,
    pub(super) gate: VecDeque<Gated>,
    pub(super) last_used: u64,
    /// Set when the instance is to be given up as soon as it is idle.
    pub(super) leaving: Option<StopReason>,
    /// When its stop hook is interrupted.
    pub(super) stop_by: Option<u64>,
    /// The instance asked for it when it started: it is given up after one message, or if none can be run. Each
    /// activation thus serves a message, whatever the guest asks for.
    pub(super) passivates: bool,
    /// The start turn whose commit is under way.
    pub(super) start_turn: Option<TurnId>,
    /// Set when the store refused a start turn for a limit.
    pub(super) start_pause: Option<StartPause>,
}

/// How long an entity is not started again after the store refused its start turn for a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartPause {
    /// On the node's clock.
    pub(super) until: u64,
    /// Milliseconds.
    pub(super) span: u64,
    /// It is being started again.
    pub(super) over: bool,
}

impl StartPause {
    /// The next pause: `first` milliseconds, doubled each time, up to 32 times that.
    pub(super) fn after(last: Option<Self>, now: u64, first: u64) -> Self {
        let span = last.map_or(first, |last| (last.span * 2).min(first * 32));
        Self { until: now + span, span, over: false }
    }

    /// When a message that waits has the entity started again; else when the pause is forgotten, so that the next one is
    /// a first one again.
    pub(super) fn ends_at(self, waits: bool) -> u64 {
        if waits { self.until } else { self.until + self.span * 2 }
    }
}

impl State {
    pub(super) fn new(now: u64, waiting: &Total) -> Self {
        Self {
            stage: Stage::Asleep,
            generation: 0,
            revision: 0,
            head: Head::default(),
            lanes: Lanes::default(),
            entries: BTreeMap::new(),
            mailbox: Mailbox::new(waiting.clone()),
            timer: None,
            gate: VecDeque::new(),
            last_used: now,
            leaving: None,
            stop_by: None,
            passivates: false,
            start_turn: None,
            start_pause: None,
        }
    }

    /// Messages that wait.
    pub(super) fn waiting(&self) -> usize {
        self.mailbox.len()
    }

    /// Whether it could be forgotten.
    pub(super) fn is_spent(&self) -> bool {
        matches!(self.stage, Stage::Asleep | Stage::Loaded | Stage::Closing)
            && self.entries.is_empty()
            && self.gate.is_empty()
            && self.start_pause.is_none_or(|pause| pause.over)
    }
}
