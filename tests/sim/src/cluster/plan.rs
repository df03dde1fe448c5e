//! What a seed determines: the nodes, the faults, and when the faults strike.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ostraca_core::rows::Roles;
use ostraca_core::shard::OnFailure;

use super::admission::{Bounds, SimType};
use super::arbiter::ArbiterPlan;
use super::faults::{Fault, MANAGER_STEPS, OWNER_STEPS, node_settings};
use super::guard::Guard;
use super::placements::PlacementPlan;
use super::pools::PoolPlan;
use super::rows::Rows;
use super::{LEASE, Options, SimEvent, World};
use crate::asks::AskCheck;
use crate::channels;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::run_digest::RunDigest;
use crate::store::Store;
use crate::subscriptions::SeenTopics;
use crate::tally::Tally;
use crate::timers::Firings;

/// The interval in which faults strike, in virtual milliseconds.
pub(super) const FROM: u64 = 500;
pub(super) const TO: u64 = 6_500;

impl World {
    pub(super) fn planned(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let sessions = rng.range(2, 6) as usize;
        // Some runs have two chunks of rows: only then does a seal need more than one write (R10).
        let shards = if rng.chance(4) { 66 } else { rng.range(4, 13) as u32 };
        let migrates = seed % 4 == 1;
        let store = |_| Store::new(options.store_mutations.clone()).with_schemas(migrates);
        let stores = (0..shards).map(store).collect();
        let health_check = Self::draw_health_check(&options, seed);
        let (has_one_fault, clocks_stop) = (options.has_one_fault(), options.clocks_stop);
        let placements = PlacementPlan::draw(seed, shards, &options);
        let arbiter = ArbiterPlan::draw(seed, &options);
        let pools = PoolPlan::draw(seed, shards, &options);
        let mut world = Self {
            trace: options.trace,
            options,
            now: 0,
            queue: Queue::new(),
            sites: Vec::new(),
            processes: Vec::new(),
            conns: Vec::new(),
            cuts: Vec::new(),
            slow: None,
            probations: BTreeMap::new(),
            on_probation_at: 0,
            shards,
            pools,
            placements,
            arbiter,
            stores,
            rows: Rows::default(),
            revised: BTreeMap::new(),
            applied: Vec::new(),
            watchers: Vec::new(),
            rng_of_repeats: Rng::new(seed ^ 0x7265_7065_6174),
            held: Vec::new(),
            store_up: false,
            syncing: false,
            sync_fails: false,
            forced_claims: 0,
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            writes: BTreeMap::new(),
            last_control_message: BTreeMap::new(),
            traps: Vec::new(),
            delayed_responses: Vec::new(),
            stale_read_probes: Vec::new(),
            drained: Vec::new(),
            clients: Vec::new(),
            sessions: Vec::new(),
            client_conns: Vec::new(),
            client_cuts: Vec::new(),
            bounds: Bounds::wide(),
            types: [SimType::new("counter"), SimType::new("starter")],
            begun: Instant::now(),
            entities: rng.range(3, 12),
            spread: if rng.chance(40) { 50 } else { 5 },
            narrow: rng.chance(20),
            loss: if rng.chance(50) { 0 } else { rng.range(1, 12) },
            clocks_stop: rng.chance(12) || clocks_stop,
            agreed: node_settings(0, LEASE),
            hand_off_timeout: if rng.chance(40) { rng.range(320, 900) } else { 2_500 },
            idle: if rng.chance(60) { 250 } else { 3_000 },
            revision: 1,
            issued: 0,
            forgetful: rng.chance(50),
            late_copies: 0,
            tags: 0,
            tokens: 0,
            turns: HashMap::new(),
            timers: seed.is_multiple_of(2),
            timer_rng: Rng::new(seed ^ 0x7469_6d65_7273),
            firings: Firings::default(),
            tells: seed % 3 == 1,
            tell_rng: Rng::new(seed ^ 0x7465_6c6c),
            remembers: seed % 7 == 3,
            counts_stored: seed % 5 == 2,
            has_quotas: seed % 15 == 7,
            rng_of_marks: Rng::new(seed ^ 0x6d61_726b),
            on_failure: match seed % 9 {
                // Where moves are counted, nothing else moves shards.
                4 if !has_one_fault => OnFailure::Escalate,
                _ => OnFailure::Restart,
            },
            escalations: BTreeMap::new(),
            // Two of the first three nodes are always hosts. Chains of asks are slow enough where hosts are few.
            min_hosts: if seed % 8 == 6 && seed % 5 != 2 { 2 } else { 1 },
            moves_data: false,
            rng_of_moves: Rng::new(seed),
            map: Arc::default(),
            passivates: seed % 11 == 5,
            rng_of_delays: Rng::new(seed ^ 0x0073_6c65_6570),
            deletes: seed % 5 == 3,
            time_to_live: if seed % 20 == 8 { 500 } else { 0 },
            deleted_at: BTreeMap::new(),
            rng_of_deletions: Rng::new(seed ^ 0x6465_6c65),
            uses_keys: seed % 7 == 3,
            rng_of_keys: Rng::new(seed ^ 0x6b65_7973),
            migrates,
            rng_of_migrations: Rng::new(seed ^ 0x6d69_6772),
            journals: seed % 3 == 2,
            rng_of_journals: Rng::new(seed ^ 0x6a6f_7572),
            channels: seed % 5 == 1,
            subscribers: Vec::new(),
            subscribes: seed % 10 == 1,
            rng_of_topics: Rng::new(seed ^ 0x746f_7069),
            topics: SeenTopics::default(),
            rng_of_channels: Rng::new(seed ^ 0x6368_616e),
            keep: channels::keep(seed),
            asks: seed % 5 == 2,
            reentrant: seed % 10 == 2,
            rng_of_asks: Rng::new(seed ^ 0x6173_6b73),
            ask_check: AskCheck::default(),
            small_gateways: false,
            health_check,
            found_ended: BTreeSet::new(),
            held_up: 0,
            refused: BTreeSet::new(),
            guard: Guard::default(),
            healed: 0,
            served_at: None,
            answered_at: 0,
            violations: Vec::new(),
            turn_times: HashMap::new(),
            tally: Tally::default(),
            keep_scripts: seed.is_multiple_of(8),
            steps_taken: 0,
            digest: RunDigest::default(),
            rng,
        };
        world.plan_gateways(seed);
        world.found();
        world.found_clients(sessions);
        world.plan();
        world.found_subscribers();
        world.plan_settings(seed);
        world.plan_unrunnable_types(seed);
        world.plan_moves_of_data(seed);
        world.plan_client_cuts(seed);
        world.plan_pools();
        world.plan_placements(seed);
        world.plan_splits();
        world.plan_migrations();
        world
    }

    fn found(&mut self) {
        let nodes = self.rng.range(3, 8);
        for number in 0..nodes {
            let roles = match number {
                0 => Roles { host: self.rng.chance(60), ..Roles::ALL },
                1 => Roles { store: false, ..Roles::ALL },
                2 => Roles { host: true, gateway: true, ..Roles::default() },
                _ => Roles {
                    store: false,
                    manager: self.rng.chance(40),
                    host: self.rng.chance(75),
                    gateway: self.rng.chance(60),
                },
            };
            let site = self.site(roles);
            if number == 0 {
                self.start_process(site);
            } else {
                let delay = self.rng.range(1, 250);
                self.at(delay, SimEvent::StartProcess { site });
            }
        }
        self.at(50, SimEvent::CheckProgress);
    }

    /// Creates clients with one session each; some have more.
    fn found_clients(&mut self, sessions: usize) {
        for session in 0..sessions {
            let client = if session > 0 && self.rng.chance(30) {
                self.clients.len() - 1
            } else {
                let home = self.a_gateway();
                self.a_client(home, false)
            };
            let session = self.a_session(client);
            let delay = self.rng.range(200, 500);
            self.at(delay, SimEvent::Issue { session });
            self.at(delay / 2, SimEvent::Connect { client });
        }
    }

    fn plan(&mut self) {
        if self.options.claims_hang {
            return self.plan_hanging_claims();
        }
        if self.options.arbitrates {
            return;
        }
        if !self.options.has_one_fault() {
            self.plan_leases();
        }
        let many = self.rng.chance(15);
        for _ in 0..if many { self.rng.range(9, 25) } else { self.rng.range(2, 9) } {
            let fault = self.draw();
            let when = self.rng.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(fault));
        }
    }

    /// Most seeds test leases, and do so early, so that later faults have enough time.
    fn plan_leases(&mut self) {
        let plan = [
            (Fault::ControlStalls, 95, 100),
            (Fault::RenewalSlow, 45, 100),
            (Fault::RegistrationSlow, 65, 100),
            (Fault::ControlStalls, 70, 2_000),
        ];
        for (fault, percent, from) in plan {
            if self.rng.chance(percent) {
                let when = FROM + self.rng.range(from, from + 1_400);
                self.healed = self.healed.max(when + 1);
                self.at(when, SimEvent::InjectFault(fault));
            }
        }
    }

    /// Plans changes to the lease. Uses a separate random generator, so that the seed's other choices do not change.
    fn plan_settings(&mut self, seed: u64) {
        let mut dice = Rng::new(seed ^ 0x5e77_1265);
        let another_alone = self.options.has_one_fault();
        if another_alone || !self.options.settings && !dice.chance(12) {
            return;
        }
        for _ in 0..dice.range(1, 6) {
            let lease = [LEASE / 2, LEASE, LEASE * 2][dice.range(0, 3) as usize];
            let when = dice.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::Settings { lease }));
        }
    }

    /// In a world whose types have schemas, they are deployed again more often.
    fn plan_migrations(&mut self) {
        let another_alone = self.options.has_one_fault();
        if another_alone || !self.migrates {
            return;
        }
        for _ in 0..self.rng_of_migrations.range(2, 7) {
            let when = self.rng_of_migrations.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::Redeploy));
        }
    }

    fn draw(&mut self) -> Fault {
        let rng = &mut self.rng;
        let short = rng.range(50, 700);
        let long = rng.range(LEASE, LEASE * 4);
        let millis = if rng.chance(50) { short } else { long };
        if self.options.pauses {
            return Fault::Pause { millis: long, clock: self.options.clocks_stop };
        }
        let slow = Fault::StoreSlow { millis: LEASE * 70, gap: rng.range(60, 148) };
        if self.options.slow_store {
            return slow;
        }
        let pick = |rng: &mut Rng, steps: &[&'static str]| {
            steps[rng.range(0, steps.len() as u64) as usize]
        };
        match rng.range(0, 48) {
            0..=2 => Fault::OneWay { millis },
            3..=5 => Fault::FromStore { millis, both: rng.chance(40) },
            6..=7 => Fault::Partition { millis },
            8 if rng.chance(50) => slow,
            8 => Fault::EntityStoreCut { millis: long },
            9 if rng.chance(50) => Fault::Rows { millis: long },
            9 => Fault::EntityStoreCutForever,
            10..=11 => Fault::Links,
            12..=13 => Fault::StoreLinks,
            14 => Fault::Watches,
            15..=18 => Fault::Pause { millis, clock: rng.chance(50) },
            19..=21 => Fault::Crash { back: millis },
            22 => Fault::Gone,
            23..=24 => Fault::Clone,
            25..=27 => Fault::StoreCrash { power: rng.chance(50), back: millis },
            28 if rng.chance(50) => Fault::HigherClaim,
            28 => Fault::SyncFails,
            29..=32 => {
                let step = pick(rng, MANAGER_STEPS);
                Fault::Trap { step, nth: rng.range(0, 3), crash: rng.chance(70) }
            }
            33..=34 => {
                let step = pick(rng, OWNER_STEPS);
                Fault::Trap { step, nth: rng.range(0, 3), crash: true }
            }
            35..=37 => Fault::Drain,
            38 => Fault::Undrain,
            39..=40 => Fault::Join,
            41 => Fault::Leave { now: false },
            42 => Fault::Leave { now: true },
            43..=44 => Fault::Rebalance,
            45..=46 => Fault::ControlMessagesCut { both: rng.chance(50) },
            _ => Fault::Redeploy,
        }
    }
}
