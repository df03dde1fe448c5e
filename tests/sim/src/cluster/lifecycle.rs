//! How processes start and end: at the beginning, after a crash, as a copy of another, when joining or leaving.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ostraca_core::assign::StrategySettings;
use ostraca_core::ids::NodeId;
use ostraca_core::node::{self, Event, NodeIdentity};
use ostraca_core::route;
use ostraca_core::rows::Roles;
use ostraca_core::shard::WorkerSlots;

use super::arbiter;
use super::databases;
use super::escalations;
use super::gateway::Gateway;
use super::net::{ConnId, ConnKind};
use super::placements;
use super::process::{Pid, Process};
use super::rows::Change;
use super::{LEASE, RENEW, SimEvent, World};
use crate::violation::ViolationKind;

/// A site, at which a node's process runs.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) node: NodeId,
    pub(super) roles: Roles,
    pub(super) pool_roles: Vec<String>,
    pub(super) weight: u32,
    pub(super) address: String,
    pub(super) version: u64,
    /// The process that is running there.
    pub(super) pid: Option<Pid>,
    /// Whether its data directory is a copy of another site's.
    pub(super) copy: bool,
    /// The rows in its route cache, which are used only for sending (S8).
    pub(super) cache: Vec<Change>,
    /// Whether its node left, or has ended permanently.
    pub(super) over: bool,
}

impl Site {
    /// Whether its node may own shards of any pool.
    pub(super) fn is_host(&self) -> bool {
        self.roles.host || !self.pool_roles.is_empty()
    }
}

impl World {
    pub(super) fn site(&mut self, roles: Roles) -> usize {
        let name = format!("n{}", self.sites.len() + 1);
        let weight = self.placements.weight();
        let (host, pool_roles) = self.pools.roles(self.sites.len(), roles.host);
        self.sites.push(Site {
            node: NodeId::from(name.as_str()),
            roles: Roles { host, ..roles },
            pool_roles,
            weight,
            address: name,
            version: 1,
            pid: None,
            copy: false,
            cache: Vec::new(),
            over: false,
        });
        self.sites.len() - 1
    }

    pub(super) fn node_settings(&self, site: usize) -> node::Settings {
        let node::LeaseSettings {
            revision,
            lease,
            lease_margin: margin,
            renew_interval: renew,
            manager_silence_timeout: silence,
        } = self.agreed;
        node::Settings {
            settings_revision: revision,
            lease,
            renew_interval: renew,
            lease_margin: margin,
            store_retry_interval: 50,
            ack_timeout: 200,
            stop_resend_interval: 100,
            hand_off_timeout: self.hand_off_timeout,
            max_drain_hand_offs: 4,
            max_rebalance_hand_offs: 3,
            strategies: StrategySettings::default(),
            external_timeout: placements::EXTERNAL_TIMEOUT,
            shard_start_timeout: self.placements.shard_start_timeout,
            min_hosts: self.min_hosts,
            max_escalations: escalations::MAX,
            escalation_period: 1_000_000,
            max_relocations: databases::MAX,
            rebalance_interval: 2_000,
            rebalance_retry_interval: 300,
            report_delay: 5,
            manager_silence_timeout: silence,
            campaign_stagger: 30,
            health_check_interval: self.health_check,
            keep_alive_interval: self.arbiter.enabled.then_some(arbiter::INTERVAL),
            keep_alive_failures: 5,
            arbiter: self.arbiter.enabled,
            arbiter_timeout: arbiter::TIMEOUT,
            arbiter_flag_timeout: arbiter::FLAG_TIMEOUT,
            embedded_store: site == 0,
            mutations: self.options.node_mutations.clone(),
        }
    }

    /// Starts a process at a site.
    pub(super) fn start_process(&mut self, site: usize) {
        let it = self.sites[site].clone();
        if it.pid.is_some() || it.over {
            return;
        }
        if site == 0 {
            self.store_opened();
        }
        let pid = self.processes.len();
        let rate = if self.rng.chance(50) {
            1000
        } else {
            self.tally.count("fault: node clock drifts");
            self.rng.range(950, 1051)
        };
        let identity = NodeIdentity {
            node: it.node.clone(),
            roles: it.roles,
            version: it.version,
            addresses: vec![it.address],
            pool_roles: it.pool_roles.clone(),
            weight: it.weight,
            pools: self.pools.current.clone(),
            seed: self.rng.draw(),
        };
        let settings = self.node_settings(site);
        let machine = node::Machine::new(
            settings.clone(),
            identity.clone(),
            self.placements.build_strategy(),
        );
        let tight = self.rng.chance(25);
        self.small_gateways |= tight;
        let routes = route::Settings {
            buffered_messages: if tight { 3 } else { 100 },
            buffer_timeout: 800,
            max_backoff: 20,
            link_messages: if tight { 2 } else { 100 },
            mutations: self.options.route_mutations.clone(),
            ..route::Settings::default()
        };
        self.processes.push(Process {
            site,
            node: it.node,
            alive: true,
            paused_until: 0,
            stalled_until: 0,
            offset: self.rng.range(100_000, 1_000_000),
            rate,
            stood: 0,
            started: self.now,
            woke: 0,
            woke_detected_at: 0,
            heard_at: 0,
            machine,
            identity,
            settings,
            script: Vec::new(),
            armed: None,
            member: None,
            suspended: None,
            read_back: false,
            orders: VecDeque::new(),
            shard_reports: VecDeque::new(),
            shards: BTreeMap::new(),
            cap: WorkerSlots::with_instances(self.rng.range(2, 8) as usize),
            lease_sent: None,
            lease: LEASE,
            shards_suspended: false,
            gateway: Gateway::new(routes, self.pools.current.shard_count(), &self.bounds.limits),
            askers: BTreeMap::new(),
            control: None,
            bulk: None,
            control_since: 0,
            lapsed_at: 0,
            held_up_at: 0,
            registered_at: 0,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            store_answered: self.now,
            begun: BTreeMap::new(),
            leaving: false,
            lost_at: None,
            flags: BTreeSet::new(),
            has_unrunnable_type: false,
            map: self.map.clone(),
            misplaced: Vec::new(),
            measured: BTreeSet::new(),
        });
        self.sites[site].pid = Some(pid);
        self.reconnect(pid, ConnKind::Control);
        self.reconnect(pid, ConnKind::Bulk);
        self.at(1, SimEvent::Begin { pid });
        self.at(RENEW, SimEvent::Probe { pid });
    }

    /// Executes the machine's first actions.
    pub(super) fn begin(&mut self, pid: Pid) {
        let site = self.processes[pid].site;
        let cache = std::mem::take(&mut self.sites[site].cache);
        if !cache.is_empty() {
            self.tally.count("transition: routes from a cache");
            self.handle_node_event(pid, Event::CachedRows(cache));
        }
        if self.processes[pid].control.is_none() {
            // The process waits for the store first.
            return self.at(20, SimEvent::Begin { pid });
        }
        self.processes[pid].gateway.opened = true;
        self.learn_placements(pid, true);
        self.handle_node_event(pid, Event::Tick);
    }

    /// Probes the `EntityStore` at intervals, even from nodes that do not need it.
    pub(super) fn probe(&mut self, pid: Pid) {
        let sent = self.processes[pid].mono(self.now);
        self.call(pid, super::storage::StoreCall::Ping { sent });
        self.at(RENEW, SimEvent::Probe { pid });
    }

    /// Crashes a process, which may be started again.
    pub(super) fn crash(&mut self, site: usize, back: Option<u64>, power: bool) {
        let Some(pid) = self.sites[site].pid.take() else { return };
        if self.rng.chance(70) {
            self.sites[site].cache = self.rows.since(0);
        }
        self.print(|| format!("{} crashes, back after {back:?}", self.sites[site].node));
        self.processes[pid].alive = false;
        if site == 0 {
            self.tally.count(if power { "fault: store power loss" } else { "fault: store crash" });
            self.store_crashed(power);
        } else {
            self.tally.count("fault: node crash");
        }
        self.end(pid);
        match back {
            Some(back) => {
                if site > 0 && back < LEASE / 2 {
                    self.tally.count("fault: node restarted while its lease is live");
                }
                self.healed = self.healed.max(self.now + back);
                self.at(back, SimEvent::StartProcess { site });
            }
            None => self.sites[site].over = true,
        }
    }

    /// Cleans up after a process that has ended. Others only notice its silence.
    fn end(&mut self, pid: Pid) {
        self.break_all(pid, |_| true);
        self.break_lines(pid);
        self.asked.retain(|_, asked| asked.pid != pid);
        let it = &mut self.processes[pid];
        it.orders.clear();
        it.shard_reports.clear();
        it.shards.clear();
        it.askers.clear();
        it.gateway.open.clear();
        it.gateway.sent.clear();
        it.gateway.forwarded.clear();
    }

    /// Handles a node that left: its process answers its pending requests and then ends.
    pub(super) fn on_left(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        if !it.leaving {
            let why = format!("{} left without being asked to", it.node);
            self.violations.push(ViolationKind::LeftUnrequested.because(why));
        }
        let it = &mut self.processes[pid];
        let site = it.site;
        self.sites[site].pid = None;
        match self.loser_returns_after(pid) {
            Some(back) => self.at(back, SimEvent::StartProcess { site }),
            None => self.sites[site].over = true,
        }
        self.close_gateway(pid);
    }

    /// Ends the process of a node that left and has answered its pending requests. Its clients are notified.
    pub(super) fn closed(&mut self, pid: Pid) {
        self.close_lines(pid);
        self.processes[pid].alive = false;
        self.end(pid);
    }

    pub(super) fn join(&mut self, gateway: bool) -> usize {
        let gateway = gateway || self.rng.chance(70);
        let site = self.site(Roles { host: true, gateway, ..Roles::default() });
        self.start_process(site);
        site
    }

    /// Starts a second process elsewhere, with a copy of a node's data directory.
    pub(super) fn clone_site(&mut self, site: usize) {
        let of = self.sites[site].clone();
        let address = format!("{}-copy-{}", of.address, self.sites.len());
        self.sites.push(Site { address, pid: None, copy: true, ..of });
        let copy = self.sites.len() - 1;
        self.start_process(copy);
        if self.rng.chance(50) {
            let delay = self.rng.range(LEASE, LEASE * 6);
            self.at(delay, SimEvent::Crash { site: copy, back: None, power: false });
            self.healed = self.healed.max(self.now + delay);
        }
    }

    /// Tells a process that one of its connections is lost.
    pub(super) fn broken(&mut self, pid: Pid, conn: ConnId) {
        match self.conns[conn].kind {
            ConnKind::Peer => self.link_lost(pid, conn),
            _ if self.conns[conn].ends[0] == pid => self.store_lost(pid, conn),
            _ => {}
        }
    }

    pub(super) fn woke(&mut self, pid: Pid, stood: u64) {
        let it = &mut self.processes[pid];
        it.paused_until = 0;
        it.woke = self.now;
        if stood == 0 {
            it.woke_detected_at = self.now;
        }
        it.stood += stood;
        if stood > 0 {
            it.armed = None;
            it.gateway.armed = None;
            for hosted in it.shards.values_mut() {
                hosted.armed = None;
            }
            self.arm_all(pid);
        }
    }
}
