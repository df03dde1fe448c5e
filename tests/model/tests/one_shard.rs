//! Scratch.
#![allow(missing_docs)]
use ostraca_model::model::Cluster;
use ostraca_model::scope::*;
use stateright::{Checker, Model};
use std::time::Instant;

#[test]
fn explore() {
    let env = |n: &str| std::env::var(n).ok().and_then(|v| v.parse::<u8>().ok()).unwrap_or(0);
    let budget = Budget {
        crashes: env("CRASH"),
        restarts: env("RESTART"),
        duplicates: env("DUP"),
        losses: env("LOSS"),
        cuts: env("CUT"),
        lags: env("LAG"),
        pauses: env("PAUSE"),
        drains: env("DRAIN"),
    };
    let mut scope = Scope::one_shard(budget);
    match env("START") {
        1 => scope = scope.from(&[Start::OwnerHosts]),
        2 => scope = scope.from(&[Start::OwnerManages]),
        3 => scope = scope.from(&[Start::OwnerStandsBy]),
        4 => scope = scope.from(&[Start::Cold]),
        _ => {}
    }
    let model = Cluster::new(scope);
    if env("SHOW") > 0 {
        for s in model.init_states() {
            println!("{s:#?}");
        }
    }
    let seen = model.seen.clone();
    let begun = Instant::now();
    let checker = model
        .checker()
        .threads(2)
        .timeout(std::time::Duration::from_secs((env("SECS") as u64 * 10).max(20)))
        .finish_when(stateright::HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    println!(
        "states {} unique {} depth {} done {} in {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        checker.is_done(),
        begun.elapsed()
    );
    for (name, n) in seen.all() {
        print!("{name} {n}; ");
    }
    println!();
    for (name, path) in checker.discoveries() {
        println!("== {name}");
        if name.starts_with("a shard is served under") {
            continue;
        }
        for (_, step) in path.into_vec() {
            println!("  {step:?}");
        }
    }
}
