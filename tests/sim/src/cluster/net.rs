//! The network: connections, which keep frames in order while they exist, control messages, which may be reordered, and
//! cuts.
//!
//! When a connection breaks, each end is notified after its own delay. Frames in flight are lost, or a prefix of them
//! still arrives; nothing is retransmitted automatically.

use std::collections::VecDeque;

use ostraca_core::ids::NodeId;
use ostraca_core::node::ControlMessage;
use ostraca_wire::proto;

use super::process::Pid;
use super::rows::Change;
use super::storage::{StoreCall, StoreResponse};
use super::{SimEvent, World};

/// Identifies a connection. Never reused.
pub(super) type ConnId = usize;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnKind {
    /// A node's calls for rows, and its watch.
    Control,
    /// A node's calls for entities.
    Bulk,
    /// Messages from one node to another, and their replies.
    Peer,
    /// Control messages between nodes' machines. They have no connection here: see [`World::send_control_message`].
    ControlMessages,
}

/// One frame on a connection.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    Call(u64, StoreCall),
    Reply(u64, StoreResponse),
    Changes(Vec<Change>),
    WatchLost,
    /// A message that a gateway forwards to the owner.
    Forward(u64, Box<proto::Envelope>),
    Forwarded(u64, Box<proto::Reply>),
}

/// A connection. The first end opened it.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) ends: [Pid; 2],
    pub(super) kind: ConnKind,
    pub(super) alive: bool,
    lanes: [VecDeque<(u64, Frame)>; 2],
    pumping: [bool; 2],
}

/// What a cut blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// Only calls to the `EntityStore`: rows, watches and messages pass.
    Entities,
    /// Only calls for rows.
    Rows,
    /// Only control messages.
    ControlMessages,
    /// Everything but calls to the store.
    Nodes,
}

impl Scope {
    pub(super) fn holds(self, way: ConnKind) -> bool {
        match self {
            Self::All => true,
            Self::Entities => way == ConnKind::Bulk,
            Self::Rows => way == ConnKind::Control,
            Self::ControlMessages => way == ConnKind::ControlMessages,
            Self::Nodes => matches!(way, ConnKind::Peer | ConnKind::ControlMessages),
        }
    }
}

/// A cut in one direction between two sites, and the time at which it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Which frames are lost.
    pub(super) what: Scope,
    pub(super) until: u64,
}

impl World {
    pub(super) fn is_cut(&self, from: usize, to: usize, way: ConnKind) -> bool {
        from != to
            && self.cuts.iter().any(|cut| {
                cut.from == from && cut.to == to && cut.until > self.now && cut.what.holds(way)
            })
    }

    pub(super) fn connect(&mut self, from: Pid, to: Pid, way: ConnKind) -> ConnId {
        self.conns.push(Conn {
            ends: [from, to],
            kind: way,
            alive: true,
            lanes: Default::default(),
            pumping: [false; 2],
        });
        self.conns.len() - 1
    }

    /// Whether a connection can be opened now.
    pub(super) fn reachable(&self, from: Pid, to: Pid, way: ConnKind) -> bool {
        let (a, b) = (self.processes[from].site, self.processes[to].site);
        self.processes[to].awake(self.now) && !self.is_cut(a, b, way) && !self.is_cut(b, a, way)
    }

    /// Sends a frame from one end. On a broken connection, the frame is lost.
    pub(super) fn frame(&mut self, conn: ConnId, from: usize, frame: Frame) {
        let local = self.conns[conn].ends[0] == self.conns[conn].ends[1];
        let delay = match self.rng.range(0, 100) {
            _ if local => self.rng.range(0, 2),
            0..=2 => self.rng.range(1, 150),
            _ => self.rng.range(1, 8),
        };
        let gap = self.frame_gap(conn);
        let it = &mut self.conns[conn];
        if !it.alive {
            return;
        }
        let before = it.lanes[from].back().map_or(0, |(when, _)| *when);
        let when = before.max(self.now + delay) + gap;
        it.lanes[from].push_back((when, frame));
        if !it.pumping[from] {
            it.pumping[from] = true;
            self.at(when - self.now, SimEvent::Pump { conn, from });
        }
    }

    /// Delivers what has arrived.
    pub(super) fn pump(&mut self, conn: ConnId, from: usize) {
        self.conns[conn].pumping[from] = false;
        while self.conns[conn].alive {
            let it = &self.conns[conn];
            let Some((when, _)) = it.lanes[from].front() else { return };
            let (sender, receiver) = (it.ends[from], it.ends[1 - from]);
            let (a, b) = (self.processes[sender].site, self.processes[receiver].site);
            let paused = self.processes[receiver].paused_until;
            let again = if *when > self.now {
                *when
            } else if paused > self.now {
                paused
            } else if let Some(delay) =
                self.stalled(receiver).filter(|_| it.kind == ConnKind::Control)
            {
                self.now + delay
            } else if self.is_cut(a, b, it.kind) {
                self.now + 15
            } else {
                let it = &mut self.conns[conn];
                if let Some((_, frame)) = it.lanes[from].pop_front() {
                    self.deliver(conn, from, frame);
                }
                continue;
            };
            self.conns[conn].pumping[from] = true;
            return self.at(again - self.now, SimEvent::Pump { conn, from });
        }
    }

    /// Breaks a connection. Each end is notified after its own delay.
    pub(super) fn break_conn(&mut self, conn: ConnId, told: [u64; 2]) {
        if !self.conns[conn].alive {
            return;
        }
        self.conns[conn].alive = false;
        let (ends, way) = (self.conns[conn].ends, self.conns[conn].kind);
        self.tally.count(match way {
            ConnKind::Peer => "fault: link broken",
            _ => "fault: store connection broken",
        });
        for from in 0..2 {
            let lane = std::mem::take(&mut self.conns[conn].lanes[from]);
            let arrive = self.rng.range(0, lane.len() as u64 + 1) as usize;
            let mut delay = 0;
            for (at, (_, frame)) in lane.into_iter().enumerate() {
                if at >= arrive {
                    self.tally.count(match frame {
                        Frame::Reply(..) => "fault: store response lost",
                        _ => "fault: frame lost with its link",
                    });
                    continue;
                }
                delay += self.rng.range(0, 120);
                if matches!(frame, Frame::Call(..)) && self.rng.chance(30) {
                    self.tally.count("fault: store call delivered twice");
                    let again = delay + self.rng.range(1, 400);
                    self.at(again, SimEvent::DelayedFrame { conn, from, frame: frame.clone() });
                }
                self.tally.count("fault: frame delivered after its link was dropped");
                self.at(delay, SimEvent::DelayedFrame { conn, from, frame });
            }
        }
        for (end, pid) in ends.into_iter().enumerate() {
            self.at(told[end], SimEvent::ConnBroken { pid, conn });
        }
    }

    /// Breaks the selected connections of a process.
    pub(super) fn break_all(&mut self, pid: Pid, only: impl Fn(&Conn) -> bool) {
        for conn in 0..self.conns.len() {
            let it = &self.conns[conn];
            if it.alive && it.ends.contains(&pid) && it.ends[0] != it.ends[1] && only(it) {
                let told = [self.rng.range(1, 250), self.rng.range(1, 250)];
                self.break_conn(conn, told);
            }
        }
    }

    /// Delivers a frame from a closed connection.
    pub(super) fn deliver_delayed(&mut self, conn: ConnId, from: usize, frame: Frame) {
        let receiver = &self.processes[self.conns[conn].ends[1 - from]];
        if !receiver.alive {
            return;
        }
        if receiver.paused_until > self.now {
            let delay = receiver.paused_until - self.now;
            return self.at(delay, SimEvent::DelayedFrame { conn, from, frame });
        }
        self.deliver(conn, from, frame);
    }

    fn deliver(&mut self, conn: ConnId, from: usize, frame: Frame) {
        let pid = self.conns[conn].ends[1 - from];
        if !self.processes[pid].alive {
            return;
        }
        match frame {
            Frame::Call(tag, call) => self.at_store(conn, tag, call),
            Frame::Reply(tag, reply) => self.store_replied(pid, tag, reply),
            Frame::Changes(changes) => self.watched(pid, conn, Some(changes)),
            Frame::WatchLost => self.watched(pid, conn, None),
            Frame::Forward(tag, envelope) => self.forward_came(pid, conn, tag, *envelope),
            Frame::Forwarded(tag, reply) => self.forwarded_came(pid, tag, *reply),
        }
    }

    /// Sends a control message, which may be lost, duplicated, late or out of order.
    pub(super) fn send_control_message(&mut self, pid: Pid, to: &NodeId, message: ControlMessage) {
        let it = &self.processes[pid];
        let Some(member) = it.member.clone() else { return };
        let Some(site) = self.site_of(pid, to) else { return };
        let from = it.site;
        let copies = if self.rng.chance(4) {
            self.tally.count("fault: control message duplicated");
            2
        } else {
            1
        };
        for _ in 0..copies {
            if self.rng.chance(self.loss) {
                self.tally.count("fault: control message lost");
                continue;
            }
            let mut when = self.now + self.rng.range(1, 8);
            if self.rng.chance(4) {
                self.tally.count("fault: control message on an older connection");
                when += self.rng.range(1, 1_500);
            } else {
                let last = self.last_control_message.entry((pid, site)).or_default();
                when = when.max(*last);
                *last = when;
            }
            let (member, message) = (member.clone(), message.clone());
            self.at(when - self.now, SimEvent::ControlMessage { from, to: site, member, message });
        }
    }

    /// A node's site, according to the addresses that a process knows, or else by the node's name.
    pub(super) fn site_of(&self, pid: Pid, node: &NodeId) -> Option<usize> {
        let known = self.processes[pid].addresses.get(node).copied();
        known.or_else(|| self.sites.iter().position(|site| site.node == *node))
    }
}
