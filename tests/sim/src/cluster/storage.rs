//! A node's access to the store: calls on two connections, one for rows and one for entities.

use ostraca_core::ids::{Epoch, ShardId, ShardPath};
use ostraca_core::node::{Event, WriteError};
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome};
use ostraca_core::rows::{Row, RowKey};

use super::net::{ConnId, ConnKind, Frame};
use super::process::Pid;
use super::rows::{Change, StoredRow};
use super::{SimEvent, World};
use crate::store::{self, Request, Response};

/// A node's call to the store.
#[derive(Clone, Debug)]
pub(super) enum StoreCall {
    /// A request for a shard, with the claim's or scan's number, or the generation of the load or activation.
    Entity(ShardId, Epoch, u64, Request),
    Claims {
        number: u64,
        shards: Vec<ShardId>,
    },
    Ping {
        sent: u64,
    },
    List,
    Read(RowKey),
    Write {
        number: u64,
        key: RowKey,
        expected: Option<u64>,
        row: Row,
    },
}

/// The store's answer.
#[derive(Clone, Debug)]
pub(super) enum StoreResponse {
    Entity(ShardId, Epoch, Response),
    Claims { number: u64, claims: Option<Vec<Option<Claim>>> },
    Pong { sent: Option<u64> },
    Listed(Option<Vec<Change>>),
    Row(RowKey, Option<StoredRow>),
    Written { number: u64, result: Result<u64, WriteError> },
}

/// A call that the node still waits for.
#[derive(Clone, Debug)]
pub(super) struct PendingStoreCall {
    pub(super) pid: Pid,
    pub(super) conn: ConnId,
    pub(super) call: StoreCall,
    /// When the call was sent, by the node's clock.
    pub(super) sent: u64,
}

pub(super) fn shard_key(shard: ShardId) -> ShardPath {
    ShardPath { namespace: "default".into(), pool: "default".into(), shard }
}

/// The answer if the store was not reached. For entities, it says that nothing was written.
pub(super) fn not_reached(call: &StoreCall) -> StoreResponse {
    match call {
        StoreCall::Entity(shard, epoch, _, request) => StoreResponse::Entity(
            *shard,
            *epoch,
            store::refusal(request, "the store is not reached"),
        ),
        _ => given_up(call),
    }
}

/// The answer to a call that was given up: its outcome is unknown.
pub(super) fn given_up(call: &StoreCall) -> StoreResponse {
    match call {
        StoreCall::Entity(shard, epoch, _, request) => {
            let answer = store::refusal(request, "the connection broke");
            StoreResponse::Entity(*shard, *epoch, store::unknown(answer, "the connection broke"))
        }
        StoreCall::Claims { number, .. } => StoreResponse::Claims { number: *number, claims: None },
        StoreCall::Ping { .. } => StoreResponse::Pong { sent: None },
        StoreCall::List => StoreResponse::Listed(None),
        StoreCall::Read(key) => StoreResponse::Row(key.clone(), None),
        StoreCall::Write { number, .. } => {
            StoreResponse::Written { number: *number, result: Err(WriteError::Unknown) }
        }
    }
}

/// The name of a node that occurs in no row.
pub(super) const GHOST: &str = "ghost";

impl World {
    /// Calls the store. Without a connection, the call fails at once.
    pub(super) fn call(&mut self, pid: Pid, call: StoreCall) {
        let entities = matches!(
            call,
            StoreCall::Entity(..) | StoreCall::Claims { .. } | StoreCall::Ping { .. }
        );
        let it = &self.processes[pid];
        let conn = if entities { it.bulk } else { it.control };
        let sent = it.mono(self.now);
        self.tags += 1;
        let tag = self.tags;
        let Some(conn) = conn else {
            let reply = not_reached(&call);
            self.asked.insert(tag, PendingStoreCall { pid, conn: usize::MAX, call, sent });
            return self.at(1, SimEvent::FromStore { pid, tag, reply });
        };
        let hangs = self.is_hanging(pid, &call);
        self.asked.insert(tag, PendingStoreCall { pid, conn, call: call.clone(), sent });
        if hangs {
            return;
        }
        self.frame(conn, 0, Frame::Call(tag, call));
    }

    /// A node receives the store's answer.
    pub(super) fn store_replied(&mut self, pid: Pid, tag: u64, reply: StoreResponse) {
        let Some(asked) = self.asked.remove(&tag) else { return };
        let failed = match &reply {
            StoreResponse::Entity(_, _, answer) => match answer {
                Response::Claim(outcome) => matches!(outcome, ClaimOutcome::Failed(_)),
                Response::Commit(outcomes) => !outcomes.iter().any(|(_, _, outcome)| {
                    matches!(outcome, CommitOutcome::Committed | CommitOutcome::AlreadyCommitted)
                }),
                Response::Load(_, result) => result.is_err(),
                Response::State(_, result) => result.is_err(),
                Response::Wakes(_, page) => page.is_err(),
                Response::Remembered(_, page) => page.is_err(),
                Response::Heads(_, page) => page.is_err(),
                Response::Channel(_, items) => items.is_err(),
                Response::Keys(_, _, page) => page.is_err(),
            },
            StoreResponse::Claims { claims, .. } => claims.is_none(),
            StoreResponse::Pong { sent } => sent.is_none(),
            _ => true,
        };
        if !failed {
            self.processes[pid].store_answered = self.now;
            self.handle_node_event(pid, Event::StoreResponded { sent_at: asked.sent });
        }
        match reply {
            StoreResponse::Entity(shard, epoch, answer) => {
                let generation = match asked.call {
                    StoreCall::Entity(_, _, generation, _) => generation,
                    _ => 0,
                };
                self.on_claim_answer(pid, &asked.call, &answer);
                self.shard_answered(pid, shard, epoch, generation, answer);
            }
            StoreResponse::Claims { number, claims } => {
                if claims.is_some() {
                    self.processes[pid].read_back = true;
                }
                self.handle_node_event(pid, Event::ClaimsRead { request_id: number, claims });
            }
            StoreResponse::Pong { .. } => {}
            StoreResponse::Listed(rows) => self.handle_node_event(pid, Event::RowsListed(rows)),
            StoreResponse::Row(key, Some(value)) => {
                self.handle_node_event(pid, Event::RowObserved { key, value })
            }
            // The machine repeats the call if it needs the answer.
            StoreResponse::Row(_, None) => {}
            StoreResponse::Written { number, result } => {
                if result == Err(WriteError::Unknown) {
                    self.tally.count("transition: write unknown");
                }
                self.wrote_step(pid, &asked.call, &result);
                if self.processes[pid].alive {
                    self.handle_node_event(pid, Event::RowWritten { request_id: number, result });
                }
            }
        }
    }

    pub(super) fn watched(&mut self, pid: Pid, conn: ConnId, changes: Option<Vec<Change>>) {
        if self.processes[pid].control != Some(conn) {
            return;
        }
        let Some(changes) = changes else { return self.handle_node_event(pid, Event::WatchLost) };
        let newest = changes.iter().map(|(_, _, revision)| *revision).max().unwrap_or_default();
        let revised = self.revised.range(newest..).next().map_or(0, |(_, at)| *at);
        self.processes[pid].heard_at = revised;
        for (key, row, revision) in changes {
            self.handle_node_event(pid, Event::RowObserved { key, value: Some((row, revision)) });
        }
    }

    /// Gives up a connection to the store: its requests may still arrive, but their answers are lost.
    pub(super) fn store_lost(&mut self, pid: Pid, conn: ConnId) {
        let way = self.conns[conn].kind;
        let it = &mut self.processes[pid];
        match way {
            ConnKind::Control if it.control == Some(conn) => it.control = None,
            ConnKind::Bulk if it.bulk == Some(conn) => it.bulk = None,
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
                self.store_replied(pid, tag, reply);
            }
        }
        if way == ConnKind::Control {
            self.handle_node_event(pid, Event::WatchLost);
        }
        self.at(1, SimEvent::Reconnect { pid, kind: way });
    }

    /// Opens missing connections to the store, if it is reachable.
    pub(super) fn reconnect(&mut self, pid: Pid, way: ConnKind) {
        let it = &self.processes[pid];
        let has = if way == ConnKind::Control { it.control } else { it.bulk };
        if has.is_some() {
            return;
        }
        let up = self.sites[0].pid.filter(|store| {
            *store == pid || (self.processes[*store].alive && self.reachable(pid, *store, way))
        });
        let Some(store) = up else {
            let delay = self.rng.range(30, 90);
            return self.at(delay, SimEvent::Reconnect { pid, kind: way });
        };
        let conn = self.connect(pid, store, way);
        let it = &mut self.processes[pid];
        if way == ConnKind::Control {
            it.control = Some(conn);
            it.control_since = self.now;
        } else {
            it.bulk = Some(conn);
        }
    }
}
