//! Cuts between clients and gateways: packets are silently lost, in one direction or both, while both ends consider the
//! connection open.
//!
//! The transport retransmits: a message arrives late if the cut ends before either end gives up, and otherwise never.
//! An end closes the connection after the idle timeout without notifying the other end, which receives nothing from
//! then on and gives up later. So a gateway may accept, run and answer a message that its client has already sent to
//! another gateway, and a client may send to a gateway that has closed.

use super::client_conns::{ClientConn, ClientConnId};
use super::faults::Fault;
use super::plan::{FROM, TO};
use super::{LEASE, SimEvent, World};
use crate::rng::Rng;

/// The idle timeout of both ends: a little more than two leases, like the client's default.
const IDLE: u64 = LEASE * 2 + 50;
/// Interval of keep-alives on an idle connection; retransmissions are about as frequent.
const KEEP_ALIVE: u64 = 240;
/// How long a client waits for a gateway's handshake.
const HANDSHAKE: u64 = 700;

/// One end of a connection, and the packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Client,
    Gateway,
}

impl Endpoint {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Gateway];

    fn other(self) -> Self {
        match self {
            Self::Client => Self::Gateway,
            Self::Gateway => Self::Client,
        }
    }
}

/// The connections whose packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutTarget {
    /// One client's connection to its current gateway.
    Connection,
    /// One client's connections to every gateway.
    Client,
    /// All connections to one gateway.
    Gateway,
}

/// A planned cut; `pick` selects the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientCut {
    target: CutTarget,
    pick: u64,
    /// The end whose incoming packets are lost. `None` for both ends.
    to: Option<Endpoint>,
    millis: u64,
}

/// An active cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveClientCut {
    client: Option<usize>,
    site: Option<usize>,
    to: Option<Endpoint>,
    until: u64,
}

impl ActiveClientCut {
    fn holds(&self, client: usize, site: usize, to: Endpoint) -> bool {
        self.client.is_none_or(|it| it == client)
            && self.site.is_none_or(|it| it == site)
            && self.to.is_none_or(|it| it == to)
    }
}

impl World {
    /// Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn plan_client_cuts(&mut self, seed: u64) {
        let mut dice = Rng::new(seed ^ 0x11ec_0751);
        let another_alone = self.options.has_one_fault();
        if another_alone || !self.options.client_cuts && !dice.chance(50) {
            return;
        }
        for _ in 0..dice.range(1, 5) {
            let cut = ClientCut {
                target: match dice.range(0, 4) {
                    0 | 1 => CutTarget::Connection,
                    2 => CutTarget::Client,
                    _ => CutTarget::Gateway,
                },
                pick: dice.draw(),
                to: [Some(Endpoint::Client), Some(Endpoint::Gateway), None]
                    [dice.range(0, 3) as usize],
                millis: match dice.chance(30) {
                    true => dice.range(50, IDLE),
                    false => dice.range(IDLE, IDLE * 3),
                },
            };
            let when = dice.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::ClientCut(cut)));
        }
    }

    pub(super) fn cut_lines(&mut self, cut: ClientCut) {
        let ClientCut { target: whose, pick, to, millis } = cut;
        let free: Vec<usize> =
            (0..self.clients.len()).filter(|client| !self.clients[*client].tied).collect();
        let client = free[pick as usize % free.len()];
        let site = self.clients[client].gateway;
        self.tally.count(match to {
            Some(Endpoint::Client) => "fault: client cut off, what it is sent",
            Some(Endpoint::Gateway) => "fault: client cut off, what it sends",
            None => "fault: client cut off, both ways",
        });
        let until = self.now + millis;
        self.client_cuts.push(ActiveClientCut {
            client: (whose != CutTarget::Gateway).then_some(client),
            site: (whose != CutTarget::Client).then_some(site),
            to,
            until,
        });
        self.heal_by(millis);
        let cut = self.client_cuts.len() - 1;
        for line in 0..self.client_conns.len() {
            for end in Endpoint::BOTH {
                if self.cut_holds(cut, line, end) {
                    self.falls_silent(line, end, Some(cut));
                }
            }
        }
    }

    fn cut_holds(&self, cut: usize, line: ClientConnId, to: Endpoint) -> bool {
        let ClientConn { client, site, .. } = self.client_conns[line];
        let cut = &self.client_cuts[cut];
        cut.until > self.now && cut.holds(client, site, to) && !self.clients[client].tied
    }

    /// Until when packets in that direction are lost.
    pub(super) fn cut_until(&self, client: usize, site: usize, to: Endpoint) -> Option<u64> {
        let holds = |cut: &&ActiveClientCut| cut.until > self.now && cut.holds(client, site, to);
        let cuts = self.client_cuts.iter().filter(holds).map(|cut| cut.until);
        cuts.max().filter(|_| !self.clients[client].tied)
    }

    /// An end stops receiving, because of a cut or because the other end is closed.
    fn falls_silent(&mut self, line: ClientConnId, end: Endpoint, cut: Option<usize>) {
        let delay = self.rng.range(IDLE - KEEP_ALIVE, IDLE + KEEP_ALIVE);
        self.at(delay, SimEvent::ClientConnSilent { connection: line, end, cut });
    }

    /// An end closes the connection after the idle timeout, unless the cut has ended.
    pub(super) fn silent(&mut self, line: ClientConnId, end: Endpoint, cut: Option<usize>) {
        if cut.is_some_and(|cut| !self.cut_holds(cut, line, end)) {
            return;
        }
        self.give_up_line(line, end);
    }

    fn give_up_line(&mut self, line: ClientConnId, end: Endpoint) {
        let it = &mut self.client_conns[line];
        if it.broken || it.ended(end) {
            return;
        }
        it.end(end);
        let ClientConn { client, site, .. } = self.client_conns[line];
        match end {
            Endpoint::Client => {
                self.tally.count("client: its connection was silent for too long");
                self.on_conn_silent(line);
            }
            Endpoint::Gateway => self.tally.count("gateway: a connection was silent for too long"),
        }
        if self.client_conns[line].ended(end.other()) {
            return;
        }
        // A gateway that has closed answers further packets with a reset, if packets get through.
        let told = end == Endpoint::Gateway
            && Endpoint::BOTH.iter().all(|to| self.cut_until(client, site, *to).is_none());
        if told {
            let delay = self.rng.range(1, KEEP_ALIVE);
            self.at(
                delay,
                SimEvent::ClientConnSilent { connection: line, end: end.other(), cut: None },
            );
        } else {
            self.falls_silent(line, end.other(), None);
        }
    }

    /// How long it takes until the transport retransmits what a cut dropped. `None` if that direction works.
    pub(super) fn again_after_cut(&mut self, line: ClientConnId, to: Endpoint) -> Option<u64> {
        let ClientConn { client, site, .. } = self.client_conns[line];
        let until = self.cut_until(client, site, to)?;
        Some(until - self.now + self.rng.range(1, KEEP_ALIVE))
    }

    /// How long a client waits for an unreachable gateway. `None` if the gateway is reachable.
    pub(super) fn handshake_fails(&self, client: usize, site: usize) -> Option<u64> {
        let cut = Endpoint::BOTH.iter().any(|to| self.cut_until(client, site, *to).is_some());
        cut.then_some(HANDSHAKE)
    }
}
