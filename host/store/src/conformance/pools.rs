//! Copies of pools: every entity is in its new shard as it was, and nobody writes to the old ones (R23, R26).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::ready;
use ostraca_core::hash::{HashFunction, ShardKeyRule};
use ostraca_core::ids::{Entity, ShardId, ShardPath};
use ostraca_core::pools::{Pool, Pools};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, Presence, RecordKey, RecordWrite,
};

use super::copied::rich;
use super::moves::Failing;
use super::{CLUSTER, Factory, claim, claim_of, done, owner, set, turn};
use crate::pool_copy::{PoolCopy, PoolCopyError, PoolCopyStage, PoolSummary};
use crate::transfer::{Item, ItemKind};
use crate::{MovableShards, StoreError};

/// Number of entities of each type.
const ENTITIES: u64 = 40;
/// The type whose ids are hashed up to the first `/`.
const CART: &str = "cart";

/// Checks that pools can be copied within the backend's stores.
pub fn check_pool_copies<S: MovableShards>(factory: &Factory<S>) {
    entities_are_found_in_their_new_shards(factory);
    nobody_uses_the_old_shards(factory);
    a_copy_is_continued_after_each_of_its_calls(factory);
    a_copy_that_differs_is_not_used(factory);
    what_was_lost_before_it_was_used_is_copied_again(factory);
    what_cannot_be_copied_is_refused(factory);
    a_copy_is_given_up_only_before_its_first_claim(factory);
    a_paused_owner_claims_no_new_shard(factory);
    a_pool_is_copied_again(factory);
}

/// Two pools beside `default`, of these sizes and hashes.
fn pools(from: (u32, HashFunction), to: (u32, HashFunction)) -> Pools {
    let mut pools = Pools::one(3);
    for (name, (shards, hash)) in [("old", from), ("new", to)] {
        pools.add(Pool { hash, ..Pool::new(name, shards, &pools) }).unwrap();
    }
    pools
}

fn pool<'a>(pools: &'a Pools, name: &str) -> &'a Pool {
    pools.get(name).unwrap()
}

fn path(pool: &Pool, shard: ShardId) -> ShardPath {
    ShardPath { namespace: "default".into(), pool: pool.name.as_str().into(), shard }
}

fn paths(pool: &Pool) -> Vec<ShardPath> {
    (pool.first.0..=pool.last().0).map(|shard| path(pool, ShardId(shard))).collect()
}

fn shard_of(pool: &Pool, entity: &Entity) -> Option<ShardId> {
    let rule = match &*entity.entity_type {
        "counter" => ShardKeyRule::Id,
        CART => ShardKeyRule::Until("/".into()),
        _ => return None,
    };
    Some(pool.shard_of(rule.shard_key(&entity.id)))
}

/// Fills the old pool with entities that have records of all kinds, some of which were removed. Most of its shards and
/// some of the new pool's are claimed.
fn fill<S: MovableShards>(store: &S, pools: &Pools, entities: u64) {
    let (old, new) = (pool(pools, "old"), pool(pools, "new"));
    let mut claims = BTreeMap::new();
    let mut state = 7_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % below
    };
    let wanted = claim_of(path(new, new.first), 4, 2);
    assert_eq!(claim(store, &wanted), ClaimOutcome::Granted);
    for number in 0..2 * entities {
        let entity = match number % 2 {
            0 => Entity::new("counter", format!("c{number}\0")),
            _ => Entity::new(CART, format!("u{}/{number}", number % 5)),
        };
        let shard = shard_of(old, &entity).unwrap();
        let claimed = claims.entry(shard).or_insert_with(|| {
            let wanted = claim_of(path(old, shard), 1 + u64::from(shard.0 % 3), 1);
            assert_eq!(claim(store, &wanted), ClaimOutcome::Granted);
            Arc::new(wanted)
        });
        let mut first = rich(claimed);
        // Each entity has some of all kinds of records.
        let writes = std::mem::take(&mut first.writes);
        let is_kept = |write: &RecordWrite| match &write.key {
            RecordKey::State(key) => &key[..] != b"large" || number % 8 == 0,
            _ => true,
        };
        first.writes = writes.into_iter().filter(|it| is_kept(it) && random(3) > 0).collect();
        first.writes.push(set("own", number.to_string()));
        (first.entity, first.head.turn.number) = (entity.clone(), number + 1);
        // What was removed from the shard has left a floor.
        let from = floor_of(store, &claimed.shard).0;
        (first.expected_version, first.head.version) = (from, from + 1);
        done(store, vec![first]);
        if number % 10 == 0 {
            let mut last = turn(claimed, "", from + 1, 1_000 + number);
            (last.entity, last.head.deleted, last.head.watermark) = (entity, true, 70 + number);
            last.head.set_generation(3).unwrap();
            last.head.set_removed(true).unwrap();
            last.writes = records_of(store, old, shard, &last.entity);
            done(store, vec![last]);
        }
    }
}

/// Version, watermark and generation from which a new entity in a shard starts.
fn floor_of<S: MovableShards>(store: &S, shard: &ShardPath) -> (u64, u64, u64) {
    let unknown = Entity::new("counter", "never seen");
    let loaded = block_on(store.load(vec![(shard.clone(), unknown)])).remove(0).unwrap();
    loaded.head.map_or((0, 0, 0), |it| (it.version, it.watermark, it.generation().unwrap()))
}

/// Removes all records of an entity.
fn records_of<S: MovableShards>(
    store: &S,
    pool: &Pool,
    shard: ShardId,
    entity: &Entity,
) -> Vec<RecordWrite> {
    let of = items(store, &[path(pool, shard)]).into_iter();
    let keys = of.filter_map(|item| match item {
        Item::Record { entity: of, key, .. } if of == *entity => Some(key),
        _ => None,
    });
    keys.map(|key| RecordWrite { key, value: None }).collect()
}

/// The heads and records of shards.
fn items<S: MovableShards>(store: &S, shards: &[ShardPath]) -> Vec<Item> {
    let mut items = Vec::new();
    for shard in shards {
        let mut cursor = None;
        loop {
            let page = block_on(store.shard_page(shard.clone(), cursor)).unwrap();
            items.extend(page.items.into_iter().filter(|item| item.kind() != ItemKind::Shards));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
    }
    items
}

/// The items as text, without their shards, which must be those of the pool.
fn described(pool: &Pool, items: Vec<Item>) -> Vec<String> {
    let mut found: Vec<_> = items
        .into_iter()
        .map(|item| match item {
            Item::Head { shard, entity, head } => {
                assert_eq!(Some(shard.shard), shard_of(pool, &entity), "{entity}");
                format!("{entity}: {head:?}")
            }
            Item::Record { shard, entity, key, value } => {
                assert_eq!(Some(shard.shard), shard_of(pool, &entity), "{entity}");
                format!("{entity}: {key:?} {:?}", blake3::hash(&value))
            }
            other => panic!("no item of an entity: {other:?}"),
        })
        .collect();
    found.sort_unstable();
    found
}

fn in_pool<S: MovableShards>(store: &S, pool: &Pool) -> Vec<String> {
    described(pool, items(store, &paths(pool)))
}

/// Checks the pools, and runs a copy from the saved stage on.
fn run<S: MovableShards>(
    store: &S,
    pools: &Pools,
    stage: &Mutex<PoolCopyStage>,
    fails: &(dyn Fn() -> bool + Sync),
) -> Result<PoolSummary, PoolCopyError> {
    let (old, new) = (pool(pools, "old"), pool(pools, "new"));
    let places = |entity: &Entity| Some((shard_of(old, entity)?, shard_of(new, entity)?));
    let copy = PoolCopy {
        store,
        from: paths(old),
        to: paths(new),
        places: &places,
        claimant: owner("n", 5),
        attempt: 9,
    };
    let fault = || Err(StoreError::Unavailable("a fault".into()).into());
    let save = |next| {
        if fails() {
            return ready(fault()).boxed();
        }
        *stage.lock().unwrap_or_else(PoisonError::into_inner) = next;
        // It is saved, but nobody is told.
        ready(if fails() { fault() } else { Ok(()) }).boxed()
    };
    let from = *stage.lock().unwrap_or_else(PoisonError::into_inner);
    block_on(async {
        if from == PoolCopyStage::Marking {
            copy.check(&mut |_| ()).await?;
        }
        copy.run(from, &save, &mut |_| ()).await
    })
}

fn copied<S: MovableShards>(store: &S, pools: &Pools) -> Result<PoolSummary, PoolCopyError> {
    run(store, pools, &Mutex::new(PoolCopyStage::Marking), &|| false)
}

fn current<S: MovableShards>(store: &S, shard: &ShardPath) -> Claim {
    block_on(store.current_claims(vec![shard.clone()])).unwrap().remove(0).unwrap()
}

const SIZES: [((u32, HashFunction), (u32, HashFunction)); 4] = [
    ((4, HashFunction::Murmur3), (11, HashFunction::Murmur3)),
    ((7, HashFunction::Murmur3), (7, HashFunction::JavaString)),
    ((12, HashFunction::Fnv1a), (1, HashFunction::Murmur3)),
    ((1, HashFunction::JavaString), (5, HashFunction::Fnv1a)),
];

fn entities_are_found_in_their_new_shards<S: MovableShards>(factory: &Factory<S>) {
    for (from, to) in SIZES {
        let (store, pools) = (factory.make(), pools(from, to));
        fill(&store, &pools, ENTITIES);
        let (old, new) = (pool(&pools, "old"), pool(&pools, "new"));
        let before = in_pool(&store, old);
        let summary = copied(&store, &pools).unwrap();
        assert_eq!(in_pool(&store, new), before, "{from:?} to {to:?}");
        assert_eq!(in_pool(&store, old), [""; 0]);
        let counted = summary.values().map(|it| it.total().0).sum::<u64>();
        assert_eq!((counted, summary.len()), (before.len() as u64, 2));
        let store = match factory.reopen(store) {
            Some(store) => store,
            None => continue,
        };
        assert_eq!(in_pool(&store, new), before, "after a start");
    }
}

/// The first entity with a head in a pool.
fn first_head<S: MovableShards>(store: &S, pool: &Pool) -> (ShardPath, Entity, u64, u64) {
    let found = items(store, &paths(pool)).into_iter().find_map(|item| match item {
        Item::Head { shard, entity, head } => {
            Some((shard, entity, head.version, head.commit_sequence))
        }
        _ => None,
    });
    found.unwrap()
}

fn nobody_uses_the_old_shards<S: MovableShards>(factory: &Factory<S>) {
    let (store, pools) = (factory.make(), pools(SIZES[0].0, SIZES[0].1));
    fill(&store, &pools, ENTITIES);
    let (old, new) = (pool(&pools, "old"), pool(&pools, "new"));
    let (was, _, _, _) = first_head(&store, old);
    let former = current(&store, &was);
    let paused = current(&store, &path(new, new.first));
    let floors: Vec<_> = paths(old).iter().map(|shard| floor_of(&store, shard)).collect();
    let highest = |part: fn(&(u64, u64, u64)) -> u64| floors.iter().map(part).max().unwrap();
    let highest = (highest(|it| it.0), highest(|it| it.1), highest(|it| it.2));
    assert!(highest.0 >= 2 && highest.2 == 3, "{floors:?}");
    copied(&store, &pools).unwrap();
    for shard in paths(old) {
        let claimed = current(&store, &shard);
        assert!(matches!(claimed.presence(), Ok(Presence::MovedTo(_))), "{claimed:?}");
        for epoch in [1, 9, 1 << 40] {
            let refused = claim(&store, &claim_of(shard.clone(), epoch, 1));
            assert!(matches!(refused, ClaimOutcome::Refused { .. }), "{refused:?}");
        }
    }
    let late = |claim: Claim| {
        let commit = turn(&Arc::new(claim), "late", 0, 90);
        block_on(store.commit(vec![commit])).remove(0)
    };
    assert!(matches!(late(former), CommitOutcome::Refused(_)));
    assert!(matches!(late(paused), CommitOutcome::Refused(_)), "it owned an empty shard");
    // Owners pass the claims in the new shards, and go on behind all versions and sequences.
    let (shard, entity, version, sequence) = first_head(&store, new);
    let next = claim_of(shard.clone(), current(&store, &shard).epoch.0 + 1, 1);
    assert_eq!(claim(&store, &next), ClaimOutcome::Granted);
    let next = Arc::new(next);
    done(&store, vec![Commit { entity: entity.clone(), ..turn(&next, "", version, 7) }]);
    let loaded = block_on(store.load(vec![(shard, entity)])).remove(0).unwrap();
    assert!(loaded.head.unwrap().commit_sequence > sequence, "sequences rise");
    for shard in paths(new) {
        // What was removed from any of the old shards has a floor in each of the new ones.
        assert_eq!(floor_of(&store, &shard), highest);
    }
}

fn a_copy_is_continued_after_each_of_its_calls<S: MovableShards>(factory: &Factory<S>) {
    let (from, to) = ((3, HashFunction::Murmur3), (4, HashFunction::Fnv1a));
    let pools = pools(from, to);
    let mut failures = 0;
    for fails_at in 0.. {
        let mut has_failed = false;
        for is_late in [false, true] {
            let store = Arc::new(factory.make());
            fill(&*store, &pools, 6);
            let before = in_pool(&*store, pool(&pools, "old"));
            let (calls, stage) =
                (Arc::new(AtomicUsize::new(0)), Mutex::new(PoolCopyStage::Marking));
            let failing = Failing {
                store: store.clone(),
                calls: calls.clone(),
                fails_at,
                is_late,
                loses: None,
            };
            let fails = || calls.fetch_add(1, Ordering::Relaxed) >= fails_at;
            has_failed |= run(&failing, &pools, &stage, &fails).is_err();
            assert!(run(&*store, &pools, &stage, &|| false).is_ok(), "after call {fails_at}");
            assert_eq!(in_pool(&*store, pool(&pools, "new")), before, "after call {fails_at}");
            assert_eq!(in_pool(&*store, pool(&pools, "old")), [""; 0], "after call {fails_at}");
            assert_eq!(*stage.lock().unwrap(), PoolCopyStage::Done);
        }
        if !has_failed {
            break;
        }
        failures += 1;
    }
    assert!(failures >= 40, "{failures} calls failed");
}

fn a_copy_that_differs_is_not_used<S: MovableShards>(factory: &Factory<S>) {
    for kind in [ItemKind::Heads, ItemKind::Records] {
        let (store, pools) = (Arc::new(factory.make()), pools(SIZES[0].0, SIZES[0].1));
        fill(&*store, &pools, ENTITIES);
        let before = in_pool(&*store, pool(&pools, "old"));
        let stage = Mutex::new(PoolCopyStage::Marking);
        let calls = Arc::new(AtomicUsize::new(0));
        let (fails_at, is_late, loses) = (usize::MAX, false, Some(kind));
        let losing = Failing { store: store.clone(), calls, fails_at, is_late, loses };
        let differs = run(&losing, &pools, &stage, &|| false);
        assert!(matches!(differs, Err(PoolCopyError::Differs(_))), "{differs:?}");
        assert_eq!(*stage.lock().unwrap(), PoolCopyStage::Copying { shards: 0 });
        for shard in paths(pool(&pools, "new")) {
            let refused = claim(&*store, &claim_of(shard, 99, 1));
            assert!(matches!(refused, ClaimOutcome::Refused { .. }), "it is incomplete");
        }
        assert_eq!(in_pool(&*store, pool(&pools, "old")), before, "nothing is removed");
        assert!(run(&*store, &pools, &stage, &|| false).is_ok());
        assert_eq!(in_pool(&*store, pool(&pools, "new")), before);
    }
}

/// A database that has crashed may lack what was compared.
fn what_was_lost_before_it_was_used_is_copied_again<S: MovableShards>(factory: &Factory<S>) {
    let (store, pools) = (factory.make(), pools(SIZES[0].0, SIZES[0].1));
    fill(&store, &pools, ENTITIES);
    let before = in_pool(&store, pool(&pools, "old"));
    let (stage, saves) = (Mutex::new(PoolCopyStage::Marking), AtomicUsize::new(0));
    // It stops before it copies anything, but the next stage is saved.
    let stops = || saves.fetch_add(1, Ordering::Relaxed) == 3;
    assert!(run(&store, &pools, &stage, &stops).is_err());
    assert_eq!(*stage.lock().unwrap(), PoolCopyStage::Copying { shards: 0 });
    assert_eq!(in_pool(&store, pool(&pools, "new")), [""; 0]);
    let stage = Mutex::new(PoolCopyStage::Finishing);
    run(&store, &pools, &stage, &|| false).unwrap();
    assert_eq!(in_pool(&store, pool(&pools, "new")), before);
}

fn what_cannot_be_copied_is_refused<S: MovableShards>(factory: &Factory<S>) {
    let pools = pools(SIZES[0].0, SIZES[0].1);
    let (old, new) = (pool(&pools, "old"), pool(&pools, "new"));
    let refused = |entity: Entity, shard: ShardPath| {
        let store = factory.make();
        let wanted = Arc::new(claim_of(shard, 1, 1));
        assert_eq!(claim(&store, &wanted), ClaimOutcome::Granted);
        done(&store, vec![Commit { entity, ..turn(&wanted, "", 0, 1) }]);
        let refused = copied(&store, &pools).unwrap_err();
        assert_eq!(current(&store, &wanted.shard), *wanted, "nothing has changed");
        refused
    };
    let stranger = Entity::new("stranger", "a");
    let unknown = refused(stranger, path(old, old.first));
    assert_eq!(unknown, PoolCopyError::UnknownType("stranger".into()));
    let counter = Entity::new("counter", "a");
    let right = shard_of(old, &counter).unwrap();
    let wrong = if right == old.first { old.last() } else { old.first };
    let misplaced = refused(counter.clone(), path(old, wrong));
    assert_eq!(misplaced, PoolCopyError::Misplaced { entity: counter.clone(), shard: wrong });
    let filled = refused(counter.clone(), path(new, new.last()));
    assert_eq!(filled, PoolCopyError::TargetHasState(counter));
    // Another copy has begun to move one of the shards.
    let store = factory.make();
    let other = claim_of(path(old, old.first), 1, 1);
    let placement = ostraca_core::records::Placement { store_id: 77, version: 1 };
    assert_eq!(claim(&store, &other.moved_to(placement).unwrap()), ClaimOutcome::Granted);
    assert_eq!(copied(&store, &pools).unwrap_err(), PoolCopyError::Elsewhere(old.first));
    assert_eq!(other.cluster, CLUSTER);
    // Or one of the new pool's; then the old pool's claims stay.
    let (store, right) = (factory.make(), claim_of(path(old, old.first), 1, 1));
    assert_eq!(claim(&store, &right), ClaimOutcome::Granted);
    let moved = claim_of(path(new, new.last()), 1, 1).moved_to(placement).unwrap();
    assert_eq!(claim(&store, &moved), ClaimOutcome::Granted);
    assert_eq!(copied(&store, &pools).unwrap_err(), PoolCopyError::Elsewhere(new.last()));
    assert_eq!(current(&store, &right.shard), right);
}

/// A copy that was given up before its first claim cannot be begun by a process that still runs; another one can.
fn a_copy_is_given_up_only_before_its_first_claim<S: MovableShards>(factory: &Factory<S>) {
    let (store, pools) = (factory.make(), pools(SIZES[0].0, SIZES[0].1));
    fill(&store, &pools, ENTITIES);
    let (old, new) = (pool(&pools, "old"), pool(&pools, "new"));
    let before = in_pool(&store, old);
    let places = |entity: &Entity| Some((shard_of(old, entity)?, shard_of(new, entity)?));
    let copy = |attempt| PoolCopy {
        store: &store,
        from: paths(old),
        to: paths(new),
        places: &places,
        claimant: owner("n", 5),
        attempt,
    };
    // It is given up by another process after this one has read the claims, and saved a stage for the last time.
    let other = &copy(9);
    let giving_up = move |_| {
        let given_up = async move {
            assert!(other.give_up().await?);
            Ok::<(), PoolCopyError>(())
        };
        given_up.boxed()
    };
    let late = block_on(copy(9).run(PoolCopyStage::Marking, &giving_up, &mut |_| ()));
    assert!(matches!(late, Err(PoolCopyError::Claimed(_))), "{late:?}");
    for shard in paths(old).iter().chain(&paths(new)) {
        assert_eq!(current(&store, shard).presence(), Ok(Presence::Here));
    }
    let save = |_| ready(Ok(())).boxed();
    let saved = AtomicUsize::new(0);
    let stops = |_| match saved.fetch_add(1, Ordering::Relaxed) {
        0 => ready(Ok(())).boxed(),
        _ => ready(Err(PoolCopyError::Overtaken)).boxed(),
    };
    let stopped = block_on(copy(10).run(PoolCopyStage::Marking, &stops, &mut |_| ()));
    assert_eq!(stopped.unwrap_err(), PoolCopyError::Overtaken);
    assert_eq!(block_on(copy(10).give_up()), Ok(false), "its claims are made");
    block_on(copy(10).run(PoolCopyStage::Marking, &save, &mut |_| ())).unwrap();
    assert_eq!(in_pool(&store, new), before);
}

/// The next claim of an owner that was paused is not the one that its shard gets in the end.
fn a_paused_owner_claims_no_new_shard<S: MovableShards>(factory: &Factory<S>) {
    let (store, pools) = (factory.make(), pools(SIZES[0].0, SIZES[0].1));
    fill(&store, &pools, ENTITIES);
    let new = pool(&pools, "new");
    let paused = current(&store, &path(new, new.first));
    copied(&store, &pools).unwrap();
    for ahead in [1, 2, 1_000] {
        let next = Claim { number: paused.number + ahead, ..paused.clone() };
        assert!(matches!(claim(&store, &next), ClaimOutcome::Refused { .. }), "{ahead}");
    }
}

fn a_pool_is_copied_again<S: MovableShards>(factory: &Factory<S>) {
    let (store, first) = (factory.make(), pools(SIZES[0].0, SIZES[0].1));
    fill(&store, &first, ENTITIES);
    let before = in_pool(&store, pool(&first, "old"));
    copied(&store, &first).unwrap();
    assert!(copied(&store, &first).is_err(), "the new pool has state");
    // What was the new pool is copied to a third one.
    let mut third = first.clone();
    third.add(Pool::new("third", 6, &third)).unwrap();
    let (old, new) = (pool(&third, "new"), pool(&third, "third"));
    let places = |entity: &Entity| Some((shard_of(old, entity)?, shard_of(new, entity)?));
    let copy = PoolCopy {
        store: &store,
        from: paths(old),
        to: paths(new),
        places: &places,
        claimant: owner("n", 5),
        attempt: 10,
    };
    let save = |_| ready(Ok(())).boxed();
    block_on(copy.run(PoolCopyStage::Marking, &save, &mut |_| ())).unwrap();
    assert_eq!(in_pool(&store, new), before);
    assert_eq!(in_pool(&store, old), [""; 0]);
}
