//! Many live instances at the same time. `max_live` is derived from the number of mappings that each of them needs.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that prints what it measured")]

mod common;

use common::{ADD, ask, misbehaving, ok, prepare, send, started};
use ostraca_wasm::{Allocator, InstanceLimits, RuntimeSettings, WasmRuntime};

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// The process's proportional set size in KiB. Pages of a component's image that instances share count only once.
fn proportional_kib() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn fill(allocator: Allocator, live: u32) {
    let (maps, memory) = (mappings(), proportional_kib());
    let settings =
        RuntimeSettings { allocator, max_live_instances: Some(live), ..common::settings() };
    let host = WasmRuntime::new(&settings).unwrap();
    assert_eq!(host.status().allocator, allocator);
    let program = prepare(&host, misbehaving(), InstanceLimits::default());
    let mut instances = Vec::new();
    for id in 0..live {
        let mut instance = started(&program, &id.to_string()).await;
        ok(&send(&mut instance, "add", ADD).await);
        instances.push(instance);
    }
    let per = (mappings() - maps) as f64 / f64::from(live);
    let kib = (proportional_kib() - memory) as f64 / f64::from(live);
    println!("{allocator:?}, {live} live: {per:.2} mappings and {kib:.1} KiB per instance");
    assert!(per < 7.1, "{per} mappings per instance, but max_live assumes 7");
    // The first instance still answers, and each has its own state.
    assert_eq!(ok(&send(&mut instances[0], "add", ADD).await), "2");
    assert_eq!(ok(&ask(&mut instances[1], "read", "\"k\"").await), "\"1\"");
}

/// `LIVE=8000 cargo test -p ostraca-wasm --test capacity -- --nocapture` measures the default number of instances.
#[tokio::test]
async fn as_many_instances_can_live_as_configured() {
    let live = std::env::var("LIVE").map_or(1_500, |live| live.parse().unwrap());
    fill(Allocator::Pooling, live).await;
    fill(Allocator::OnDemand, live).await;
}
