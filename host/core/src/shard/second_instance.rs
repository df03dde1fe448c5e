//! The second instance of an entity, which runs queries while a turn of the first one waits (R20).
//!
//! An instance whose turn waits cannot be entered, and its memory holds what is not committed. So queries get another
//! instance, which reads the last committed state. It exists only while that turn runs.

use super::asks::Asks;
use crate::ids::{MessageId, TurnId};
use crate::message::Outcome;

#[derive(Clone, Debug)]
pub(super) struct SecondInstance {
    /// Distinguishes it from all other instances of the shard, including the first one of its entity.
    pub(super) generation: u64,
    pub(super) stage: SecondStage,
    /// The pending asks of the query that it runs.
    pub(super) asks: Asks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SecondStage {
    /// It has been waiting for an instance slot since this time.
    AwaitingSlot(u64),
    /// It is being created and started.
    Starting,
    /// It waits for queries.
    Idle,
    /// It runs this query.
    Running(TurnId, MessageId),
    /// It could not be started through the guest's fault. Until the waiting turn ends, queries get this outcome.
    Failed(Outcome),
}

impl SecondInstance {
    pub(super) fn new(generation: u64, now: u64) -> Self {
        Self { generation, stage: SecondStage::AwaitingSlot(now), asks: Asks::default() }
    }

    /// The turn that it runs.
    pub(super) fn turn(&self) -> Option<TurnId> {
        match self.stage {
            SecondStage::Running(turn, _) => Some(turn),
            _ => None,
        }
    }

    /// Whether an instance exists or is being created.
    pub(super) fn has_instance(&self) -> bool {
        matches!(self.stage, SecondStage::Starting | SecondStage::Idle | SecondStage::Running(..))
    }

    /// Whether it holds a slot or has requested one.
    pub(super) fn has_slot(&self) -> bool {
        self.has_instance() || matches!(self.stage, SecondStage::AwaitingSlot(_))
    }

    /// When its wait for a slot ends, on the node's clock.
    pub(super) fn slot_due(&self, timeout: u64) -> Option<u64> {
        match self.stage {
            SecondStage::AwaitingSlot(since) => Some(since.saturating_add(timeout)),
            _ => None,
        }
    }
}
