//! A thousand runs through the core, each with faults. The oracle checks each of them.
//!
//! `SEED=n` replays one run and prints what its clients saw. `SEEDS=n` changes the number of runs; with fewer than the
//! default, not every fault has to occur.

mod common;

use std::collections::BTreeMap;

use ostraca_sim::{KINDS, Options, Tally, run};

/// The number of seeds in which every kind of fault must occur.
const ENOUGH: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_seed_breaks_a_promise_and_every_fault_occurs() {
    if let Some(seed) = number("SEED") {
        let report = run(seed, Options::default());
        for operation in &report.history {
            println!("{}", serde_json::to_string(operation).expect("plain data"));
        }
        println!("{}", report.tally);
        assert!(report.breaches.is_empty(), "seed {seed}: {:#?}", report.breaches);
        return;
    }
    let seeds = number("SEEDS").unwrap_or(ENOUGH);
    let mut tally = Tally::default();
    let mut messages = 0;
    let mut broken = BTreeMap::new();
    let mut digests = common::Digests::default();
    for seed in 1..=seeds {
        let report = run(seed, Options::default());
        let faults: u64 = report
            .tally
            .0
            .iter()
            .filter(|(kind, _)| kind.starts_with("fault"))
            .map(|(_, n)| n)
            .sum();
        let whole = report.breaches.is_empty();
        let messages_seen = report.history.len();
        assert!(!whole || messages_seen >= 200, "seed {seed} had only {messages_seen} messages");
        assert!(faults >= 1, "seed {seed} had no fault");
        messages += report.history.len();
        digests.add(seed, report.digest);
        tally.add(&report.tally);
        if !report.breaches.is_empty() {
            broken.insert(seed, report.breaches);
        }
    }
    println!("{seeds} seeds, {messages} messages\n{tally}");
    for (seed, breaches) in broken.iter().take(5) {
        println!("SEED={seed} replays: {breaches:#?}");
    }
    assert!(
        broken.is_empty(),
        "{} seeds broke a promise; the first is SEED={:?}",
        broken.len(),
        broken.keys().next()
    );
    digests.check("shard.txt");
    let missing = if seeds < ENOUGH { Vec::new() } else { tally.missing() };
    assert_eq!(missing, Vec::<&str>::new(), "of {} kinds, these never occurred", KINDS.len());
}

#[test]
fn a_seed_repeats_the_same_run() {
    for seed in [3, 77, 4_242] {
        let (one, two) = (run(seed, Options::default()), run(seed, Options::default()));
        assert_eq!(one.tally, two.tally);
        assert_eq!(format!("{:?}", one.history), format!("{:?}", two.history));
    }
}
