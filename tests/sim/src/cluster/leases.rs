//! Faults that test leases: a control thread that stalls while its shards continue, and answers to renewals and
//! registrations that arrive late, after which the node is cut off from the rows.
//!
//! During such a fault, readers with separate sessions keep querying entities that the node owned, as clients with
//! outdated routes do, and writers use other gateways, which know the next owner. A node that trusts its lease for too
//! long then returns a stale answer (R8).

use std::collections::BTreeSet;

use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::message::MessageKind;
use ostraca_core::node::Event;
use ostraca_core::rows::{Row, RowKey, chunk_of, index_in_chunk, shard_at};

use super::guard::Applied;
use super::net::{Cut, Scope};
use super::{LEASE, SimEvent, World};
use crate::session::PendingCall;

/// The intervals between queries: at first, to keep the entities active, and later, to catch a stale answer.
const SELDOM: u64 = 80;
const OFTEN: u64 = 16;
/// The time after which no answer can be stale: a lease is never trusted for more than twice its length.
const OVER: u64 = LEASE * 2;

/// A node whose next renewal or registration gets a late answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelayedResponse {
    site: usize,
    registration: bool,
}

/// Readers at a node whose lease is tested.
#[derive(Clone, Debug)]
pub(super) struct StaleReadProbe {
    site: usize,
    /// When the node was last reachable.
    since: u64,
    /// The client of the readers.
    reader: usize,
    entities: Vec<Watched>,
}

/// An entity that is read at its former owner.
#[derive(Clone, Debug)]
struct Watched {
    entity: Entity,
    /// The session that writes to it.
    writer: usize,
    /// When it was last written, at its next owner.
    written: u64,
}

impl World {
    /// Picks a host that is also a gateway, has shards, is not the manager, and is not being tested already.
    fn a_strained_site(&mut self) -> Option<usize> {
        let leader = match self.rows.applied(&RowKey::Manager) {
            Some((Row::Manager(row), _)) => Some(row.holder.node.clone()),
            _ => None,
        };
        let fit: Vec<usize> = (1..self.sites.len())
            .filter(|at| {
                let it = &self.sites[*at];
                let pid = it.pid.filter(|pid| self.processes[*pid].awake(self.now));
                it.is_host()
                    && it.roles.gateway
                    && !it.copy
                    && Some(&it.node) != leader.as_ref()
                    && pid.is_some_and(|pid| !self.processes[pid].shards.is_empty())
                    && !self
                        .stale_read_probes
                        .iter()
                        .any(|it| it.site == *at && self.now <= it.since + OVER)
            })
            .collect();
        match fit.len() as u64 {
            0 => None,
            n => Some(fit[self.rng.range(0, n) as usize]),
        }
    }

    /// Stalls a node's control thread while its workers continue.
    pub(super) fn control_stalls(&mut self) {
        if self.clocks_stop {
            return;
        }
        let Some(site) = self.a_strained_site() else { return };
        let Some(pid) = self.sites[site].pid else { return };
        self.tally.count("fault: control thread delayed past the lease");
        let millis = self.rng.range(LEASE * 2, LEASE * 5 / 2);
        self.processes[pid].stalled_until = self.now + millis;
        self.heal_by(millis);
        self.start_stale_read_probe(site);
    }

    /// Delays the answer to a node's next renewal, and then cuts the node off from the rows.
    pub(super) fn renewal_slow(&mut self) {
        if let Some(site) = self.a_strained_site().filter(|_| !self.clocks_stop) {
            self.delayed_responses.push(DelayedResponse { site, registration: false });
            self.heal_by(LEASE * 4);
        }
    }

    /// Lets a node join whose registration gets a late answer.
    pub(super) fn registration_slow(&mut self) {
        let site = self.join(true);
        if !self.clocks_stop {
            self.delayed_responses.push(DelayedResponse { site, registration: true });
            self.heal_by(LEASE * 4);
        }
    }

    /// Delays the answer to this write if it is one that a fault selected.
    pub(super) fn slow_answer(&mut self, applied: &Applied) {
        let site = self.processes[applied.by].site;
        let Some(at) = self.delayed_responses.iter().position(|late| late.site == site) else {
            return;
        };
        let (RowKey::Node(node), Row::Node(row)) = (&applied.key, &applied.new) else { return };
        let new = match &applied.old {
            Some(Row::Node(old)) => old.incarnation != row.incarnation,
            _ => true,
        };
        if *node != self.sites[site].node || new != self.delayed_responses[at].registration {
            return;
        }
        self.delayed_responses.remove(at);
        let late = if new {
            self.tally.count("fault: registration response late");
            self.rng.range(LEASE * 13 / 20, LEASE * 16 / 20)
        } else {
            self.tally.count("fault: renewal response late");
            self.rng.range(LEASE * 14 / 20, LEASE * 21 / 20)
        };
        // The answer is delayed, not dropped: frames in flight arrive after it.
        let (what, until) = (Scope::Rows, self.now + late);
        self.cuts.push(Cut { from: 0, to: site, what, until });
        self.cuts.push(Cut { from: site, to: 0, what, until: until + OVER });
        // Nothing passes after the answer; otherwise the node would learn that it was marked dead.
        let hush = if new { LEASE + 40 } else { late + 20 };
        self.at(hush, SimEvent::StopRowUpdates { site });
        self.heal_by(late + OVER);
        if new {
            // An operator sees the node join, and requests a rebalance.
            for delay in [30, 90] {
                let pid = self.a_process(true);
                self.at(late + delay, SimEvent::NodeEvent { pid, event: Event::Rebalance });
            }
        }
        self.start_stale_read_probe(site);
    }

    /// Stops a node's watch of the rows.
    pub(super) fn stop_row_updates(&mut self, site: usize) {
        self.cuts.push(Cut { from: 0, to: site, what: Scope::Rows, until: self.now + OVER });
        self.heal_by(OVER);
    }

    fn start_stale_read_probe(&mut self, site: usize) {
        let reader = self.a_client(site, true);
        let vigil = StaleReadProbe { site, since: self.now, reader, entities: Vec::new() };
        self.stale_read_probes.push(vigil);
        let vigil = self.stale_read_probes.len() - 1;
        self.at(1, SimEvent::StaleReadProbe { probe: vigil });
    }

    /// Entities of the node's shards that no other client uses.
    fn entities_of(&self, site: usize) -> Vec<Entity> {
        let Some(pid) = self.sites[site].pid else { return Vec::new() };
        let mut owned: BTreeSet<ShardId> = BTreeSet::new();
        for (key, (row, _)) in self.rows.durable() {
            let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) else { continue };
            let mine = |owner: &Option<_>| owner.is_some() && *owner == self.processes[pid].member;
            let of_chunk = row.assignments.iter().enumerate().filter(|(_, row)| mine(&row.owner));
            owned.extend(of_chunk.map(|(place, _)| shard_at(*chunk, place)));
        }
        let names = (0..400).map(|number| format!("r{number}"));
        let mut found = Vec::new();
        for name in names {
            if found.len() < 3 && owned.remove(&self.shard_of(&name)) {
                found.push(Entity::new("counter", name));
            }
        }
        found
    }

    /// Sends queries: rarely while the node owns the shard according to the rows, and often once another node does.
    /// Writers then send to that node.
    pub(super) fn probe_stale_reads(&mut self, vigil: usize) {
        let StaleReadProbe { site, since, reader, .. } = self.stale_read_probes[vigil];
        let age = self.now - since;
        if self.sites[site].pid.is_none() || age > OVER {
            return;
        }
        if self.stale_read_probes[vigil].entities.is_empty() {
            for entity in self.entities_of(site) {
                let client = self.a_client(site, true);
                let writer = self.a_session(client);
                self.stale_read_probes[vigil].entities.push(Watched { entity, writer, written: 0 });
            }
        }
        let mut taken = false;
        for at in 0..self.stale_read_probes[vigil].entities.len() {
            let Watched { entity, writer, written } =
                self.stale_read_probes[vigil].entities[at].clone();
            self.ask_once(reader, &entity);
            let Some(owner) = self.owner_of(&entity).filter(|owner| *owner != site) else {
                continue;
            };
            taken = true;
            if self.now > written + SELDOM {
                self.stale_read_probes[vigil].entities[at].written = self.now;
                self.write_at(writer, owner, site, entity);
            }
        }
        let delay = if taken { OFTEN } else { SELDOM };
        let delay = self.rng.range(delay / 2, delay * 3 / 2);
        self.at(delay, SimEvent::StaleReadProbe { probe: vigil });
    }

    /// The site of an entity's owner, according to the rows.
    fn owner_of(&self, entity: &Entity) -> Option<usize> {
        let shard = self.shard_of(&entity.id);
        let (chunk, place) = (chunk_of(shard), index_in_chunk(shard));
        let Some((Row::Assignments(row), _)) = self.rows.durable().get(&RowKey::Assignments(chunk))
        else {
            return None;
        };
        let owner = row.assignments.get(place)?.owner.as_ref()?;
        let process = self.processes.iter().rev().find(|it| it.member.as_ref() == Some(owner))?;
        Some(process.site)
    }

    /// Sends one query with a short deadline to the node. It uses a new session, so that it waits for no earlier
    /// answer.
    fn ask_once(&mut self, reader: usize, entity: &Entity) {
        let home = self.clients[reader].gateway;
        if self.clients[reader].connection.is_none() && !self.open_conn(reader, home) {
            return;
        }
        let session = self.a_session(reader);
        self.call_entity(
            session,
            PendingCall::new(entity.clone(), (MessageKind::Query, "get", 0)),
            250,
        );
        self.drive(session);
    }

    /// Sends a command to the next owner, or to a gateway other than the former owner.
    fn write_at(&mut self, writer: usize, owner: usize, not: usize, entity: Entity) {
        if !self.sessions[writer].session.unresolved.is_empty() {
            return;
        }
        let others = (0..8).map(|_| self.a_gateway()).find(|site| *site != not);
        let site = match self.sites[owner].roles.gateway {
            true => owner,
            false => others.unwrap_or(owner),
        };
        let client = self.sessions[writer].client;
        if self.at_gateway(client) != Some(site) {
            self.hang_up(client);
            if !self.open_conn(client, site) {
                return;
            }
        }
        let deadline = self.rng.range(LEASE / 2, LEASE * 2);
        self.call_entity(
            writer,
            PendingCall::new(entity, (MessageKind::Command, "add", 1)),
            deadline,
        );
        self.drive(writer);
    }
}
