//! What the machine is told of rows, of its writes and by other nodes, and what operators ask for.

use super::*;

impl Machine {
    /// An observer that slept counts every lease as just renewed (R8).
    pub(super) fn check_clock_gap(&mut self, now: Now) {
        let slept = self
            .last_event_at
            .is_none_or(|last| now.mono.saturating_sub(last) > self.settings.lease_margin);
        if slept && !self.has_mutation(Mutation::TrustStaleObservations) {
            self.view.restart_lease_timers(now.mono);
            self.restart_manager_silence_timers(now);
            self.restart_host_silence_timers(now);
        }
        self.last_event_at = Some(now.mono);
    }

    pub(super) fn on_listed(&mut self, now: Now, rows: Option<Vec<(RowKey, Row, u64)>>) {
        self.list_pending = false;
        let Some(rows) = rows else {
            self.list_at = now.mono + self.settings.store_retry_interval;
            return;
        };
        self.watching = true;
        for (key, row, revision) in rows {
            self.learn(now, key, row, revision);
        }
        // Nobody knows what was missed meanwhile (R8).
        if !self.has_mutation(Mutation::TrustStaleObservations) {
            self.view.restart_lease_timers(now.mono);
        }
    }

    pub(super) fn on_row(&mut self, now: Now, key: RowKey, value: Option<(Row, u64)>) {
        self.on_own_row_read(now, &key, value.as_ref());
        if let RowKey::Assignments(chunk) = key {
            self.chunk_read(now, chunk, value.clone());
        }
        if let Some((row, revision)) = value {
            self.learn(now, key, row, revision);
        }
    }

    pub(super) fn on_written(&mut self, now: Now, number: u64, result: Result<u64, WriteError>) {
        let Some(purpose) = self.pending_writes.remove(&number) else { return };
        match purpose {
            WritePurpose::Register(row, sent) => {
                self.on_registration_written(now, row, sent, result)
            }
            WritePurpose::Renew(row, sent) => self.on_renewal_written(now, row, sent, result),
            WritePurpose::Leave => self.on_leave_written(now, result),
            WritePurpose::SetManager(row) => self.on_manager_row_written(now, row, result),
            WritePurpose::Assignments(chunk) => self.chunk_written(now, chunk, result),
            WritePurpose::MarkDead(node) | WritePurpose::Drain(node) => {
                let key = RowKey::Node(node);
                if result == Err(WriteError::Unknown) {
                    self.write_retry_at = now.mono + self.settings.store_retry_interval;
                }
                match result {
                    // The watch tells the row; reading it is faster.
                    Ok(_) | Err(WriteError::Unknown) => {
                        self.actions.push_back(Action::ReadRow(key))
                    }
                    Err(WriteError::Conflict(Some((row, revision)))) => {
                        self.learn(now, key, row, revision);
                    }
                    Err(WriteError::Conflict(None)) => {}
                }
            }
        }
    }

    pub(super) fn on_control_message(&mut self, now: Now, from: &Member, talk: ControlMessage) {
        match talk {
            ControlMessage::RowUpdate { key, row, revision } => self.learn(now, key, row, revision),
            ControlMessage::BeginHandOff { hand_off, revision } => {
                self.on_begin(now, from, hand_off, revision);
            }
            ControlMessage::HandOff(hand_off) => self.on_hand_off(now, from, hand_off),
            ControlMessage::BeginHandOffAck { term, shard, epoch, id } => {
                self.on_ack(&from.node, term, shard, epoch, id);
            }
            ControlMessage::ShardStopped(hand_off) => self.on_shard_stopped(hand_off),
            ControlMessage::Report(report) => self.on_report(now, from, *report),
            ControlMessage::Rebalance => self.request_rebalance(now),
            ControlMessage::NodeUnreachable { node } => self.on_unreachable(now, node),
        }
    }

    /// Writes what operators asked for, once the row is known and no such write is under way.
    pub(super) fn drive_drains(&mut self, now: Now) {
        if now.mono < self.write_retry_at {
            return;
        }
        let wanted: Vec<_> = self.drains.iter().map(|(node, on)| (node.clone(), *on)).collect();
        for (node, draining) in wanted {
            let Some((row, revision)) = self.view.nodes.get(&node) else { continue };
            if row.draining == draining || row.status != NodeStatus::Live {
                self.drains.remove(&node);
                continue;
            }
            if self
                .pending_writes
                .values()
                .any(|purpose| *purpose == WritePurpose::Drain(node.clone()))
            {
                continue;
            }
            let row = NodeRow { draining, ..row.clone() };
            let revision = *revision;
            self.write(
                WritePurpose::Drain(node.clone()),
                RowKey::Node(node),
                Some(revision),
                Row::Node(row),
            );
        }
    }

    /// Asks for the rows of nodes that others name and that were not seen yet.
    pub(super) fn read_missing_rows(&mut self, now: Now, nodes: impl IntoIterator<Item = NodeId>) {
        if now.mono < self.next_missing_row_read {
            return;
        }
        for node in nodes {
            self.next_missing_row_read = now.mono + self.settings.store_retry_interval;
            self.actions.push_back(Action::ReadRow(RowKey::Node(node)));
        }
    }

    pub(super) fn request_rebalance(&mut self, now: Now) {
        match &mut self.manager {
            Some(manager) => {
                manager.next_rebalance_at = now.mono;
                self.decision_needed = true;
            }
            None if self
                .view
                .manager
                .as_ref()
                .is_some_and(|(row, _)| row.holder.node != self.identity.node) =>
            {
                self.send_to_manager(now, ControlMessage::Rebalance);
            }
            None => {}
        }
    }
}
