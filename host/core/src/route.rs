//! A gateway's router: who owns a shard, to this node's knowledge, and every message between its arrival
//! and its answer.
//!
//! The table is a cache. It is made of rows, corrected by the answers of nodes that were asked wrongly, and
//! moves only to higher epochs (R13); a table from disk may fill it at start (S8), since the owner checks
//! again before it runs anything (S11.6). Without a manager it stays in use as it is (S8, K17).
//!
//! A message is in one of three states. *Held*: it waits here, since its shard moves, has no live owner, was
//! just bounced, or the link's window is full. *In flight*: it was given out under a tag, to this node's own
//! machine or to another member; the router keeps a copy. *Gone*: given back to be answered, or refused. Nothing
//! leaves the router in any other way (promise 8), and a buffered message is never dropped (A11).
//!
//! Confusing at first: a message is sent again while its first copy may still run. The target's lane makes
//! that harmless (R17), but the message is then *in doubt*: a later answer that it did not run is about
//! the later copy only, and ends as `unknown` (R16). A bounce (`not-owner`, `rebalancing`) is certain,
//! and leaves no doubt. Each attempt has a tag of its own, so the answers of abandoned ones are recognized.
//!
//! Messages of one shard leave in their order of arrival, including those that are sent again; while
//! one waits, all later ones wait behind it (K18). Messages in flight have no timeout: each ends by its answer or
//! by [`Router::on_link_lost`], and the node must ensure that a silent link breaks.

mod action;
mod flow;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod time;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ostraca_codes::codes;

use crate::ids::{Epoch, NodeId, ShardId};
use crate::message::OwnerHint;
use crate::rows::Member;

pub use action::{Action, AttemptResult, Refusal, RouterStats};
pub use settings::{Mutation, Settings};
use table::{Buffering, InFlightMessage, LinkWindow, RoutedMessage, ShardRoute, index_of};

/// Routes and pending messages. `T` is cheap to clone: a copy is kept while it is in flight.
#[derive(Debug)]
pub struct Router<T> {
    settings: Settings,
    local: Option<Member>,
    /// This node's name, once an incarnation of it was registered.
    local_node: Option<NodeId>,
    routes: Vec<ShardRoute<T>>,
    windows: BTreeMap<Member, LinkWindow>,
    /// By tag; never iterated, since its order is random.
    in_flight: HashMap<u64, InFlightMessage<T>>,
    /// (when, which shard, which place) of all that is held.
    expiries: BTreeSet<(u64, usize, u64)>,
    /// (when, which shard) of shards that may send what they hold from then on.
    timers: BTreeSet<(u64, usize)>,
    /// Links whose window has room again, with shards waiting for it.
    unblocked: Vec<Member>,
    last_arrival: u64,
    last_attempt_id: u64,
    buffered: usize,
    buffered_bytes: usize,
}

impl<T: Clone> Router<T> {
    /// A router of a pool with this many shards, which knows no owner.
    #[must_use]
    pub fn new(settings: Settings, shards: u32) -> Self {
        Self {
            settings,
            local: None,
            local_node: None,
            routes: (0..shards).map(|_| ShardRoute::new()).collect(),
            windows: BTreeMap::new(),
            in_flight: HashMap::new(),
            expiries: BTreeSet::new(),
            timers: BTreeSet::new(),
            unblocked: Vec::new(),
            last_arrival: 0,
            last_attempt_id: 0,
            buffered: 0,
            buffered_bytes: 0,
        }
    }

    /// Sets the registered incarnation of this node: its shards are [`Action::Local`]. What is in flight to the former
    /// one is in doubt, as if its link were lost; shards of former incarnations have no live owner.
    pub fn set_local(&mut self, now: u64, me: Option<Member>, out: &mut Vec<Action<T>>) {
        if self.local == me {
            return;
        }
        if let Some(member) = &me {
            self.local_node = Some(member.node.clone());
        }
        if let Some(former) = std::mem::replace(&mut self.local, me) {
            self.on_link_lost(now, &former, out);
        }
        for index in 0..self.routes.len() {
            self.flush_shard(now, index, out);
        }
        self.pump(now, out);
    }

    /// Takes a message for `shard` with its size in bytes (S5, S11.3, K13). `deadline` is a time of the same clock as `now`.
    pub fn route(
        &mut self,
        now: u64,
        shard: ShardId,
        item: T,
        bytes: usize,
        deadline: Option<u64>,
    ) -> Action<T> {
        let entry = RoutedMessage { item, bytes, deadline, waited: 0, in_doubt: false };
        let Some(index) = index_of(shard, self.routes.len()) else {
            let message =
                format!("shard {shard} does not exist; the pool has {} shards", self.routes.len());
            return entry.into_refusal(codes::NO_OWNER, message, None);
        };
        if entry.deadline_passed(now) {
            let message = "the sender's deadline had passed when the message arrived".into();
            return entry.into_refusal(codes::DEADLINE_EXCEEDED, message, None);
        }
        self.last_arrival += 1;
        let place = self.last_arrival;
        let alone = self.routes[index].buffered.is_empty();
        if alone && let Some(to) = self.destination_or_wait(now, index, bytes) {
            return self.send(index, place, entry, to);
        }
        if let Some(message) = self.buffer_full_reason(index, bytes) {
            if alone {
                self.withdraw(index);
            }
            let retry_after = self.retry_after();
            return entry.into_refusal(codes::OVERLOADED, message, retry_after);
        }
        self.buffer(now, index, place, entry);
        Action::Buffered
    }

    /// [`Self::route`] for one of many: pushes what is to be done, and nothing for a message that is held.
    pub fn route_into(
        &mut self,
        now: u64,
        shard: ShardId,
        item: T,
        bytes: usize,
        deadline: Option<u64>,
        out: &mut Vec<Action<T>>,
    ) {
        match self.route(now, shard, item, bytes, deadline) {
            Action::Buffered => {}
            step => out.push(step),
        }
    }

    /// A shard's row, as this node sees it now: [`node::Action::UpdateRoute`](crate::node::Action::UpdateRoute).
    ///
    /// Lower epochs are ignored (R13). What was sent under a lower epoch is in doubt, and goes again ahead of
    /// what was held.
    pub fn update_route(
        &mut self,
        now: u64,
        shard: ShardId,
        epoch: Epoch,
        owner: Option<Member>,
        moving: bool,
        out: &mut Vec<Action<T>>,
    ) {
        let Some(index) = index_of(shard, self.routes.len()) else { return };
        if epoch < self.routes[index].epoch && !self.has_mutation(Mutation::AcceptLowerEpochs) {
            return;
        }
        self.set_route(now, index, epoch, owner, moving);
        self.flush_shard(now, index, out);
        self.pump(now, out);
    }

    /// A hand-off begins: [`node::Action::BufferShard`](crate::node::Action::BufferShard) (A8, K24). Messages for the shard wait for
    /// a higher epoch, for this one without a hand-off, or until `hold_wait` has passed: then the route that is
    /// known is tried, and its answer corrects it (R12).
    pub fn buffer_shard(&mut self, now: u64, shard: ShardId, epoch: Epoch) {
        let Some(index) = index_of(shard, self.routes.len()) else { return };
        let until = now.saturating_add(self.settings.buffer_timeout);
        let slot = &mut self.routes[index];
        if epoch < slot.epoch || slot.buffering.is_some_and(|hold| epoch <= hold.epoch) {
            return;
        }
        slot.buffering = Some(Buffering { epoch, until });
        self.withdraw(index);
        if let Some((_, bytes)) = self.routes[index].first() {
            // The shard is blocked, so this only sets its timer.
            self.destination_or_wait(now, index, bytes);
        }
    }

    /// The link to this member broke, or its incarnation ended (S12): what is in flight to it is in doubt, and goes to the
    /// owner that the route names. If that is still the same one, it waits for `retry`: a link may be made again.
    pub fn on_link_lost(&mut self, now: u64, member: &Member, out: &mut Vec<Action<T>>) {
        let Some(link) = self.windows.remove(member) else { return };
        let mut touched: BTreeSet<usize> = link.waiting_shards.iter().copied().collect();
        for tag in link.in_flight {
            if let Some(mut flight) = self.recall(tag) {
                touched.insert(flight.index);
                self.mark_in_doubt(&mut flight.message);
                self.buffer(now, flight.index, flight.arrival, flight.message);
            }
        }
        for index in touched {
            if self.routes[index].owner.as_ref() == Some(member) {
                self.retry_later(now, index);
            }
            self.flush_shard(now, index, out);
        }
        self.pump(now, out);
    }

    /// How an attempt ended (S11.8). Given back with [`AttemptResult::Answered`]: the message, and whether an earlier copy of it is
    /// in doubt, so that an answer that it did not run ends as `unknown` (R16). None: it goes on, or the
    /// attempt was abandoned long ago.
    pub fn on_attempt_result(
        &mut self,
        now: u64,
        attempt_id: u64,
        verdict: AttemptResult,
        out: &mut Vec<Action<T>>,
    ) -> Option<(T, bool)> {
        let InFlightMessage { message: entry, arrival: place, index, .. } =
            self.recall(attempt_id)?;
        let mut done = None;
        match verdict {
            AttemptResult::Answered => {
                self.routes[index].backoff = 0;
                done = Some((entry.item, entry.in_doubt));
            }
            AttemptResult::NotOwner { epoch, owner: Some(owner) }
                if epoch > self.routes[index].epoch =>
            {
                self.buffer(now, index, place, entry);
                self.set_route(now, index, epoch, Some(owner), false);
                self.flush_shard(now, index, out);
            }
            AttemptResult::NotOwner { .. }
            | AttemptResult::Rebalancing
            | AttemptResult::NotSent => {
                self.buffer(now, index, place, entry);
                self.retry_later(now, index);
                self.flush_shard(now, index, out);
            }
        }
        self.pump(now, out);
        done
    }

    /// What it currently holds.
    #[must_use]
    pub fn stats(&self) -> RouterStats {
        RouterStats {
            buffered: self.buffered,
            buffered_bytes: self.buffered_bytes,
            in_flight: self.in_flight.len(),
        }
    }

    /// The route of a shard: its epoch, and its owner if known and alive.
    #[must_use]
    pub fn route_for(&self, shard: ShardId) -> Option<(Epoch, Option<&Member>)> {
        let index = index_of(shard, self.routes.len())?;
        Some((self.routes[index].epoch, self.target(index)))
    }

    /// Whose a shard is by a newer route than the sender's, `than`, if it is another node's than this `node`'s.
    #[must_use]
    pub fn redirect_hint(&self, shard: ShardId, than: Epoch, node: &str) -> Option<OwnerHint> {
        let (known, owner) = self.route_for(shard)?;
        let owner = owner.filter(|owner| *owner.node.0 != *node && known > than)?;
        Some(OwnerHint { epoch: known, owner: Some(owner.clone()) })
    }

    fn has_mutation(&self, mutation: Mutation) -> bool {
        self.settings.has_mutation(mutation)
    }
}
