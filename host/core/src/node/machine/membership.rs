//! Membership: registration, the lease, its lapse and recovery, and the end of an incarnation (R7 to R9).
//!
//! Confusing at first: a change of the node's own row may end the incarnation, which concerns every part. So a
//! function that handles such a change returns an [`Effect`], and the machine carries it out.

mod lapse;
mod lease_change;
mod leaving;
mod registration;
mod renewal;

use super::context::Context;
use super::observed::ObservedCluster;
use super::requests::WritePurpose;
use crate::ids::{Epoch, Incarnation, ShardId};
use crate::node::{Action, Mutation, Notice, WriteError};
use crate::rows::{Member, NodeRow, NodeStatus, Row, RowKey};

pub(super) use lapse::ChangedClaim;
pub(super) use leaving::Leaving;

/// This node's registration, and whether it is leaving.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    state: State,
    /// Set by [`Event::Leave`](crate::node::Event::Leave) and [`Event::LeaveNow`](crate::node::Event::LeaveNow).
    leave_mode: LeaveMode,
    /// Set if another process may be renewing the lease under this node's name: the incarnation and renewals that were
    /// seen, and when to compare them again.
    name_conflict: Option<((Incarnation, u64), u64)>,
    /// The last time at which the `EntityStore` was known to respond (R9).
    store_last_responded: u64,
    /// Whether the node lost an arbitration (E13): it leaves, and never resumes.
    has_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LeaveMode {
    Stay,
    AfterDrain,
    Immediate,
}

#[derive(Clone, Debug, Hash)]
enum State {
    /// Not registered, and no registration is pending.
    Unregistered,
    /// A write of the node's own row is pending, or its answer was lost and the row is being read.
    Registering,
    Registered(Box<Registration>),
    /// The node has left the cluster.
    Left,
}

/// One registered incarnation.
#[derive(Clone, Debug, Hash)]
struct Registration {
    member: Member,
    row: NodeRow,
    revision: u64,
    /// When the last successful renewal was sent: the lease is counted from then (R8).
    lease_start: u64,
    /// When the first renewal after the one in `row` was sent. If the node's own row is found to contain another
    /// renewal, the lease is counted from this time at the latest (R8).
    first_renewal_since: Option<u64>,
    /// How long the lease may be relied on: never longer than the row shows.
    lease: u64,
    /// The time until which a longer lease may still be relied on somewhere; until then, the row shows the longer
    /// lease.
    longer_until: u64,
    /// When a renewal last ended a lapse.
    recovered_at: u64,
    /// Whether a renewal, or a read after a renewal whose answer was lost, is pending.
    pending: bool,
    /// When the next renewal is due.
    due: u64,
    suspended: bool,
    /// The pending read of claims before this incarnation resumes: the request's id, and the shards and epochs that
    /// are checked.
    claim_check: Option<(u64, Vec<(ShardId, Epoch)>)>,
    /// When the claims may be read again.
    claims_at: u64,
    /// Whether the claims must be read.
    claims_unverified: bool,
    /// Whether this incarnation ends itself so that a new one registers, because the manager does not receive its
    /// messages.
    is_retiring: bool,
}

impl Registration {
    fn lease_has_lapsed(&self, now: u64) -> bool {
        now.saturating_sub(self.lease_start) >= self.lease
    }

    fn key(&self) -> RowKey {
        RowKey::Node(self.member.node.clone())
    }
}

/// What a change of the membership means for the rest of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Effect {
    Nothing,
    /// The lease was renewed: the manager gets a report.
    Renewed,
    /// This incarnation's row shows that it has left.
    Left,
    /// This incarnation ended without leaving: another node may own its shards by now (R7).
    Fenced,
}

impl Membership {
    pub(super) fn new() -> Self {
        Self {
            state: State::Unregistered,
            leave_mode: LeaveMode::Stay,
            name_conflict: None,
            store_last_responded: 0,
            has_lost: false,
        }
    }

    fn registration(&self) -> Option<&Registration> {
        match &self.state {
            State::Registered(registration) => Some(registration),
            _ => None,
        }
    }

    fn registration_mut(&mut self) -> Option<&mut Registration> {
        match &mut self.state {
            State::Registered(registration) => Some(registration),
            _ => None,
        }
    }

    pub(super) fn member(&self) -> Option<&Member> {
        self.registration().map(|own| &own.member)
    }

    /// Whether the lease has lapsed, so that shards are suspended (R9).
    pub(super) fn is_suspended(&self) -> bool {
        self.registration().is_some_and(|own| own.suspended)
    }

    pub(super) fn has_left(&self) -> bool {
        matches!(self.state, State::Left)
    }

    /// Whether this node has not been asked to leave.
    pub(super) fn stays(&self) -> bool {
        self.leave_mode == LeaveMode::Stay
    }

    /// Whether this node is leaving and its row says so, or its incarnation is ending. Shards that are still assigned
    /// to it go to other nodes, since it does not report them.
    pub(super) fn is_departing(&self) -> bool {
        let own = self.registration();
        own.is_some_and(|own| own.is_retiring)
            || self.leave_mode == LeaveMode::Immediate
            || (self.leave_mode == LeaveMode::AfterDrain
                && own.is_some_and(|own| own.row.is_draining_or_leaving()))
    }

    /// When the next renewal is due.
    pub(super) fn due(&self) -> u64 {
        match self.registration() {
            Some(own) if !own.pending => own.due,
            _ => u64::MAX,
        }
    }

    /// Registers, renews, or ends a lapse. Returns whether a lapse has ended. `held` lists the shards that this node
    /// holds, with their epochs.
    pub(super) fn drive(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        held: impl FnOnce() -> Vec<(ShardId, Epoch)>,
    ) -> bool {
        match &self.state {
            State::Unregistered if observed.is_watching() && self.stays() => {
                self.try_register(context, observed);
            }
            State::Registered(own) if context.mono() < own.due => {}
            State::Registered(own) if !own.pending => self.renew(context),
            State::Registered(_) => self.read_own_row(context),
            _ => {}
        }
        self.try_resume(context, held)
    }

    /// Forgets a fenced incarnation.
    pub(super) fn end_incarnation(&mut self, context: &mut Context) {
        if self.is_suspended() {
            // No shard is left to resume; the shards of the next incarnation are not suspended.
            context.push(Action::Resume);
        }
        context.requests.retain_writes(|purpose| matches!(purpose, WritePurpose::Drain(_)));
        self.state = if self.stays() { State::Unregistered } else { State::Left };
        context.push(Action::Fenced);
        if self.has_left() {
            context.push(Action::Left);
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Membership {
    pub(super) fn reads_claims(&self) -> bool {
        self.registration().is_some_and(|own| own.claim_check.is_some())
    }

    pub(super) fn canonicalize(
        &mut self,
        me: &crate::ids::NodeId,
        to: &dyn crate::node::Canonicalizer,
    ) {
        self.store_last_responded = to.map_time(self.store_last_responded);
        let Some(own) = self.registration_mut() else { return };
        own.row.renewals = to.map_renewals(me, own.row.renewals);
        own.revision = to.map_revision(&RowKey::Node(me.clone()), own.revision);
        own.first_renewal_since = own.first_renewal_since.map(|at| to.map_time(at));
        (own.lease_start, own.recovered_at) =
            (to.map_time(own.lease_start), to.map_time(own.recovered_at));
        own.longer_until = to.map_time(own.longer_until);
        (own.due, own.claims_at) = (to.map_deadline(own.due), to.map_deadline(own.claims_at));
    }
}

/// Excludes the name conflict, which only causes notices.
#[cfg(any(test, feature = "testing"))]
impl std::hash::Hash for Membership {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.state, self.leave_mode, self.store_last_responded, self.has_lost).hash(state);
    }
}
