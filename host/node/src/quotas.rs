//! Holds the entities of namespaces to their quotas (decision 105).
//!
//! Each second, while any namespace has a quota, a node measures what its own shards use, asks the other hosts for what
//! theirs use, and adds it up. From the sums follow this node's shares of the turns, and the namespaces that are full.
//! No node decides for others: each comes to the same result from the same figures.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use ostraca_control::view::ClusterView;
use ostraca_core::ids::ShardId;
use ostraca_core::names;
use ostraca_core::pools::{Pool, PoolUse, Pools};
use ostraca_core::quota::{Full, FullNamespaces, Quotas, Usage, fair_shares};
use ostraca_core::rows::{Member, NodeStatus};
use ostraca_gateway::{Gateway, NodeUsage};
use ostraca_wire::proto::{NamespaceUsage, ShardFigures};
use ostraca_workers::{Input, TurnQuotas};
use tokio::sync::{mpsc, watch};

/// Interval at which the use is measured, and the shares are computed anew.
const INTERVAL: Duration = Duration::from_secs(1);

type Limits = BTreeMap<Arc<str>, Quotas>;

/// Measures and limits what the entities of namespaces use.
pub(crate) struct QuotaKeeper {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) view: watch::Receiver<Arc<ClusterView>>,
    pub(crate) turns: TurnQuotas,
    pub(crate) workers: Vec<mpsc::UnboundedSender<Input>>,
}

/// What it remembers from one measurement to the next.
struct Measured {
    at: Instant,
    /// The other hosts, and what each of them last said.
    others: BTreeMap<Member, NodeUsage>,
    full: FullNamespaces,
}

impl QuotaKeeper {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut measured = None;
        loop {
            ticks.tick().await;
            let limits = self.gateway.types.namespaces().quotas();
            if !limits.is_empty() {
                let before = measured.take().unwrap_or_else(|| Measured {
                    at: Instant::now(),
                    others: BTreeMap::new(),
                    full: FullNamespaces::default(),
                });
                measured = Some(self.measure(&limits, before).await);
            } else if measured.take().is_some() {
                self.gateway.usage.set_own(NodeUsage::default());
                self.gateway.usage.set_total(Vec::new());
                self.turns.set(&BTreeMap::new(), self.now());
                self.set_full(FullNamespaces::default());
            }
        }
    }

    fn now(&self) -> u64 {
        self.gateway.clock.now().mono
    }

    async fn measure(&self, limits: &Limits, mut before: Measured) -> Measured {
        let view = self.view.borrow().clone();
        let at = Instant::now();
        let own = self.measure_own(limits, &view, at.duration_since(before.at)).await;
        self.gateway.usage.set_own(own.clone());
        let others: BTreeSet<_> =
            hosts(&view).filter(|it| Some(it) != view.member.as_ref()).collect();
        before.others.retain(|member, _| others.contains(member));
        let ask =
            async |member: &Member| (member.clone(), self.gateway.namespace_usage(member).await);
        let mut all_answered = true;
        for (member, answer) in join_all(others.iter().map(ask)).await {
            match answer {
                Ok(usage) => drop(before.others.insert(member, usage)),
                // What it said before still counts.
                Err(_) => all_answered = false,
            }
        }
        let counted = before.others.values().map(|it| it.counted_shards);
        let counted = counted.fold(own.counted_shards, u32::saturating_add);
        let counted = match counted.cmp(&shards_with_state(&view, &self.gateway.pools.get())) {
            Ordering::Equal if !all_answered => Ordering::Less,
            counted => counted,
        };

        let is_host = !self.workers.is_empty();
        // In the same order on each node.
        let place = others.iter().filter(|it| Some(*it) < view.member.as_ref()).count();
        let mut shares = BTreeMap::new();
        let mut full = BTreeMap::new();
        let mut total = Vec::new();
        for (namespace, quotas) in limits {
            let own = used(&own, namespace);
            let others: Vec<_> = others
                .iter()
                .map(|member| {
                    before.others.get(member).map_or_else(Usage::default, |it| used(it, namespace))
                })
                .collect();
            let mut sum = own;
            others.iter().for_each(|usage| sum += *usage);
            if let Some(limit) = quotas.turns_per_second.filter(|_| is_host) {
                let share = own_share(limit, place, own, &others);
                shares.insert(namespace.clone(), (limit, share));
            }
            let was = before.full.get(namespace).copied().unwrap_or_default();
            let now = Full::of(*quotas, sum, counted, was);
            if now != was {
                tracing::warn!(%namespace, ?now, ?sum, "what is used up of the quotas has changed");
            }
            if now != Full::default() {
                full.insert(namespace.clone(), now);
            }
            total.push(to_wire(namespace, sum, counted == Ordering::Equal));
        }
        self.gateway.usage.set_total(total);
        self.turns.set(&shares, self.now());
        let full = FullNamespaces::new(full);
        if full != before.full {
            self.set_full(full.clone());
        }
        Measured { at, others: before.others, full }
    }

    /// What this node's shards use.
    async fn measure_own(
        &self,
        limits: &Limits,
        view: &ClusterView,
        elapsed: Duration,
    ) -> NodeUsage {
        let mut used: BTreeMap<_, _> =
            limits.keys().map(|namespace| (namespace.clone(), Usage::default())).collect();
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        for (namespace, asked) in self.turns.take_asked() {
            if let Some(usage) = used.get_mut(&namespace) {
                usage.turns_per_second = asked.saturating_mul(1_000) / millis;
            }
        }
        let mut counted_shards = 0;
        let counts = limits.values().any(Quotas::limits_storage);
        if counts && let Some(own) = &view.member
            // An error means that the node stops.
            && let Ok(shards) = self.gateway.shard_figures(own).await
        {
            counted_shards = add_stored(&shards, &mut used);
        }
        let namespaces =
            used.iter().map(|(namespace, usage)| to_wire(namespace, *usage, false)).collect();
        NodeUsage { namespaces, counted_shards }
    }

    fn set_full(&self, full: FullNamespaces) {
        for worker in &self.workers {
            // A worker that has ended needs nothing.
            let _ = worker.send(Input::NamespacesFull(full.clone()));
        }
    }
}

/// This node's share of a limit on turns, in thousandths of a turn a second. It comes after `place` of the others.
fn own_share(limit: u64, place: usize, own: Usage, others: &[Usage]) -> u64 {
    let (before, after) = others.split_at(place.min(others.len()));
    let all = before.iter().chain([&own]).chain(after);
    let wanted: Vec<_> = all.map(|usage| usage.turns_per_second.saturating_mul(1_000)).collect();
    fair_shares(limit.saturating_mul(1_000), &wanted).get(before.len()).copied().unwrap_or_default()
}

/// The members that can own shards.
fn hosts(view: &ClusterView) -> impl Iterator<Item = Member> {
    let live = view.nodes.iter().filter(|(_, row)| row.status == NodeStatus::Live && row.is_host());
    live.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation })
}

/// How many shards may store something: they have had an owner, or their pool was filled from another one. Nothing is in
/// those of a pool that was copied.
fn shards_with_state(view: &ClusterView, pools: &Pools) -> u32 {
    let filled: BTreeSet<_> = pools
        .iter()
        .filter_map(|pool| match &pool.usage {
            PoolUse::Left(to) => Some(to.as_str()),
            _ => None,
        })
        .collect();
    let has_state = |pool: &Pool, shard: u32| {
        filled.contains(pool.name.as_str()) || view.had_owner(ShardId(shard))
    };
    let counts = pools
        .iter()
        .filter(|pool| !pool.is_left())
        .map(|pool| (pool.first.0..=pool.last().0).filter(|shard| has_state(pool, *shard)).count());
    u32::try_from(counts.sum::<usize>()).unwrap_or(u32::MAX)
}

/// Adds up what shards store. Returns how many have been counted.
fn add_stored(shards: &[ShardFigures], used: &mut BTreeMap<Arc<str>, Usage>) -> u32 {
    let mut counted = 0;
    for shard in shards.iter().filter(|shard| shard.stored_is_counted) {
        counted += 1;
        for (entity_type, stored) in &shard.stored {
            if let Some(usage) = used.get_mut(names::namespace(entity_type)) {
                usage.entities = usage.entities.saturating_add(stored.entities);
                usage.state_bytes = usage.state_bytes.saturating_add(stored.state_bytes);
            }
        }
    }
    counted
}

fn used(of: &NodeUsage, namespace: &str) -> Usage {
    let found = of.namespaces.iter().find(|it| it.namespace == namespace);
    found.map_or_else(Usage::default, |it| Usage {
        entities: it.entities,
        state_bytes: it.state_bytes,
        turns_per_second: it.turns_per_second,
    })
}

fn to_wire(namespace: &str, usage: Usage, is_complete: bool) -> NamespaceUsage {
    let Usage { entities, state_bytes, turns_per_second } = usage;
    let namespace = namespace.into();
    NamespaceUsage { namespace, entities, state_bytes, turns_per_second, is_complete }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_that_nodes_take_are_the_limit() {
        for wanted in [[9, 9, 9], [0, 5, 90]] {
            let take = |place: usize| {
                let of = |turns_per_second| Usage { turns_per_second, ..Usage::default() };
                let mut others = wanted.map(of).to_vec();
                let own = others.remove(place);
                own_share(2, place, own, &others)
            };
            let taken: Vec<_> = (0..3).map(take).collect();
            assert_eq!(taken, fair_shares(2_000, &wanted.map(|it| it * 1_000)));
        }
    }

    #[test]
    fn m1_shards_filled_from_another_pool_hold_state() {
        let mut pools = Pools::one(2);
        pools.add(Pool::new("new", 3, &pools)).expect("a pool");
        let nobody = ClusterView::default();
        assert_eq!(shards_with_state(&nobody, &pools), 0, "none has had an owner");
        pools.set_copied("default", "new", false).expect("two pools");
        assert_eq!(shards_with_state(&nobody, &pools), 0);
        pools.set_copied("default", "new", true).expect("two pools");
        assert_eq!(shards_with_state(&nobody, &pools), 3);
    }
}
