//! The machine itself: its parts, and how events are dispatched to them.
//!
//! Each part owns its fields: [`Membership`] the lease, [`Holdings`] the shards that this node actually holds,
//! [`ObservedCluster`] the observed rows, [`Manager`] the rows that this node has sealed, [`Stateless`] its leases of
//! shards in pools without a manager. A part gets a [`Context`]
//! and references to the parts that it reads; what concerns several parts is handled here and in `dispatch`.
//!
//! Confusing at first: each part is level-triggered. After every event it compares the actual with the desired
//! state and closes the gap, so that a lost message or the crash of another node needs no recovery code of its own.

mod arbiter;
mod context;
mod dispatch;
mod holdings;
mod keep_alives;
mod manager;
mod membership;
mod observed;
mod requests;
mod stateless;
#[cfg(any(test, feature = "testing"))]
mod testing;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::action::Action;
use super::control_message::ControlMessage;
use super::event::Event;
use super::settings::{Mutation, Settings};
use crate::assign::AllocationStrategy;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::message::Now;
use crate::pools::Pools;
use crate::rows::{
    AssignmentsRow, HostProcess, ManagerRow, Member, NodeRow, NumbersRow, PodProcess, Roles,
};
use arbiter::Arbiter;
use context::Context;
use holdings::Holdings;
use keep_alives::KeepAlives;
use manager::Manager;
use membership::{Leaving, Membership};
use observed::ObservedCluster;
use stateless::Stateless;
#[cfg(any(test, feature = "testing"))]
pub use testing::Canonicalizer;

/// The node's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The node's name.
    pub node: NodeId,
    /// The node's roles.
    pub roles: Roles,
    /// Its program's version ([`NodeRow::version`]).
    pub version: u64,
    /// The node's addresses.
    pub addresses: Vec<String>,
    /// What follows `host.` in its other roles: it hosts the pools that name one of them (K39).
    pub pool_roles: Vec<String>,
    /// How much load it should have, in relation to other hosts; usually 1.
    pub weight: u32,
    /// The cluster's pools.
    pub pools: Pools,
    /// Random: nonces and random choices are derived from it.
    pub seed: u64,
}

impl NodeIdentity {
    /// Whether the node owns shards of any pool.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.roles.host || !self.pool_roles.is_empty()
    }
}

/// One node's machine. Deterministic: the same events give the same actions.
#[derive(Clone, Debug)]
pub struct Machine {
    context: Context,
    membership: Membership,
    holdings: Holdings,
    observed: ObservedCluster,
    manager: Manager,
    keep_alives: KeepAlives,
    arbiter: Arbiter,
    stateless: Stateless,
    /// When an event was last handled: an observer that slept must not declare others dead (R8).
    last_event_at: Option<u64>,
    next_wake: Option<u64>,
}

impl Machine {
    /// Creates a node's machine, which starts by listing the rows.
    #[must_use]
    pub fn new(
        settings: Settings,
        identity: NodeIdentity,
        strategy: Box<dyn AllocationStrategy>,
    ) -> Self {
        let mut identity = identity;
        if settings.has_mutation(Mutation::IgnorePoolRoles) {
            identity.pools.forget_roles();
        }
        let observed = ObservedCluster::new(identity.pools.shard_count());
        let mut context = Context::new(settings, identity);
        context.push(Action::ListRows);
        Self {
            context,
            membership: Membership::new(),
            holdings: Holdings::default(),
            observed,
            manager: Manager::new(strategy),
            keep_alives: KeepAlives::default(),
            arbiter: Arbiter::default(),
            stateless: Stateless::default(),
            last_event_at: None,
            next_wake: None,
        }
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Now, event: Event) {
        self.context.now = now;
        self.check_clock_gap();
        self.membership.check_lapse(&mut self.context);
        // A thousand of these may arrive at the same time, and none affects the manager's decisions: the manager
        // decides at a later event.
        let is_minor = match &event {
            Event::ShardServing { .. } | Event::StoreResponded { .. } => true,
            Event::Received { message, .. } => matches!(
                message,
                ControlMessage::KeepAlive { .. }
                    | ControlMessage::KeepAliveAck { .. }
                    | ControlMessage::ArbiterFlag { .. }
            ),
            _ => false,
        };
        self.dispatch(event);
        self.deliver_local_messages();
        self.drive(is_minor);
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.context.poll()
    }

    /// When [`Event::Tick`] is due, on the clock of [`Now::mono`].
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        self.next_wake
    }

    /// The node that this machine belongs to.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.context.identity.node
    }

    /// Sets the time of the driver's wall clock, in milliseconds since 1970. Until it is set, rows do not contain
    /// it.
    pub fn set_unix_ms(&mut self, unix_ms: u64) {
        self.context.unix_ms = Some(unix_ms);
    }

    /// Sets how a health check in Kubernetes finds this process; the node's row will contain it. Before the first
    /// event.
    pub fn set_process(&mut self, process: PodProcess) {
        self.context.process = Some(process);
    }

    /// Sets how other health checks find this process; the node's row will contain it. Before the first event.
    pub fn set_host_process(&mut self, process: HostProcess) {
        self.context.host_process = Some(process);
    }

    /// The node's current incarnation, if it is registered.
    #[must_use]
    pub fn member(&self) -> Option<Member> {
        self.membership.member().cloned()
    }

    /// The term in which this node is the manager and has sealed every row, if any.
    #[must_use]
    pub fn managing_term(&self) -> Option<u64> {
        self.manager.sealed_term()
    }

    /// Whether the node's lease has lapsed, so that its shards are suspended (R9).
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.membership.is_suspended()
    }

    /// Live hosts that cannot run every deployed type, with those types, as they reported to this node. Only the
    /// manager knows them.
    pub fn hosts_with_unrunnable_types(&self) -> impl Iterator<Item = (&NodeId, &[String])> {
        let hosts = self.observed.unrunnable_types().filter(|_| self.manager.has_term());
        hosts
            .filter(|(member, _)| self.observed.alive(member))
            .map(|(member, types)| (&member.node, types))
    }

    /// Members that left this node's last keep-alives unanswered: each member, how many in a row, and whether it counts
    /// as unreachable (E12).
    pub fn unanswered_keep_alives(&self) -> impl Iterator<Item = (Member, u64, bool)> {
        let limit = u64::from(self.context.settings.keep_alive_failures);
        let counts = self.keep_alives.unanswered();
        counts.map(move |(member, failures)| (member, failures, failures >= limit))
    }

    /// The cluster's pools, as far as the machine knows them.
    #[must_use]
    pub fn pools(&self) -> &Pools {
        &self.context.identity.pools
    }

    /// The rows of nodes, as last seen.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeRow)> {
        self.observed.nodes()
    }

    /// The manager's row, as last seen.
    #[must_use]
    pub fn manager_row(&self) -> Option<&ManagerRow> {
        self.observed.manager_row()
    }

    /// Every chunk of assignments, as last seen, and its revision.
    pub fn assignment_rows(&self) -> impl Iterator<Item = (u32, &AssignmentsRow, u64)> {
        self.observed.chunks()
    }

    /// Who has which number in each pool without a manager, as last seen (E5).
    pub fn numbers(&self) -> impl Iterator<Item = (&str, &NumbersRow)> {
        self.stateless.numbers()
    }

    /// The shards that the node holds: shard, epoch, and whether the shard is served.
    pub fn held_shards(&self) -> impl Iterator<Item = (ShardId, Epoch, bool)> {
        self.holdings.shards()
    }

    /// The moves that a rebalance would make now: shard, from, to. For a dry run, on any node.
    #[must_use]
    pub fn preview_rebalance(&self) -> Vec<(ShardId, NodeId, NodeId)> {
        self.manager.preview_rebalance(&self.context, &self.observed)
    }

    /// The number of chunks examined since the last call.
    #[cfg(test)]
    pub(super) fn take_visits(&mut self) -> usize {
        std::mem::take(&mut self.context.visits)
    }

    /// An observer that slept treats every lease as just renewed (R8).
    fn check_clock_gap(&mut self) {
        let now = self.context.mono();
        let margin = self.context.settings.lease_margin;
        let slept = self.last_event_at.is_none_or(|last| now.saturating_sub(last) > margin);
        if slept && !self.context.has_mutation(Mutation::TrustStaleObservations) {
            self.observed.restart_lease_timers(now);
            self.stateless.restart_lease_timers(now);
            self.holdings.restart_manager_silence_timers(&self.context);
            self.manager.restart_timers(&self.context);
            self.keep_alives.restart();
            self.arbiter.restart_timers();
        }
        self.last_event_at = Some(now);
    }

    /// Does everything that may be due.
    fn drive(&mut self, is_minor: bool) {
        self.observed.drive_list(&mut self.context);
        self.drive_membership();
        self.drive_arbiter();
        self.drive_holdings();
        self.drive_stateless();
        self.manager.drive_drains(&mut self.context, &self.observed);
        if !is_minor {
            self.drive_manager();
        }
        self.drive_report();
        self.drive_leaving();
        self.next_wake = self.wake_time();
    }

    fn drive_membership(&mut self) {
        let Self { context, membership, holdings, observed, .. } = self;
        if membership.drive(context, observed, || holdings.epochs()) {
            holdings.reapply_all_chunks(observed);
        }
    }

    fn drive_holdings(&mut self) {
        let Self { context, membership, holdings, observed, .. } = self;
        if holdings.release_without_store(context, observed, membership) {
            membership.renew_now(context);
        }
        holdings.apply_changed_chunks(context, observed, membership);
        if holdings.manager_is_silent(context, observed, membership) {
            membership.retire();
        }
    }

    fn drive_arbiter(&mut self) {
        let Self { context, membership, observed, keep_alives, arbiter, .. } = self;
        let me = membership.member().filter(|_| !membership.is_suspended());
        let Some(me) = me.filter(|_| observed.is_watching()) else {
            // What this node misses says nothing about others.
            keep_alives.restart();
            return arbiter.restart_timers();
        };
        keep_alives.drive(context, observed);
        if arbiter.drive(context, observed, keep_alives, me, membership.stays()) {
            membership.lose(context);
        }
    }

    fn drive_stateless(&mut self) {
        let Self { context, membership, holdings, observed, stateless, .. } = self;
        stateless.drive(context, observed, membership, holdings);
    }

    fn drive_manager(&mut self) {
        let Self { context, membership, observed, manager, .. } = self;
        let Some(me) = membership.member().cloned() else { return };
        if membership.is_suspended() || !context.identity.roles.manager || !observed.is_watching() {
            return;
        }
        observed.check_processes(context);
        if !manager.follow_manager_row(context, observed, &me) {
            observed.set_unresponsive(BTreeSet::new());
            manager.forget_decisions();
            if membership.stays() {
                manager.campaign(context, observed, &me);
            }
            return;
        }
        manager.pump_chunks(context, observed);
        if manager.begin_decision(context) {
            self.decide(&me);
            self.manager.pump_chunks(&mut self.context, &self.observed);
        }
    }

    fn decide(&mut self, me: &Member) {
        self.manager.update_unresponsive_hosts(&self.context, &mut self.observed);
        self.manager.mark_dead(&mut self.context, &self.observed);
        self.manager.check_placements(&mut self.context);
        self.drive_hand_offs();
        let Self { context, observed, manager, .. } = self;
        manager.assign_unowned_shards(context, observed);
        manager.escalate(context, observed);
        manager.move_late_shards(context, observed);
        manager.drain(context, observed);
        manager.relocate(context, observed);
        manager.make_requested_moves(context, observed);
        manager.rebalance(context, observed);
        manager.step_down(context, observed, me);
        self.deliver_local_messages();
    }

    fn drive_hand_offs(&mut self) {
        let shards = self.manager.hand_offs();
        if shards.is_empty() {
            return;
        }
        let live: BTreeSet<_> = self.observed.all_live().map(|(node, _)| node.clone()).collect();
        for shard in shards {
            self.manager.drive_hand_off(&mut self.context, &self.observed, &live, shard);
            self.deliver_local_messages();
        }
    }

    fn drive_report(&mut self) {
        let report = self.holdings.take_report(&self.context, &self.observed, &self.membership);
        if let Some(report) = report {
            self.send_to_manager(ControlMessage::Report(Box::new(report)));
        }
    }

    fn drive_leaving(&mut self) {
        if self.membership.must_announce_leaving() {
            self.membership.renew_now(&self.context);
            return self.drive_membership();
        }
        let Self { context, membership, holdings, observed, .. } = self;
        match membership.drive_leaving(context, observed) {
            Leaving::No | Leaving::AwaitsHandOffs => return,
            Leaving::StopsShards => holdings.stop_all(context),
            Leaving::HandedOff => {}
        }
        if holdings.is_empty() {
            membership.write_left_row(context);
        }
    }

    fn wake_time(&self) -> Option<u64> {
        if self.membership.has_left() {
            return None;
        }
        let now = self.context.mono();
        // A message from this node to itself may require a decision.
        let decides = !self.membership.is_suspended() && self.manager.decision_is_due();
        let interval = if decides { 1 } else { self.context.settings.tick_interval() };
        let report = self.holdings.report_due(&self.membership).unwrap_or(u64::MAX);
        Some(self.membership.due().max(now + 1).min(now + interval).min(report))
    }
}
