//! Where operators and outside programs want shards: pins, moves on request, and the placement of a pool by a program
//! (E9).
//!
//! Confusing at first: a pin and a wish differ. A pinned shard is moved to its node whatever the pool's strategy, as long
//! as the node can have it. A wish of a program only counts for pools with the strategy `external`, and only for a while:
//! a program that has ended must not keep its shards where nobody else wants them.

use super::hand_offs::HandOffReason;
use super::{
    Action, BTreeMap, Context, Manager, Mutation, NodeId, Notice, ObservedCluster, ShardId,
};
use crate::pools::Pool;

/// All pins and wishes that this node knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Placements {
    pins: BTreeMap<ShardId, NodeId>,
    /// The revision of their row.
    pins_revision: u64,
    wishes: BTreeMap<String, Wishes>,
}

/// What a program wants for one pool.
#[derive(Clone, Debug)]
struct Wishes {
    /// The revision of their row.
    revision: u64,
    shards: BTreeMap<ShardId, NodeId>,
    /// When this node learned of them.
    said_at: u64,
    /// Whether they no longer count, which was reported.
    timed_out: bool,
}

impl Placements {
    /// The pinned shards of a pool.
    pub(super) fn pins_of(
        &self,
        context: &Context,
        pool: &Pool,
    ) -> impl Iterator<Item = (ShardId, &NodeId)> {
        let counts = !context.has_mutation(Mutation::IgnorePins);
        let pins = self.pins.range(pool.first..=pool.last()).filter(move |_| counts);
        pins.map(|(shard, node)| (*shard, node))
    }

    /// What a program wants for a pool now.
    pub(super) fn wishes_of(&self, pool: &Pool) -> impl Iterator<Item = (ShardId, &NodeId)> {
        let wishes = self.wishes.get(&pool.name).filter(|wishes| !wishes.timed_out);
        let shards = wishes.into_iter().flat_map(|wishes| &wishes.shards);
        shards.map(|(shard, node)| (*shard, node))
    }

    /// Treats every program as having just said what it wants.
    pub(super) fn restart(&mut self, context: &Context) {
        for wishes in self.wishes.values_mut() {
            wishes.said_at = context.mono();
        }
    }
}

impl Manager {
    pub(in super::super) fn set_pins(
        &mut self,
        context: &Context,
        revision: u64,
        pins: BTreeMap<ShardId, NodeId>,
    ) {
        if revision > self.placements.pins_revision {
            self.placements.pins_revision = revision;
            if self.placements.pins != pins {
                self.placements.pins = pins;
                self.request_rebalance(context);
            }
        }
    }

    pub(in super::super) fn set_placement(
        &mut self,
        context: &Context,
        pool: String,
        revision: u64,
        shards: BTreeMap<ShardId, NodeId>,
    ) {
        let known = self.placements.wishes.get(&pool);
        if known.is_some_and(|known| known.revision >= revision) {
            return;
        }
        let changes = known.is_none_or(|known| known.timed_out || known.shards != shards);
        let said_at = context.mono();
        let wishes = Wishes { revision, shards, said_at, timed_out: false };
        self.placements.wishes.insert(pool, wishes);
        if changes {
            self.request_rebalance(context);
        }
    }

    /// Finds programs that have said nothing for too long. Their wishes no longer count.
    pub(in super::super) fn check_placements(&mut self, context: &mut Context) {
        if context.has_mutation(Mutation::TrustOldPlacements) {
            return;
        }
        let now = context.mono();
        let mut found = false;
        for (pool, wishes) in &mut self.placements.wishes {
            let silent = now.saturating_sub(wishes.said_at);
            if !wishes.timed_out && silent >= context.settings.external_timeout {
                wishes.timed_out = true;
                found = true;
                let pool = pool.clone();
                context.push(Action::Notify(Notice::PlacementTimedOut { pool, silent }));
            }
        }
        if found {
            self.request_rebalance(context);
        }
    }

    /// Hands a shard off to a node, once, if that is possible now. Returns whether this node is the manager.
    pub(in super::super) fn move_shard(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        shard: ShardId,
        to: &NodeId,
    ) -> bool {
        let Some(term) = self.term.as_ref() else { return false };
        let stable = term.stable_assignment(shard).filter(|_| term.is_sealed());
        let Some(row) = stable.map(|(row, _)| row.clone()) else { return true };
        let is_elsewhere = row.owner.as_ref().is_some_and(|owner| owner.node != *to);
        let moves = row.hand_off.is_some() || term.hand_offs.contains_key(&shard);
        let may_have_it =
            context.identity.pools.of(shard).is_some_and(|pool| {
                observed.eligible_hosts(pool).any(|(host, _)| host.node == *to)
            });
        if is_elsewhere && !moves && may_have_it {
            let reason = HandOffReason::Operator;
            self.begin_hand_off(context, observed, shard, &row, to.clone(), reason);
            self.decision_needed = true;
        }
        true
    }
}
