//! Clients of a cluster: they go to any gateway, to another when one does not answer, and to several with one session.

use ostraca_sharding::ids::Entity;
use ostraca_sharding::message::{Kind, Message, Outcome, Token};
use ostraca_sharding::records::Answer;

use super::process::Pid;
use super::{Happening, World};
use crate::client::Pending;
use crate::finding::Broken;

impl World {
    pub(super) fn issue(&mut self, client: usize) {
        if self.issued >= self.options.messages {
            return;
        }
        let delay = self.rng.range(10, 260);
        self.at(delay, Happening::Issue { client });
        if self.clients[client].pending.len() >= 8 {
            return;
        }
        for _ in 0..self.rng.range(1, 4) {
            self.issued += 1;
            let id = self.rng.range(0, self.entities);
            let kind = if id % 3 == 2 { "starter" } else { "counter" };
            let roll = self.rng.range(0, 10);
            let (kind_of, method, by) = match roll {
                // Where clocks may stand still, no lease guards what a query reads (R8).
                0..=2 if !self.clocks_stop => (Kind::Query, "get", 0),
                0..=4 => (Kind::Command, "take", self.rng.range(1, 20)),
                _ => (Kind::Command, "add", self.rng.range(1, 10)),
            };
            let patience = self.rng.chance(10).then(|| self.rng.range(5, 300));
            let entity = Entity::new(kind, format!("e{id}"));
            let pending = Pending::new(entity, (kind_of, method, by), self.now, patience);
            let sequence = self.clients[client].begin(pending);
            self.send(client, sequence);
            if self.rng.chance(6) {
                let delay = self.rng.range(50, 3_000);
                self.at(delay, Happening::GiveUp { client, sequence });
            }
        }
    }

    pub(super) fn send(&mut self, client: usize, sequence: u64) {
        let Some(message) = self.clients[client].copy(sequence, self.now) else { return };
        let doubled = self.rng.chance(3);
        if doubled {
            self.tally.count("fault: client message doubled");
        }
        for _ in 0..if doubled { 2 } else { 1 } {
            if let Some(pending) = self.clients[client].pending.get_mut(&sequence) {
                pending.copies += 1;
            }
            // A session may go through several gateways.
            let spread = self.rng.chance(self.spread);
            let site = if spread { self.a_gateway() } else { self.homes[client] };
            if self.rng.chance(self.loss) {
                self.tally.count("fault: client message lost");
                continue;
            }
            let delay = self.rng.range(1, 20);
            let message = Box::new(message.clone());
            self.at(delay, Happening::Arrive { site, client, message });
        }
        let timeout = self.rng.range(300, 900);
        self.again(timeout, client, sequence);
    }

    /// A gateway that clients know of. One that is gone refuses them at once, mostly.
    pub(super) fn a_gateway(&mut self) -> usize {
        let any = self.rng.chance(30) || self.sites.iter().all(|site| site.pid.is_none());
        let gateways: Vec<usize> = self
            .sites
            .iter()
            .enumerate()
            .filter(|(_, site)| site.roles.gateway && !site.copy && (any || site.pid.is_some()))
            .map(|(at, _)| at)
            .collect();
        match gateways.len() as u64 {
            0 => 0,
            n => gateways[self.rng.range(0, n) as usize],
        }
    }

    pub(super) fn again(&mut self, delay: u64, client: usize, sequence: u64) {
        if let Some(pending) = self.clients[client].pending.get(&sequence) {
            let copies = pending.copies;
            self.at(delay, Happening::Again { client, sequence, copies });
        }
    }

    /// A client waits no longer for an outcome.
    pub(super) fn give_up(&mut self, client: usize, sequence: u64) {
        match self.clients[client].give_up(sequence, self.now) {
            Some(Kind::Command) => self.tally.count("client: gave up a command"),
            Some(Kind::Query) => self.tally.count("client: gave up a query"),
            None => {}
        }
    }

    /// Nothing came back in time: again, maybe elsewhere.
    pub(super) fn send_again(&mut self, client: usize, sequence: u64, copies: u32) {
        let pending = self.clients[client].pending.get(&sequence);
        if pending.is_none_or(|pending| pending.copies != copies) {
            return;
        }
        if self.rng.chance(50) {
            self.tally.count("client: switched gateway");
            self.homes[client] = self.a_gateway();
        }
        self.send(client, sequence);
    }

    pub(super) fn arrive_at(&mut self, site: usize, client: usize, message: Box<Message>) {
        let Some(pid) = self.sites[site].pid.filter(|pid| self.processes[*pid].alive) else {
            return;
        };
        let paused = self.processes[pid].paused_until;
        if paused > self.now {
            return self.at(paused - self.now, Happening::Arrive { site, client, message });
        }
        self.arrive(pid, client, *message);
    }

    /// A gateway answers a request.
    pub(super) fn reply(&mut self, pid: Pid, token: Token, outcome: Outcome) {
        let Some(open) = self.processes[pid].door.open.remove(&token) else {
            return self.breaches.push(
                Broken::SecondReply.because(format!("a second answer to {token:?}: {outcome:?}")),
            );
        };
        let (client, sequence) = (open.client, open.sequence);
        match &outcome {
            Outcome::Final { answer, .. } => {
                self.tally.count("reply: final");
                if matches!(answer, Answer::Error { .. }) {
                    self.tally.count("reply: application error");
                }
                match self.clients[client].pending.get(&sequence) {
                    Some(pending) if pending.kind == Kind::Query => {
                        self.tally.count("reply: query");
                    }
                    Some(_) => {}
                    None => self.tally.count("reply: recorded outcome"),
                }
            }
            Outcome::Unknown { .. } => self.tally.count("reply: unknown"),
            Outcome::NotRun { .. } => self.tally.count("reply: not run"),
        }
        if self.rng.chance(self.loss) {
            return self.tally.count("fault: reply lost");
        }
        let delay = self.rng.range(1, 20);
        self.at(delay, Happening::Reply { client, sequence, outcome });
    }

    pub(super) fn replied(&mut self, client: usize, sequence: u64, outcome: Outcome) {
        self.print(|| format!("client {client}: {sequence} {outcome:?}"));
        let retryable = !matches!(outcome, Outcome::Final { .. });
        self.breaches.extend(self.clients[client].overtaken(sequence, &outcome));
        if retryable && self.rng.chance(20) {
            self.homes[client] = self.a_gateway();
        }
        if let Some(delay) = self.clients[client].reply(sequence, self.now, outcome) {
            self.again(delay, client, sequence);
        }
    }
}
