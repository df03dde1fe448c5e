//! Seeded random operations, compared with the memory store: they cover what individual checks miss.

use std::sync::Arc;

use futures::executor::block_on;
use ostraca_core::ids::Entity;
use ostraca_core::records::{Claim, Commit, LoadedEntity};

use super::outbox::{delete_tell, put_tell, tell};
use super::timers::{set_timer, timer, unset_timer, wake, wakes};
use super::{
    CLUSTER, CLUSTER_NAME, Factory, claim_of, heads, lane, scan, set, set_lane, shard, state, turn,
    unset,
};
use crate::{EntityStore, MemoryStore, ScanKind};

const SEEDS: u64 = 6;
const STEPS: usize = 120;
const IDS: [&str; 3] = ["a", "a\0", "b"];

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    for seed in 1..=SEEDS {
        run(factory, seed);
    }
}

/// SplitMix64, so that a test suite inside a library needs no additional crate.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn claim(&mut self) -> Claim {
        claim_of(shard(1 + self.below(2) as u32), 1 + self.below(4), 1 + self.below(2))
    }

    fn commit(&mut self, model: &MemoryStore, number: u64) -> Commit {
        let one = shard(1 + self.below(2) as u32);
        let current = block_on(model.current_claims(vec![one.clone()])).unwrap().remove(0);
        let claim = match current {
            Some(claim) if self.below(8) > 0 => claim,
            _ => self.claim(),
        };
        let id = IDS[self.below(3) as usize];
        let version = super::version(model, &claim.shard, id);
        let from = if self.below(8) > 0 { version } else { self.below(version + 2) };
        let number = if self.below(10) > 0 { number } else { number.saturating_sub(1) };
        let mut commit = turn(&Arc::new(claim), id, from, number);
        for _ in 0..self.below(4) {
            let key = ["", "k", "k\0", "l"][self.below(4) as usize];
            let size = [0, 3, 4_100, 30_000][self.below(4) as usize];
            commit.writes.push(match self.below(3) {
                0 => unset(key),
                _ => set(key, vec![number as u8; size]),
            });
        }
        if self.below(3) == 0 {
            commit.writes.push(set_lane(&lane(self.below(3) as u8, number)));
        }
        if self.below(3) == 0 {
            let size = [0, 3, 4_100, 30_000][self.below(4) as usize];
            let name = ["t", "t\0", "u"][self.below(3) as usize];
            commit.writes.push(match self.below(3) {
                0 => unset_timer(name),
                _ => set_timer(&timer(name, vec![number as u8; size])),
            });
            let due = 1 + self.below(3);
            commit.writes.push(wake(due, (self.below(2) == 0).then(Default::default)));
        }
        if self.below(3) == 0 {
            let size = [0, 3, 4_100, 30_000][self.below(4) as usize];
            let (number, target) = (self.below(3), ["x", "x\0"][self.below(2) as usize]);
            commit.writes.push(match self.below(3) {
                0 => delete_tell(number, target),
                _ => put_tell(number, &tell(target, vec![from as u8; size])),
            });
        }
        commit.head.set_outbox_counts((1, 0)).unwrap();
        commit.head.spilled_lane_count = 1;
        commit.head.set_timer_count(1).unwrap();
        commit
    }
}

fn run<S: EntityStore>(factory: &Factory<S>, seed: u64) {
    let mut random = Random(seed);
    let model = MemoryStore::new(1, CLUSTER, CLUSTER_NAME);
    let mut store = factory.make();
    for step in 0..STEPS {
        let at = format!("seed {seed}, step {step}");
        match random.below(20) {
            0..=2 => {
                let claims = vec![random.claim(), random.claim()];
                let expected = block_on(model.claim(claims.clone()));
                assert_eq!(block_on(store.claim(claims)), expected, "{at}");
            }
            3 => {
                store = match factory.reopen(store) {
                    Some(store) => store,
                    None => return,
                };
            }
            _ => {
                let mut in_flight = Vec::new();
                for call in 0..=random.below(3) {
                    let number = (step as u64) * 10 + call;
                    let mut turns = vec![random.commit(&model, number)];
                    for _ in 0..random.below(3) {
                        let mut next = turns[turns.len() - 1].clone();
                        next.expected_version += 1;
                        next.head.version += 1;
                        next.head.turn.number += 1000;
                        turns.push(next);
                    }
                    let expected = block_on(model.commit(turns.clone()));
                    in_flight.push((store.commit(turns), expected));
                }
                for (call, expected) in in_flight {
                    assert_eq!(block_on(call), expected, "{at}");
                }
            }
        }
        if step % 10 == 9 {
            compare(&store, &model, &at);
        }
    }
}

fn compare(store: &impl EntityStore, model: &MemoryStore, at: &str) {
    for shard in [shard(1), shard(2)] {
        let shards = || vec![shard.clone()];
        assert_eq!(
            block_on(store.current_claims(shards())),
            block_on(model.current_claims(shards())),
            "{at}"
        );
        let entities = || IDS.map(|id| (shard.clone(), Entity::new("counter", id))).to_vec();
        let loaded = block_on(store.load(entities()));
        let expected = block_on(model.load(entities()));
        let plain = |loaded: Vec<Result<LoadedEntity, _>>| -> Vec<LoadedEntity> {
            loaded.into_iter().map(|loaded| unsequenced(loaded.unwrap())).collect()
        };
        assert_eq!(plain(loaded), plain(expected), "{at}");
        for id in IDS {
            assert!(state(store, &shard, id) == state(model, &shard, id), "{at}: state of {id:?}");
        }
        let entities = |heads: Vec<(Entity, _)>| heads.into_iter().map(|(entity, _)| entity);
        let mut by = scan(&shard, ScanKind::Heads);
        by.max_records = 2;
        assert!(entities(heads(store, by.clone())).eq(entities(heads(model, by))), "{at}");
        for from in [None, Some((2, Entity::new("counter", "a\0")))] {
            let from_model = wakes(model, &shard, from.clone(), 2);
            assert_eq!(wakes(store, &shard, from, 2), from_model, "{at}");
        }
    }
}

/// Clears the commit sequence, which each store chooses freely.
fn unsequenced(mut loaded: LoadedEntity) -> LoadedEntity {
    if let Some(head) = &mut loaded.head {
        head.commit_sequence = 0;
    }
    loaded
}
