//! The machine itself: what it knows, and how an event reaches the part that it concerns.
//!
//! Confusing at first: `view` is what rows were seen to be; `held` is what this node really has; the
//! manager's `chunks` are the rows that it has sealed. Each part works level-triggered: after every event
//! it looks at what is and does what is missing, so that a lost message or a crash of somebody else needs
//! no repair of its own.

mod manager;
mod member;
mod relative;
mod shards;
mod told;
mod unheard;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::action::{Action, Notice};
use super::event::{Event, WriteError};
use super::settings::{Mutation, Settings};
use super::talk::{Held, Report, Talk};
use crate::assign::{self, AllocationStrategy, Asked};
use crate::codec::FORMAT;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::message::Now;
use crate::records::Claim;
use crate::rows::{
    HandOffId, Key, ManagerRow, Member, Moving, NodeRow, Roles, Row, ShardRow, ShardsRow, Standing,
    chunk_of, chunks, place_of, shard_at,
};
use crate::shard::StopReason;
use manager::Manager;
use member::Membership;
pub use relative::Relative;
use shards::{Own, Probation};
use view::View;

/// Who the node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its name.
    pub node: NodeId,
    /// What it does.
    pub roles: Roles,
    /// Its program's version ([`NodeRow::version`]).
    pub version: u64,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Shards of the pool.
    pub shards: u32,
    /// Random: nonces and choices come from it.
    pub seed: u64,
}

/// One node's machine. Deterministic: the same events give the same actions.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    identity: Identity,
    /// What the driver's wall clock said last: it stands in rows for people, and nothing is decided by it.
    wall: Option<u64>,
    strategy: Arc<dyn AllocationStrategy>,
    view: View,
    /// A watch runs, begun with the last list.
    watching: bool,
    /// A list is asked for and not answered.
    listing: bool,
    /// When to ask for the next list, if neither.
    list_at: u64,
    /// When anything was last handled: an observer that slept does not judge (R8).
    handled: Option<u64>,
    membership: Membership,
    /// Another process may be renewing the lease of this node's name: the count that was seen, and when to look again.
    rival: Option<((Incarnation, u64), u64)>,
    /// What this node wants to be: set by [`Event::Leave`] and [`Event::LeaveNow`].
    leaving: Leaving,
    held: BTreeMap<ShardId, Own>,
    /// Epochs that this life has given up: final (R11).
    finished: BTreeMap<ShardId, Epoch>,
    /// Claims that the store refused, with the epoch that stands there, until the row goes above it.
    refused: BTreeMap<ShardId, (Epoch, Epoch)>,
    /// The revision of each chunk that was acted on.
    seen: BTreeMap<u32, u64>,
    /// Chunks that are not as they were when they were acted on.
    unseen: BTreeSet<u32>,
    report_at: Option<u64>,
    /// The number of the last report to another node.
    reported: u64,
    /// Deployed types that this node cannot run (R24).
    unrunnable: Vec<String>,
    /// Shards of which rows wait for what this node has to tell the manager, each until when.
    waiting: BTreeMap<ShardId, u64>,
    /// When the `EntityStore` was last known to answer (R9).
    store_answered: u64,
    /// Set when this node gives its shards up for want of the store.
    probation: Option<Probation>,
    manager: Option<Manager>,
    /// Something changed that the manager decides from.
    news: bool,
    /// Since when the leadership is seen vacant.
    vacant: Option<u64>,
    /// When a row that was named and not seen may be asked for again.
    look_at: u64,
    /// When a death or a drain whose writing was not answered is written again.
    again_at: u64,
    writes: BTreeMap<u64, Purpose>,
    drains: BTreeMap<NodeId, bool>,
    numbers: u64,
    drawn: u64,
    wake: Option<u64>,
    actions: VecDeque<Action>,
    /// Chunks and shards looked at, for tests.
    #[cfg(test)]
    pub(super) looks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Leaving {
    No,
    Drained,
    Now,
}

/// What a write under way is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    Register(NodeRow, u64),
    Renew(NodeRow, u64),
    Goodbye,
    Lead(ManagerRow),
    Chunk(u32),
    Death(NodeId),
    Drain(NodeId),
}

impl Machine {
    /// A node's machine; it begins by listing the rows.
    #[must_use]
    pub fn new(
        settings: Settings,
        identity: Identity,
        strategy: Box<dyn AllocationStrategy>,
    ) -> Self {
        Self {
            view: View::new(identity.shards),
            settings,
            identity,
            strategy: strategy.into(),
            watching: false,
            listing: true,
            wall: None,
            list_at: 0,
            handled: None,
            membership: Membership::Outside,
            rival: None,
            leaving: Leaving::No,
            held: BTreeMap::new(),
            finished: BTreeMap::new(),
            refused: BTreeMap::new(),
            seen: BTreeMap::new(),
            unseen: BTreeSet::new(),
            report_at: None,
            reported: 0,
            unrunnable: Vec::new(),
            waiting: BTreeMap::new(),
            store_answered: 0,
            probation: None,
            manager: None,
            news: false,
            vacant: None,
            look_at: 0,
            again_at: 0,
            writes: BTreeMap::new(),
            drains: BTreeMap::new(),
            numbers: 0,
            drawn: 0,
            wake: None,
            actions: VecDeque::from([Action::List]),
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Now, event: Event) {
        self.slept(now);
        self.check_lapse(now);
        // A thousand of these come at once, and change nothing that the manager decides from: its next event does.
        let minor = matches!(event, Event::Serving { .. } | Event::StoreAnswered { .. });
        match event {
            Event::Tick => {}
            Event::Listed(rows) => self.on_listed(now, rows),
            Event::Row { key, value } => self.on_row(now, key, value),
            Event::WatchLost => {
                self.watching = false;
                self.list_at = now.mono;
            }
            Event::Written { number, result } => self.on_written(now, number, result),
            Event::Heard { from, talk } => self.on_heard(now, &from, talk),
            Event::Serving { shard, epoch } => self.on_serving(now, shard, epoch),
            Event::Stopped { shard, epoch } => self.on_stopped(now, shard, epoch),
            Event::Lost { shard, epoch, standing } => self.on_lost(now, shard, epoch, standing),
            Event::StoreAnswered { sent } => self.store_answered = self.store_answered.max(sent),
            Event::Claims { number, claims } => self.on_claims(now, number, claims),
            Event::Cached(rows) => self.on_cached(rows),
            Event::Unrunnable(mut types) => {
                types.truncate(Report::MAX_UNRUNNABLE);
                if self.unrunnable != types {
                    self.unrunnable = types;
                    self.report_soon(now);
                }
            }
            Event::Drain { node, draining } => {
                self.drains.insert(node, draining);
            }
            Event::Settings(agreed) => self.on_settings(now, agreed),
            Event::Rebalance => self.ask_rebalance(now),
            Event::Unreachable { node } => {
                self.say_manager(now, Talk::Unreachable { node });
            }
            Event::Leave => self.leaving = self.leaving.max(Leaving::Drained),
            Event::LeaveNow => self.leaving = Leaving::Now,
        }
        self.drive(now, minor);
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send [`Event::Tick`], on the clock of [`Now::mono`].
    #[must_use]
    pub fn wake(&self) -> Option<u64> {
        self.wake
    }

    /// Whose machine it is.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.identity.node
    }

    /// What the driver's wall clock says, in milliseconds since 1970. Without it rows do not say it.
    pub fn set_wall(&mut self, wall: u64) {
        self.wall = Some(wall);
    }

    /// Its present life in the cluster, if it is registered.
    #[must_use]
    pub fn member(&self) -> Option<Member> {
        self.membership.member().cloned()
    }

    /// The term in which it manages, if it does and has sealed every row.
    #[must_use]
    pub fn managing(&self) -> Option<u64> {
        self.manager.as_ref().filter(|manager| manager.sealed()).map(|manager| manager.term)
    }

    /// Whether its lease lapsed, so that its shards wait (R9).
    #[must_use]
    pub fn suspended(&self) -> bool {
        self.membership.suspended()
    }

    /// Live hosts that cannot run every deployed type, with those types, as they told this node: known to the manager
    /// only.
    pub fn unfit(&self) -> impl Iterator<Item = (&NodeId, &[String])> {
        let unfit = self.manager.iter().flat_map(move |_| &self.view.unfit);
        unfit
            .filter(move |(member, _)| self.view.alive(member))
            .map(|(member, types)| (&member.node, &types[..]))
    }

    /// The rows of nodes, as last seen.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeRow)> {
        self.view.nodes.iter().map(|(node, (row, _))| (node, row))
    }

    /// The manager's row, as last seen.
    #[must_use]
    pub fn manager_row(&self) -> Option<&ManagerRow> {
        self.view.manager.as_ref().map(|(row, _)| row)
    }

    /// Every chunk of assignments, as last seen, and its revision.
    pub fn assignments(&self) -> impl Iterator<Item = (u32, &ShardsRow, u64)> {
        self.view.chunks.iter().map(|(chunk, (row, at))| (*chunk, row, *at))
    }

    /// What it holds: shard, epoch, whether it serves.
    pub fn held(&self) -> impl Iterator<Item = (ShardId, Epoch, bool)> {
        self.held.iter().map(|(shard, own)| (*shard, own.epoch, own.serving))
    }

    /// What a balancing would move now: shard, from, to. For a dry run, on any node.
    #[must_use]
    pub fn would_move(&self) -> Vec<(ShardId, NodeId, NodeId)> {
        let rows: Vec<_> = self.view.shards().collect();
        let plan = manager::plan::of_rows(&self.view, &rows, self.identity.seed);
        let steps = self.strategy.rebalance(&plan.view, self.identity.shards as usize);
        let (steps, _) = assign::checked(&plan.view, steps, Asked::Rebalance(usize::MAX));
        steps
            .into_iter()
            .filter_map(|step| {
                let from = rows.get(step.shard.0 as usize - 1)?.1.owner.clone()?.node;
                Some((step.shard, from, plan.members.get(step.to)?.node.clone()))
            })
            .collect()
    }

    /// Everything that may be due.
    fn drive(&mut self, now: Now, minor: bool) {
        if !self.watching && !self.listing && now.mono >= self.list_at {
            self.listing = true;
            self.actions.push_back(Action::List);
        }
        self.drive_membership(now);
        self.drive_shards(now);
        self.drive_unheard(now);
        self.drive_drains(now);
        if !minor {
            self.drive_manager(now);
        }
        self.drive_report(now);
        self.drive_leaving(now);
        let beat = self.settings.beat();
        // What this node told itself while it decided.
        let again = self.news && !self.suspended() && self.managing().is_some();
        let beat = if again { 1 } else { beat };
        // One that is due and may not be made is no reason to wake.
        let reports = self.membership.member().is_some() && !self.suspended();
        let report = self.report_at.filter(|_| reports).unwrap_or(u64::MAX);
        self.wake = (!matches!(self.membership, Membership::Left))
            .then(|| self.membership.due().max(now.mono + 1).min(now.mono + beat).min(report));
    }

    fn write(&mut self, purpose: Purpose, key: Key, expected: Option<u64>, row: Row) {
        self.numbers += 1;
        self.writes.insert(self.numbers, purpose);
        self.actions.push_back(Action::Write { number: self.numbers, key, expected, row });
    }

    /// Says something to a node, which may be this one.
    fn say(&mut self, now: Now, to: &NodeId, talk: Talk) {
        match self.membership.member().cloned() {
            Some(me) if me.node == *to => self.on_heard(now, &me, talk),
            _ => self.actions.push_back(Action::Say { to: to.clone(), talk }),
        }
    }

    fn say_manager(&mut self, now: Now, talk: Talk) {
        if let Some(holder) = self.view.manager.as_ref().map(|(row, _)| row.holder.node.clone()) {
            self.say(now, &holder, talk);
        }
    }

    fn note(&mut self, notice: Notice) {
        self.actions.push_back(Action::Note(notice));
    }

    fn off(&self, mutation: Mutation) -> bool {
        self.settings.mutations.contains(&mutation)
    }

    /// A number that nobody can guess and that the same seed gives again.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.identity.seed.to_le_bytes());
        hasher.update(&self.drawn.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}
