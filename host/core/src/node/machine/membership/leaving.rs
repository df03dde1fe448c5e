//! The orderly end of an incarnation: it hands off its shards, stops the rest, then marks its row as left (S10, K35).

use super::{
    Action, Context, Effect, LeaveMode, Membership, NodeRow, NodeStatus, ObservedCluster, Row,
    State, WriteError, WritePurpose,
};
use crate::pools::Pool;

/// The progress of a leaving node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Leaving {
    /// The node stays, or has left.
    No,
    /// The manager is handing its shards off.
    AwaitsHandOffs,
    /// No row names it any longer: it marks its row as left once its shard machines have stopped.
    HandedOff,
    /// It does not wait for hand-offs: its shards stop, and then it marks its row as left.
    StopsShards,
}

impl Membership {
    pub(in super::super) fn leave_after_drain(&mut self) {
        self.leave_mode = self.leave_mode.max(LeaveMode::AfterDrain);
    }

    pub(in super::super) fn leave_immediately(&mut self) {
        self.leave_mode = LeaveMode::Immediate;
    }

    /// Leaves because this node lost an arbitration: no turn starts from now on, and its shards stop (E13).
    pub(in super::super) fn lose(&mut self, context: &mut Context) {
        self.has_lost = true;
        self.leave_mode = LeaveMode::Immediate;
        if let Some(own) = self.registration_mut()
            && !own.suspended
        {
            own.suspended = true;
            own.claim_check = None;
            context.push(Action::Suspend);
        }
    }

    /// Ends this incarnation because the manager does not receive its messages. If it is already leaving, it
    /// stops waiting for hand-offs.
    pub(in super::super) fn retire(&mut self) {
        match (self.leave_mode, &mut self.state) {
            (LeaveMode::Stay, State::Registered(own)) => own.is_retiring = true,
            (LeaveMode::AfterDrain, _) => self.leave_mode = LeaveMode::Immediate,
            _ => {}
        }
    }

    /// Whether the node is leaving but its row does not say so yet: the next renewal records it.
    pub(in super::super) fn must_announce_leaving(&self) -> bool {
        !self.stays()
            && self
                .registration()
                .is_some_and(|own| !own.is_retiring && !own.row.is_leaving() && !own.pending)
    }

    /// Leaves in three steps: hands off its shards, stops the remaining ones, then marks its row as left (S10, K35). An
    /// incarnation that ends itself stops its shards immediately.
    pub(in super::super) fn drive_leaving(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) -> Leaving {
        let is_retiring = self.registration().is_some_and(|own| own.is_retiring);
        if self.stays() && !is_retiring {
            return Leaving::No;
        }
        let Some(own) = self.registration() else {
            if matches!(self.state, State::Unregistered) {
                self.finish_leaving(context);
            }
            return Leaving::No;
        };
        if is_retiring || self.leave_mode == LeaveMode::Immediate {
            return Leaving::StopsShards;
        }
        let me = &own.member;
        let has_successor = |pool: &Pool| {
            observed.all_live().any(|(node, row)| {
                *node != me.node
                    && row.hosts(pool)
                    && !row.is_draining_or_leaving()
                    && row.store_available
            })
        };
        let pools = &context.identity.pools;
        let with_successor: Vec<_> = pools.iter().filter(|pool| has_successor(pool)).collect();
        let mut stops = false;
        for (shard, _) in observed.assignments().filter(|(_, row)| row.owner.as_ref() == Some(me)) {
            if with_successor.iter().any(|pool| pool.contains(shard)) {
                return Leaving::AwaitsHandOffs;
            }
            stops = true;
        }
        if stops { Leaving::StopsShards } else { Leaving::HandedOff }
    }

    /// Writes the row as left, for an incarnation that no longer holds a shard.
    pub(in super::super) fn write_left_row(&mut self, context: &mut Context) {
        let Some(own) = self.registration_mut() else { return };
        if own.pending || context.requests.any_write(|purpose| *purpose == WritePurpose::Leave) {
            return;
        }
        own.pending = true;
        let row = NodeRow { status: NodeStatus::Left, ..own.row.clone() };
        context.write(WritePurpose::Leave, own.key(), Some(own.revision), Row::Node(row));
    }

    /// Handles the answer to the write of the row as left; `None` if it is obsolete.
    pub(in super::super) fn on_leave_written(
        &mut self,
        context: &mut Context,
        result: &Result<u64, WriteError>,
    ) -> Option<Effect> {
        let own = self.registration_mut()?;
        own.pending = false;
        Some(match result {
            Ok(_) => Effect::Left,
            Err(WriteError::Conflict(Some(_))) => Effect::Nothing,
            Err(WriteError::Conflict(None)) => Effect::Fenced,
            Err(WriteError::Unknown) => {
                own.pending = true;
                context.read(own.key());
                Effect::Nothing
            }
        })
    }

    /// The node has left permanently.
    pub(in super::super) fn finish_leaving(&mut self, context: &mut Context) {
        self.state = State::Left;
        context.push(Action::Left);
    }
}
