//! A gateway's router: it tracks who owns each shard, as far as this node knows, and holds every message from its
//! arrival to its answer.
//!
//! The routing table is a cache. It is built from rows, corrected by answers from nodes that do not own the shard, and
//! moves only to higher epochs (R13). A table from disk may fill it at start (S8), since the owner checks again before
//! it runs anything (S11.6). Without a manager it remains in use unchanged (S8, K17).
//!
//! A message is in one of three states. *Buffered*: it waits here, because its shard is moving, has no live owner,
//! or has just bounced the message, or because the link's window is full. *In flight*: it was sent under a tag, to
//! this node's own machine or to another member; the router keeps a copy. *Gone*: it was returned to be answered,
//! or refused. Messages leave the router in no other way (promise 8), and a buffered message is never dropped
//! (A11).
//!
//! Confusing at first: a message is sent again while its first copy may still run. The target's lane makes that
//! harmless (R17), but the message is then *in doubt*: a later answer that it did not run concerns only the later copy,
//! and ends as `unknown` (R16). A bounce (`not-owner`, `rebalancing`) is certain, and leaves no doubt. Each attempt has
//! its own tag, so the answers of abandoned attempts are recognized.
//!
//! Messages of one shard are sent in their order of arrival, including those that are sent again; while one waits,
//! all later ones wait behind it (K18). Messages in flight have no timeout: each ends with its answer or with
//! [`Router::on_link_lost`], and the node must ensure that a silent link breaks.

mod action;
mod flow;
mod moved;
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

/// Routes and pending messages. `T` must be cheap to clone: the router keeps a copy of each message in flight.
#[derive(Debug)]
pub struct Router<T> {
    settings: Settings,
    local: Option<Member>,
    /// This node's name, once an incarnation of it has been registered.
    local_node: Option<NodeId>,
    routes: Vec<ShardRoute<T>>,
    windows: BTreeMap<Member, LinkWindow>,
    /// By tag; never iterated, since its order is random.
    in_flight: HashMap<u64, InFlightMessage<T>>,
    /// Expiry time, shard and place of every buffered message.
    expiries: BTreeSet<(u64, usize, u64)>,
    /// Time from which a shard may send its buffered messages, and the shard.
    timers: BTreeSet<(u64, usize)>,
    /// Links whose window has space again while shards wait for it.
    unblocked: Vec<Member>,
    last_arrival: u64,
    last_attempt_id: u64,
    buffered: usize,
    buffered_bytes: usize,
}

impl<T: Clone> Router<T> {
    /// Creates a router for this number of shards. It knows no owners yet.
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

    /// Adds shards behind the others, up to this number. Fewer than there are change nothing.
    pub fn grow(&mut self, shards: u32) {
        while self.routes.len() < shards as usize {
            self.routes.push(ShardRoute::new());
        }
    }

    /// Sets the registered incarnation of this node: messages for its shards are [`Action::Local`]. Messages in
    /// flight to the former incarnation are in doubt, as if its link were lost; shards of former incarnations have
    /// no live owner.
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

    /// Routes a message for `shard` with its size in bytes (S5, S11.3, K13). `deadline` is on the same clock as
    /// `now`.
    pub fn route(
        &mut self,
        now: u64,
        shard: ShardId,
        item: T,
        bytes: usize,
        deadline: Option<u64>,
    ) -> Action<T> {
        let once = false;
        let entry = RoutedMessage { item, bytes, deadline, waited: 0, in_doubt: false, once };
        self.route_message(now, shard, entry)
    }

    fn route_message(&mut self, now: u64, shard: ShardId, entry: RoutedMessage<T>) -> Action<T> {
        let bytes = entry.bytes;
        let Some(index) = index_of(shard, self.routes.len()) else {
            let message = format!(
                "shard {shard} does not exist; the cluster has {} shards",
                self.routes.len()
            );
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

    /// [`Self::route`] for one of many messages: pushes the actions, and nothing for a message that is buffered.
    pub fn route_into(
        &mut self,
        now: u64,
        shard: ShardId,
        item: T,
        bytes: usize,
        deadline: Option<u64>,
        out: &mut Vec<Action<T>>,
    ) {
        push_unless_buffered(self.route(now, shard, item, bytes, deadline), out);
    }

    /// [`Self::route_into`] for a message of which no other copy is sent once one may have run: it then ends as `unknown`
    /// (K18). A bounce is certain, so the message is sent to the next owner after one.
    pub fn route_once_into(
        &mut self,
        now: u64,
        shard: ShardId,
        item: T,
        bytes: usize,
        deadline: Option<u64>,
        out: &mut Vec<Action<T>>,
    ) {
        let once = !self.has_mutation(Mutation::ResendOnce);
        let entry = RoutedMessage { item, bytes, deadline, waited: 0, in_doubt: false, once };
        push_unless_buffered(self.route_message(now, shard, entry), out);
    }

    /// Updates a shard's route from its row, as this node sees it now
    /// ([`node::Action::UpdateRoute`](crate::node::Action::UpdateRoute)).
    ///
    /// Lower epochs are ignored (R13). Messages that were sent under a lower epoch are in doubt, and are sent again
    /// ahead of the buffered ones.
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
        self.set_route(now, index, epoch, owner, moving, out);
        self.flush_shard(now, index, out);
        self.pump(now, out);
    }

    /// Buffers messages for a shard whose hand-off begins
    /// ([`node::Action::BufferShard`](crate::node::Action::BufferShard); A8, K24). They wait for a higher epoch, for
    /// this epoch without a hand-off, or until `buffer_timeout` has passed: then the known route is tried, and the
    /// answer corrects it (R12).
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

    /// Handles the loss of the link to this member, or the end of its incarnation (S12): messages in flight to it are
    /// in doubt, and are sent to the owner that the route names. If that is the same member, they first wait for a
    /// pause: the link may be re-established.
    pub fn on_link_lost(&mut self, now: u64, member: &Member, out: &mut Vec<Action<T>>) {
        let Some(link) = self.windows.remove(member) else { return };
        let mut touched: BTreeSet<usize> = link.waiting_shards.iter().copied().collect();
        for tag in link.in_flight {
            if let Some(flight) = self.recall(tag) {
                touched.insert(flight.index);
                self.return_in_doubt(now, flight, out);
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

    /// Handles the result of an attempt (S11.8). For [`AttemptResult::Answered`], returns the message and whether an
    /// earlier copy of it is in doubt, in which case an answer that it did not run ends as `unknown` (R16). `None` if
    /// the router keeps the message, or if the attempt was abandoned earlier.
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
                self.set_route(now, index, epoch, Some(owner), false, out);
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

    /// Counts of what the router currently holds.
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

    /// The shard's owner, if it is a node other than `node` and this router's route is newer than the sender's, whose
    /// epoch is `than`.
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

fn push_unless_buffered<T>(step: Action<T>, out: &mut Vec<Action<T>>) {
    match step {
        Action::Buffered => {}
        step => out.push(step),
    }
}
