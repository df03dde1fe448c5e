//! What the machine is told of rows, of its writes and by other nodes, and what operators ask for.

use super::*;

impl Machine {
    /// An observer that slept counts every lease as just renewed (R8).
    pub(super) fn slept(&mut self, now: Now) {
        let slept =
            self.handled.is_none_or(|last| now.mono.saturating_sub(last) > self.settings.margin);
        if slept && !self.off(Mutation::TrustOldObservations) {
            self.view.renew_all(now.mono);
            self.wait_anew(now);
            self.hear_all(now);
        }
        self.handled = Some(now.mono);
    }

    pub(super) fn on_listed(&mut self, now: Now, rows: Option<Vec<(Key, Row, u64)>>) {
        self.listing = false;
        let Some(rows) = rows else {
            self.list_at = now.mono + self.settings.retry;
            return;
        };
        self.watching = true;
        for (key, row, revision) in rows {
            self.learn(now, key, row, revision);
        }
        // Nobody knows what was missed meanwhile (R8).
        if !self.off(Mutation::TrustOldObservations) {
            self.view.renew_all(now.mono);
        }
    }

    pub(super) fn on_row(&mut self, now: Now, key: Key, value: Option<(Row, u64)>) {
        self.answer_read(now, &key, value.as_ref());
        if let Key::Shards(chunk) = key {
            self.chunk_read(now, chunk, value.clone());
        }
        if let Some((row, revision)) = value {
            self.learn(now, key, row, revision);
        }
    }

    pub(super) fn on_written(&mut self, now: Now, number: u64, result: Result<u64, WriteError>) {
        let Some(purpose) = self.writes.remove(&number) else { return };
        match purpose {
            Purpose::Register(row, sent) => self.registered(now, row, sent, result),
            Purpose::Renew(row, sent) => self.renewed(now, row, sent, result),
            Purpose::Goodbye => self.said_goodbye(now, result),
            Purpose::Lead(row) => self.led(now, row, result),
            Purpose::Chunk(chunk) => self.chunk_written(now, chunk, result),
            Purpose::Death(node) | Purpose::Drain(node) => {
                let key = Key::Node(node);
                if result == Err(WriteError::Unknown) {
                    self.again_at = now.mono + self.settings.retry;
                }
                match result {
                    // The watch tells the row; reading it is faster.
                    Ok(_) | Err(WriteError::Unknown) => self.actions.push_back(Action::Read(key)),
                    Err(WriteError::Conflict(Some((row, revision)))) => {
                        self.learn(now, key, row, revision);
                    }
                    Err(WriteError::Conflict(None)) => {}
                }
            }
        }
    }

    pub(super) fn on_heard(&mut self, now: Now, from: &Member, talk: Talk) {
        match talk {
            Talk::Wrote { key, row, revision } => self.learn(now, key, row, revision),
            Talk::BeginHandOff { term, shard, epoch, id, revision, .. } => {
                self.on_begin(now, from, term, shard, epoch, id, revision);
            }
            Talk::HandOff { term, shard, epoch, incarnation, id } => {
                self.on_hand_off(now, from, term, shard, epoch, incarnation, id);
            }
            Talk::BeginHandOffAck { term, shard, epoch, id } => {
                self.on_ack(&from.node, term, shard, epoch, id);
            }
            Talk::ShardStopped { term, shard, epoch, incarnation, id } => {
                self.on_shard_stopped(term, shard, epoch, incarnation, id);
            }
            Talk::Report(report) => self.on_report(now, from, *report),
            Talk::Rebalance => self.ask_rebalance(now),
            Talk::Unreachable { node } => self.on_unreachable(now, node),
        }
    }

    /// Writes what operators asked for, once the row is known and no such write is under way.
    pub(super) fn drive_drains(&mut self, now: Now) {
        if now.mono < self.again_at {
            return;
        }
        let wanted: Vec<_> = self.drains.iter().map(|(node, on)| (node.clone(), *on)).collect();
        for (node, draining) in wanted {
            let Some((row, revision)) = self.view.nodes.get(&node) else { continue };
            if row.draining == draining || row.standing != Standing::Live {
                self.drains.remove(&node);
                continue;
            }
            if self.writes.values().any(|purpose| *purpose == Purpose::Drain(node.clone())) {
                continue;
            }
            let row = NodeRow { draining, ..row.clone() };
            let revision = *revision;
            self.write(
                Purpose::Drain(node.clone()),
                Key::Node(node),
                Some(revision),
                Row::Node(row),
            );
        }
    }

    /// Asks for the rows of nodes that others name and that were not seen yet.
    pub(super) fn look_for(&mut self, now: Now, nodes: impl IntoIterator<Item = NodeId>) {
        if now.mono < self.look_at {
            return;
        }
        for node in nodes {
            self.look_at = now.mono + self.settings.retry;
            self.actions.push_back(Action::Read(Key::Node(node)));
        }
    }

    pub(super) fn ask_rebalance(&mut self, now: Now) {
        match &mut self.manager {
            Some(manager) => {
                manager.balance_at = now.mono;
                self.news = true;
            }
            None if self
                .view
                .manager
                .as_ref()
                .is_some_and(|(row, _)| row.holder.node != self.identity.node) =>
            {
                self.say_manager(now, Talk::Rebalance);
            }
            None => {}
        }
    }
}
