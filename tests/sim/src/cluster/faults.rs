//! Faults and operator actions. Their times are chosen at the start, so the end of the last one is known.

use ostraca_core::node::{Event, LeaseSettings};

use super::client_cuts::ClientCut;
use super::net::{ConnKind, Cut, Scope};
use super::process::Pid;
use super::{LEASE, MANAGER_SILENCE, RENEW, SimEvent, World};

/// The steps at which a manager or an owner may be struck.
pub(super) const MANAGER_STEPS: &[&str] = &[
    "step: intent write requested",
    "step: intent written",
    "step: begin-hand-off sent",
    "step: hand-off sent",
    "step: shard-stopped received",
    "step: owner write requested",
    "step: owner written",
    "step: leadership write requested",
    "step: seal write requested",
    "step: mark-dead write requested",
];
pub(super) const OWNER_STEPS: &[&str] = &[
    "step: shard adopted",
    "step: claim requested",
    "step: shard stopping",
    "step: shard-stopped sent",
];

/// A fault or an operator action.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A cut in one direction between two nodes.
    OneWay {
        millis: u64,
    },
    /// A cut between a node and the store's node, in one direction or both.
    FromStore {
        millis: u64,
        both: bool,
    },
    /// A cut between some nodes and all others.
    Partition {
        millis: u64,
    },
    /// A cut between a node and the `EntityStore` only.
    EntityStoreCut {
        millis: u64,
    },
    /// The connection between a host and the `EntityStore` carries one frame every `gap` milliseconds.
    StoreSlow {
        millis: u64,
        gap: u64,
    },
    /// A cut between a node and the rows only.
    Rows {
        millis: u64,
    },
    /// A cut between a node and the `EntityStore`, until the end of the run.
    EntityStoreCutForever,
    /// A cut of a host's control messages to the manager, or of both directions, until the end of the run.
    ControlMessagesCut {
        both: bool,
    },
    /// A cut between two groups of nodes, for a time or for good. All of them reach the store.
    Split {
        millis: Option<u64>,
    },
    Links,
    StoreLinks,
    Watches,
    Pause {
        millis: u64,
        clock: bool,
    },
    Crash {
        back: u64,
    },
    Gone,
    Clone,
    StoreCrash {
        power: bool,
        back: u64,
    },
    SyncFails,
    /// The next claim finds a higher current one, as it would after rows were restored from an older copy.
    HigherClaim,
    Trap {
        step: &'static str,
        nth: u64,
        crash: bool,
    },
    Drain,
    Undrain,
    Join,
    Leave {
        now: bool,
    },
    Rebalance,
    Redeploy,
    ControlStalls,
    RenewalSlow,
    RegistrationSlow,
    /// A host cannot run a deployed type, for a while or until the end of the run.
    UnrunnableType {
        millis: Option<u64>,
    },
    /// An operator moves shards to other databases.
    MoveData,
    /// A cut between clients and gateways.
    ClientCut(ClientCut),
    /// A client sends a message that every gateway must refuse.
    InvalidMessage {
        which: u64,
        pick: u64,
    },
    /// A change to the lease, of which each node learns at a different time, or never.
    Settings {
        lease: u64,
    },
}

/// The cluster's settings with this lease.
pub(super) fn node_settings(revision: u64, lease: u64) -> LeaseSettings {
    let (margin, renew) = (LEASE / 5, RENEW.min(lease / 4));
    LeaseSettings {
        revision,
        lease,
        lease_margin: margin,
        renew_interval: renew,
        manager_silence_timeout: MANAGER_SILENCE.max(lease * 2),
    }
}

/// A fault that strikes the process that reaches a step, once the step has been reached `left` more times.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTrap {
    pub(super) step: &'static str,
    pub(super) left: u64,
    pub(super) crash: bool,
    pub(super) until: u64,
}

impl World {
    /// Picks the site of a running node. Picks the store's only with `store_too`, or if no other node is running.
    pub(super) fn any_site(&mut self, store_too: bool) -> usize {
        let living: Vec<usize> = (0..self.sites.len())
            .filter(|site| self.sites[*site].pid.is_some() && (store_too || *site > 0))
            .collect();
        match living.len() as u64 {
            0 => 0,
            n => living[self.rng.range(0, n) as usize],
        }
    }

    /// Whether, without this node, at least two hosts of each pool can own shards until the end. `false` for the store's
    /// node.
    pub(super) fn spare(&self, site: usize) -> bool {
        let lasting = |at: usize| {
            let it = &self.sites[at];
            let cut = self.cuts.iter().any(|cut| cut.from == at && cut.until == u64::MAX);
            let drained = self.drained.contains(&it.node);
            let leaves = it.pid.is_some_and(|pid| self.processes[pid].leaving);
            let unrunnable = it.pid.is_some_and(|pid| self.processes[pid].has_unrunnable_type);
            let stays = !it.over && !it.copy && !cut && !drained && !leaves && !unrunnable;
            at != site && stays
        };
        let lasting: Vec<_> = (0..self.sites.len()).filter(|at| lasting(*at)).collect();
        let remain = |pool| lasting.iter().filter(|at| self.may_host(**at, pool)).count() > 1;
        site > 0 && self.pools.all.iter().all(remain)
    }

    pub(super) fn heal_by(&mut self, millis: u64) {
        self.healed = self.healed.max(self.now + millis);
    }

    pub(super) fn inject_fault(&mut self, fault: Fault) {
        self.print(|| format!("strikes: {fault:?}"));
        self.heal_by(1);
        match fault {
            Fault::OneWay { millis } => {
                let (from, to) = (self.any_site(false), self.any_site(false));
                if from != to {
                    self.tally.count("fault: one-way cut between nodes");
                    self.cut(from, to, Scope::All, millis);
                }
            }
            Fault::FromStore { millis, both } => {
                self.tally.count("fault: one-way cut to or from the store");
                let site = self.any_site(false);
                let to = self.rng.chance(50);
                if both || to {
                    self.cut(site, 0, Scope::All, millis);
                }
                if both || !to {
                    self.cut(0, site, Scope::All, millis);
                }
            }
            Fault::Partition { millis } => {
                self.tally.count("fault: partition");
                let side: Vec<bool> = (0..self.sites.len()).map(|_| self.rng.chance(40)).collect();
                for a in 0..side.len() {
                    for b in 0..side.len() {
                        if side[a] != side[b] {
                            self.cut(a, b, Scope::All, millis);
                        }
                    }
                }
            }
            Fault::EntityStoreCut { millis } => {
                self.tally.count("fault: entity store cut off, rows reachable");
                let site = self.any_site(false);
                self.cut(site, 0, Scope::Entities, millis);
            }
            Fault::StoreSlow { millis, gap } => self.slow_down(millis, gap),
            Fault::Rows { millis } => {
                self.tally.count("fault: rows cut off, entity store reachable");
                let site = self.any_site(false);
                self.cut(site, 0, Scope::Rows, millis);
            }
            Fault::EntityStoreCutForever => {
                let site = self.any_site(false);
                if self.spare(site) {
                    self.tally.count("fault: entity store cut off for good");
                    self.cuts.push(Cut {
                        from: site,
                        to: 0,
                        what: Scope::Entities,
                        until: u64::MAX,
                    });
                    self.schedule_cut_detection(site, 0, Scope::Entities);
                }
            }
            Fault::ControlMessagesCut { both } => self.cut_control_messages(both),
            Fault::Split { millis } => self.split(millis),
            Fault::Links => {
                let pid = self.a_process(false);
                self.break_all(pid, |conn| conn.kind == ConnKind::Peer);
            }
            Fault::StoreLinks => {
                let pid = self.a_process(false);
                self.break_all(pid, |conn| conn.kind != ConnKind::Peer);
            }
            Fault::Watches => {
                self.tally.count("fault: watch broken");
                for watcher in std::mem::take(&mut self.watchers) {
                    self.frame(watcher.conn, 1, super::net::Frame::WatchLost);
                }
            }
            Fault::Pause { millis, clock } => {
                let pid = self.a_process(true);
                self.pause(pid, millis, clock);
            }
            Fault::Crash { back } => {
                let site = self.any_site(false);
                self.at(0, SimEvent::Crash { site, back: Some(back), power: false });
            }
            Fault::Gone => {
                let site = self.any_site(false);
                if self.spare(site) {
                    self.tally.count("fault: node lost permanently");
                    self.at(0, SimEvent::Crash { site, back: None, power: false });
                }
            }
            Fault::Clone => {
                let site = self.any_site(false);
                if site > 0 && !self.sites[site].copy && self.sites[site].pid.is_some() {
                    self.tally.count("fault: data directory cloned");
                    self.clone_site(site);
                }
            }
            Fault::StoreCrash { power, back } => {
                if back > LEASE * 2 {
                    self.tally.count("fault: store unavailable for long");
                }
                self.at(0, SimEvent::Crash { site: 0, back: Some(back), power });
            }
            Fault::SyncFails => self.sync_fails = true,
            Fault::HigherClaim => self.forced_claims += 1,
            Fault::Trap { step, nth, crash } => {
                let until = self.now + 3_000;
                self.traps.push(StepTrap { step, left: nth, crash, until });
                self.heal_by(3_000);
            }
            Fault::Drain | Fault::Undrain => {
                let draining = matches!(fault, Fault::Drain);
                let node = match (draining, self.drained.pop()) {
                    (false, Some(node)) => node,
                    (false, None) => return,
                    (true, former) => {
                        self.drained.extend(former);
                        let site = self.any_site(true);
                        if !self.spare(site) {
                            return;
                        }
                        self.sites[site].node.clone()
                    }
                };
                self.tally.count(if draining {
                    "operator: drain"
                } else {
                    "operator: drain undone"
                });
                if draining {
                    self.drained.push(node.clone());
                }
                let pid = self.a_process(true);
                self.enqueue_node_event(pid, Event::Drain { node, draining });
            }
            Fault::Join => {
                self.tally.count("operator: node joins");
                self.join(false);
            }
            Fault::Leave { now } => self.leave(now),
            Fault::ControlStalls => self.control_stalls(),
            Fault::RenewalSlow => self.renewal_slow(),
            Fault::RegistrationSlow => self.registration_slow(),
            Fault::Rebalance => {
                self.tally.count("operator: rebalance");
                let pid = self.a_process(true);
                self.enqueue_node_event(pid, Event::Rebalance);
            }
            Fault::UnrunnableType { millis } => self.cannot_run(millis),
            Fault::MoveData => self.move_data(),
            Fault::ClientCut(cut) => self.cut_lines(cut),
            Fault::InvalidMessage { which, pick } => self.send_bad(which, pick),
            Fault::Settings { lease } => self.change_settings(lease),
            Fault::Redeploy => {
                self.tally.count("operator: redeploy");
                self.revision += 1;
                for pid in 0..self.processes.len() {
                    for shard in self.processes[pid].shards.keys().copied().collect::<Vec<_>>() {
                        if self.processes[pid].awake(self.now) {
                            self.deploy(pid, shard);
                        }
                    }
                }
            }
        }
    }

    /// Simulates the worst case for a row of settings: nodes learn of it in any order, regardless of other cuts.
    fn change_settings(&mut self, lease: u64) {
        self.tally.count("operator: lease changed");
        let revision = self.agreed.revision + 1;
        self.agreed = node_settings(revision, lease);
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive && self.rng.chance(85) {
                let delay = if self.rng.chance(50) { 1 } else { self.rng.range(1, LEASE * 3) };
                self.heal_by(delay);
                let event = Event::LeaseSettingsChanged(self.agreed);
                self.at(delay, SimEvent::NodeEvent { pid, event });
            }
        }
    }

    pub(super) fn leave(&mut self, now: bool) {
        let managers = (0..self.sites.len())
            .filter(|at| self.sites[*at].roles.manager && self.sites[*at].pid.is_some())
            .count();
        let site = self.any_site(false);
        if !self.spare(site) || (self.sites[site].roles.manager && managers < 3) {
            return;
        }
        let Some(pid) = self.sites[site].pid else { return };
        self.processes[pid].leaving = true;
        self.enqueue_node_event(pid, Event::Leave);
        self.tally.count("operator: node leaves");
        if now {
            self.tally.count("operator: node leaves at once");
            let delay = self.rng.range(1, 800);
            self.at(delay, SimEvent::NodeEvent { pid, event: Event::LeaveNow });
        }
    }

    pub(super) fn a_process(&mut self, store_too: bool) -> Pid {
        let site = self.any_site(store_too);
        self.sites[site].pid.unwrap_or(0)
    }
}
