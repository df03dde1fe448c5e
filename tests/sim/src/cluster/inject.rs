//! How faults take effect: cuts and the silence after them, traps at steps, pauses.

use ostraca_core::rows::{Row, RowKey};

use super::faults::MANAGER_STEPS;
use super::net::{Cut, Scope};
use super::process::Pid;
use super::{LEASE, MANAGER_SILENCE, SimEvent, World};

impl World {
    /// Drops frames from one site to another. If that lasts, connections end.
    pub(super) fn cut(&mut self, from: usize, to: usize, what: Scope, millis: u64) {
        if from == to {
            return;
        }
        self.cuts.retain(|cut| cut.until > self.now);
        self.cuts.push(Cut { from, to, what, until: self.now + millis });
        self.heal_by(millis);
        self.schedule_cut_detection(from, to, what);
    }

    /// Drops a host's control messages to the current manager from now on. Both nodes still reach the store and each
    /// other's gateways.
    pub(super) fn cut_control_messages(&mut self, both: bool) {
        let Some((Row::Manager(row), _)) = self.rows.applied(&RowKey::Manager) else { return };
        let holder = self.sites.iter().position(|site| site.node == row.holder.node);
        let (host, Some(holder)) = (self.any_site(true), holder) else { return };
        // A host that gets no control messages needs this time to learn of a hand-off from the row.
        let in_time = self.hand_off_timeout > MANAGER_SILENCE + LEASE;
        if host == holder || !self.sites[host].is_host() || !in_time {
            return;
        }
        self.tally.count(if both {
            "fault: control messages between manager and host cut off for good"
        } else {
            "fault: control messages of a host to the manager cut off for good"
        });
        let what = Scope::ControlMessages;
        self.cuts.push(Cut { from: host, to: holder, what, until: u64::MAX });
        if both {
            self.cuts.push(Cut { from: holder, to: host, what, until: u64::MAX });
        }
    }

    pub(super) fn schedule_cut_detection(&mut self, from: usize, to: usize, what: Scope) {
        let delay = self.silence();
        self.at(delay, SimEvent::CutDetected { from, to, what });
    }

    /// How long a connection is silent before it is closed: for a shorter or longer time than a lease.
    pub(super) fn silence(&mut self) -> u64 {
        if self.rng.chance(70) { self.rng.range(100, 500) } else { self.rng.range(500, 1_500) }
    }

    /// Ends connections that a cut has silenced for a long time.
    pub(super) fn cut_ends(&mut self, from: usize, to: usize, what: Scope) {
        for conn in 0..self.conns.len() {
            let it = &self.conns[conn];
            let sites = it.ends.map(|pid| self.processes[pid].site);
            let between = sites == [from, to] || sites == [to, from];
            if it.alive && between && what.holds(it.kind) && self.is_cut(from, to, it.kind) {
                let told = [self.rng.range(0, 200), self.rng.range(0, 200)];
                self.break_conn(conn, told);
            }
        }
    }

    /// Counts a step that was reached, and springs the trap that may be set for it.
    pub(super) fn step(&mut self, pid: Pid, step: &'static str) {
        if step != "step: row of a node asked for" {
            self.tally.count(step);
            self.print(|| format!("{} {step}", self.processes[pid].node));
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
        // One more, so that the event that resumes the process comes before all others of that moment.
        it.paused_until = self.now + millis + 1;
        self.tally.count("fault: node paused");
        if millis > LEASE * 3 / 2 {
            self.tally.count("fault: node paused past its lease");
        }
        if clock {
            self.tally.count("fault: node paused, its clock stopped");
        }
        self.heal_by(millis);
        self.at(millis, SimEvent::Woke { pid, stood: if clock { millis } else { 0 } });
        let idle = self.silence();
        if idle < millis {
            self.at(idle, SimEvent::PauseDetected { pid });
        }
    }
}
