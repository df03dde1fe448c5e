//! The shard routes that the router gets: from rows, from the cache on disk, and from messages about hand-offs.

use std::collections::BTreeMap;

use super::{
    Action, Context, ControlMessage, Epoch, HandOff, Member, NodeId, NodeStatus, ObservedCluster,
    Row, RowKey, chunk_of, shard_at,
};

impl ObservedCluster {
    /// Publishes the routes of a chunk's shards that differ from the last published ones.
    pub(super) fn publish_routes(&mut self, context: &mut Context, chunk: u32) {
        let Some((row, _)) = self.chunks.get(&chunk) else { return };
        for (place, row) in row.assignments.iter().enumerate() {
            let shard = shard_at(chunk, place);
            let is_live = |owner: &Member| {
                self.nodes.get(&owner.node).is_some_and(|(row, _)| {
                    row.incarnation == owner.incarnation && row.status == NodeStatus::Live
                })
            };
            let owner = row.owner.clone().filter(is_live);
            let route = (row.epoch, owner, row.hand_off.is_some());
            let Some(published) = self.routes.get_mut(shard.0 as usize - 1) else { continue };
            // R13: a route moves only to higher epochs.
            if *published != route && published.0 <= route.0 {
                *published = route.clone();
                let (epoch, owner, hand_off_in_progress) = route;
                context.push(Action::UpdateRoute { shard, epoch, owner, hand_off_in_progress });
            }
        }
    }

    /// The routes of new shards can be published.
    pub(in super::super) fn on_pools_added(&mut self, context: &mut Context) {
        let shards = context.identity.pools.shard_count() as usize;
        self.routes.resize(shards, (Epoch(0), None, false));
        self.publish_all_routes(context);
    }

    pub(in super::super) fn publish_all_routes(&mut self, context: &mut Context) {
        for chunk in self.chunks.keys().copied().collect::<Vec<_>>() {
            self.publish_routes(context, chunk);
        }
    }

    /// Publishes routes and addresses from the cache on disk, used to send messages until the store delivers newer ones
    /// (R13, S8).
    pub(in super::super) fn on_cached(
        &mut self,
        context: &mut Context,
        rows: Vec<(RowKey, Row, u64)>,
    ) {
        if self.watching {
            return;
        }
        let mut members = BTreeMap::new();
        for (key, row, _) in &rows {
            if let (RowKey::Node(node), Row::Node(row)) = (key, row) {
                let alive = row.status == NodeStatus::Live;
                members.insert(node.clone(), (row.incarnation, alive));
                context.push(Action::UpdatePeer {
                    member: Member { node: node.clone(), incarnation: row.incarnation },
                    alive,
                    addresses: row.addresses.clone(),
                });
            }
        }
        for (key, row, _) in rows {
            let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) else { continue };
            for (place, row) in row.assignments.into_iter().enumerate() {
                let shard = shard_at(chunk, place);
                let owner = row
                    .owner
                    .filter(|owner| members.get(&owner.node) == Some(&(owner.incarnation, true)));
                let Some(published) = self.routes.get_mut(shard.0 as usize - 1) else { continue };
                let epoch = row.epoch;
                *published = (epoch, owner.clone(), false);
                let hand_off_in_progress = false;
                context.push(Action::UpdateRoute { shard, epoch, owner, hand_off_in_progress });
            }
        }
    }

    /// Handles a begin-hand-off: has messages for the shard buffered, and acknowledges it, whether or not the shard was
    /// known (A8).
    pub(in super::super) fn on_begin_hand_off(
        &self,
        context: &mut Context,
        manager: &NodeId,
        hand_off: HandOff,
        revision: u64,
    ) {
        let HandOff { term, shard, epoch, id, .. } = hand_off;
        let known = self.chunks.get(&chunk_of(shard)).map_or(0, |(_, at)| *at);
        let is_in_row = self.assignment(shard).is_some_and(|row| {
            row.epoch == epoch && row.hand_off.as_ref().is_some_and(|intent| intent.id == id)
        });
        // A begin-hand-off that arrives after the row that ended its hand-off buffers nothing.
        if revision > known || is_in_row {
            context.push(Action::BufferShard { shard, epoch });
        }
        context.send(manager, ControlMessage::BeginHandOffAck { term, shard, epoch, id });
    }
}
