//! Faults, and what operators do: when each strikes is drawn at the start, and the last one's end is known.

use ostraca_sharding::node::Event;

use super::net::{Cut, Scope, Way};
use super::process::Pid;
use super::{Happening, LEASE, World};

/// The steps at which a manager or an owner may be struck.
pub(super) const MANAGER_STEPS: &[&str] = &[
    "step: intent asked for",
    "step: intent written",
    "step: begin-hand-off said",
    "step: hand-off said",
    "step: shard-stopped heard",
    "step: owner asked for",
    "step: owner written",
    "step: leadership asked for",
    "step: seal asked for",
    "step: death asked for",
];
pub(super) const OWNER_STEPS: &[&str] = &[
    "step: shard adopted",
    "step: claim asked for",
    "step: shard stopping",
    "step: shard-stopped said",
];

/// Something that strikes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// One way between two nodes.
    OneWay {
        millis: u64,
    },
    /// A node from the store's, one way or both.
    FromStore {
        millis: u64,
        both: bool,
    },
    /// A node from everybody.
    Partition {
        millis: u64,
    },
    /// A node from the entities' store only.
    Entities {
        millis: u64,
    },
    /// A node from the rows only.
    Rows {
        millis: u64,
    },
    /// A node from the entities' store, to the end of the run.
    EntitiesForGood,
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
    /// The next claim finds one that stands above it, as after rows went back to an older copy.
    Ghost,
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
}

/// Somebody is struck when a step is reached for the nth time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trap {
    pub(super) step: &'static str,
    pub(super) left: u64,
    pub(super) crash: bool,
    pub(super) until: u64,
}

impl World {
    /// A living node's site, not the store's if there is another.
    fn any_site(&mut self, store_too: bool) -> usize {
        let living: Vec<usize> = (0..self.sites.len())
            .filter(|site| self.sites[*site].pid.is_some() && (store_too || *site > 0))
            .collect();
        match living.len() as u64 {
            0 => 0,
            n => living[self.rng.range(0, n) as usize],
        }
    }

    /// Whether hosts that may own shards are left to the end without this node.
    fn spare(&self, site: usize) -> bool {
        let lasting = |at: usize| {
            let it = &self.sites[at];
            let cut = self.cuts.iter().any(|cut| cut.from == at && cut.until == u64::MAX);
            let drained = self.drained.contains(&it.node);
            let leaves = it.pid.is_some_and(|pid| self.processes[pid].leaving);
            at != site && it.roles.host && !it.over && !it.copy && !cut && !drained && !leaves
        };
        site > 0 && (0..self.sites.len()).filter(|at| lasting(*at)).count() > 1
    }

    fn heal_by(&mut self, millis: u64) {
        self.healed = self.healed.max(self.now + millis);
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        if self.trace {
            println!("{:>6} strikes: {fault:?}", self.now);
        }
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
            Fault::Entities { millis } => {
                self.tally.count("fault: entity store cut off, rows reached");
                let site = self.any_site(false);
                self.cut(site, 0, Scope::Entities, millis);
            }
            Fault::Rows { millis } => {
                self.tally.count("fault: rows cut off, entity store reached");
                let site = self.any_site(false);
                self.cut(site, 0, Scope::Rows, millis);
            }
            Fault::EntitiesForGood => {
                let site = self.any_site(false);
                if self.spare(site) {
                    self.tally.count("fault: entity store cut off for good");
                    self.cuts.push(Cut {
                        from: site,
                        to: 0,
                        what: Scope::Entities,
                        until: u64::MAX,
                    });
                    self.cut_felt(site, 0, Scope::Entities);
                }
            }
            Fault::Links => {
                let pid = self.a_process(false);
                self.break_all(pid, |conn| conn.way == Way::Peer);
            }
            Fault::StoreLinks => {
                let pid = self.a_process(false);
                self.break_all(pid, |conn| conn.way != Way::Peer);
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
                self.at(0, Happening::Crash { site, back: Some(back), power: false });
            }
            Fault::Gone => {
                let site = self.any_site(false);
                if self.spare(site) {
                    self.tally.count("fault: node gone for good");
                    self.at(0, Happening::Crash { site, back: None, power: false });
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
                    self.tally.count("fault: store away for long");
                }
                self.at(0, Happening::Crash { site: 0, back: Some(back), power });
            }
            Fault::SyncFails => self.sync_fails = true,
            Fault::Ghost => self.ghosts += 1,
            Fault::Trap { step, nth, crash } => {
                let until = self.now + 3_000;
                self.traps.push(Trap { step, left: nth, crash, until });
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
                self.tell_awake(pid, Event::Drain { node, draining });
            }
            Fault::Join => {
                self.tally.count("operator: node joins");
                self.join();
            }
            Fault::Leave { now } => self.leave(now),
            Fault::Rebalance => {
                self.tally.count("operator: rebalance");
                let pid = self.a_process(true);
                self.tell_awake(pid, Event::Rebalance);
            }
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

    fn leave(&mut self, now: bool) {
        let managers = (0..self.sites.len())
            .filter(|at| self.sites[*at].roles.manager && self.sites[*at].pid.is_some())
            .count();
        let site = self.any_site(false);
        if !self.spare(site) || (self.sites[site].roles.manager && managers < 3) {
            return;
        }
        let Some(pid) = self.sites[site].pid else { return };
        self.processes[pid].leaving = true;
        self.tell_awake(pid, Event::Leave);
        self.tally.count("operator: node leaves");
        if now {
            self.tally.count("operator: node leaves at once");
            let delay = self.rng.range(1, 800);
            self.at(delay, Happening::Told { pid, event: Event::LeaveNow });
        }
    }

    fn a_process(&mut self, store_too: bool) -> Pid {
        let site = self.any_site(store_too);
        self.sites[site].pid.unwrap_or(0)
    }

    /// Frames from one site to another go nowhere; connections end if that lasts.
    fn cut(&mut self, from: usize, to: usize, what: Scope, millis: u64) {
        if from == to {
            return;
        }
        self.cuts.retain(|cut| cut.until > self.now);
        self.cuts.push(Cut { from, to, what, until: self.now + millis });
        self.heal_by(millis);
        self.cut_felt(from, to, what);
    }

    fn cut_felt(&mut self, from: usize, to: usize, what: Scope) {
        let delay = self.silence();
        self.at(delay, Happening::CutFelt { from, to, what });
    }

    /// How long a connection is silent before it is given up: less than a lease or more.
    fn silence(&mut self) -> u64 {
        if self.rng.chance(70) { self.rng.range(100, 500) } else { self.rng.range(500, 1_500) }
    }

    /// Connections that a cut has silenced for long end.
    pub(super) fn cut_ends(&mut self, from: usize, to: usize, what: Scope) {
        for conn in 0..self.conns.len() {
            let it = &self.conns[conn];
            let sites = it.ends.map(|pid| self.processes[pid].site);
            let between = sites == [from, to] || sites == [to, from];
            if it.alive && between && what.holds(it.way) && self.is_cut(from, to, it.way) {
                let told = [self.rng.range(0, 200), self.rng.range(0, 200)];
                self.break_conn(conn, told);
            }
        }
    }

    /// A step was taken: a trap may wait for it.
    pub(super) fn step(&mut self, pid: Pid, step: &'static str) {
        if step != "step: row of a node asked for" {
            self.tally.count(step);
        }
        if self.trace && step != "step: row of a node asked for" {
            println!("{:>6} {} {step}", self.now, self.processes[pid].node);
        }
        let now = self.now;
        self.traps.retain(|trap| trap.until > now);
        let Some(at) = self.traps.iter().position(|trap| trap.step == step) else { return };
        if self.traps[at].left > 0 {
            self.traps[at].left -= 1;
            return;
        }
        let trap = self.traps.remove(at);
        if !trap.crash {
            self.tally.count("fault: manager paused at a step");
            let millis = self.rng.range(LEASE / 2, LEASE * 3);
            return self.pause(pid, millis, false);
        }
        self.tally.count(if MANAGER_STEPS.contains(&step) {
            "fault: manager crashed at a step"
        } else {
            "fault: owner crashed at a step"
        });
        let back = self.rng.range(20, LEASE * 3);
        let site = self.processes[pid].site;
        self.crash(site, Some(back), false);
    }

    pub(super) fn pause(&mut self, pid: Pid, millis: u64, clock: bool) {
        let clock = clock && self.clocks_stop;
        let it = &mut self.processes[pid];
        if !it.alive || it.paused_until > self.now {
            return;
        }
        // Until it woke: nothing else of that moment comes before.
        it.paused_until = self.now + millis + 1;
        self.tally.count("fault: node paused");
        if millis > LEASE * 3 / 2 {
            self.tally.count("fault: node paused past its lease");
        }
        if clock {
            self.tally.count("fault: node paused, its clock stopped");
        }
        self.heal_by(millis);
        self.at(millis, Happening::Woke { pid, stood: if clock { millis } else { 0 } });
        let idle = self.silence();
        if idle < millis {
            self.at(idle, Happening::PauseFelt { pid });
        }
    }
}
