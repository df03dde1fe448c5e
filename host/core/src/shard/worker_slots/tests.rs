use proptest::prelude::*;

use super::*;
use crate::ids::Entity;

const NO_MEMORY_LIMIT: u64 = u64::MAX;

fn holder(pool: &str, id: &str) -> SlotHolder {
    let shard = ShardPath { namespace: "n".into(), pool: pool.into(), shard: ShardId(1) };
    (shard, Entity::new("t", id))
}

fn slots(worker: usize, pools: &[(&str, usize, u64)]) -> WorkerSlots {
    let pools = pools.iter().map(|(pool, instances, memory)| {
        (Arc::from(*pool), SlotLimits { instances: *instances, memory: *memory })
    });
    WorkerSlots::new(
        SlotLimits { instances: worker, memory: NO_MEMORY_LIMIT },
        &pools.collect::<BTreeMap<_, _>>(),
    )
}

fn ask(slots: &mut WorkerSlots, pool: &str, ids: &[&str]) {
    for id in ids {
        slots.request(holder(pool, id), 1, SlotPurpose::Message);
    }
}

fn granted(slots: &mut WorkerSlots) -> Vec<String> {
    let mut ids: Vec<_> = std::iter::from_fn(|| slots.grant())
        .map(|((shard, entity), _)| format!("{}/{}", shard.pool, entity.id))
        .collect();
    ids.sort();
    ids
}

#[test]
fn k39_a_pool_at_its_limit_leaves_slots_to_others() {
    let mut slots = slots(10, &[("hot", 2, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "hot", &["a", "b", "c", "d"]);
    ask(&mut slots, "calm", &["a", "b", "c"]);
    assert_eq!(granted(&mut slots), ["calm/a", "calm/b", "calm/c", "hot/a", "hot/b"]);
    assert_eq!((slots.granted(), slots.evict()), (5, None), "nothing of it is idle");
    slots.release(&holder("hot", "a"), 1);
    assert_eq!(granted(&mut slots), ["hot/c"]);
}

#[test]
fn k39_a_pool_at_its_limit_evicts_only_its_own() {
    let mut slots = slots(10, &[("hot", 2, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "calm", &["a"]);
    ask(&mut slots, "hot", &["a", "b"]);
    granted(&mut slots);
    for (pool, id) in [("calm", "a"), ("hot", "a"), ("hot", "b")] {
        slots.idle(holder(pool, id));
    }
    ask(&mut slots, "hot", &["c"]);
    assert_eq!(slots.evict(), Some(holder("hot", "a")), "not `calm/a`, which is idle for longer");
    assert_eq!(slots.evict(), None, "one eviction per request");
    slots.eviction_refused(&holder("hot", "a"));
    assert_eq!(slots.evict(), Some(holder("hot", "b")));
    slots.release(&holder("hot", "b"), 1);
    assert_eq!(granted(&mut slots), ["hot/c"]);
}

#[test]
fn a_pool_at_its_memory_limit_evicts_only_its_own() {
    let mut slots = slots(10, &[("hot", 10, 100)]);
    ask(&mut slots, "calm", &["a"]);
    ask(&mut slots, "hot", &["a", "b"]);
    granted(&mut slots);
    for (pool, id, bytes) in [("calm", "a", 1_000), ("hot", "a", 60), ("hot", "b", 60)] {
        slots.report_size(&holder(pool, id), 1, bytes);
        slots.idle(holder(pool, id));
    }
    assert_eq!((slots.evict(), slots.evict()), (Some(holder("hot", "a")), None));
    ask(&mut slots, "hot", &["c"]);
    ask(&mut slots, "calm", &["b"]);
    assert_eq!(granted(&mut slots), ["calm/b"], "until `hot/a` has left");
    slots.release(&holder("hot", "a"), 1);
    assert_eq!((granted(&mut slots), slots.held_bytes()), (vec!["hot/c".to_owned()], 1_180));
}

#[test]
fn an_eviction_for_the_worker_counts_for_the_pool_too() {
    let mut slots = slots(2, &[("hot", 2, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "hot", &["a", "b"]);
    granted(&mut slots);
    slots.idle(holder("hot", "a"));
    slots.idle(holder("hot", "b"));
    ask(&mut slots, "calm", &["a"]);
    assert_eq!(slots.evict(), Some(holder("hot", "a")));
    ask(&mut slots, "hot", &["c"]);
    assert_eq!(slots.evict(), None, "`hot` loses an instance anyway");
    slots.release(&holder("hot", "a"), 1);
    // The worker's slots are used up, though the pool has one.
    assert_eq!(granted(&mut slots), ["calm/a"]);
    assert_eq!((slots.evict(), slots.evict()), (Some(holder("hot", "b")), None));
}

#[test]
fn who_waits_for_the_worker_is_not_evicted_for_the_pool() {
    let mut slots = slots(1, &[("hot", 2, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "hot", &["a", "b"]);
    assert_eq!(granted(&mut slots), ["hot/a"]);
    slots.idle(holder("hot", "b"));
    ask(&mut slots, "hot", &["c"]);
    assert_eq!((slots.grant(), slots.evict()), (None, None));
}

#[test]
fn k31_a_recovery_that_waits_keeps_no_slot_of_its_pool() {
    let mut slots = slots(1, &[("hot", 1, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "calm", &["a"]);
    granted(&mut slots);
    slots.request(holder("hot", "r"), 1, SlotPurpose::Recovery);
    assert_eq!(slots.grant(), None, "recovery evicts nothing");
    ask(&mut slots, "hot", &["m"]);
    slots.idle(holder("calm", "a"));
    assert_eq!(slots.grant(), None);
    assert_eq!(slots.evict(), Some(holder("calm", "a")), "for the message");
    slots.release(&holder("calm", "a"), 1);
    assert_eq!(granted(&mut slots), ["hot/m"]);
    slots.release(&holder("hot", "m"), 1);
    assert_eq!(granted(&mut slots), ["hot/r"]);
}

#[test]
fn k31_a_recovery_passes_its_pool_only_with_a_slot() {
    let mut slots = slots(1, &[("hot", 1, NO_MEMORY_LIMIT), ("warm", 1, NO_MEMORY_LIMIT)]);
    for pool in ["hot", "warm"] {
        slots.request(holder(pool, "r"), 1, SlotPurpose::Recovery);
    }
    assert_eq!(granted(&mut slots), ["hot/r"]);
    ask(&mut slots, "warm", &["m"]);
    slots.release(&holder("hot", "r"), 1);
    assert_eq!(granted(&mut slots), ["warm/m"], "the other recovery took no slot of its pool");
}

#[test]
fn a_timer_that_waits_for_the_worker_becomes_a_message() {
    let mut slots = slots(1, &[("hot", 3, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "calm", &["a"]);
    granted(&mut slots);
    slots.request(holder("hot", "t1"), 1, SlotPurpose::Timer);
    slots.request(holder("hot", "t2"), 1, SlotPurpose::Timer);
    assert_eq!(slots.grant(), None);
    ask(&mut slots, "hot", &["t2"]);
    slots.release(&holder("calm", "a"), 1);
    assert_eq!(slots.grant(), Some((holder("hot", "t2"), 1)), "messages come first");
}

#[test]
fn a_removed_shard_holds_no_slots_of_its_pool() {
    let mut slots = slots(9, &[("hot", 1, NO_MEMORY_LIMIT)]);
    ask(&mut slots, "hot", &["a", "b"]);
    assert_eq!(granted(&mut slots), ["hot/a"]);
    slots.remove_shard(&holder("hot", "a").0);
    assert_eq!(slots.granted(), 0);
    ask(&mut slots, "hot", &["c"]);
    assert_eq!(granted(&mut slots), ["hot/c"]);
}

const POOLS: [&str; 3] = ["hot", "warm", "calm"];
const IDS: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    Request(usize, usize, SlotPurpose),
    Release(usize, usize),
    Idle(usize, usize),
    Busy(usize, usize),
    Size(usize, usize, u64),
    Refuse(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let of = || (0..POOLS.len(), 0..IDS);
    let purpose = prop_oneof![
        Just(SlotPurpose::Message),
        Just(SlotPurpose::Timer),
        Just(SlotPurpose::Recovery)
    ];
    prop_oneof![
        (of(), purpose).prop_map(|((pool, id), purpose)| Step::Request(pool, id, purpose)),
        of().prop_map(|(pool, id)| Step::Release(pool, id)),
        of().prop_map(|(pool, id)| Step::Idle(pool, id)),
        of().prop_map(|(pool, id)| Step::Busy(pool, id)),
        (of(), 0_u64..60).prop_map(|((pool, id), bytes)| Step::Size(pool, id, bytes)),
        of().prop_map(|(pool, id)| Step::Refuse(pool, id)),
    ]
}

proptest! {
    /// Whatever happens: no pool and no worker has more instances than its limit, nothing is granted that was not
    /// requested, and once everything is idle or released, every message gets its slot.
    #[test]
    fn k39_limits_hold_and_every_message_gets_its_turn(
        steps in prop::collection::vec(step(), 0..120),
        worker in 1_usize..8,
        hot in 1_usize..4,
        warm in 1_usize..4,
        memory in 1_u64..200,
    ) {
        let mut slots = slots(worker, &[("hot", hot, memory), ("warm", warm, NO_MEMORY_LIMIT)]);
        let limit = |pool: &str| match pool { "hot" => hot, "warm" => warm, _ => worker };
        let at = |pool: usize, id: usize| holder(POOLS[pool], &id.to_string());
        let (mut wants, mut has) = (BTreeMap::<SlotHolder, bool>::new(), Vec::<SlotHolder>::new());
        for step in steps {
            match step {
                Step::Request(pool, id, purpose) => {
                    let holder = at(pool, id);
                    if !has.contains(&holder) {
                        *wants.entry(holder.clone()).or_default() |= purpose != SlotPurpose::Recovery;
                        slots.request(holder, 1, purpose);
                    }
                }
                Step::Release(pool, id) => {
                    let holder = at(pool, id);
                    wants.remove(&holder);
                    has.retain(|other| *other != holder);
                    slots.release(&holder, 1);
                }
                Step::Idle(pool, id) => slots.idle(at(pool, id)),
                Step::Busy(pool, id) => slots.busy(&at(pool, id)),
                Step::Size(pool, id, bytes) => slots.report_size(&at(pool, id), 1, bytes),
                Step::Refuse(pool, id) => slots.eviction_refused(&at(pool, id)),
            }
            while let Some((holder, _)) = slots.grant() {
                prop_assert!(wants.remove(&holder).is_some(), "not requested: {:?}", holder);
                has.push(holder);
            }
            while let Some(holder) = slots.evict() {
                prop_assert!(has.contains(&holder), "no slot: {:?}", holder);
            }
            prop_assert!(has.len() <= worker && slots.granted() == has.len());
            for pool in POOLS {
                let held = has.iter().filter(|(shard, _)| &*shard.pool == pool).count();
                prop_assert!(held <= limit(pool), "{pool}: {held}");
            }
        }
        // The rest: whoever has a slot gives it up in turn.
        for _ in 0..2 * POOLS.len() * IDS {
            while let Some((holder, _)) = slots.grant() {
                wants.remove(&holder);
                has.push(holder);
            }
            if let Some(holder) = has.pop() {
                slots.release(&holder, 1);
            }
        }
        prop_assert!(wants.is_empty(), "waiting forever: {:?}", wants);
        prop_assert_eq!((slots.granted(), slots.held_bytes()), (0, 0));
    }
}
