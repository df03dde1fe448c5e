//! Dispatches what concerns several parts: events, newly learned rows, answers to writes, and messages.
//!
//! A part that handles an event returns what the other parts must know; this module passes it on.

use super::Machine;
use super::manager::campaign::on_manager_row_written;
use super::membership::Effect;
use super::requests::{LeaseWrite, WritePurpose};
use super::stateless::Stateless;
use crate::ids::{NodeId, ShardId};
use crate::node::{Action, ControlMessage, Event, Mutation, WriteError};
use crate::pools::Pools;
use crate::rows::{Member, NodeRow, Row, RowKey, is_stateless_chunk};

impl Machine {
    pub(super) fn dispatch(&mut self, event: Event) {
        let Self { context, membership, holdings, observed, manager, stateless, .. } = self;
        match event {
            Event::Tick => {}
            Event::RowsListed(Some(rows)) => self.on_listed(rows),
            Event::RowsListed(None) => observed.on_list_failed(context),
            Event::RowObserved { key, value } => self.on_row(key, value),
            Event::WatchLost => observed.relist_at(context.mono()),
            Event::RowWritten { request_id, result } => self.on_written(request_id, result),
            Event::Received { from, message } => self.on_control_message(&from, message),
            Event::ShardServing { shard, epoch } => holdings.on_serving(context, shard, epoch),
            Event::ShardStopped { shard, epoch } => {
                stateless.request_check();
                holdings.on_stopped(context, observed, membership.member(), shard, epoch);
            }
            Event::ShardLost { shard, epoch, current_epoch } => {
                let me = membership.member();
                stateless.request_check();
                holdings.on_lost(context, observed, me, shard, epoch, current_epoch);
            }
            Event::ShardEscalated { shard, epoch } => {
                holdings.on_escalated(context, shard, epoch);
            }
            Event::StoreResponded { sent_at } => membership.on_store_responded(sent_at),
            Event::ClaimsRead { request_id, claims } => {
                for changed in membership.on_claims(context, request_id, claims) {
                    holdings.on_claim_changed(context, observed, membership.member(), changed);
                }
            }
            Event::CachedRows(rows) => observed.on_cached(context, rows),
            Event::UnrunnableTypes(types) => holdings.set_unrunnable_types(context, types),
            Event::MisplacedShards(shards) => holdings.set_misplaced(context, shards),
            Event::PinsChanged { revision, pins } => manager.set_pins(context, revision, pins),
            Event::PlacementChanged { pool, revision, is_listed, shards } => {
                manager.set_placement(context, pool, revision, is_listed, shards);
            }
            Event::LoadsMeasured(loads) => self.send_to_manager(ControlMessage::Loads(loads)),
            Event::StateMoves(range) => manager.set_moving_state(range),
            Event::MoveShard { shard, to } => self.request_move(shard, to),
            Event::Drain { node, draining } => manager.request_drain(node, draining),
            Event::LeaseSettingsChanged(agreed) => membership.on_lease_settings(context, agreed),
            Event::PoolsChanged(pools) => self.on_pools_changed(pools),
            Event::Rebalance => self.request_rebalance(),
            Event::NodeUnreachable { node } => {
                self.send_to_manager(ControlMessage::NodeUnreachable { node });
            }
            Event::ProcessEnded { member } => {
                if observed.on_process_ended(member) {
                    manager.request_decision();
                }
            }
            Event::Leave => membership.leave_after_drain(),
            Event::LeaveNow => membership.leave_immediately(),
        }
    }

    fn on_pools_changed(&mut self, pools: Pools) {
        let Self { context, holdings, observed, manager, stateless, .. } = self;
        let known = &context.identity.pools;
        if pools == *known || !pools.extend(known) {
            return;
        }
        context.identity.pools = pools;
        observed.on_pools_added(context);
        // Rows may name shards that were not known when they arrived.
        holdings.reapply_all_chunks(observed);
        manager.on_pools_added(context);
        for chunk in observed.chunks().map(|(chunk, ..)| chunk) {
            stateless.on_chunk_learned(context, observed, chunk);
        }
        stateless.request_check();
    }

    // Messages.

    pub(super) fn send_to_manager(&mut self, message: ControlMessage) {
        if let Some(row) = self.observed.manager_row() {
            self.context.send(&row.holder.node, message);
            self.deliver_local_messages();
        }
    }

    /// Delivers messages from this node to itself. While the node is unregistered, it cannot be the sender, and the
    /// message may be addressed to an earlier incarnation: then the message is sent like any other.
    pub(super) fn deliver_local_messages(&mut self) {
        while let Some(message) = self.context.take_local_message() {
            match self.membership.member().cloned() {
                Some(me) => self.on_control_message(&me, message),
                None => {
                    let to = self.context.identity.node.clone();
                    self.context.push(Action::Send { to, message });
                }
            }
        }
    }

    fn on_control_message(&mut self, from: &Member, message: ControlMessage) {
        let Self { context, membership, holdings, observed, manager, keep_alives, arbiter, .. } =
            self;
        match message {
            ControlMessage::RowUpdate { key, row, revision } => self.learn(key, row, revision),
            ControlMessage::BeginHandOff { hand_off, revision } => {
                observed.on_begin_hand_off(context, &from.node, hand_off, revision);
            }
            ControlMessage::HandOff(hand_off) => {
                if let Some(me) = membership.member() {
                    holdings.on_hand_off(context, observed, me, &from.node, hand_off);
                }
            }
            ControlMessage::BeginHandOffAck { term, shard, epoch, id } => {
                manager.on_ack(&from.node, term, shard, epoch, id);
            }
            ControlMessage::ShardStopped(hand_off) => manager.on_shard_stopped(context, hand_off),
            ControlMessage::Report(report) => manager.on_report(context, observed, from, *report),
            ControlMessage::Rebalance => self.request_rebalance(),
            ControlMessage::Loads(loads) => manager.on_loads(context, from, loads),
            ControlMessage::MoveShard { shard, to } => self.request_move(shard, to),
            ControlMessage::NodeUnreachable { node } => {
                manager.on_unreachable(context, observed, node);
            }
            ControlMessage::KeepAlive { to, number } => {
                if membership.member().is_some_and(|me| me.incarnation == to) {
                    let to = from.incarnation;
                    context.send(&from.node, ControlMessage::KeepAliveAck { to, number });
                }
            }
            ControlMessage::KeepAliveAck { to, number } => {
                if membership.member().is_some_and(|me| me.incarnation == to) {
                    keep_alives.on_ack(from, number);
                }
            }
            ControlMessage::ArbiterFlag { number } => arbiter.on_flag(from, number),
        }
    }

    /// Rebalances, or asks the manager to do so.
    fn request_rebalance(&mut self) {
        if self.manager.request_rebalance(&self.context) {
            return;
        }
        let me = &self.context.identity.node;
        if self.observed.manager_row().is_some_and(|row| row.holder.node != *me) {
            self.send_to_manager(ControlMessage::Rebalance);
        }
    }

    /// Moves a shard, or asks the manager to do so.
    fn request_move(&mut self, shard: ShardId, to: NodeId) {
        if self.manager.request_move(&self.context, shard, to.clone()) {
            return;
        }
        let me = &self.context.identity.node;
        if self.observed.manager_row().is_some_and(|row| row.holder.node != *me) {
            self.send_to_manager(ControlMessage::MoveShard { shard, to });
        }
    }

    // Rows.

    fn on_listed(&mut self, rows: Vec<(RowKey, Row, u64)>) {
        self.observed.on_watch_began();
        for (key, row, revision) in rows {
            self.learn(key, row, revision);
        }
        // Changes that were missed in the meantime are unknown (R8).
        if !self.context.has_mutation(Mutation::TrustStaleObservations) {
            self.observed.restart_lease_timers(self.context.mono());
            self.stateless.restart_lease_timers(self.context.mono());
        }
    }

    fn on_row(&mut self, key: RowKey, value: Option<(Row, u64)>) {
        let holds_shards = !self.holdings.is_empty();
        let effect =
            self.membership.on_own_row_read(&mut self.context, &key, value.as_ref(), holds_shards);
        self.carry_out(effect);
        if let RowKey::Assignments(chunk) = key {
            self.manager.on_chunk_read(&mut self.context, chunk, value.as_ref());
        }
        if let Some((row, revision)) = value {
            self.learn(key, row, revision);
        }
    }

    /// Learns a row if it is newer than the known one.
    fn learn(&mut self, key: RowKey, row: Row, revision: u64) {
        let Self { context, holdings, observed, manager, stateless, .. } = self;
        match (key, row) {
            (RowKey::Node(node), Row::Node(row)) => {
                let own = (node == context.identity.node).then(|| row.clone());
                let Some(change) = observed.learn_node(context, node, row, revision) else {
                    return;
                };
                if change.affects_ownership {
                    manager.on_ownership_affected(context);
                }
                if change.affects_decisions {
                    stateless.request_check();
                    manager.request_decision();
                }
                if let Some(row) = own {
                    self.on_own_row(row, revision);
                }
                if change.affects_routes {
                    self.observed.publish_all_routes(&mut self.context);
                }
            }
            (RowKey::Manager, Row::Manager(row)) => {
                let is_new_term = observed.learn_manager(context, row, revision) == Some(true);
                if is_new_term {
                    holdings.report_soon(context);
                    holdings.restart_manager_silence_timers(context);
                }
            }
            (RowKey::Assignments(chunk), Row::Assignments(row)) => {
                let is_newer = observed.learn_chunk(context, chunk, row, revision);
                if is_newer {
                    if !is_stateless_chunk(&context.identity.pools, chunk) {
                        manager.request_decision();
                    }
                    holdings.on_chunk_changed(chunk);
                    if Stateless::concerns(context, chunk) {
                        stateless.on_chunk_learned(context, observed, chunk);
                        if let Some((row, revision)) = observed.chunk(chunk) {
                            manager.on_shared_chunk_learned(chunk, row, *revision);
                        }
                    }
                }
            }
            (RowKey::Arbiter, Row::Arbiter(row)) => {
                self.arbiter.learn(context, observed, row, revision);
            }
            (RowKey::Numbers(pool), Row::Numbers(row)) => {
                stateless.learn_numbers(pool, row, revision);
            }
            // A row under the wrong key: this release never writes one.
            _ => {}
        }
    }

    fn on_own_row(&mut self, row: NodeRow, revision: u64) {
        let holds_shards = !self.holdings.is_empty();
        let effect = self.membership.on_own_row(&mut self.context, row, revision, holds_shards);
        self.carry_out(effect);
    }

    // Answers to writes.

    fn on_written(&mut self, request_id: u64, result: Result<u64, WriteError>) {
        let Some(purpose) = self.context.requests.finish_write(request_id) else { return };
        let own_key = RowKey::Node(self.context.identity.node.clone());
        match purpose {
            WritePurpose::Register(row, sent_at) => self.on_registration(row, sent_at, result),
            WritePurpose::Renew(row, sent_at) => {
                let effect =
                    self.membership.on_renewal_written(&mut self.context, &row, sent_at, &result);
                let Some(effect) = effect else { return };
                self.carry_out(effect);
                match result {
                    Ok(revision) => self.learn(own_key, Row::Node(row), revision),
                    Err(error) => self.learn_conflicting(own_key, error),
                }
            }
            WritePurpose::Leave => {
                let effect = self.membership.on_leave_written(&mut self.context, &result);
                let Some(effect) = effect else { return };
                self.carry_out(effect);
                if let Err(error) = result {
                    self.learn_conflicting(own_key, error);
                }
            }
            WritePurpose::SetManager(row) => {
                on_manager_row_written(&mut self.context, &mut self.observed, &result);
                self.learn_written(RowKey::Manager, Row::Manager(row), result);
            }
            WritePurpose::TakeArbiterLease(row) => {
                self.arbiter.on_lease_written(&mut self.context, &result);
                match result {
                    // Nobody else is told: a member learns from the store alone that it must end.
                    Ok(revision) => self.learn(RowKey::Arbiter, Row::Arbiter(row), revision),
                    Err(error) => self.learn_conflicting(RowKey::Arbiter, error),
                }
            }
            WritePurpose::Assignments(chunk) => {
                let written = self.manager.on_chunk_written(&mut self.context, chunk, &result);
                if let Some(row) = written {
                    self.learn_written(RowKey::Assignments(chunk), Row::Assignments(row), result);
                }
            }
            WritePurpose::Numbers(pool, row) => {
                self.stateless.on_numbers_written(&mut self.context, pool, row, result);
            }
            WritePurpose::ShardLeases(write) => self.on_leases_written(&write, result),
            WritePurpose::MarkDead(node) | WritePurpose::Drain(node) => {
                let key = RowKey::Node(node);
                if result == Err(WriteError::Unknown) {
                    self.manager.retry_node_writes_later(&self.context);
                }
                match result {
                    // The watch delivers the row; reading it is faster.
                    Ok(_) | Err(WriteError::Unknown) => self.context.read(key),
                    Err(error) => self.learn_conflicting(key, error),
                }
            }
        }
    }

    /// Others learn of renewals from the watch: only changes of owners are sent to them (S4).
    fn on_leases_written(&mut self, write: &LeaseWrite, result: Result<u64, WriteError>) {
        let (key, row) = (RowKey::Assignments(write.chunk), Row::Assignments(write.row.clone()));
        let answer = result.clone();
        match result {
            Ok(revision) if !write.changes_owners => self.learn(key, row, revision),
            result => self.learn_written(key, row, result),
        }
        let Self { context, observed, stateless, .. } = self;
        stateless.on_leases_written(context, observed, write, &answer);
    }

    /// Records a cluster row that this node wrote and sends it to the others (S4), or records the row found in its
    /// place.
    fn learn_written(&mut self, key: RowKey, row: Row, result: Result<u64, WriteError>) {
        match result {
            Ok(revision) => {
                self.learn(key.clone(), row.clone(), revision);
                self.observed.broadcast_row(&mut self.context, &key, &row, revision);
            }
            Err(error) => self.learn_conflicting(key, error),
        }
    }

    fn learn_conflicting(&mut self, key: RowKey, error: WriteError) {
        if let WriteError::Conflict(Some((row, revision))) = error {
            self.learn(key, row, revision);
        }
    }

    // Membership.

    fn on_registration(&mut self, row: NodeRow, sent_at: u64, result: Result<u64, WriteError>) {
        let key = RowKey::Node(self.context.identity.node.clone());
        match result {
            Ok(revision) => {
                self.membership.on_registered(&mut self.context, &row, revision, sent_at);
                self.holdings.reapply_all_chunks(&self.observed);
                self.learn(key, Row::Node(row), revision);
                // The watch may have delivered a later change of the row before the answer to the registration.
                let observed = self.observed.node(&self.context.identity.node);
                if let Some((row, at)) = observed.filter(|(_, at)| *at > revision).cloned() {
                    self.on_own_row(row, at);
                }
                self.holdings.report_soon(&self.context);
            }
            Err(error) => {
                self.membership.on_registration_failed();
                if error == WriteError::Unknown {
                    let interval = self.context.settings.store_retry_interval;
                    self.observed.relist_at(self.context.mono() + interval);
                }
                self.learn_conflicting(key, error);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let Self { context, membership, holdings, observed, manager, stateless, .. } = self;
        match effect {
            Effect::Nothing => {}
            Effect::Renewed => holdings.report_soon(context),
            Effect::Left if !membership.stays() => {
                manager.end_term();
                membership.finish_leaving(context);
            }
            // If the incarnation has left but the node stays, a new incarnation follows.
            Effect::Left | Effect::Fenced => {
                holdings.on_fenced(context, observed);
                stateless.on_fenced();
                manager.end_term();
                observed.leadership_is_held();
                self.keep_alives.restart();
                self.arbiter.restart_timers();
                membership.end_incarnation(context);
                observed.relist_at(context.mono());
            }
        }
    }
}
