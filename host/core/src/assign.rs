//! Allocation strategies, which decide which host gets which shard (section "who decides": K22, K23, S16, E5, A4).
//!
//! A strategy is a pure function of an [`AllocationView`]: it keeps no state between calls, so a new manager
//! decides as the old one would have. It only proposes. The manager and the store ensure that a shard never has two
//! owners (S14), and no strategy can break that: the worst that a bad strategy can do is leave shards where they
//! are or move them needlessly.
//!
//! Confusing at first: a shard with [`ShardPlacement::hand_off_in_progress`] already counts toward the host that it is
//! moving to, and no strategy proposes to move it (A5). So rounds may overlap: a manager that has started ten moves
//! calls the strategy again and gets the next ten.
//!
//! All strategies here respect versions as S16.2 and S16.5 require: while hosts differ in version (a rolling update
//! is in progress), no shard leaves its host, and shards that need an owner get only hosts of the latest version.

mod average;
mod check;
mod external;
mod least_shard;
mod load;
mod preferred_host;
mod random;
mod ratio;
mod stateless;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use average::Average;
pub use check::InvalidMove;
pub(crate) use check::{MoveKind, filter_valid_moves};
pub use external::External;
pub use least_shard::LeastShard;
pub use load::MeasuredLoad;
pub use preferred_host::{Ranges, Rendezvous};
pub use stateless::{Stateless, contiguous_range};

use crate::ids::{NodeId, ShardId};
pub(crate) use ratio::Ratio;

/// A node that may own shards: it is live, has the host role, is not draining, and its store responds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The node's id.
    pub node: NodeId,
    /// The version of the node's program; the highest in the view is the latest.
    pub version: u64,
    /// How much of the load it should have, in relation to the other hosts; at least 1.
    pub weight: u32,
    /// Whether it gets no shards for now, because it did not serve some in time (K14). It keeps those that it has.
    pub paused: bool,
}

impl Host {
    /// A host with the usual weight, 1.
    #[must_use]
    pub const fn new(node: NodeId, version: u64) -> Self {
        Self { node, version, weight: 1, paused: false }
    }
}

/// The placement of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardPlacement {
    /// Its owner, as an index into [`AllocationView::hosts`]; `None` if it needs one. An index that is out of range
    /// counts as `None`.
    pub owner: Option<usize>,
    /// Whether a hand-off of the shard to `owner` is in progress (`None`: the target is not yet known). Such a shard is
    /// not moved (A5).
    pub hand_off_in_progress: bool,
    /// Whether an operator has pinned the shard to a host of the view. The manager moves it there, and no strategy may
    /// move it.
    pub pinned: bool,
    /// The host at which an outside program wants the shard, as an index into [`AllocationView::hosts`]. `None` if it
    /// names none, or one that is not in the view (E9).
    pub wanted: Option<usize>,
    /// Its load as its owner measured it; 0 if it is idle, or has not been measured yet. Only proportions matter.
    pub load: u32,
}

impl ShardPlacement {
    /// A shard of this owner.
    #[must_use]
    pub const fn owned_by(owner: usize) -> Self {
        Self {
            owner: Some(owner),
            hand_off_in_progress: false,
            pinned: false,
            wanted: None,
            load: 0,
        }
    }

    /// Whether no strategy may place it.
    const fn is_settled(&self) -> bool {
        self.hand_off_in_progress || self.pinned
    }
}

/// The input of a strategy's decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationView {
    /// The hosts, oldest first: of two otherwise equal hosts, the older one gives up shards first (S16.3).
    pub hosts: Vec<Host>,
    /// Every shard of the pool; shard `n` is at index `n - 1`.
    pub shards: Vec<ShardPlacement>,
    /// Seed for random choices (S16.2). The same view gives the same moves.
    pub seed: u64,
    /// Whether every host has said what the loads of its shards are. If not, a load of 0 may mean anything.
    pub measured: bool,
}

/// A shard and the host that should own it. Its current owner, if it has one, must stop it first (S16.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The shard to move.
    pub shard: ShardId,
    /// Its new owner, as an index into [`AllocationView::hosts`].
    pub to: usize,
}

/// Decides which host owns which shard (A4, K22, K23). An application may supply its own strategy.
///
/// For every view, an implementation must name only hosts and shards of the view, no shard twice in one result, and no
/// shard that is pinned or whose hand-off is in progress. It must return the same result for the same view, and must not block. The
/// manager does not make a move that violates this or exceeds the limit, and reports that the strategy proposed it. It
/// asks only if there is a host. If an implementation panics, it reports that and goes on without its moves (A3).
pub trait AllocationStrategy: fmt::Debug + Send + Sync {
    /// The strategy's name, as operators see it.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Returns owners for the shards that need one: initially, or after a fail-over or a drain. All such shards get an
    /// owner.
    fn allocate(&self, view: &AllocationView) -> Vec<Move>;

    /// Returns moves of shards that have an owner, at most `limit` of them, never to the current owner.
    ///
    /// Must converge: if it is called repeatedly, its moves are carried out, and nothing else changes, it eventually
    /// returns no moves.
    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move>;
}

impl<S: AllocationStrategy + ?Sized> AllocationStrategy for Arc<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        (**self).allocate(view)
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        (**self).rebalance(view, limit)
    }
}

impl AllocationView {
    /// The hosts of the latest version that are not paused, the only ones that may be given shards (S16.5, K14). If all
    /// of that version are paused, they are.
    fn receivers(&self) -> impl Iterator<Item = usize> {
        let all_paused = self.latest().all(|host| self.hosts[host].paused);
        self.latest().filter(move |host| all_paused || !self.hosts[*host].paused)
    }

    /// The hosts of the latest version.
    pub(crate) fn latest(&self) -> impl Iterator<Item = usize> {
        let latest = self.hosts.iter().map(|host| host.version).max();
        self.hosts
            .iter()
            .enumerate()
            .filter(move |(_, host)| Some(host.version) == latest)
            .map(|(index, _)| index)
    }

    /// Whether all hosts run the same version, that is, no rolling update is in progress (S16.2).
    fn one_version(&self) -> bool {
        self.hosts.windows(2).all(|pair| pair[0].version == pair[1].version)
    }

    /// A host's weight, at least 1.
    fn weight(&self, host: usize) -> u64 {
        self.hosts[host].weight.max(1).into()
    }

    /// What a host has, in relation to its weight.
    pub(crate) fn ratio(&self, host: usize, number: u64) -> Ratio {
        Ratio::new(number, self.weight(host))
    }

    /// Every shard, its owner if the owner is a host of this view, and whether no strategy may place it.
    fn each(&self) -> impl Iterator<Item = (ShardId, Option<usize>, bool)> {
        (1..).map(ShardId).zip(&self.shards).map(|(shard, place)| {
            (shard, place.owner.filter(|owner| *owner < self.hosts.len()), place.is_settled())
        })
    }

    /// The shards that need an owner.
    fn unassigned(&self) -> impl Iterator<Item = ShardId> {
        self.each().filter(|(_, owner, busy)| owner.is_none() && !busy).map(|(shard, _, _)| shard)
    }

    /// The shards that can be moved, with their owners.
    fn movable(&self) -> impl Iterator<Item = (ShardId, usize)> {
        self.each()
            .filter(|(_, _, busy)| !busy)
            .filter_map(|(shard, owner, _)| Some((shard, owner?)))
    }

    /// How many shards each host has or is about to have.
    fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.hosts.len()];
        for owner in self.each().filter_map(|(_, owner, _)| owner) {
            counts[owner] += 1;
        }
        counts
    }
}

/// The strategies that a configuration can name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum BuiltinStrategy {
    /// [`Average`]; the default.
    #[default]
    Average,
    /// [`LeastShard`].
    LeastShard,
    /// [`Ranges`].
    Ranges,
    /// [`Rendezvous`].
    Rendezvous,
    /// [`MeasuredLoad`].
    Load,
    /// [`External`].
    External,
    /// [`Stateless`].
    Stateless,
}

impl BuiltinStrategy {
    /// All built-in strategies.
    pub const ALL: [Self; 7] = [
        Self::Average,
        Self::LeastShard,
        Self::Ranges,
        Self::Rendezvous,
        Self::Load,
        Self::External,
        Self::Stateless,
    ];

    /// The strategy's name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Average => "average",
            Self::LeastShard => "least-shard",
            Self::Ranges => "ranges",
            Self::Rendezvous => "rendezvous",
            Self::Load => "load",
            Self::External => "external",
            Self::Stateless => "stateless",
        }
    }

    /// The strategy with its defaults.
    #[must_use]
    pub fn build(self) -> Box<dyn AllocationStrategy> {
        self.build_with(&StrategySettings::default())
    }

    /// The strategy with these settings.
    #[must_use]
    pub fn build_with(self, settings: &StrategySettings) -> Box<dyn AllocationStrategy> {
        match self {
            Self::Average => Box::new(Average),
            Self::LeastShard => Box::new(settings.least_shard),
            Self::Ranges => Box::new(Ranges),
            Self::Rendezvous => Box::new(Rendezvous),
            Self::Load => Box::new(settings.load),
            Self::External => Box::new(External),
            Self::Stateless => Box::new(Stateless),
        }
    }

    /// The strategy with this name.
    ///
    /// # Errors
    /// [`UnknownStrategy`], which lists the known names.
    pub fn from_name(name: &str) -> Result<Self, UnknownStrategy> {
        let named = Self::ALL.into_iter().find(|strategy| strategy.name() == name);
        named.ok_or_else(|| UnknownStrategy { name: name.into() })
    }
}

/// The settings of the strategies that have any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StrategySettings {
    /// Those of `least-shard`.
    pub least_shard: LeastShard,
    /// Those of `load`.
    pub load: MeasuredLoad,
}

/// No strategy has that name. Not retryable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy {
    /// The requested name.
    pub name: String,
}

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = BuiltinStrategy::ALL.map(BuiltinStrategy::name).join("`, `");
        write!(f, "`{}` is not an allocation strategy; use one of `{names}`", self.name)
    }
}

impl std::error::Error for UnknownStrategy {}
