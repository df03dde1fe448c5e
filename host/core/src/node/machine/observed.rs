//! The rows as they were last seen, what changed with each, and when each lease was last seen to move.

use super::*;

#[derive(Clone, Debug, Hash)]
pub(super) struct ObservedCluster {
    pub(super) nodes: BTreeMap<NodeId, (NodeRow, u64)>,
    pub(super) manager: Option<(ManagerRow, u64)>,
    pub(super) chunks: BTreeMap<u32, (AssignmentsRow, u64)>,
    /// When each node's lease was last seen to move, on this node's clock (R8).
    lease_changed_at: BTreeMap<NodeId, u64>,
    /// Lives whose last report says that their `EntityStore` does not answer: told to the manager only (R9).
    pub(super) without_store: BTreeSet<Member>,
    /// Lives whose last report names deployed types that they cannot run: told to the manager only (R24).
    pub(super) unrunnable_types: BTreeMap<Member, Vec<String>>,
    /// Nodes that the manager has not heard for long: known to it only (S12).
    pub(super) unresponsive: BTreeSet<NodeId>,
    /// What was last told of each shard: epoch, live owner, moving.
    routes: Vec<(Epoch, Option<Member>, bool)>,
}

impl ObservedCluster {
    pub(super) fn new(shards: u32) -> Self {
        Self {
            nodes: BTreeMap::new(),
            manager: None,
            chunks: BTreeMap::new(),
            lease_changed_at: BTreeMap::new(),
            without_store: BTreeSet::new(),
            unrunnable_types: BTreeMap::new(),
            unresponsive: BTreeSet::new(),
            routes: vec![(Epoch(0), None, false); shards as usize],
        }
    }

    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for (node, (row, at)) in &mut self.nodes {
            row.renewals = to.map_renewals(node, row.renewals);
            *at = to.map_revision(&RowKey::Node(node.clone()), *at);
        }
        if let Some((_, at)) = &mut self.manager {
            *at = to.map_revision(&RowKey::Manager, *at);
        }
        for (chunk, (_, at)) in &mut self.chunks {
            *at = to.map_revision(&RowKey::Assignments(*chunk), *at);
        }
        let nodes = &self.nodes;
        for (node, at) in &mut self.lease_changed_at {
            // Nobody asks for how long a life was still that is over.
            let live = nodes.get(node).is_some_and(|(row, _)| row.status == NodeStatus::Live);
            *at = if live { to.map_time(*at) } else { 0 };
        }
    }

    /// Counts every lease as just renewed.
    pub(super) fn restart_lease_timers(&mut self, now: u64) {
        for at in self.lease_changed_at.values_mut() {
            *at = now;
        }
    }

    /// Whether this life of a node may still own shards, as far as its row says.
    pub(super) fn alive(&self, member: &Member) -> bool {
        self.nodes.get(&member.node).is_some_and(|(row, _)| {
            row.incarnation == member.incarnation && row.status == NodeStatus::Live
        })
    }

    /// Whether this life of a node is over: none if its row was not seen yet, or only one before it.
    pub(super) fn has_ended(&self, member: &Member) -> Option<bool> {
        let (row, _) = self.nodes.get(&member.node)?;
        if row.incarnation == member.incarnation {
            return Some(row.status != NodeStatus::Live);
        }
        (row.incarnation.counter > member.incarnation.counter).then_some(true)
    }

    /// Whether a node's lease has not been seen to move for `span` (R8).
    pub(super) fn lease_unchanged_for(&self, node: &NodeId, now: u64, span: u64) -> bool {
        self.lease_changed_at.get(node).is_some_and(|at| now.saturating_sub(*at) >= span)
    }

    /// Whether a life's lease, as its own row says it, has not been seen to move for so long and `margin` (R8).
    pub(super) fn lapsed(&self, node: &NodeId, now: u64, margin: u64) -> bool {
        let row = self.nodes.get(node).map(|(row, _)| row);
        row.is_some_and(|row| self.lease_unchanged_for(node, now, row.lease.saturating_add(margin)))
    }

    /// Every node whose row says that it lives.
    pub(super) fn all_live(&self) -> impl Iterator<Item = (&NodeId, &NodeRow)> {
        self.nodes
            .iter()
            .filter(|(_, (row, _))| row.status == NodeStatus::Live)
            .map(|(node, (row, _))| (node, row))
    }

    /// Those of them that may get shards: where there are others, none whose `EntityStore` does not answer it (R9),
    /// none that is not heard, and none that cannot run every deployed type (R24).
    pub(super) fn eligible_hosts(&self) -> impl Iterator<Item = (Member, &NodeRow)> {
        let all = || {
            self.all_live()
                .filter(|(_, row)| {
                    row.roles.host && !row.is_draining_or_leaving() && row.store_available
                })
                .map(|(node, row)| {
                    (Member { node: node.clone(), incarnation: row.incarnation }, row)
                })
        };
        let mute = |member: &Member| {
            self.without_store.contains(member) || self.unresponsive.contains(&member.node)
        };
        let all_mute = all().all(|(member, _)| mute(&member));
        let able = move || all().filter(move |(member, _)| all_mute || !mute(member));
        // Of two that could serve, rather one that runs all types; rather one that runs some than none.
        let all_unfit = able().all(|(member, _)| self.unrunnable_types.contains_key(&member));
        able().filter(move |(member, _)| all_unfit || !self.unrunnable_types.contains_key(member))
    }

    /// Every shard's row, in order.
    pub(super) fn assignments(&self) -> impl Iterator<Item = (ShardId, &Assignment)> {
        self.chunks.iter().flat_map(|(chunk, (row, _))| {
            row.assignments.iter().enumerate().map(|(place, row)| (shard_at(*chunk, place), row))
        })
    }

    pub(super) fn assignment(&self, shard: ShardId) -> Option<&Assignment> {
        self.chunks.get(&chunk_of(shard))?.0.assignments.get(index_in_chunk(shard))
    }
}

impl Machine {
    /// Takes a row that is newer than what is known; older ones change nothing.
    pub(super) fn learn(&mut self, now: Now, key: RowKey, row: Row, revision: u64) {
        match (key, row) {
            (RowKey::Node(node), Row::Node(row)) => self.learn_node(now, node, row, revision),
            (RowKey::Manager, Row::Manager(row)) => {
                let known = self.view.manager.as_ref();
                if known.is_some_and(|(_, at)| *at >= revision) {
                    return;
                }
                if known.is_none_or(|(old, _)| old.term != row.term) {
                    let (holder, term) = (row.holder.clone(), row.term);
                    self.notify(Notice::ManagerChanged { holder, term });
                    self.report_soon(now);
                    self.restart_manager_silence_timers(now);
                }
                self.view.manager = Some((row, revision));
                self.leadership_vacant_since = None;
            }
            (RowKey::Assignments(chunk), Row::Assignments(row)) => {
                if self.view.chunks.get(&chunk).is_some_and(|(_, at)| *at >= revision) {
                    return;
                }
                self.decision_needed = true;
                let old = self.view.chunks.insert(chunk, (row, revision));
                self.changed_chunks.insert(chunk);
                self.notify_assignment_changes(chunk, old.map(|(row, _)| row));
                self.publish_routes(chunk);
            }
            // A row under another's key: nothing that this program writes.
            _ => {}
        }
    }

    fn learn_node(&mut self, now: Now, node: NodeId, row: NodeRow, revision: u64) {
        let old = self.view.nodes.get(&node);
        if old.is_some_and(|(_, at)| *at >= revision) {
            return;
        }
        let old = old.map(|(row, _)| row.clone());
        let same = |old: &NodeRow| old.incarnation == row.incarnation;
        if old.as_ref().is_none_or(|old| !same(old) || old.renewals != row.renewals) {
            self.view.lease_changed_at.insert(node.clone(), now.mono);
        }
        let member = Member { node: node.clone(), incarnation: row.incarnation };
        let alive = row.status == NodeStatus::Live;
        let was = old.as_ref().is_some_and(|old| same(old) && old.status == NodeStatus::Live);
        if let Some(old) = old.as_ref().filter(|old| !same(old) && old.status == NodeStatus::Live) {
            let former = Member { node: node.clone(), incarnation: old.incarnation };
            self.actions.push_back(Action::UpdatePeer {
                member: former,
                alive: false,
                addresses: old.addresses.clone(),
            });
        }
        if alive != was {
            let stopped = row.status == NodeStatus::Left;
            self.notify(if alive {
                Notice::NodeJoined(member.clone())
            } else {
                Notice::NodeGone { member: member.clone(), left_gracefully: stopped }
            });
        }
        let drains = row.is_draining_or_leaving();
        let drained = old.as_ref().is_some_and(NodeRow::is_draining_or_leaving);
        // A mark that was there before the node joined is said again: it outlives restarts.
        if alive && (drains != drained || (drains && !was)) {
            self.notify(Notice::DrainChanged(member.clone(), drains));
        }
        if old.as_ref().is_none_or(|old| alive != was || old.addresses != row.addresses) {
            let addresses = row.addresses.clone();
            self.actions.push_back(Action::UpdatePeer { member, alive, addresses });
        }
        let changed = alive != was || old.as_ref().is_some_and(|old| !same(old));
        let known = old.as_ref().is_some_and(|old| same(old) && old.status == row.status);
        if let Some(manager) = self.manager.as_mut().filter(|_| !known) {
            // Any shard may be its.
            manager.dirty_chunks.add_all(self.identity.shard_count);
        }
        let mine = (node == self.identity.node).then(|| row.clone());
        // A renewal of a lease and nothing else is none.
        let as_before = |old: &NodeRow| NodeRow { renewals: old.renewals, ..row.clone() } == *old;
        self.decision_needed |= old.as_ref().is_none_or(|old| !as_before(old));
        self.view.nodes.insert(node, (row, revision));
        if let Some(row) = mine {
            self.learn_own(now, row, revision);
        }
        if changed {
            for chunk in self.view.chunks.keys().copied().collect::<Vec<_>>() {
                self.publish_routes(chunk);
            }
        }
    }

    fn notify_assignment_changes(&mut self, chunk: u32, old: Option<AssignmentsRow>) {
        let Some((row, _)) = self.view.chunks.get(&chunk) else { return };
        let mut notices = Vec::new();
        for (place, row) in row.assignments.iter().enumerate() {
            let before = old.as_ref().and_then(|old| old.assignments.get(place));
            let shard = shard_at(chunk, place);
            if let Some(owner) = &row.owner {
                if before.is_none_or(|before| before.epoch != row.epoch) {
                    let (epoch, owner) = (row.epoch, owner.clone());
                    notices.push(Notice::ShardAssigned { shard, epoch, owner });
                } else if row.hand_off.is_some() && before.is_none_or(|b| b.hand_off.is_none()) {
                    notices.push(Notice::HandOffStarted { shard, from: owner.clone() });
                } else if row.hand_off.is_none() && before.is_some_and(|b| b.hand_off.is_some()) {
                    notices.push(Notice::HandOffFailed { shard, owner: owner.clone() });
                }
            }
        }
        for notice in notices {
            self.notify(notice);
        }
    }

    /// Tells the routes of a chunk's shards that are not as they were told before.
    fn publish_routes(&mut self, chunk: u32) {
        let Some((row, _)) = self.view.chunks.get(&chunk) else { return };
        let mut changed = Vec::new();
        for (place, row) in row.assignments.iter().enumerate() {
            let shard = shard_at(chunk, place);
            let owner = row.owner.clone().filter(|owner| self.view.alive(owner));
            let route = (row.epoch, owner, row.hand_off.is_some());
            let Some(told) = self.view.routes.get(shard.0 as usize - 1) else { continue };
            // R13: a route moves only to higher epochs.
            if *told != route && told.0 <= route.0 {
                changed.push((shard, route));
            }
        }
        for (shard, route) in changed {
            self.view.routes[shard.0 as usize - 1] = route.clone();
            let (epoch, owner, moving) = route;
            self.actions.push_back(Action::UpdateRoute {
                shard,
                epoch,
                owner,
                hand_off_in_progress: moving,
            });
        }
    }

    /// Routes and addresses from disk: for sending, until the store tells better (R13, S8).
    pub(super) fn on_cached(&mut self, rows: Vec<(RowKey, Row, u64)>) {
        if self.watching {
            return;
        }
        let mut lives = BTreeMap::new();
        for (key, row, _) in &rows {
            if let (RowKey::Node(node), Row::Node(row)) = (key, row) {
                lives.insert(node.clone(), (row.incarnation, row.status == NodeStatus::Live));
                self.actions.push_back(Action::UpdatePeer {
                    member: Member { node: node.clone(), incarnation: row.incarnation },
                    alive: row.status == NodeStatus::Live,
                    addresses: row.addresses.clone(),
                });
            }
        }
        for (key, row, _) in rows {
            let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) else { continue };
            for (place, row) in row.assignments.into_iter().enumerate() {
                let shard = shard_at(chunk, place);
                let owner = row
                    .owner
                    .filter(|owner| lives.get(&owner.node) == Some(&(owner.incarnation, true)));
                if let Some(told) = self.view.routes.get_mut(shard.0 as usize - 1) {
                    *told = (row.epoch, owner.clone(), false);
                    let epoch = row.epoch;
                    self.actions.push_back(Action::UpdateRoute {
                        shard,
                        epoch,
                        owner,
                        hand_off_in_progress: false,
                    });
                }
            }
        }
    }
}
