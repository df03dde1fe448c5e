//! The store on its node, and the way to it: calls on connections, answers after a sync, watches.

use std::sync::Arc;

use ostraca_sharding::ids::{Epoch, ShardId, ShardKey};
use ostraca_sharding::node::{Event, WriteError};
use ostraca_sharding::records::{Claim, ClaimOutcome, CommitOutcome};
use ostraca_sharding::rows::{Key, Row};

use super::guard::Applied;
use super::net::{ConnId, Frame, Way};
use super::process::Pid;
use super::rows::{Change, Found};
use super::{Happening, World};
use crate::store::{self, Answer, Request};

/// What a node asks of the store.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// With the generation that a load or an activation is for.
    Entity(ShardId, Epoch, u64, Request),
    Claims {
        number: u64,
        shards: Vec<ShardId>,
    },
    Ping {
        sent: u64,
    },
    List,
    Read(Key),
    Write {
        number: u64,
        key: Key,
        expected: Option<u64>,
        row: Row,
    },
}

/// What it is answered.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Entity(ShardId, Epoch, Answer),
    Claims { number: u64, claims: Option<Vec<Option<Claim>>> },
    Pong { sent: Option<u64> },
    Listed(Option<Vec<Change>>),
    Row(Key, Option<Found>),
    Written { number: u64, result: Result<u64, WriteError> },
}

/// A call that its node has not seen the end of.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) pid: Pid,
    pub(super) conn: ConnId,
    pub(super) call: Call,
    /// On the asker's clock.
    pub(super) sent: u64,
}

/// A watch, and how far it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watcher {
    pub(super) conn: ConnId,
    pub(super) revision: u64,
    pub(super) held: bool,
}

pub(super) fn shard_key(shard: ShardId) -> ShardKey {
    ShardKey { namespace: "default".into(), pool: "default".into(), shard }
}

/// The answer of a store that was not reached: nothing was written.
fn not_reached(call: &Call) -> Reply {
    match call {
        Call::Entity(shard, epoch, _, request) => {
            Reply::Entity(*shard, *epoch, store::refusal(request, "the store is not reached"))
        }
        _ => given_up(call),
    }
}

/// The answer to somebody who cannot know.
fn given_up(call: &Call) -> Reply {
    match call {
        Call::Entity(shard, epoch, _, request) => {
            let answer = store::refusal(request, "the connection broke");
            Reply::Entity(*shard, *epoch, store::unknown(answer, "the connection broke"))
        }
        Call::Claims { number, .. } => Reply::Claims { number: *number, claims: None },
        Call::Ping { .. } => Reply::Pong { sent: None },
        Call::List => Reply::Listed(None),
        Call::Read(key) => Reply::Row(key.clone(), None),
        Call::Write { number, .. } => {
            Reply::Written { number: *number, result: Err(WriteError::Unknown) }
        }
    }
}

/// Who no row ever named.
pub(super) const GHOST: &str = "ghost";

impl World {
    /// Asks the store. Where there is no connection, the answer is that nothing was written.
    pub(super) fn call(&mut self, pid: Pid, call: Call) {
        let entities = matches!(call, Call::Entity(..) | Call::Claims { .. } | Call::Ping { .. });
        let it = &self.processes[pid];
        let conn = if entities { it.bulk } else { it.control };
        let sent = it.mono(self.now);
        self.tags += 1;
        let tag = self.tags;
        let Some(conn) = conn else {
            let reply = not_reached(&call);
            self.asked.insert(tag, Asked { pid, conn: usize::MAX, call, sent });
            return self.at(1, Happening::FromStore { pid, tag, reply });
        };
        self.asked.insert(tag, Asked { pid, conn, call: call.clone(), sent });
        self.frame(conn, 0, Frame::Call(tag, call));
    }

    /// A call reaches the store.
    pub(super) fn at_store(&mut self, conn: ConnId, tag: u64, call: Call) {
        if !self.store_up {
            return self.frame(conn, 1, Frame::Reply(tag, not_reached(&call)));
        }
        match call {
            Call::Entity(shard, epoch, _, mut request) => {
                if let Request::Commit(commits) = &mut request {
                    if self.conns[conn].alive && self.rng.chance(1) {
                        let answer = store::refusal(&request, "full");
                        let reply = Reply::Entity(shard, epoch, answer);
                        return self.frame(conn, 1, Frame::Reply(tag, reply));
                    }
                    // What was refused stays refused, however often it is delivered (R3).
                    commits.retain(|commit| !self.refused.contains(&commit.head.turn));
                }
                if let Request::Claim(claim) = &request
                    && self.ghosts > 0
                    && self.conns[conn].alive
                    && self.guard.newest(shard) == Some(epoch)
                {
                    self.ghosts -= 1;
                    self.haunt(shard, claim);
                }
                let Some(store) = self.stores.get_mut(shard.0 as usize - 1) else { return };
                self.told.insert(tag, (conn, shard, epoch));
                let answers = store.request(tag, request);
                self.answer(answers);
            }
            Call::Write { number, key, expected, row } => {
                let old = self.rows.applied(&key).map(|(row, _)| row.clone());
                let result = self.rows.write(&key, expected, row.clone());
                if result.is_ok() {
                    let by = self.conns[conn].ends[0];
                    let living = self.still_living(&key, old.as_ref(), &row);
                    let at = self.now;
                    self.applied.push(Applied { key, old, new: row, by, living, at });
                } else {
                    self.tally.count("transition: write conflict");
                }
                self.held.push((conn, tag, Call::List, Some(Reply::Written { number, result })));
            }
            call => self.held.push((conn, tag, call, None)),
        }
        self.sync_soon();
    }

    /// A claim stands above what rows know: the manager is to go above it (R5).
    fn haunt(&mut self, shard: ShardId, claim: &Claim) {
        self.tally.count("fault: a higher claim stands than rows know");
        self.tags += 1;
        let epoch = Epoch(claim.epoch.0 + self.rng.range(1, 4));
        let ghost = Claim { epoch, node: GHOST.into(), number: 1, ..claim.clone() };
        if let Some(store) = self.stores.get_mut(shard.0 as usize - 1) {
            store.request(self.tags, Request::Claim(Arc::new(ghost)));
        }
    }

    fn sync_soon(&mut self) {
        if !self.syncing {
            self.syncing = true;
            let delay = self.rng.range(1, 8);
            self.at(delay, Happening::Sync);
        }
    }

    /// Makes all that is applied durable, and answers (R2).
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
        for applied in std::mem::take(&mut self.applied) {
            self.guard_applied(&applied);
        }
        for claim in claims {
            self.guard.claim_stands(&claim, &mut self.breaches);
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
                self.at(delay, Happening::Watch { conn });
            } else {
                self.tell_watcher(watcher);
            }
        }
        self.watchers.retain(|watcher| self.conns[watcher.conn].alive);
    }

    fn read(&mut self, conn: ConnId, call: &Call) -> Reply {
        match call {
            Call::List => {
                let revision = self.rows.revision();
                self.watchers.retain(|watcher| watcher.conn != conn);
                self.watchers.push(Watcher { conn, revision, held: false });
                Reply::Listed(Some(self.rows.since(0)))
            }
            Call::Read(key) => Reply::Row(key.clone(), Some(self.rows.durable().get(key).cloned())),
            Call::Claims { number, shards } => {
                let claim = |shard: &ShardId| {
                    self.stores.get(shard.0 as usize - 1)?.durable().claim.clone()
                };
                let claims = shards.iter().map(claim).collect();
                Reply::Claims { number: *number, claims: Some(claims) }
            }
            Call::Ping { sent } => Reply::Pong { sent: Some(*sent) },
            other => given_up(other),
        }
    }

    fn tell_watcher(&mut self, watcher: usize) {
        let Watcher { conn, revision, .. } = self.watchers[watcher];
        let changes = self.rows.since(revision);
        self.watchers[watcher].revision = self.rows.revision();
        self.watchers[watcher].held = false;
        if !changes.is_empty() {
            self.frame(conn, 1, Frame::Changes(changes));
        }
    }

    /// A watch that was held back is told the newest values.
    pub(super) fn watch(&mut self, conn: ConnId) {
        if let Some(at) = self.watchers.iter().position(|watcher| watcher.conn == conn) {
            let behind = self.rows.revision().saturating_sub(self.watchers[at].revision);
            if behind as usize > self.rows.since(self.watchers[at].revision).len() {
                self.tally.count("fault: watch skipped to the newest value");
            }
            self.tell_watcher(at);
        }
    }

    fn answer(&mut self, answers: Vec<(u64, Answer)>) {
        for (tag, answer) in answers {
            if let Answer::Commit(outcomes) = &answer {
                let refused = outcomes.iter().filter(|o| matches!(o.2, CommitOutcome::Refused(_)));
                self.refused.extend(refused.map(|(_, turn, _)| *turn));
            }
            let Some((conn, shard, epoch)) = self.told.remove(&tag) else { continue };
            self.frame(conn, 1, Frame::Reply(tag, Reply::Entity(shard, epoch, answer)));
        }
        if self.stores.iter().any(store::Store::needs_sync) {
            self.sync_soon();
        }
    }

    fn sync_failed(&mut self) {
        self.tally.count("fault: sync failed");
        for shard in 0..self.stores.len() {
            let answers = self.stores[shard].fail_sync(&mut self.rng);
            self.answer(answers);
        }
        let lost = self.rows.crash(true, &mut self.rng);
        self.applied_after_crash(lost);
        for (conn, tag, call, ready) in std::mem::take(&mut self.held) {
            let reply = match ready {
                Some(Reply::Written { number, .. }) => {
                    Reply::Written { number, result: Err(WriteError::Unknown) }
                }
                _ => given_up(&call),
            };
            self.frame(conn, 1, Frame::Reply(tag, reply));
        }
        self.store_up = false;
        // Its process ends, and is started again.
        let delay = self.rng.range(5, 60);
        let back = self.rng.range(20, 400);
        self.at(delay, Happening::Crash { site: 0, back: Some(back), power: false });
    }

    /// After a crash: what was lost was never written, and nobody was told that it was.
    fn applied_after_crash(&mut self, lost: bool) {
        for applied in std::mem::take(&mut self.applied) {
            if !lost {
                self.guard_applied(&applied);
            }
        }
    }

    /// The store's process is gone.
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

    /// A node hears the store's answer.
    pub(super) fn from_store(&mut self, pid: Pid, tag: u64, reply: Reply) {
        let Some(asked) = self.asked.remove(&tag) else { return };
        let failed = match &reply {
            Reply::Entity(_, _, answer) => match answer {
                Answer::Claim(outcome) => matches!(outcome, ClaimOutcome::Failed(_)),
                Answer::Commit(outcomes) => !outcomes.iter().any(|(_, _, outcome)| {
                    matches!(outcome, CommitOutcome::Done | CommitOutcome::Already)
                }),
                Answer::Load(_, result) => result.is_err(),
                Answer::State(_, result) => result.is_err(),
            },
            Reply::Claims { claims, .. } => claims.is_none(),
            Reply::Pong { sent } => sent.is_none(),
            _ => true,
        };
        if !failed {
            self.processes[pid].store_answered = self.now;
            self.tell_node(pid, Event::StoreAnswered { sent: asked.sent });
        }
        match reply {
            Reply::Entity(shard, epoch, answer) => {
                let generation = match asked.call {
                    Call::Entity(_, _, generation, _) => generation,
                    _ => 0,
                };
                self.shard_answered(pid, shard, epoch, generation, answer);
            }
            Reply::Claims { number, claims } => {
                if claims.is_some() {
                    self.processes[pid].read_back = true;
                }
                self.tell_node(pid, Event::Claims { number, claims });
            }
            Reply::Pong { .. } => {}
            Reply::Listed(rows) => self.tell_node(pid, Event::Listed(rows)),
            Reply::Row(key, Some(value)) => self.tell_node(pid, Event::Row { key, value }),
            Reply::Row(key, None) => self.read_again(pid, key),
            Reply::Written { number, result } => {
                if result == Err(WriteError::Unknown) {
                    self.tally.count("transition: write unknown");
                }
                self.wrote_step(pid, &asked.call, &result);
                if self.processes[pid].alive {
                    self.tell_node(pid, Event::Written { number, result });
                }
            }
        }
    }

    /// A read that nobody answered is asked again: it changes nothing.
    fn read_again(&mut self, pid: Pid, key: Key) {
        let delay = self.rng.range(20, 60);
        self.at(delay, Happening::ReadAgain { pid, key });
    }

    pub(super) fn watched(&mut self, pid: Pid, conn: ConnId, changes: Option<Vec<Change>>) {
        if self.processes[pid].control != Some(conn) {
            return;
        }
        let Some(changes) = changes else { return self.tell_node(pid, Event::WatchLost) };
        self.processes[pid].heard_at = self.now;
        for (key, row, revision) in changes {
            self.tell_node(pid, Event::Row { key, value: Some((row, revision)) });
        }
    }

    /// A connection to the store is given up: what was asked on it may still arrive, nobody hears the answer.
    pub(super) fn store_lost(&mut self, pid: Pid, conn: ConnId) {
        let way = self.conns[conn].way;
        let it = &mut self.processes[pid];
        match way {
            Way::Control if it.control == Some(conn) => it.control = None,
            Way::Bulk if it.bulk == Some(conn) => it.bulk = None,
            _ => {}
        }
        let open: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.pid == pid && asked.conn == conn)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in open {
            if let Some(reply) = self.asked.get(&tag).map(|asked| given_up(&asked.call)) {
                self.from_store(pid, tag, reply);
            }
        }
        if way == Way::Control {
            self.tell_node(pid, Event::WatchLost);
        }
        self.at(1, Happening::Reconnect { pid, way });
    }

    /// Makes the connections to the store that are missing, if it is reached.
    pub(super) fn reconnect(&mut self, pid: Pid, way: Way) {
        let it = &self.processes[pid];
        let has = if way == Way::Control { it.control } else { it.bulk };
        if has.is_some() {
            return;
        }
        let up = self.sites[0].pid.filter(|store| {
            *store == pid || (self.processes[*store].alive && self.reachable(pid, *store, way))
        });
        let Some(store) = up else {
            let delay = self.rng.range(30, 90);
            return self.at(delay, Happening::Reconnect { pid, way });
        };
        let conn = self.connect(pid, store, way);
        let it = &mut self.processes[pid];
        if way == Way::Control {
            it.control = Some(conn);
            it.control_since = self.now;
        } else {
            it.bulk = Some(conn);
        }
    }
}
