//! Which host a shard goes to: the strategies (section "who decides": K22, K23, S16, E5, A4).
//!
//! A strategy is a pure function of a [`AllocationView`]: it keeps nothing from call to call, so a new manager
//! decides as the old one would have. It only proposes. That a shard never has two owners (S14) is the
//! manager's and the store's work, and no strategy can break it: the worst that a bad one does is to
//! leave shards where they are or to move them for nothing.
//!
//! What is easily confused: [`ShardPlacement::hand_off_in_progress`] is a hand-off under way. Such a shard counts at the host that
//! it goes to, already, and no strategy proposes a move of it (A5). So rounds may overlap: a manager that
//! has begun ten moves asks again, and hears of the next ten.
//!
//! All strategies here heed versions as S16.2 and S16.5 say: while hosts differ in version (a rolling
//! update is under way) no shard leaves the host that has it, and those that need an owner go to hosts of
//! the latest version only.

mod average;
mod check;
mod least_shard;
mod preferred_host;
mod random;
#[cfg(test)]
mod tests;

use std::fmt;

pub use average::Average;
pub use check::InvalidMove;
pub(crate) use check::{MoveKind, filter_valid_moves};
pub use least_shard::LeastShard;
pub use preferred_host::{Ranges, Rendezvous};

use crate::ids::{NodeId, ShardId};

/// A node that may own shards: live, with the host role, not draining, its store answering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its node.
    pub node: NodeId,
    /// Its program's version; the highest in the view is the latest.
    pub version: u64,
}

/// Where one shard is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardPlacement {
    /// Its owner, as an index into [`AllocationView::hosts`]; none if it needs one. An index that is out of range is
    /// no host, and counts as none.
    pub owner: Option<usize>,
    /// A hand-off of it is under way, to `owner` (none: not yet known where). It is not moved (A5).
    pub hand_off_in_progress: bool,
}

/// What a strategy decides on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationView {
    /// The hosts, oldest first: of two that are alike otherwise, the older gives first (S16.3).
    pub hosts: Vec<Host>,
    /// Every shard of the pool; shard `n` is at index `n - 1`.
    pub shards: Vec<ShardPlacement>,
    /// What random choices are made from (S16.2). The same view gives the same moves.
    pub seed: u64,
}

/// A shard, and the host that is to own it. Its present owner, if it has one, has to stop it first (S16.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which shard.
    pub shard: ShardId,
    /// Its new owner, as an index into [`AllocationView::hosts`].
    pub to: usize,
}

/// Decides who owns what (A4, K22, K23). An application may bring its own.
///
/// For every view, an implementation must name only hosts and shards of the view, no shard twice in one
/// answer and none that is busy, and must answer the same again for the same view. It must not block.
/// The manager makes no move that breaks this, and none beyond the limit; it notes that it was proposed.
pub trait AllocationStrategy: fmt::Debug + Send + Sync {
    /// What operators know it by.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Owners for the shards that need one: after a fail-over or a drain, or at first. All of them get one,
    /// if there is any host.
    fn allocate(&self, view: &AllocationView) -> Vec<Move>;

    /// Moves of shards that have an owner, at most `limit` of them, none to the owner that it has.
    ///
    /// Must come to rest: if its moves are carried out and it is asked again, over and over, and nothing
    /// else changes, it answers with no moves at last.
    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move>;
}

impl AllocationView {
    /// The hosts of the latest version, the only ones that are given shards (S16.5).
    fn latest(&self) -> impl Iterator<Item = usize> {
        let latest = self.hosts.iter().map(|host| host.version).max();
        self.hosts
            .iter()
            .enumerate()
            .filter(move |(_, host)| Some(host.version) == latest)
            .map(|(index, _)| index)
    }

    /// Whether no rolling update is under way (S16.2).
    fn one_version(&self) -> bool {
        self.hosts.windows(2).all(|pair| pair[0].version == pair[1].version)
    }

    /// Every shard, its owner where that is a host of this view, and whether it is busy.
    fn each(&self) -> impl Iterator<Item = (ShardId, Option<usize>, bool)> {
        (1..).map(ShardId).zip(&self.shards).map(|(shard, place)| {
            (
                shard,
                place.owner.filter(|owner| *owner < self.hosts.len()),
                place.hand_off_in_progress,
            )
        })
    }

    /// The shards that need an owner.
    fn unassigned(&self) -> impl Iterator<Item = ShardId> {
        self.each().filter(|(_, owner, busy)| owner.is_none() && !busy).map(|(shard, _, _)| shard)
    }

    /// The shards that could be moved, with their owners.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

impl BuiltinStrategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Average, Self::LeastShard, Self::Ranges, Self::Rendezvous];

    /// Its name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Average => "average",
            Self::LeastShard => "least-shard",
            Self::Ranges => "ranges",
            Self::Rendezvous => "rendezvous",
        }
    }

    /// The strategy itself, with its defaults.
    #[must_use]
    pub fn build(self) -> Box<dyn AllocationStrategy> {
        self.build_with(LeastShard::default())
    }

    /// The strategy itself; `least_shard` where it is that one.
    #[must_use]
    pub fn build_with(self, least_shard: LeastShard) -> Box<dyn AllocationStrategy> {
        match self {
            Self::Average => Box::new(Average),
            Self::LeastShard => Box::new(least_shard),
            Self::Ranges => Box::new(Ranges),
            Self::Rendezvous => Box::new(Rendezvous),
        }
    }

    /// The one of that name.
    ///
    /// # Errors
    /// [`UnknownStrategy`], which tells the names that there are.
    pub fn from_name(name: &str) -> Result<Self, UnknownStrategy> {
        let named = Self::ALL.into_iter().find(|strategy| strategy.name() == name);
        named.ok_or_else(|| UnknownStrategy { name: name.into() })
    }
}

/// No strategy has that name. Asking again does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStrategy {
    /// What was asked for.
    pub name: String,
}

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = BuiltinStrategy::ALL.map(BuiltinStrategy::name).join("`, `");
        write!(f, "`{}` is not an allocation strategy; use one of `{names}`", self.name)
    }
}

impl std::error::Error for UnknownStrategy {}
