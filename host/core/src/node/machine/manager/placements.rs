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
    /// Moves that operators have requested and that have not been made yet, and until when each is tried.
    requested: BTreeMap<ShardId, (NodeId, u64)>,
}

/// What a program wants for one pool.
#[derive(Clone, Debug)]
struct Wishes {
    /// The revision of their row.
    revision: u64,
    shards: BTreeMap<ShardId, NodeId>,
    /// When this node learned of them.
    said_at: u64,
    state: Wish,
}

/// Whether wishes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// This node found them in the store. Nobody knows how old they are, so nothing moves because of them, nor because
    /// they are missing.
    Found,
    /// They count.
    Said,
    /// They no longer count, which was reported.
    TimedOut,
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

    /// Whether a pool's shards stay where they are, because it is not known yet what a program wants for them.
    pub(super) fn holds(&self, pool: &Pool) -> bool {
        self.wishes.get(&pool.name).is_some_and(|wishes| wishes.state == Wish::Found)
    }

    /// What a program wants for a pool now.
    pub(super) fn wishes_of(&self, pool: &Pool) -> impl Iterator<Item = (ShardId, &NodeId)> {
        let wishes = self.wishes.get(&pool.name).filter(|wishes| wishes.state == Wish::Said);
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
        is_listed: bool,
        shards: BTreeMap<ShardId, NodeId>,
    ) {
        let known = self.placements.wishes.get(&pool);
        if known.is_some_and(|known| known.revision >= revision) {
            return;
        }
        let changes = known.is_none_or(|known| known.state != Wish::Said || known.shards != shards);
        let said_at = context.mono();
        // The first one of a list may be from long ago. A program that lives says it again.
        let state = if is_listed && known.is_none() { Wish::Found } else { Wish::Said };
        let wishes = Wishes { revision, shards, said_at, state };
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
            if wishes.state != Wish::TimedOut && silent >= context.settings.external_timeout {
                wishes.state = Wish::TimedOut;
                found = true;
                let pool = pool.clone();
                context.push(Action::Notify(Notice::PlacementTimedOut { pool, silent }));
            }
        }
        if found {
            self.request_rebalance(context);
        }
    }

    /// An operator requests a move. Returns whether this node is the manager.
    pub(in super::super) fn request_move(
        &mut self,
        context: &Context,
        shard: ShardId,
        to: NodeId,
    ) -> bool {
        if self.term.is_none() {
            return false;
        }
        let until = context.mono() + context.settings.hand_off_timeout;
        self.placements.requested.insert(shard, (to, until));
        self.decision_needed = true;
        true
    }

    /// Makes the moves that operators have requested, a limited number of them concurrently. Forgets those that are made,
    /// or have not become possible in time.
    pub(in super::super) fn make_requested_moves(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) {
        let Some(term) = self.term.as_ref().filter(|_| !self.placements.requested.is_empty())
        else {
            return;
        };
        let now = context.mono();
        let in_progress = term.count(HandOffReason::Operator);
        let room = context.settings.max_rebalance_hand_offs.saturating_sub(in_progress);
        let mut requested = std::mem::take(&mut self.placements.requested);
        requested.retain(|shard, (_, until)| {
            now < *until && context.identity.pools.of(*shard).is_some()
        });
        let mut begun = Vec::new();
        for (shard, (to, _)) in &requested {
            if begun.len() >= room {
                break;
            }
            let (Some(term), Some(pool)) = (&self.term, context.identity.pools.of(*shard)) else {
                continue;
            };
            let Some((row, _)) = term.stable_assignment(*shard) else { continue };
            let may_have_it = observed.eligible_hosts(pool).any(|(host, _)| host.node == *to);
            if row.hand_off.is_some() || term.hand_offs.contains_key(shard) || !may_have_it {
                continue;
            }
            let is_elsewhere = row.owner.as_ref().is_some_and(|owner| owner.node != *to);
            begun.push(*shard);
            if is_elsewhere {
                let row = row.clone();
                let reason = HandOffReason::Operator;
                self.begin_hand_off(context, observed, *shard, &row, to.clone(), reason);
            }
        }
        for shard in begun {
            requested.remove(&shard);
        }
        self.placements.requested = requested;
    }
}
