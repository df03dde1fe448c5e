//! Runs clients that break every rule against the shards' state machines. `SEED=n` replays one run; `SEEDS=n` changes
//! the number of runs.

use std::collections::BTreeMap;

use ostraca_sim::hostile::run;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_hostile_request_ends_once_and_leaves_nothing() {
    let seeds = match number("SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SEEDS").unwrap_or(300),
    };
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    let mut firings = 0;
    for seed in seeds {
        let report = run(seed);
        assert!(report.violations.is_empty(), "SEED={seed}: {:#?}", report.violations);
        firings += report.firings;
        for (end, count) in report.ends {
            *ends.entry(end).or_default() += count;
        }
    }
    println!("{ends:#?}\n{firings} firings");
    assert!(firings > 0, "no timer fired");
}
