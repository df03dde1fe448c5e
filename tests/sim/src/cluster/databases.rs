//! An operator moves shards to other databases (R26).
//!
//! The map names a database for each shard. Nodes learn of a change at different times, report those of their shards
//! whose data is elsewhere, and the claim of a shard's next owner moves the data. A claimant whose map is out of date
//! moves the data back, so it moves again later.

use std::sync::Arc;

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::node::Event;
use ostraca_core::records::{Claim, ClaimOutcome};
use ostraca_core::rows::{Member, Row, RowKey};

use super::faults::Fault;
use super::net::ConnKind;
use super::plan::{FROM, TO};
use super::process::Pid;
use super::storage::StoreCall;
use super::{LEASE, SimEvent, World};
use crate::rng::Rng;
use crate::store::{Place, Request, Response};

/// How many databases there are.
const DATABASES: u64 = 3;
/// How many shards a manager relocates at the same time.
pub(super) const MAX: usize = 3;

/// The map of shards to databases. Initially all data is in the first database.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardMap {
    revision: u64,
    databases: Vec<u64>,
}

impl ShardMap {
    fn of(&self, shard: ShardId) -> u64 {
        self.databases.get(shard.0 as usize - 1).copied().unwrap_or_default()
    }
}

impl World {
    /// Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn plan_moves_of_data(&mut self, seed: u64) {
        let mut dice = Rng::new(seed ^ 0x6461_7461);
        let another_alone = self.options.has_one_fault();
        let moves = !another_alone && dice.chance(20);
        if !moves && !self.options.moves_data {
            return;
        }
        let more = if self.options.moves_data { 8 } else { 0 };
        for _ in 0..dice.range(1, 5) + more {
            let when = dice.range(FROM, TO);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::MoveData));
        }
        self.moves_data = true;
        self.rng_of_moves = dice;
    }

    /// Names another database for some shards. Each running node learns of it at another time.
    pub(super) fn move_data(&mut self) {
        self.tally.count("operator: shards move to another database");
        let mut map = ShardMap::clone(&self.map);
        map.revision += 1;
        map.databases.resize(self.shards as usize, 0);
        for _ in 0..self.rng_of_moves.range(1, 9) {
            let shard = self.rng_of_moves.range(0, u64::from(self.shards)) as usize;
            map.databases[shard] = self.rng_of_moves.range(0, DATABASES);
            self.stores[shard].move_outside_hand_off(map.databases[shard]);
        }
        self.map = Arc::new(map);
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                let late = self.rng_of_moves.chance(50);
                let delay = if late { self.rng_of_moves.range(1, LEASE * 2) } else { 1 };
                self.heal_by(delay);
                self.at(delay, SimEvent::LearnMap { pid, map: self.map.clone() });
            }
        }
    }

    pub(super) fn learn_map(&mut self, pid: Pid, map: Arc<ShardMap>) {
        if self.processes[pid].map.revision < map.revision {
            self.processes[pid].map = map;
            self.report_misplaced(pid);
        }
    }

    /// The claim of a shard in the database that the process's map names.
    pub(super) fn claim_request(&mut self, pid: Pid, shard: ShardId, claim: Arc<Claim>) -> Request {
        if !self.moves_data {
            return Request::Claim(claim);
        }
        let database = self.processes[pid].map.of(shard);
        Request::ClaimIn { claim, database, attempts: self.rng_of_moves.range(0, 4) }
    }

    /// Records where a process finds the data of a shard whose claim was granted.
    pub(super) fn on_claim_answer(&mut self, pid: Pid, call: &StoreCall, answer: &Response) {
        let StoreCall::Entity(shard, epoch, _, Request::ClaimIn { database, .. }) = call else {
            return;
        };
        if matches!(answer, Response::Claim(ClaimOutcome::Granted))
            && let Some(hosted) = self.processes[pid].shards.get_mut(shard)
            && hosted.epoch == *epoch
        {
            hosted.database = Some(*database);
        }
    }

    /// Tells a process's machine which of its shards have their data elsewhere, if that has changed.
    pub(super) fn report_misplaced(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        let misplaced: Vec<(ShardId, Epoch)> = it
            .shards
            .iter()
            .filter(|(shard, hosted)| hosted.database.is_some_and(|at| at != it.map.of(**shard)))
            .map(|(shard, hosted)| (*shard, hosted.epoch))
            .collect();
        if it.misplaced != misplaced {
            it.misplaced.clone_from(&misplaced);
            self.enqueue_shard_report(pid, Event::MisplacedShards(misplaced));
        }
    }

    /// Counts what a claim has changed at the store.
    pub(super) fn count_move(&mut self, shard: ShardId, claim: &Claim, before: &Place) {
        let after = self.stores[shard.0 as usize - 1].place();
        let moves_now = after.mover.is_some() && after != *before;
        let was_moving = before.mover.as_ref();
        if moves_now {
            self.tally.count("relocation: claim failed while the data moved");
        }
        if was_moving.is_some_and(|mover| mover.epoch < claim.epoch) && after != *before {
            self.tally.count("relocation: continued by the next owner");
        }
        if after.database != before.database {
            self.tally.count("relocation: data moved");
            if after.database != self.map.of(shard) {
                self.tally.count("relocation: data moved by an outdated map");
            }
        }
    }

    /// The shards whose data is not where the map says. Without those whose owner's reports cannot reach the manager: it
    /// keeps its shards.
    pub(super) fn misplaced_shards(&self) -> Vec<(ShardId, Place)> {
        if !self.moves_data {
            return Vec::new();
        }
        let all = (1..).map(ShardId).zip(&self.stores).map(|(shard, store)| (shard, store.place()));
        let misplaced = all.filter(|(shard, place)| {
            place.database != self.map.of(*shard) || place.mover.is_some()
        });
        misplaced.filter(|(shard, _)| !self.owner_is_silenced(*shard)).collect()
    }

    pub(super) fn owner_is_silenced(&self, shard: ShardId) -> bool {
        let Some((Row::Manager(row), _)) = self.rows.durable().get(&RowKey::Manager) else {
            return false;
        };
        let Some((_, owner)) = self.guard.highest.get(&shard) else { return false };
        // Two sites may have a node of the same name, where its data directory was copied.
        let site = |member: &Member| {
            let mut alive = self.processes.iter().filter(|it| it.alive);
            alive.find(|it| it.member.as_ref() == Some(member)).map(|it| it.site)
        };
        let (Some(from), Some(to)) = (site(owner), site(&row.holder)) else {
            return false;
        };
        self.is_cut(from, to, ConnKind::ControlMessages)
    }
}
