//! Connections between clients and gateways. They are less reliable than QUIC's: messages may overtake each other.
//!
//! A message that a gateway accepts is answered at most once, and on the connection on which it arrived. A broken
//! connection is silent at first: the client continues to send on it until it notices. Messages in flight are lost, or
//! arrive later, some of them much later: a stalled gateway reads its buffers when it resumes.

use ostraca_wire::proto::{Envelope, Reply};

use super::admission::GatewayAccount;
use super::client_cuts::Endpoint;
use super::process::Pid;
use super::{SimEvent, World};

/// Identifies a client's connection. Never reused.
pub(super) type ClientConnId = usize;

/// A connection.
#[derive(Debug)]
pub(super) struct ClientConn {
    pub(super) client: usize,
    pub(super) site: usize,
    pid: Pid,
    /// Whether messages no longer pass.
    pub(super) broken: bool,
    /// Which ends have closed the connection.
    ended: [bool; 2],
    /// The client's state at the gateway, until that end is closed.
    pub(super) taken: Option<GatewayAccount>,
}

impl ClientConn {
    pub(super) fn ended(&self, end: Endpoint) -> bool {
        self.ended[end as usize]
    }

    pub(super) fn end(&mut self, end: Endpoint) {
        self.ended[end as usize] = true;
        if end == Endpoint::Gateway {
            self.taken = None;
        }
    }
}

/// A message in transit to a gateway.
#[derive(Clone, Debug)]
pub(super) struct ClientFrame {
    pub(super) connection: ClientConnId,
    pub(super) session: usize,
    pub(super) envelope: Envelope,
    /// Whether the message arrives although its connection broke.
    late: bool,
    /// Whether a cut dropped the message, so that it arrives only if retransmitted.
    cut: bool,
}

impl World {
    /// Connects a client that has no connection to a gateway that answers.
    pub(super) fn connect_client(&mut self, client: usize) {
        if self.clients[client].connection.is_some() {
            return;
        }
        let home = self.clients[client].gateway;
        let site = if self.rng.chance(self.spread) { self.a_gateway() } else { home };
        if let Some(delay) = self.handshake_fails(client, site) {
            self.tally.count("client: a gateway did not answer its handshake");
            self.clients[client].gateway = self.a_gateway();
            return self.at(delay, SimEvent::Connect { client });
        }
        if !self.open_conn(client, site) {
            let gateway = self.a_gateway();
            let site = if self.rng.chance(50) { gateway } else { home };
            if !self.open_conn(client, site) {
                let delay = self.rng.range(20, 120);
                self.at(delay, SimEvent::Connect { client });
            }
        }
    }

    /// Opens a connection, if the gateway answers.
    pub(super) fn open_conn(&mut self, client: usize, site: usize) -> bool {
        let Some(pid) = self.sites[site].pid.filter(|pid| self.processes[*pid].awake(self.now))
        else {
            return false;
        };
        if Endpoint::BOTH.iter().any(|to| self.cut_until(client, site, *to).is_some()) {
            return false;
        }
        let Some(taken) = self.take_connection(pid) else { return false };
        let taken = Some(taken);
        self.client_conns.push(ClientConn {
            client,
            site,
            pid,
            broken: false,
            ended: [false; 2],
            taken,
        });
        let line = self.client_conns.len() - 1;
        if !self.clients[client].tied {
            // Long enough for some messages to arrive.
            let most = 4_000_u64.checked_div(self.loss).map_or(4_000, |lifetime| 500 + lifetime);
            let delay = self.rng.range(60, most);
            self.at(delay, SimEvent::ClientConnReset { connection: line });
        }
        self.print(|| format!("client {client} at {}", self.sites[site].node));
        let it = &mut self.clients[client];
        it.connection = Some(line);
        if std::mem::replace(&mut it.gateway, site) != site {
            self.tally.count("client: switched gateway");
        }
        self.connected(client);
        true
    }

    /// A client sends a message.
    pub(super) fn put(&mut self, line: ClientConnId, session: usize, envelope: Envelope) {
        let tied = self.clients[self.client_conns[line].client].tied;
        let delay = self.rng.range(1, if tied { 6 } else { 20 });
        let post = ClientFrame { connection: line, session, envelope, late: false, cut: false };
        self.at(delay, SimEvent::Arrive { post: Box::new(post) });
    }

    /// A message reaches its gateway.
    pub(super) fn arrive_at(&mut self, mut post: Box<ClientFrame>) {
        let ClientConn { pid, broken, .. } = self.client_conns[post.connection];
        let paused = self.processes[pid].paused_until;
        if !self.processes[pid].alive {
            return self.lost(&post);
        }
        if !broken && !post.late && self.cut_swallows(&mut post) {
            return;
        }
        if paused > self.now {
            return self.at(paused - self.now, SimEvent::Arrive { post });
        }
        if self.processes[pid].gateway.closing.is_some() {
            self.tally.count("gateway: left unread, its node stops");
            return self.lost(&post);
        }
        if !broken && self.left_unread(pid, &post) {
            let delay = self.rng.range(5, 40);
            return self.at(delay, SimEvent::Arrive { post });
        }
        if broken && !post.late {
            let delay = match self.rng.range(0, 10) {
                0..=3 => return self.lost(&post),
                4..=6 => self.rng.range(1, 200),
                _ => {
                    // A stalled gateway reads its socket's buffers later.
                    self.tally.count("fault: copy delayed long at another gateway");
                    self.rng.range(500, 4_000)
                }
            };
            if !std::mem::replace(&mut post.late, true) && !post.cut {
                self.late_copies += 1;
            }
            return self.at(delay, SimEvent::Arrive { post });
        }
        if post.late || post.cut {
            self.late_copies -= 1;
        }
        let (session, sequence) = (post.session, post.envelope.sequence);
        let mut open = self.processes.iter().flat_map(|it| it.gateway.open.values());
        if open.any(|open| (open.session, open.sequence) == (session, sequence)) {
            self.tally.count("fault: client message duplicated");
        }
        self.arrive(pid, *post);
    }

    /// Whether a cut drops the message. The transport then retransmits it, unless an end has given up.
    fn cut_swallows(&mut self, post: &mut Box<ClientFrame>) -> bool {
        let line = &self.client_conns[post.connection];
        if line.ended(Endpoint::Gateway) || (post.cut && line.ended(Endpoint::Client)) {
            self.tally.count("fault: client message lost in a cut for good");
            self.lost(post);
            return true;
        }
        let Some(delay) = self.again_after_cut(post.connection, Endpoint::Gateway) else {
            return false;
        };
        if !std::mem::replace(&mut post.cut, true) {
            self.tally.count("fault: client message lost in a cut and resent");
            self.late_copies += 1;
        }
        self.at(delay, SimEvent::Arrive { post: post.clone() });
        true
    }

    fn lost(&mut self, post: &ClientFrame) {
        if post.late || post.cut {
            self.late_copies -= 1;
        }
        self.tally.count("fault: client message lost");
    }

    /// A gateway sends a reply, which its connection may no longer carry.
    pub(super) fn send_reply(&mut self, line: ClientConnId, session: usize, reply: Reply) {
        if self.client_conns[line].ended(Endpoint::Gateway) {
            return self.tally.count("gateway: replied to an unreachable client");
        }
        let tied = self.clients[self.client_conns[line].client].tied;
        let delay = self.rng.range(1, if tied { 6 } else { 20 });
        let reply = Box::new(reply);
        self.at(delay, SimEvent::Reply { connection: line, session, reply, cut: false });
    }

    pub(super) fn reply_came(
        &mut self,
        line: ClientConnId,
        session: usize,
        reply: Box<Reply>,
        cut: bool,
    ) {
        let it = &self.client_conns[line];
        if it.broken || self.clients[it.client].connection != Some(line) {
            return self.tally.count("fault: reply lost");
        }
        if cut && it.ended(Endpoint::Gateway) {
            return self.tally.count("fault: reply lost in a cut for good");
        }
        if let Some(delay) = self.again_after_cut(line, Endpoint::Client) {
            self.tally.count("fault: reply lost in a cut and resent");
            return self.at(delay, SimEvent::Reply { connection: line, session, reply, cut: true });
        }
        self.replied(session, *reply);
    }

    /// Resets a connection, but not during a cut, which would keep the client from noticing.
    pub(super) fn on_conn_reset(&mut self, line: ClientConnId) {
        let cut = Endpoint::BOTH.iter().find_map(|to| self.again_after_cut(line, *to));
        match cut {
            Some(delay) => self.at(delay, SimEvent::ClientConnReset { connection: line }),
            None => self.reset_conn(line),
        }
    }

    /// Breaks a connection; the client notices later.
    pub(super) fn reset_conn(&mut self, line: ClientConnId) {
        if std::mem::replace(&mut self.client_conns[line].broken, true) {
            return;
        }
        self.client_conns[line].taken = None;
        self.tally.count("fault: client connection broken");
        let quick = self.rng.chance(70);
        let delay = if quick { self.rng.range(1, 250) } else { self.rng.range(250, 1_500) };
        self.at(delay, SimEvent::ClientConnLost { connection: line });
    }

    /// Breaks all client connections of a process that has ended, or that stalls for so long that its clients give up.
    pub(super) fn break_lines(&mut self, pid: Pid) {
        for line in 0..self.client_conns.len() {
            if self.client_conns[line].pid == pid {
                self.reset_conn(line);
            }
        }
    }

    /// A gateway closes its connections in an orderly way: reachable clients are notified.
    pub(super) fn close_lines(&mut self, pid: Pid) {
        for line in 0..self.client_conns.len() {
            let ClientConn { client, site, .. } = self.client_conns[line];
            let told = self.cut_until(client, site, Endpoint::Client).is_none();
            if self.client_conns[line].pid == pid && !self.client_conns[line].broken && told {
                self.client_conns[line].broken = true;
                self.client_conns[line].taken = None;
                let delay = self.rng.range(1, 20);
                self.at(delay, SimEvent::ClientConnLost { connection: line });
            }
        }
    }

    /// A client notices that its connection is broken.
    pub(super) fn on_conn_lost(&mut self, line: ClientConnId) {
        let client = self.client_conns[line].client;
        if self.clients[client].connection != Some(line) {
            return;
        }
        self.disconnected(client);
        if !self.clients[client].tied {
            let delay = self.rng.range(5, 60);
            self.at(delay, SimEvent::Connect { client });
        }
    }

    /// A client's connection was idle for too long.
    pub(super) fn on_conn_silent(&mut self, line: ClientConnId) {
        let client = self.client_conns[line].client;
        if self.clients[client].connection == Some(line) && self.options.anew_after_silence {
            self.resend_under_new_id(client);
        }
        self.on_conn_lost(line);
    }

    /// A client closes its connection.
    pub(super) fn hang_up(&mut self, client: usize) {
        if let Some(line) = self.clients[client].connection {
            self.client_conns[line].broken = true;
            self.client_conns[line].taken = None;
            self.disconnected(client);
        }
    }

    /// Handles a client's switch timer: the client switches to another gateway if one responds. Otherwise it keeps its
    /// gateway.
    pub(super) fn switch_gateway(&mut self, client: usize) {
        let home = self.clients[client].gateway;
        let answers = |site: &usize| {
            let it = &self.sites[*site];
            let awake = it.pid.is_some_and(|pid| self.processes[pid].awake(self.now));
            *site != home && it.roles.gateway && !it.copy && awake
        };
        let others: Vec<usize> = (0..self.sites.len()).filter(answers).collect();
        if others.is_empty() || self.clients[client].tied {
            return;
        }
        let site = others[self.rng.range(0, others.len() as u64) as usize];
        self.tally.count("client: left a gateway that reaches no other node");
        self.hang_up(client);
        if !self.open_conn(client, site) {
            self.at(20, SimEvent::Connect { client });
        }
    }

    /// The gateway of a client's connection.
    pub(super) fn at_gateway(&self, client: usize) -> Option<usize> {
        let line = &self.client_conns[self.clients[client].connection?];
        (!line.broken).then_some(line.site)
    }
}
