//! P9: how long planning takes: `cargo run --release -p ostraca-core --example planning -- [STRATEGY]`.
//!
//! 4,096 shards on 1,000 nodes: first the placement of all shards, then the moves when one node is added. Prints one
//! line of JSON and one readable line. Targets: each below 50 ms; at most `ceil(shards / (nodes + 1))` moves.
#![allow(clippy::print_stdout, reason = "a measurement on a terminal")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use ostraca_core::assign::{AllocationView, BuiltinStrategy, Host, ShardPlacement};

const SHARDS: usize = 4_096;
const NODES: usize = 1_000;
const ROUNDS: usize = 200;

fn host(number: usize) -> Host {
    Host::new(format!("node-{number:04}").as_str().into(), 1)
}

/// p50, p99 and max, in milliseconds.
fn percentiles(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [0.50, 0.99, 1.0].map(|part| times[((times.len() - 1) as f64 * part).ceil() as usize])
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "average".into());
    let strategy = BuiltinStrategy::from_name(&name)?.build();
    let (mut place, mut join, mut most_moves) = (Vec::new(), Vec::new(), 0);
    for seed in 0..ROUNDS as u64 {
        let hosts = (0..NODES).map(host).collect();
        let mut view = AllocationView {
            hosts,
            shards: vec![ShardPlacement::default(); SHARDS],
            seed,
            measured: true,
        };
        let start = Instant::now();
        let moves = black_box(strategy.allocate(black_box(&view)));
        place.push(start.elapsed().as_secs_f64() * 1e3);

        for found in moves {
            view.shards[found.shard.0 as usize - 1].owner = Some(found.to);
        }
        view.hosts.push(host(NODES));
        let start = Instant::now();
        let moves = black_box(strategy.rebalance(black_box(&view), usize::MAX));
        join.push(start.elapsed().as_secs_f64() * 1e3);
        most_moves = most_moves.max(moves.len());
    }

    let bound = SHARDS.div_ceil(NODES + 1);
    let ([p50, p99, max], [join50, join99, join_max]) = (percentiles(place), percentiles(join));
    println!(
        r#"{{"P9":{{"strategy":"{name}","shards":{SHARDS},"nodes":{NODES},"rounds":{ROUNDS},"place_ms":{{"p50":{p50:.3},"p99":{p99:.3},"max":{max:.3}}},"join_ms":{{"p50":{join50:.3},"p99":{join99:.3},"max":{join_max:.3}}},"join_moves":{most_moves},"join_moves_bound":{bound}}}}}"#
    );
    println!(
        "P9 {name}: {SHARDS} shards on {NODES} nodes placed in {p50:.3} ms (p99 {p99:.3}, max {max:.3}); one node more planned in {join50:.3} ms (p99 {join99:.3}, max {join_max:.3}), {most_moves} moves of at most {bound}"
    );
    Ok(())
}
