//! What an entity does in its owner's memory, and why: what operators see (K29, K33).

use std::sync::Arc;

use super::settings::OnFailure;

/// What the owner of an entity has in memory about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntityActivity {
    /// Why the entity has an instance, or waits for one. Empty if it does neither.
    pub awake: Vec<AwakeReason>,
    /// What follows a failure of its guest; `None` if its type is not deployed here.
    pub on_failure: Option<OnFailure>,
    /// Code and message of the failure after which it was stopped, if it was.
    pub stopped_by: Option<Arc<str>>,
    /// In how many milliseconds it is started again, if it pauses after failed starts.
    pub start_pause: Option<u64>,
    /// How many starts in a row have failed.
    pub failed_starts: u32,
}

/// A reason why an entity has an instance, or waits for one. Times are milliseconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwakeReason {
    /// It waits until a slot for its instance is free.
    AwaitsSlot,
    /// Its instance is being started.
    Starting,
    /// Its instance handles a message.
    RunsMessage,
    /// Its instance handles a timer.
    RunsTimer,
    /// Its stop hook runs.
    Stopping,
    /// Its turn waits for the answers to this many asks.
    Asks(usize),
    /// Its turn waits for the responses to this many HTTP calls.
    HttpCalls(usize),
    /// This many messages wait in its mailbox.
    Messages(usize),
    /// This many of its turns wait for their commits.
    Commits(usize),
    /// A timer is due within this time, before the instance would be dropped.
    TimerDue(u64),
    /// It is remembered, so its instance is not dropped for being idle.
    Remembered,
    /// It is idle; its instance is dropped after this time, by the type's idle timeout.
    Idle(u64),
    /// It is idle; its instance is dropped after this time, because the guest asked for it.
    PassivatesIn(u64),
}

impl AwakeReason {
    /// The reason's name, which is stable.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::AwaitsSlot => "awaits-slot",
            Self::Starting => "starting",
            Self::RunsMessage => "runs-message",
            Self::RunsTimer => "runs-timer",
            Self::Stopping => "stopping",
            Self::Asks(_) => "asks",
            Self::HttpCalls(_) => "http-calls",
            Self::Messages(_) => "messages",
            Self::Commits(_) => "commits",
            Self::TimerDue(_) => "timer-due",
            Self::Remembered => "remembered",
            Self::Idle(_) => "idle",
            Self::PassivatesIn(_) => "passivates",
        }
    }

    /// The number that the reason counts, if it counts anything.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Asks(count)
            | Self::HttpCalls(count)
            | Self::Messages(count)
            | Self::Commits(count) => Some(*count as u64),
            _ => None,
        }
    }

    /// In how many milliseconds the reason ends, if that is known.
    #[must_use]
    pub fn ends_in(&self) -> Option<u64> {
        match self {
            Self::TimerDue(ms) | Self::Idle(ms) | Self::PassivatesIn(ms) => Some(*ms),
            _ => None,
        }
    }
}
