//! Thousands of runs of a whole cluster, each with faults. The oracle and the guard, which sees the whole cluster,
//! check each run.
//!
//! `SEED=n` replays one run (`TRACE=1` prints its events; `CLAIMS_HANG=1`: one of the test about hosts that are late;
//! `ARBITRATES=1`: one of the test about a lasting partition). `SEEDS=n` changes the number of runs; with fewer than the
//! default, not every fault has to occur.

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_sim::cluster::{KINDS, Options, SLOW, run};
use ostraca_sim::{Tally, Violation};

/// The number of seeds in which every kind of fault must occur.
const ENOUGH: u64 = 3_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[derive(Default)]
struct Sum {
    tally: Tally,
    messages: usize,
    steps: u64,
    served: Vec<u64>,
    broken: BTreeMap<u64, Vec<Violation>>,
    digests: common::Digests,
}

#[test]
fn no_cluster_seed_breaks_a_promise_and_every_fault_occurs() {
    if let Some(seed) = number("SEED") {
        let trace = number("TRACE").is_some();
        let trace_shard = number("TRACE_SHARD").and_then(|shard| shard.try_into().ok());
        let claims_hang = number("CLAIMS_HANG").is_some();
        let arbitrates = number("ARBITRATES").is_some();
        let options = Options { trace, trace_shard, claims_hang, arbitrates, ..Options::default() };
        let report = run(seed, options);
        if trace {
            for operation in &report.history {
                println!("{}", serde_json::to_string(operation).expect("plain data"));
            }
            println!("{}", report.tally);
        }
        println!("{} steps, served after {} ms", report.steps, report.served_after);
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        return;
    }
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(ENOUGH));
    let next = AtomicU64::new(first);
    let sum = Mutex::new(Sum::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let report = run(seed, Options::default());
                    let mut sum = sum.lock().expect("no run panics");
                    sum.tally.add(&report.tally);
                    sum.messages += report.history.len();
                    sum.steps += report.steps;
                    sum.served.push(report.served_after);
                    sum.digests.add(seed, report.digest);
                    if !report.violations.is_empty() {
                        sum.broken.insert(seed, report.violations);
                    }
                }
            });
        }
    });
    let mut sum = sum.into_inner().expect("no run panics");
    sum.served.sort_unstable();
    let at = |share: usize| sum.served[(sum.served.len() - 1) * share / 100];
    println!(
        "{seeds} seeds, {} messages, {} steps; served after the last fault: p50 {} p99 {} max {} ms",
        sum.messages,
        sum.steps,
        at(50),
        at(99),
        at(100)
    );
    println!("{}", sum.tally);
    for (seed, breaches) in sum.broken.iter().take(12) {
        println!("SEED={seed} replays: {}", breaches[0]);
    }
    assert!(
        sum.broken.is_empty(),
        "{} seeds broke a promise; the first is SEED={:?}",
        sum.broken.len(),
        sum.broken.keys().next()
    );
    let slow = sum.tally.0.get(SLOW).copied().unwrap_or_default();
    assert!(slow <= seeds.div_ceil(1_000), "{slow} runs took long to settle");
    sum.digests.check("cluster.txt");
    let missing: Vec<_> = KINDS.iter().filter(|kind| !sum.tally.0.contains_key(*kind)).collect();
    let few = seeds < ENOUGH;
    assert!(
        few || missing.is_empty(),
        "of {} kinds, these never occurred: {missing:?}",
        KINDS.len()
    );
}

#[test]
fn a_seed_repeats_the_same_cluster_run() {
    for seed in [3, 77, 4_242] {
        let (one, two) = (run(seed, Options::default()), run(seed, Options::default()));
        assert_eq!(one.tally, two.tally);
        assert_eq!(format!("{:?}", one.history), format!("{:?}", two.history));
    }
}

#[test]
fn k14_a_host_whose_claims_hang_keeps_no_shard_unserved() {
    let options = Options { claims_hang: true, ..Options::default() };
    let mut moved = 0;
    for seed in 1..=200 {
        let report = run(seed, options.clone());
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        let late = "transition: shard moved for starting late";
        moved += u64::from(report.tally.0.contains_key(late));
    }
    assert!(moved >= 150, "shards moved in only {moved} runs");
}

#[test]
fn e13_a_lasting_partition_ends_and_all_is_served() {
    let options = Options { arbitrates: true, ..Options::default() };
    let mut ended = 0;
    for seed in 1..=200 {
        let report = run(seed, options.clone());
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        ended += u64::from(report.tally.0.contains_key("transition: arbitration lost"));
    }
    assert!(ended >= 120, "nodes lost in only {ended} runs");
}

#[test]
fn r9_a_store_slow_for_one_host_causes_bounded_moves() {
    let options = Options { slow_store: true, ..Options::default() };
    let mut given_up = 0;
    for seed in 1..=200 {
        let report = run(seed, options.clone());
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        given_up +=
            u64::from(report.tally.0.contains_key("transition: shards released without the store"));
    }
    assert!(given_up >= 50, "shards were given up in only {given_up} runs");
}
