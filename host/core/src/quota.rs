//! Quotas: what the entities of one namespace may take of what all tenants share.
//!
//! Entities and the bytes of their state are counted by the owners of shards (see
//! [`Machine::stored`](crate::shard::Machine::stored)). Each node adds up all nodes' counts, and says which namespaces
//! are full; their entities may then shrink, but not grow. Turns are limited by each node to its share, which
//! [`fair_shares`] computes from what every node was asked to run.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// What the entities of a namespace may use at most; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// How many there may be.
    pub entities: Option<u64>,
    /// The size of the keys and values of their state, in bytes, without journals and channels.
    pub state_bytes: Option<u64>,
    /// How many messages and firings of timers they may get a second, on all nodes together.
    pub turns_per_second: Option<u64>,
}

impl Quotas {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the number of entities or their size is limited: then they are counted.
    #[must_use]
    pub fn limits_storage(&self) -> bool {
        self.entities.is_some() || self.state_bytes.is_some()
    }
}

/// What the entities of a namespace use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many there are.
    pub entities: u64,
    /// The size of their state, in bytes.
    pub state_bytes: u64,
    /// How many messages and firings they got in the last second, refused ones included.
    pub turns_per_second: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.entities = self.entities.saturating_add(more.entities);
        self.state_bytes = self.state_bytes.saturating_add(more.state_bytes);
        self.turns_per_second = self.turns_per_second.saturating_add(more.turns_per_second);
    }
}

/// The quotas that a namespace has used up, each with its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Full {
    /// The number of entities that it may have.
    pub entities: Option<u64>,
    /// The bytes that their state may have.
    pub state_bytes: Option<u64>,
}

impl Full {
    /// What a namespace has used up, where `counted` compares the number of shards in the usage with that of all
    /// shards. While some are missing, what was used up before still is, unless its limit was raised. While some are counted
    /// twice, as during hand-offs, nothing else changes: two nodes then report the same entities.
    #[must_use]
    pub fn of(quotas: Quotas, usage: Usage, counted: Ordering, before: Self) -> Self {
        let exceeded = |limit: Option<u64>, used: u64, before: Option<u64>| {
            let was_full = |limit: u64| before.is_some_and(|before| limit <= before);
            limit.filter(|limit| match counted {
                Ordering::Equal => used >= *limit,
                Ordering::Less => used >= *limit || was_full(*limit),
                Ordering::Greater => was_full(*limit),
            })
        };
        Self {
            entities: exceeded(quotas.entities, usage.entities, before.entities),
            state_bytes: exceeded(quotas.state_bytes, usage.state_bytes, before.state_bytes),
        }
    }
}

/// The namespaces that have used up a quota.
pub type FullNamespaces = Arc<BTreeMap<Arc<str>, Full>>;

/// Divides a limit among nodes by how much each of them is asked for (max-min fairness): nodes that want less than an
/// equal part get what they want, and the others get equal parts of the rest. What nobody wants is divided equally.
///
/// A node counts for at least a twentieth of an equal part, so that one which is asked for nothing yet can begin. The
/// shares together are the limit, but for rounding down; no share is 0 unless the limit is smaller than the nodes. So
/// limits are divided in thousandths of a turn. Nodes that divide the same limit give the nodes in the same order.
#[must_use]
pub fn fair_shares(limit: u64, wanted: &[u64]) -> Vec<u64> {
    let Ok(nodes) = u64::try_from(wanted.len()) else { return Vec::new() };
    if nodes == 0 {
        return Vec::new();
    }
    let least = limit / nodes.saturating_mul(20);
    let wanted: Vec<_> = wanted.iter().map(|it| (*it).max(least)).collect();
    let mut order: Vec<_> = (0..wanted.len()).collect();
    order.sort_by_key(|node| wanted[*node]);
    let (mut left, mut shares) = (limit, vec![0; wanted.len()]);
    for (nodes_left, node) in (1..=nodes).rev().zip(order) {
        shares[node] = wanted[node].min(left / nodes_left);
        left -= shares[node];
    }
    shares.iter_mut().for_each(|share| *share += left / nodes);
    shares
}

/// Lets through so many turns a second, and what was not used during the last second.
#[derive(Clone, Debug)]
pub struct TurnBudget {
    /// Thousandths of a turn a second.
    rate: u64,
    /// In millionths of a turn. Negative after firings, which are never refused.
    left: i64,
    /// When `left` was right, on the node's clock, in milliseconds.
    at: u64,
}

/// A turn, in the units of [`TurnBudget::left`].
const TURN: i64 = 1_000_000;

impl TurnBudget {
    /// A full budget of `rate` thousandths of a turn a second.
    #[must_use]
    pub fn new(rate: u64, now: u64) -> Self {
        Self { rate, left: Self::most(rate), at: now }
    }

    /// A second's turns, but at least one unless there are none.
    fn most(rate: u64) -> i64 {
        match rate {
            0 => 0,
            rate => i64::try_from(rate.saturating_mul(1_000)).unwrap_or(i64::MAX).max(TURN),
        }
    }

    fn refill(&mut self, now: u64) {
        let gained = self.rate.saturating_mul(now.saturating_sub(self.at));
        let gained = i64::try_from(gained).unwrap_or(i64::MAX);
        self.left = self.left.saturating_add(gained).min(Self::most(self.rate));
        self.at = self.at.max(now);
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, rate: u64, now: u64) {
        self.refill(now);
        self.rate = rate;
        self.left = self.left.min(Self::most(rate));
    }

    /// Takes a turn.
    ///
    /// # Errors
    /// After how many milliseconds there is one, at most 1,000.
    pub fn take(&mut self, now: u64) -> Result<(), u32> {
        self.refill(now);
        if self.left >= TURN {
            self.left -= TURN;
            return Ok(());
        }
        let missing = u64::try_from(TURN.saturating_sub(self.left)).unwrap_or(u64::MAX);
        let wait = missing.div_ceil(self.rate.max(1));
        Err(u32::try_from(wait).unwrap_or(u32::MAX).min(1_000))
    }

    /// Takes a turn that runs in any case. No more than a second's turns are owed.
    pub fn charge(&mut self, now: u64) {
        self.refill(now);
        self.left = self.left.saturating_sub(TURN).max(-Self::most(self.rate));
    }
}
