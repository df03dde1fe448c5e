//! The cluster as this node sees it: commands show this view, and a starting node waits for it to be ready.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use ostraca_core::ids::{Epoch, NodeId, ShardId};
use ostraca_core::message::Now;
use ostraca_core::node::{Machine, Notice};
use ostraca_core::pools::{Pool, Pools};
use ostraca_core::rows::{
    Assignment, AssignmentsRow, ManagerRow, Member, NodeRow, NodeStatus, SHARDS_PER_CHUNK,
    chunk_of, index_in_chunk,
};
use tokio::sync::watch;

use ostraca_catalog::clock::{boot_millis, wall_millis};

/// A snapshot of the cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// This node's incarnation, once it is registered.
    pub member: Option<Member>,
    /// Whether this node's lease has lapsed.
    pub suspended: bool,
    /// The manager's row.
    pub manager: Option<ManagerRow>,
    /// When the manager last changed, on this node's clock, in milliseconds.
    pub manager_since_ms: u64,
    /// The rows of nodes.
    pub nodes: BTreeMap<NodeId, NodeRow>,
    /// Empty until the rows have been read.
    pub shards: AssignmentTable,
    /// The shards that this node holds, and whether it serves each of them.
    pub held_shards: Arc<BTreeMap<ShardId, (Epoch, bool)>>,
    /// Hosts that cannot run every deployed type, with those types. Only the manager knows them.
    pub hosts_with_unrunnable_types: Vec<(NodeId, Vec<String>)>,
    /// Members that left this node's last keep-alives unanswered: how many in a row, and whether each counts as unreachable
    /// (E12).
    pub unanswered_keep_alives: BTreeMap<Member, (u64, bool)>,
    /// Whether this node has left.
    pub has_left: bool,
    /// The pools; `None` until the first view of the machine.
    pub pools: Option<Arc<Pools>>,
}

/// Every shard's assignment, in order. Successive views share the chunks that did not change: there may be a thousand
/// chunks, and a new view every 20 ms.
#[derive(Clone, Debug, Default)]
pub struct AssignmentTable(Vec<Chunk>);

/// A chunk's assignments, and the revision of its row.
#[derive(Clone, Debug)]
struct Chunk(Arc<[Assignment]>, u64);

impl AssignmentTable {
    fn of<'a>(rows: impl Iterator<Item = (u32, &'a AssignmentsRow, u64)>, before: &Self) -> Self {
        let mut chunks = Vec::with_capacity(before.0.len());
        for (number, row, revision) in rows {
            let number = number as usize;
            // A missing chunk leaves its slot empty.
            chunks.resize_with(number, || {
                Chunk(vec![Assignment::default(); SHARDS_PER_CHUNK as usize].into(), 0)
            });
            let known = before.0.get(number).filter(|Chunk(_, at)| *at == revision);
            chunks.push(
                known.cloned().unwrap_or_else(|| Chunk(row.assignments[..].into(), revision)),
            );
        }
        Self(chunks)
    }

    /// The number of shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|Chunk(rows, _)| rows.len()).sum()
    }

    /// Whether no row has been read yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The assignments, from shard 1.
    pub fn iter(&self) -> impl Iterator<Item = &Assignment> {
        self.chunks().flatten()
    }

    /// The assignments, grouped by chunk.
    pub fn chunks(&self) -> impl Iterator<Item = &[Assignment]> {
        self.0.iter().map(|Chunk(rows, _)| &rows[..])
    }

    fn get(&self, shard: ShardId) -> Option<&Assignment> {
        self.0.get(chunk_of(shard) as usize)?.0.get(index_in_chunk(shard))
    }
}

#[cfg(test)]
impl From<Vec<Assignment>> for AssignmentTable {
    fn from(rows: Vec<Assignment>) -> Self {
        Self(rows.chunks(SHARDS_PER_CHUNK as usize).map(|rows| Chunk(rows.into(), 1)).collect())
    }
}

impl ClusterView {
    pub(crate) fn from_machine(machine: &Machine, now: Now, before: &Self) -> Self {
        let manager = machine.manager_row().cloned();
        let same = before.manager.as_ref().map(|row| row.term) == manager.as_ref().map(|r| r.term);
        let held =
            || machine.held_shards().map(|(shard, epoch, serving)| (shard, (epoch, serving)));
        let as_before = held().eq(before.held_shards.iter().map(|(shard, held)| (*shard, *held)));
        Self {
            member: machine.member(),
            suspended: machine.is_suspended(),
            manager,
            manager_since_ms: if same { before.manager_since_ms } else { now.mono },
            nodes: machine.nodes().map(|(node, row)| (node.clone(), row.clone())).collect(),
            shards: AssignmentTable::of(machine.assignment_rows(), &before.shards),
            held_shards: if as_before {
                before.held_shards.clone()
            } else {
                Arc::new(held().collect())
            },
            hosts_with_unrunnable_types: machine
                .hosts_with_unrunnable_types()
                .map(|(node, types)| (node.clone(), types.to_vec()))
                .collect(),
            unanswered_keep_alives: machine
                .unanswered_keep_alives()
                .map(|(member, failures, unreachable)| (member, (failures, unreachable)))
                .collect(),
            has_left: before.has_left,
            pools: match &before.pools {
                Some(known) if **known == *machine.pools() => Some(known.clone()),
                _ => Some(Arc::new(machine.pools().clone())),
            },
        }
    }

    /// Whether this incarnation is live, according to its node's row.
    #[must_use]
    pub fn alive(&self, member: &Member) -> bool {
        self.nodes.get(&member.node).is_some_and(|row| {
            row.incarnation == member.incarnation && row.status == NodeStatus::Live
        })
    }

    /// A shard's epoch, according to its row.
    #[must_use]
    pub fn epoch(&self, shard: ShardId) -> Epoch {
        self.row(shard).map_or_else(Epoch::default, |row| row.epoch)
    }

    /// A shard's owner if it is live, according to the rows.
    #[must_use]
    pub fn owner(&self, shard: ShardId) -> Option<&Member> {
        self.row(shard)?.owner.as_ref().filter(|owner| self.alive(owner))
    }

    /// Whether a shard has ever had an owner. One that never had stores nothing.
    #[must_use]
    pub fn had_owner(&self, shard: ShardId) -> bool {
        self.row(shard).is_some_and(|row| row.epoch > Epoch(0))
    }

    fn row(&self, shard: ShardId) -> Option<&Assignment> {
        self.shards.get(shard)
    }

    /// Whether other nodes are still draining or leaving; they need the store until they have left.
    #[must_use]
    pub fn has_leaving_peers(&self, me: &NodeId) -> bool {
        let leaves = |row: &NodeRow| row.status == NodeStatus::Live && row.is_draining_or_leaving();
        self.nodes.iter().any(|(node, row)| node != me && leaves(row))
    }

    /// Whether any other node is live.
    #[must_use]
    pub fn has_live_peers(&self, me: &NodeId) -> bool {
        self.nodes.iter().any(|(node, row)| node != me && row.status == NodeStatus::Live)
    }

    /// Whether this node knows a live owner of every shard and serves all its own ones. Shards that no live node can own
    /// do not count, nor those whose first allocation waits for more hosts (K27; `min_hosts` in the cluster, or the
    /// pool's own number): such a node must not keep others from being started.
    #[must_use]
    pub fn is_ready(&self, min_hosts: usize) -> bool {
        let Some(pools) = &self.pools else { return false };
        let count = |is_host: &dyn Fn(&NodeRow) -> bool| {
            let stay = |row: &&NodeRow| {
                row.status == NodeStatus::Live && !row.is_draining_or_leaving() && is_host(row)
            };
            self.nodes.values().filter(stay).count()
        };
        let hosts = count(&NodeRow::is_host);
        // A shard without a row never had an owner: the hosts of a stateless pool write rows when they first divide it.
        let is_new = |first: u32, last: u32| {
            (first..=last).all(|shard| self.epoch(ShardId(shard)) == Epoch::default())
        };
        let waits_for_hosts = hosts < min_hosts && is_new(1, pools.shard_count());
        let is_settled = |pool: &Pool| {
            let (first, last) = (pool.first.0, pool.last().0);
            let of_pool = count(&|row| row.hosts(pool));
            of_pool == 0
                || (of_pool < pool.min_hosts as usize && is_new(first, last))
                || (first..=last).all(|shard| self.owner(ShardId(shard)).is_some())
        };
        let mine = |row: &&Assignment| row.owner.is_some() && row.owner == self.member;
        let live_mine = self.member.as_ref().is_some_and(|member| self.alive(member));
        let named = if live_mine { self.shards.iter().filter(mine).count() } else { 0 };
        let serving = self.held_shards.values().filter(|(_, serving)| *serving).count();
        self.member.is_some()
            && (waits_for_hosts || (pools.iter().all(is_settled) && serving >= named))
    }
}

/// An event that this node observed.
#[derive(Clone, Debug)]
pub struct EventRecord {
    /// Number among this node's events, from 1.
    pub sequence: u64,
    /// Cluster time in milliseconds.
    pub cluster_time_ms: u64,
    /// Milliseconds on this node's own clock.
    pub mono: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// What happened.
    pub notice: Notice,
}

/// Maximum number of events kept for later requests.
const KEPT: usize = 4_096;

/// The last 4,096 cluster events that this node observed.
#[derive(Debug)]
pub struct EventLog {
    ring: Mutex<VecDeque<EventRecord>>,
    last: watch::Sender<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self { ring: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl EventLog {
    pub(crate) fn put(&self, at: u64, notice: Notice) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let number = ring.back().map_or(0, |last| last.sequence) + 1;
        let (mono, wall_ms) = (boot_millis(), wall_millis());
        ring.push_back(EventRecord {
            sequence: number,
            cluster_time_ms: at,
            mono,
            unix_ms: wall_ms,
            notice,
        });
        if ring.len() > KEPT {
            ring.pop_front();
        }
        drop(ring);
        self.last.send_replace(number);
    }

    /// Returns at most `limit` events after the event with this number.
    #[must_use]
    pub fn after(&self, number: u64, limit: usize) -> Vec<EventRecord> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.iter().filter(|event| event.sequence > number).take(limit).cloned().collect()
    }

    /// A receiver of the last event's number, which also wakes waiters.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::Incarnation;

    use super::*;

    fn chunk(epoch: u64, shards: usize) -> AssignmentsRow {
        let row = Assignment { epoch: Epoch(epoch), ..Assignment::default() };
        AssignmentsRow { assignments: vec![row; shards], ..AssignmentsRow::default() }
    }

    #[test]
    fn a_view_copies_only_the_chunks_that_changed() {
        let (first, third, changed) = (chunk(1, 64), chunk(3, 10), chunk(4, 10));
        let rows = [(0, &first, 5), (2, &third, 5)];
        let before = AssignmentTable::of(rows.into_iter(), &AssignmentTable::default());
        assert_eq!((before.len(), before.iter().count()), (138, 138));
        let epoch =
            |shards: &AssignmentTable, shard| shards.get(ShardId(shard)).map(|row| row.epoch.0);
        assert_eq!(
            [1, 64, 65, 129, 138].map(|shard| epoch(&before, shard)),
            [1, 1, 0, 3, 3].map(Some)
        );
        assert_eq!(epoch(&before, 139), None);

        let after = AssignmentTable::of([(0, &first, 5), (2, &changed, 6)].into_iter(), &before);
        let shared = |number: usize| Arc::ptr_eq(&before.0[number].0, &after.0[number].0);
        assert_eq!((shared(0), shared(2), epoch(&after, 129)), (true, false, Some(4)));
    }

    /// Two hosts, of which this one is `a`, and two pools of two shards; `b` alone may host the second one.
    fn two_hosts(owners: [&str; 4]) -> ClusterView {
        let mut pools = Pools::one(2);
        let second = Pool { role: Some("b".into()), ..Pool::new("second", 2, &pools) };
        pools.add(second).expect("a pool");
        let incarnation = Incarnation { counter: 1, nonce: 1 };
        let member = |name: &str| Member { node: name.into(), incarnation };
        let node = |name: &str| {
            let row = NodeRow::for_tests(incarnation);
            row.with_pool_roles(&[name.into()]).expect("fits")
        };
        let row = |name: &&str| Assignment {
            epoch: Epoch((!name.is_empty()).into()),
            owner: (!name.is_empty()).then(|| member(name)),
            ..Assignment::default()
        };
        let held = owners.iter().zip(1..).filter(|(name, _)| **name == "a");
        let held = held.map(|(_, shard)| (ShardId(shard), (Epoch(1), true))).collect();
        ClusterView {
            member: Some(member("a")),
            nodes: ["a", "b"].map(|name| (name.into(), node(name))).into(),
            shards: owners.iter().map(row).collect::<Vec<_>>().into(),
            held_shards: Arc::new(held),
            pools: Some(Arc::new(pools)),
            ..ClusterView::default()
        }
    }

    #[test]
    fn k39_a_node_is_ready_once_every_pool_with_hosts_is_served() {
        assert!(two_hosts(["a", "a", "b", "b"]).is_ready(1));
        assert!(!two_hosts(["a", "a", "b", ""]).is_ready(1), "a shard of the other pool");
        assert!(!two_hosts(["a", "", "b", "b"]).is_ready(1));
        // Nobody can own the shards of the second pool while its host is gone.
        let mut alone = two_hosts(["a", "a", "b", "b"]);
        alone.nodes.remove(&NodeId::from("b"));
        assert!(alone.is_ready(1));
        // Not all of its own shards are served yet.
        let mut claiming = two_hosts(["a", "a", "b", "b"]);
        claiming.held_shards = Arc::default();
        assert!(!claiming.is_ready(1));
    }

    #[test]
    fn k27_a_node_is_ready_while_the_first_allocation_waits() {
        let waits = two_hosts([""; 4]);
        assert!(waits.is_ready(3) && !waits.is_ready(2));
        assert!(!two_hosts(["a", "", "", ""]).is_ready(3), "it has begun");
        let mut without_rows = two_hosts([""; 4]);
        without_rows.shards = vec![Assignment::default(); 2].into();
        assert!(without_rows.is_ready(3) && !without_rows.is_ready(2));
        let mut pool_waits = two_hosts(["a", "a", "", ""]);
        let mut pools = Pools::one(2);
        let second = Pool { role: Some("b".into()), min_hosts: 2, ..Pool::new("s", 2, &pools) };
        pools.add(second).expect("a pool");
        pool_waits.pools = Some(Arc::new(pools));
        assert!(pool_waits.is_ready(1));
    }
}
