//! The cluster as one of its nodes sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ostraca_client::{NodeState, NodeStatus, Nodes, ShardInfo, ShardState};

/// What `ostraca nodes` and `ostraca shards` show.
#[derive(Clone, Debug)]
pub struct View {
    /// The nodes and the manager.
    pub nodes: Nodes,
    /// Every shard.
    pub shards: Vec<ShardInfo>,
}

impl View {
    /// The manager's name, if the manager is known and live as far as this node knows.
    #[must_use]
    pub fn manager(&self) -> Option<&str> {
        let name = Some(self.nodes.manager.as_str()).filter(|name| !name.is_empty())?;
        self.node(name).filter(|node| alive(node))?;
        Some(name)
    }

    /// The node with this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.nodes.iter().find(|node| node.name == name)
    }

    /// Whether a node has a live incarnation, as far as this node knows.
    #[must_use]
    pub fn is_alive(&self, name: &str) -> bool {
        self.node(name).is_some_and(alive)
    }

    /// Names of the live nodes that run entities and are not draining.
    #[must_use]
    pub fn hosts(&self) -> Vec<&str> {
        let live = |node: &&NodeState| {
            node.status() == NodeStatus::Live && node.roles.iter().any(|role| role == "host")
        };
        self.nodes.nodes.iter().filter(live).map(|node| node.name.as_str()).collect()
    }

    /// A shard's owner.
    #[must_use]
    pub fn owner(&self, shard: u32) -> Option<&str> {
        let it = self.shards.iter().find(|it| it.shard == shard)?;
        Some(it.owner.as_str()).filter(|owner| !owner.is_empty())
    }

    /// Number of shards per node.
    #[must_use]
    pub fn owned(&self) -> BTreeMap<&str, usize> {
        let mut owned = BTreeMap::new();
        for shard in self.shards.iter().filter(|shard| !shard.owner.is_empty()) {
            *owned.entry(shard.owner.as_str()).or_default() += 1;
        }
        owned
    }

    /// Number of shards of a node.
    #[must_use]
    pub fn owned_by(&self, name: &str) -> usize {
        self.owned().get(name).copied().unwrap_or(0)
    }

    /// The number of shards that are being handed over.
    #[must_use]
    pub fn moving(&self) -> usize {
        self.shards.iter().filter(|shard| shard.state() == ShardState::Moving).count()
    }

    /// Whether there is a manager, every shard has a live owner that serves it, and none is moving.
    #[must_use]
    pub fn settled(&self, shards: u32) -> bool {
        let good = |shard: &ShardInfo| {
            matches!(shard.state(), ShardState::Serving | ShardState::Assigned)
                && self.node(&shard.owner).is_some_and(alive)
        };
        self.manager().is_some()
            && self.shards.len() == shards as usize
            && self.shards.iter().all(good)
    }

    /// Whether the shard counts of the hosts differ by at most one in each pool.
    #[must_use]
    pub fn balanced(&self) -> bool {
        let pools: BTreeSet<&str> = self.shards.iter().map(|it| it.pool.as_str()).collect();
        let is_balanced = |pool: &&str| {
            let owned = self.hosts().into_iter().map(|host| {
                self.shards.iter().filter(|it| it.pool == **pool && it.owner == host).count()
            });
            let (least, most) = owned.fold((usize::MAX, 0), |(l, m), n| (l.min(n), m.max(n)));
            most <= least.saturating_add(1) && most > 0
        };
        !pools.is_empty() && pools.iter().all(is_balanced)
    }

    /// Number of shards whose owner is not the same as in an earlier view.
    #[must_use]
    pub fn moved_since(&self, before: &Self) -> usize {
        self.shards.iter().filter(|it| before.owner(it.shard) != self.owner(it.shard)).count()
    }
}

fn alive(node: &NodeState) -> bool {
    matches!(node.status(), NodeStatus::Live | NodeStatus::Draining)
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "manager {:?}, term {}", self.nodes.manager, self.nodes.term)?;
        for node in &self.nodes.nodes {
            let owned = self.owned_by(&node.name);
            writeln!(f, "{} {:?}: {owned} shards", node.name, node.status())?;
        }
        for shard in &self.shards {
            let (to, state) = (&shard.target_node, shard.state());
            write!(f, "{}@{} {}{to} {state:?}; ", shard.shard, shard.epoch, shard.owner)?;
        }
        Ok(())
    }
}
