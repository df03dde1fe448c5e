//! The arbiter's lease: which side goes on when members cannot reach each other although all reach the store (E13).
//!
//! A node that cannot reach some live members waits, the longer the fewer it reaches, and then writes the arbiter's row
//! by compare-and-set. The row names those members, and each of them ends itself unless the winner's flag arrives. The
//! winner sends the flag directly to every member that it reaches.
//!
//! Confusing at first: the row names who ends, not who stays. So it concerns exactly the incarnations that were alive
//! when it was written: one that registers later, or that has settled the number, is not affected by it, and no
//! revisions of different rows need to be compared. Correctness does not depend on any of this: shards change owners as
//! ever, by rows and claims.

use std::collections::VecDeque;

use super::context::Context;
use super::keep_alives::KeepAlives;
use super::observed::ObservedCluster;
use super::requests::WritePurpose;
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::node::{Action, ControlMessage, Mutation, Notice, WriteError};
use crate::rows::{ArbiterRow, Member, Row, RowKey};

/// Maximum number of flags that are kept.
const MAX_FLAGS: usize = 8;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Arbiter {
    /// The row as last seen, and its revision.
    row: Option<(ArbiterRow, u64)>,
    /// Since when a member has been unreachable without interruption, or since the last arbitration if that is later.
    partitioned_since: Option<u64>,
    /// When the row may be written again, after a write whose outcome is unknown.
    write_at: u64,
    /// The last flags: their numbers, and the nodes that sent them. A flag may arrive before the row, and that of the next
    /// number before this one has settled the last.
    flags: VecDeque<(u64, Member)>,
    /// The highest number that this node has lost, but survived.
    settled: u64,
    /// When the last number is lost if no flag arrives.
    lost_at: Option<u64>,
    /// When the winner sends flags again.
    flags_at: u64,
    /// Until when the winner sends them: for a while after all are reachable again.
    flags_until: Option<u64>,
}

impl Arbiter {
    /// Learns the row if it is newer than the known one.
    pub(super) fn learn(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        row: ArbiterRow,
        revision: u64,
    ) {
        if self.row.as_ref().is_some_and(|(_, known)| *known >= revision) {
            return;
        }
        let is_new = row.number > self.number();
        if is_new {
            self.restart_timers();
            self.flags_until = None;
            self.flags.retain(|(number, _)| *number >= row.number);
            if row.unreachable.iter().any(|member| observed.alive(member)) {
                let ArbiterRow { number, winner, unreachable, .. } = row.clone();
                context.notify(Notice::ArbitrationDecided { number, winner, unreachable });
            }
        }
        self.row = Some((row, revision));
    }

    fn number(&self) -> u64 {
        self.row.as_ref().map_or(0, |(row, _)| row.number)
    }

    /// A flag counts only if the winner of its number sent it.
    pub(super) fn on_flag(&mut self, from: &Member, number: u64) {
        let flag = (number, from.clone());
        if number >= self.number() && !self.flags.contains(&flag) {
            self.flags.push_back(flag);
            if self.flags.len() > MAX_FLAGS {
                self.flags.pop_front();
            }
        }
    }

    /// Starts to wait anew, because the node could not know what happened in the meantime.
    pub(super) fn restart_timers(&mut self) {
        self.partitioned_since = None;
        self.lost_at = None;
    }

    /// Does what may be due. Returns whether this node has just lost an arbitration. `stays`: whether it is not leaving.
    pub(super) fn drive(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        keep_alives: &KeepAlives,
        me: &Member,
        stays: bool,
    ) -> bool {
        if !context.settings.arbiter || context.settings.keep_alive_interval.is_none() {
            return false;
        }
        if self.may_have_lost(me) {
            return self.await_flag(context, observed);
        }
        self.send_flags(context, observed, keep_alives, me);
        if stays {
            self.campaign(context, observed, keep_alives, me);
        }
        false
    }

    /// Whether the last number names this incarnation, and is not settled.
    fn may_have_lost(&self, me: &Member) -> bool {
        self.row
            .as_ref()
            .is_some_and(|(row, _)| row.number > self.settled && row.unreachable.contains(me))
    }

    /// Waits for the winner's flag, and returns whether the wait has ended without it.
    fn await_flag(&mut self, context: &mut Context, observed: &ObservedCluster) -> bool {
        let Some((row, _)) = &self.row else { return false };
        let now = context.mono();
        let has_flag = self.flags.contains(&(row.number, row.winner.clone()));
        // A winner that has ended ends nobody: its own side decides again.
        if has_flag || observed.has_ended(&row.winner) == Some(true) {
            self.settled = row.number;
            self.restart_timers();
            return false;
        }
        let due = *self.lost_at.get_or_insert(now + context.settings.arbiter_flag_timeout);
        // Nor does one that may just have ended.
        if now < due
            || !observed.is_renewing(&row.winner.node, now)
            || context.has_mutation(Mutation::IgnoreLostArbitration)
        {
            return false;
        }
        let (number, winner) = (row.number, row.winner.clone());
        context.notify(Notice::ArbitrationLost { number, winner: winner.clone() });
        context.push(Action::ArbitrationLost { number, winner });
        true
    }

    /// The winner tells every member that it reaches to stay, repeatedly, since messages may be lost.
    fn send_flags(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        keep_alives: &KeepAlives,
        me: &Member,
    ) {
        let now = context.mono();
        let Some((row, _)) = self.row.as_ref().filter(|(row, _)| row.winner == *me) else { return };
        let mut left = row.unreachable.iter().filter(|member| observed.alive(member)).peekable();
        if now < self.flags_at || left.peek().is_none() {
            return;
        }
        match left.any(|member| keep_alives.is_unreachable(context, member)) {
            true => self.flags_until = None,
            false => {
                let wait = 2 * context.settings.arbiter_flag_timeout;
                if now > *self.flags_until.get_or_insert(now + wait) {
                    return;
                }
            }
        }
        self.flags_at = now + context.settings.keep_alive_interval.unwrap_or(0);
        let number = row.number;
        for member in participants(observed) {
            if member != *me && !keep_alives.is_unreachable(context, &member) {
                context.send(&member.node, ControlMessage::ArbiterFlag { number });
            }
        }
    }

    /// Takes the lease if members have been unreachable for long enough.
    fn campaign(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        keep_alives: &KeepAlives,
        me: &Member,
    ) {
        let now = context.mono();
        let live: Vec<_> = participants(observed).collect();
        let unreachable: Vec<_> = live
            .iter()
            .filter(|member| **member != *me && keep_alives.is_unreachable(context, member))
            .cloned()
            .collect();
        if unreachable.is_empty() {
            self.partitioned_since = None;
            return;
        }
        let since = *self.partitioned_since.get_or_insert(now);
        let rank = live.iter().position(|member| member == me).unwrap_or(live.len());
        let reached = live.len() - unreachable.len();
        let wait = wait_time(context.settings.arbiter_timeout, live.len(), reached, rank);
        // Without the node of an embedded store, the winner's side could not go on either.
        let needs_them = unreachable
            .iter()
            .any(|member| observed.node(&member.node).is_some_and(|(row, _)| row.roles.store));
        // A member whose lease is silent may be on either side, or have ended: a lease that is taken without it could end
        // some of a larger side. Soon it renews its lease, or is dead.
        let is_certain = live.iter().all(|member| observed.is_renewing(&member.node, now));
        let is_pending =
            context.requests.any_write(|it| matches!(it, WritePurpose::TakeArbiterLease(_)));
        if needs_them || !is_certain || is_pending || now < since + wait || now < self.write_at {
            return;
        }
        let seen = self.row.as_ref();
        let row = ArbiterRow {
            number: self.number() + 1,
            winner: me.clone(),
            unreachable,
            extensions: seen.map(|(row, _)| row.extensions.clone()).unwrap_or_default(),
        };
        let expected = seen.map(|(_, revision)| *revision);
        let purpose = WritePurpose::TakeArbiterLease(row.clone());
        context.write(purpose, RowKey::Arbiter, expected, Row::Arbiter(row));
    }

    /// Handles the answer to the write of the row. The caller records the row.
    pub(super) fn on_lease_written(
        &mut self,
        context: &mut Context,
        result: &Result<u64, WriteError>,
    ) {
        match result {
            Ok(_) | Err(WriteError::Conflict(Some(_))) => {}
            Err(WriteError::Conflict(None)) => self.row = None,
            Err(WriteError::Unknown) => {
                self.write_at = context.mono() + context.settings.store_retry_interval;
                context.read(RowKey::Arbiter);
            }
        }
    }
}

/// The live members that take part in arbitrations, the oldest first.
fn participants(observed: &ObservedCluster) -> impl Iterator<Item = Member> {
    let mut members: Vec<_> = observed
        .all_live()
        .filter(|(_, row)| row.follows_arbiter())
        .map(|(node, row)| (row.registered_at, node.clone(), row.incarnation))
        .collect();
    members.sort();
    members.into_iter().map(|(_, node, incarnation)| Member { node, incarnation })
}

/// How long a node waits that reaches `reached` of `live` members, itself included, and than which `rank` of them are
/// older. The rank adds less than `timeout / live`, so it decides only between sides that are equally large.
fn wait_time(timeout: u64, live: usize, reached: usize, rank: usize) -> u64 {
    let (live, reached, rank) = (live.max(1) as u64, reached.max(1) as u64, rank as u64);
    timeout.saturating_mul(live) / reached + timeout.saturating_mul(rank) / (live * live)
}

#[cfg(any(test, feature = "testing"))]
impl Arbiter {
    pub(super) fn known_revision(&self) -> Option<u64> {
        self.row.as_ref().map(|(_, revision)| *revision)
    }

    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        if let Some((_, revision)) = &mut self.row {
            *revision = to.map_revision(&RowKey::Arbiter, *revision);
        }
        self.partitioned_since = self.partitioned_since.map(|at| to.map_time(at));
        self.lost_at = self.lost_at.map(|at| to.map_deadline(at));
        self.flags_until = self.flags_until.map(|at| to.map_deadline(at));
        self.write_at = to.map_deadline(self.write_at);
        self.flags_at = to.map_deadline(self.flags_at);
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e13_the_wait_is_inversely_proportional_to_the_reach() {
        assert_eq!(wait_time(6_000, 3, 3, 0), 6_000);
        assert_eq!(wait_time(6_000, 3, 2, 0), 9_000);
        assert_eq!(wait_time(6_000, 3, 1, 0), 18_000);
    }

    #[test]
    fn e13_age_decides_only_between_equal_sides() {
        for live in 2..40 {
            for larger in live / 2 + 1..live {
                let youngest = wait_time(5_000, live, larger, live - 1);
                let oldest = wait_time(5_000, live, live - larger, 0);
                assert!(youngest < oldest, "{larger} of {live}: {youngest}, {oldest}");
            }
        }
        assert!(wait_time(5_000, 4, 2, 0) < wait_time(5_000, 4, 2, 1));
    }
}
