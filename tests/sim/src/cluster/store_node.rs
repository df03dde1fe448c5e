//! The node with the store: it applies calls as they arrive, answers them after the next sync, and notifies watches.

use std::sync::Arc;

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::node::WriteError;
use ostraca_core::records::{Claim, CommitOutcome};
use ostraca_core::rows::Member;

use super::guard::Applied;
use super::net::{ConnId, Frame};
use super::storage::{GHOST, StoreCall, StoreResponse, given_up, not_reached};
use super::watches::Watcher;
use super::{SimEvent, World};
use crate::store::{self, Request, Response};

impl World {
    /// Applies a call that reached the store.
    pub(super) fn at_store(&mut self, conn: ConnId, tag: u64, call: StoreCall) {
        if !self.store_up {
            return self.frame(conn, 1, Frame::Reply(tag, not_reached(&call)));
        }
        match call {
            StoreCall::Entity(shard, epoch, _, mut request) => {
                if let Request::Commit(commits) = &mut request {
                    if self.conns[conn].alive && self.rng.chance(1) {
                        let answer = store::refusal(&request, "full");
                        let reply = StoreResponse::Entity(shard, epoch, answer);
                        return self.frame(conn, 1, Frame::Reply(tag, reply));
                    }
                    // A refused commit remains refused, however often it is delivered (R3).
                    commits.retain(|commit| !self.refused.contains(&commit.head.turn));
                }
                if let Request::Claim(claim) | Request::ClaimIn { claim, .. } = &request
                    && self.forced_claims > 0
                    && self.conns[conn].alive
                    && self.guard.newest(shard) == Some(epoch)
                {
                    self.forced_claims -= 1;
                    self.inject_higher_claim(shard, claim);
                }
                let Some(store) = self.stores.get_mut(shard.0 as usize - 1) else { return };
                self.told.insert(tag, (conn, shard, epoch));
                let moves = match &request {
                    Request::ClaimIn { claim, .. } => Some((claim.clone(), store.place())),
                    _ => None,
                };
                let answers = store.request(tag, request);
                if let Some((claim, before)) = moves {
                    self.count_move(shard, &claim, &before);
                }
                self.answer(answers);
            }
            StoreCall::Write { number, key, expected, row } => {
                let old = self.rows.applied(&key).map(|(row, _)| row.clone());
                let result = self.rows.write(&key, expected, row.clone());
                if result.is_ok() {
                    let by = self.conns[conn].ends[0];
                    let living = self.live_owners_replaced(&key, old.as_ref(), &row);
                    let at = self.now;
                    self.applied.push(Applied { key, old, new: row, by, living, at });
                } else {
                    self.tally.count("transition: write conflict");
                }
                let reply = StoreResponse::Written { number, result };
                if self.options.early_rows {
                    self.frame(conn, 1, Frame::Reply(tag, reply));
                } else {
                    self.held.push((conn, tag, StoreCall::List, Some(reply)));
                }
            }
            call => self.held.push((conn, tag, call, None)),
        }
        self.sync_soon();
    }

    /// Makes the current claim's epoch higher than that of the shard's row: the manager must assign an epoch above it
    /// (R5).
    pub(super) fn inject_higher_claim(&mut self, shard: ShardId, claim: &Claim) {
        self.tally.count("fault: the current claim is higher than rows know");
        self.tags += 1;
        let epoch = Epoch(claim.epoch.0 + self.rng.range(1, 4));
        let owner = Member { node: GHOST.into(), ..claim.owner.clone() };
        let ghost = Claim { epoch, owner, number: 1, ..claim.clone() };
        if let Some(store) = self.stores.get_mut(shard.0 as usize - 1) {
            store.request(self.tags, Request::Claim(Arc::new(ghost)));
        }
    }

    pub(super) fn sync_soon(&mut self) {
        if !self.syncing {
            self.syncing = true;
            let delay = self.rng.range(1, 8);
            self.at(delay, SimEvent::Sync);
        }
    }

    /// Makes everything that was applied durable, and then answers the calls (R2).
    pub(super) fn sync(&mut self) {
        self.syncing = false;
        if !self.store_up {
            return;
        }
        if std::mem::take(&mut self.sync_fails) {
            return self.sync_failed();
        }
        let mut claims = Vec::new();
        for shard in 0..self.stores.len() {
            if self.stores[shard].needs_sync() {
                let answers = self.stores[shard].sync();
                claims.extend(self.stores[shard].durable().claim.clone());
                self.answer(answers);
            }
        }
        self.rows.sync();
        self.revised.insert(self.rows.revision(), self.now);
        for applied in std::mem::take(&mut self.applied) {
            self.guard_applied(&applied);
            self.slow_answer(&applied);
        }
        for claim in claims {
            self.guard.claim_stands(&claim, &mut self.violations);
        }
        for (conn, tag, call, ready) in std::mem::take(&mut self.held) {
            let reply = ready.unwrap_or_else(|| self.read(conn, &call));
            self.frame(conn, 1, Frame::Reply(tag, reply));
        }
        for watcher in 0..self.watchers.len() {
            let held = &mut self.watchers[watcher].held;
            if *held {
                continue;
            }
            if self.rng.chance(12) {
                *held = true;
                let (conn, delay) = (self.watchers[watcher].conn, self.rng.range(5, 250));
                self.at(delay, SimEvent::Watch { conn });
            } else {
                self.notify_watcher(watcher);
            }
        }
        self.watchers.retain(|watcher| self.conns[watcher.conn].alive);
    }

    pub(super) fn read(&mut self, conn: ConnId, call: &StoreCall) -> StoreResponse {
        match call {
            StoreCall::List => {
                let revision = self.rows.revision();
                self.watchers.retain(|watcher| watcher.conn != conn);
                self.watchers.push(Watcher::new(conn, revision));
                StoreResponse::Listed(Some(self.rows.since(0)))
            }
            StoreCall::Read(key) => {
                StoreResponse::Row(key.clone(), Some(self.rows.durable().get(key).cloned()))
            }
            StoreCall::Claims { number, shards } => {
                let claim = |shard: &ShardId| {
                    self.stores.get(shard.0 as usize - 1)?.durable().last_claim().cloned()
                };
                let claims = shards.iter().map(claim).collect();
                StoreResponse::Claims { number: *number, claims: Some(claims) }
            }
            StoreCall::Ping { sent } => StoreResponse::Pong { sent: Some(*sent) },
            other => given_up(other),
        }
    }

    pub(super) fn answer(&mut self, answers: Vec<(u64, Response)>) {
        for (tag, answer) in answers {
            if let Response::Commit(outcomes) = &answer {
                let refused = outcomes.iter().filter(|o| matches!(o.2, CommitOutcome::Refused(_)));
                self.refused.extend(refused.map(|(_, turn, _)| *turn));
            }
            let Some((conn, shard, epoch)) = self.told.remove(&tag) else { continue };
            self.frame(conn, 1, Frame::Reply(tag, StoreResponse::Entity(shard, epoch, answer)));
        }
        if self.stores.iter().any(store::Store::needs_sync) {
            self.sync_soon();
        }
    }

    pub(super) fn sync_failed(&mut self) {
        self.tally.count("fault: sync failed");
        for shard in 0..self.stores.len() {
            let answers = self.stores[shard].fail_sync(&mut self.rng);
            self.answer(answers);
        }
        let lost = self.rows.crash(true, &mut self.rng);
        self.applied_after_crash(lost);
        for (conn, tag, call, ready) in std::mem::take(&mut self.held) {
            let reply = match ready {
                Some(StoreResponse::Written { number, .. }) => {
                    StoreResponse::Written { number, result: Err(WriteError::Unknown) }
                }
                _ => given_up(&call),
            };
            self.frame(conn, 1, Frame::Reply(tag, reply));
        }
        self.store_up = false;
        // The store's process ends and restarts.
        let delay = self.rng.range(5, 60);
        let back = self.rng.range(20, 400);
        self.at(delay, SimEvent::Crash { site: 0, back: Some(back), power: false });
    }

    /// Checks the applied writes after a crash. Writes that were lost never happened, and were never acknowledged.
    pub(super) fn applied_after_crash(&mut self, lost: bool) {
        for applied in std::mem::take(&mut self.applied) {
            if !lost {
                self.guard_applied(&applied);
            }
        }
    }

    /// Handles the end of the store's process.
    pub(super) fn store_crashed(&mut self, power: bool) {
        for store in &mut self.stores {
            store.crash(power, &mut self.rng);
        }
        let lost = self.rows.crash(power, &mut self.rng);
        self.applied_after_crash(lost);
        self.held.clear();
        self.told.clear();
        self.watchers.clear();
        self.store_up = false;
    }

    pub(super) fn store_opened(&mut self) {
        for store in &mut self.stores {
            store.reopen();
        }
        self.store_up = true;
        self.syncing = false;
    }
}
