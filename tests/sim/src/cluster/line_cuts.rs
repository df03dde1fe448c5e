//! Packets between clients and gateways that are lost in silence, one way or both, while both ends believe that the
//! connection stands.
//!
//! What was sent is sent again by the transport: it comes late if the cut ends before either end has given up, and
//! never if not. An end gives the connection up once it has heard nothing for the idle time-out, and says so to nobody:
//! the other end hears nothing from then on, and gives up in its own time. So a gateway may take, run and answer what its
//! client has long sent to another one; and a client may send to a gateway that has closed.

use super::faults::Fault;
use super::lines::{Line, LineId};
use super::plan::{FROM, TO};
use super::{Happening, LEASE, World};
use crate::rng::Rng;

/// After so much silence an end gives its connection up: two leases and a bit, as the client's default is.
const IDLE: u64 = LEASE * 2 + 50;
/// A side that has nothing to say says so this often; what was lost is sent again about as often.
const KEEP_ALIVE: u64 = 240;
/// How long a client waits for a gateway's handshake.
const HANDSHAKE: u64 = 700;

/// An end of a connection, and what goes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Gateway,
}

impl End {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Gateway];

    fn other(self) -> Self {
        match self {
            Self::Client => Self::Gateway,
            Self::Gateway => Self::Client,
        }
    }
}

/// Whose packets are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// One client's, at the gateway where it is.
    Connection,
    /// One client's, wherever it goes.
    Client,
    /// All that go through one gateway.
    Gateway,
}

/// A cut that strikes: `pick` says which client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    whose: Whose,
    pick: u64,
    /// What goes to whom is lost; none: both.
    to: Option<End>,
    millis: u64,
}

/// A cut that stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineCut {
    client: Option<usize>,
    site: Option<usize>,
    to: Option<End>,
    until: u64,
}

impl LineCut {
    fn holds(&self, client: usize, site: usize, to: End) -> bool {
        self.client.is_none_or(|it| it == client)
            && self.site.is_none_or(|it| it == site)
            && self.to.is_none_or(|it| it == to)
    }
}

impl World {
    /// By dice of their own, so that other seeds stay what they were.
    pub(super) fn plan_line_cuts(&mut self, seed: u64) {
        let mut dice = Rng::new(seed ^ 0x11ec_0751);
        let another_alone = self.options.pauses || self.options.slow_store;
        if another_alone || !self.options.line_cuts && !dice.chance(50) {
            return;
        }
        for _ in 0..dice.range(1, 5) {
            let cut = Silence {
                whose: match dice.range(0, 4) {
                    0 | 1 => Whose::Connection,
                    2 => Whose::Client,
                    _ => Whose::Gateway,
                },
                pick: dice.draw(),
                to: [Some(End::Client), Some(End::Gateway), None][dice.range(0, 3) as usize],
                millis: match dice.chance(30) {
                    true => dice.range(50, IDLE),
                    false => dice.range(IDLE, IDLE * 3),
                },
            };
            let when = dice.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, Happening::Strike(Fault::LineCut(cut)));
        }
    }

    pub(super) fn cut_lines(&mut self, cut: Silence) {
        let Silence { whose, pick, to, millis } = cut;
        let free: Vec<usize> =
            (0..self.clients.len()).filter(|client| !self.clients[*client].tied).collect();
        let client = free[pick as usize % free.len()];
        let site = self.clients[client].home;
        self.tally.count(match to {
            Some(End::Client) => "fault: client cut off, what it is sent",
            Some(End::Gateway) => "fault: client cut off, what it sends",
            None => "fault: client cut off, both ways",
        });
        let until = self.now + millis;
        self.line_cuts.push(LineCut {
            client: (whose != Whose::Gateway).then_some(client),
            site: (whose != Whose::Client).then_some(site),
            to,
            until,
        });
        self.heal_by(millis);
        let cut = self.line_cuts.len() - 1;
        for line in 0..self.lines.len() {
            for end in End::BOTH {
                if self.cut_holds(cut, line, end) {
                    self.falls_silent(line, end, Some(cut));
                }
            }
        }
    }

    fn cut_holds(&self, cut: usize, line: LineId, to: End) -> bool {
        let Line { client, site, .. } = self.lines[line];
        let cut = &self.line_cuts[cut];
        cut.until > self.now && cut.holds(client, site, to) && !self.clients[client].tied
    }

    /// Until when what goes that way is lost.
    pub(super) fn cut_until(&self, client: usize, site: usize, to: End) -> Option<u64> {
        let holds = |cut: &&LineCut| cut.until > self.now && cut.holds(client, site, to);
        let cuts = self.line_cuts.iter().filter(holds).map(|cut| cut.until);
        cuts.max().filter(|_| !self.clients[client].tied)
    }

    /// An end hears nothing from now on, because of a cut or because the other end is gone.
    fn falls_silent(&mut self, line: LineId, end: End, cut: Option<usize>) {
        let delay = self.rng.range(IDLE - KEEP_ALIVE, IDLE + KEEP_ALIVE);
        self.at(delay, Happening::Silent { line, end, cut });
    }

    /// An end has heard nothing for the idle time-out, unless the cut has ended: it gives the connection up.
    pub(super) fn silent(&mut self, line: LineId, end: End, cut: Option<usize>) {
        if cut.is_some_and(|cut| !self.cut_holds(cut, line, end)) {
            return;
        }
        self.give_up_line(line, end);
    }

    fn give_up_line(&mut self, line: LineId, end: End) {
        let it = &mut self.lines[line];
        if it.broken || it.ended(end) {
            return;
        }
        it.end(end);
        let Line { client, site, .. } = self.lines[line];
        match end {
            End::Client => {
                self.tally.count("client: its connection was silent for too long");
                self.line_silent(line);
            }
            End::Gateway => self.tally.count("gateway: a connection was silent for too long"),
        }
        if self.lines[line].ended(end.other()) {
            return;
        }
        // A gateway that has given up says so to whoever sends to it, if that gets through.
        let told = end == End::Gateway
            && End::BOTH.iter().all(|to| self.cut_until(client, site, *to).is_none());
        if told {
            let delay = self.rng.range(1, KEEP_ALIVE);
            self.at(delay, Happening::Silent { line, end: end.other(), cut: None });
        } else {
            self.falls_silent(line, end.other(), None);
        }
    }

    /// When the transport sends again what a cut has swallowed; none: that way passes.
    pub(super) fn again_after_cut(&mut self, line: LineId, to: End) -> Option<u64> {
        let Line { client, site, .. } = self.lines[line];
        let until = self.cut_until(client, site, to)?;
        Some(until - self.now + self.rng.range(1, KEEP_ALIVE))
    }

    /// How long a client waits in vain for a gateway that it cannot reach, if it cannot.
    pub(super) fn handshake_fails(&self, client: usize, site: usize) -> Option<u64> {
        let cut = End::BOTH.iter().any(|to| self.cut_until(client, site, *to).is_some());
        cut.then_some(HANDSHAKE)
    }
}
