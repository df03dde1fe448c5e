//! Connections between clients and gateways: worse than QUIC's, since messages on one may overtake each other.
//!
//! A message that a gateway takes is answered at most once, and on the connection that it came through. A connection
//! that breaks is silent at first: the client goes on sending into it until it notices. What was on its way is lost, or
//! still comes, some of it long after: a gateway that stands still takes what lies in its buffers when it goes on.

use ostraca_wire::proto::{Envelope, Reply};

use super::process::Pid;
use super::{Happening, World};

/// Names a client's connection. Never used again.
pub(super) type LineId = usize;

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    client: usize,
    site: usize,
    pid: Pid,
    broken: bool,
}

/// A message on its way to a gateway.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub(super) line: LineId,
    pub(super) session: usize,
    pub(super) envelope: Envelope,
    /// Its connection broke, and it comes all the same.
    late: bool,
}

impl World {
    /// Connects a client that has no connection, to a gateway that answers.
    pub(super) fn connect_client(&mut self, client: usize) {
        if self.clients[client].line.is_some() {
            return;
        }
        let home = self.clients[client].home;
        let site = if self.rng.chance(self.spread) { self.a_gateway() } else { home };
        if !self.open_line(client, site) {
            let gateway = self.a_gateway();
            let site = if self.rng.chance(50) { gateway } else { home };
            if !self.open_line(client, site) {
                let delay = self.rng.range(20, 120);
                self.at(delay, Happening::Connect { client });
            }
        }
    }

    /// Opens a connection, if the gateway answers.
    pub(super) fn open_line(&mut self, client: usize, site: usize) -> bool {
        let Some(pid) = self.sites[site].pid.filter(|pid| self.processes[*pid].awake(self.now))
        else {
            return false;
        };
        self.lines.push(Line { client, site, pid, broken: false });
        let line = self.lines.len() - 1;
        if !self.clients[client].tied {
            // Long enough for some messages to come through.
            let most = 4_000_u64.checked_div(self.loss).map_or(4_000, |life| 500 + life);
            let delay = self.rng.range(60, most);
            self.at(delay, Happening::LineBreaks { line });
        }
        self.print(|| format!("client {client} at {}", self.sites[site].node));
        let it = &mut self.clients[client];
        it.line = Some(line);
        if std::mem::replace(&mut it.home, site) != site {
            self.tally.count("client: switched gateway");
        }
        self.connected(client);
        true
    }

    /// A client sends a message.
    pub(super) fn put(&mut self, line: LineId, session: usize, envelope: Envelope) {
        let tied = self.clients[self.lines[line].client].tied;
        let delay = self.rng.range(1, if tied { 6 } else { 20 });
        let post = Post { line, session, envelope, late: false };
        self.at(delay, Happening::Arrive { post: Box::new(post) });
    }

    /// A message is at its gateway.
    pub(super) fn arrive_at(&mut self, mut post: Box<Post>) {
        let Line { pid, broken, .. } = self.lines[post.line];
        let paused = self.processes[pid].paused_until;
        if !self.processes[pid].alive {
            return self.lost(&post);
        }
        if paused > self.now {
            return self.at(paused - self.now, Happening::Arrive { post });
        }
        if broken && !post.late {
            let delay = match self.rng.range(0, 10) {
                0..=3 => return self.lost(&post),
                4..=6 => self.rng.range(1, 200),
                _ => {
                    // A gateway that stands still, or what lies in its machine's buffers, goes on later.
                    self.tally.count("fault: copy held long by another gateway");
                    self.rng.range(500, 4_000)
                }
            };
            post.late = true;
            self.late_copies += 1;
            return self.at(delay, Happening::Arrive { post });
        }
        if post.late {
            self.late_copies -= 1;
        }
        let (session, sequence) = (post.session, post.envelope.sequence);
        let mut open = self.processes.iter().flat_map(|it| it.door.open.values());
        if open.any(|open| (open.session, open.sequence) == (session, sequence)) {
            self.tally.count("fault: client message doubled");
        }
        self.arrive(pid, *post);
    }

    fn lost(&mut self, post: &Post) {
        if post.late {
            self.late_copies -= 1;
        }
        self.tally.count("fault: client message lost");
    }

    /// A gateway sends a reply, which its connection may not carry any more.
    pub(super) fn send_reply(&mut self, line: LineId, session: usize, reply: Reply) {
        let tied = self.clients[self.lines[line].client].tied;
        let delay = self.rng.range(1, if tied { 6 } else { 20 });
        let reply = Box::new(reply);
        self.at(delay, Happening::Reply { line, session, reply });
    }

    pub(super) fn reply_came(&mut self, line: LineId, session: usize, reply: Reply) {
        let Line { client, broken, .. } = self.lines[line];
        if broken || self.clients[client].line != Some(line) {
            return self.tally.count("fault: reply lost");
        }
        self.replied(session, reply);
    }

    /// Nothing passes any more; the client notices later.
    pub(super) fn break_line(&mut self, line: LineId) {
        if std::mem::replace(&mut self.lines[line].broken, true) {
            return;
        }
        self.tally.count("fault: client connection broken");
        let quick = self.rng.chance(70);
        let delay = if quick { self.rng.range(1, 250) } else { self.rng.range(250, 1_500) };
        self.at(delay, Happening::LineLost { line });
    }

    /// A process is gone, or stands still for so long that its clients give their connections up.
    pub(super) fn break_lines(&mut self, pid: Pid) {
        for line in 0..self.lines.len() {
            if self.lines[line].pid == pid {
                self.break_line(line);
            }
        }
    }

    /// A client notices that its connection is broken.
    pub(super) fn line_lost(&mut self, line: LineId) {
        let client = self.lines[line].client;
        if self.clients[client].line != Some(line) {
            return;
        }
        self.disconnected(client);
        if !self.clients[client].tied {
            let delay = self.rng.range(5, 60);
            self.at(delay, Happening::Connect { client });
        }
    }

    /// A client closes its connection.
    pub(super) fn hang_up(&mut self, client: usize) {
        if let Some(line) = self.clients[client].line {
            self.lines[line].broken = true;
            self.disconnected(client);
        }
    }

    /// A client lost its patience: it goes to another gateway, if one answers; else it stays.
    pub(super) fn leave_gateway(&mut self, client: usize) {
        let home = self.clients[client].home;
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
        self.tally.count("client: left a gateway that reaches nobody");
        self.hang_up(client);
        if !self.open_line(client, site) {
            self.at(20, Happening::Connect { client });
        }
    }

    /// Where a client's connection leads.
    pub(super) fn at_gateway(&self, client: usize) -> Option<usize> {
        let line = &self.lines[self.clients[client].line?];
        (!line.broken).then_some(line.site)
    }
}
