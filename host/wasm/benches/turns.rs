//! Measures the cost of turns and activations: `cargo bench -p ostraca-wasm --bench turns`. Prints microseconds;
//! asserts nothing.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints its findings")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{ADD, ask, counter, misbehaving, ok, prepare, rubbish, send, started};
use ostraca_wasm::{InstanceLimits, RuntimeSettings, WasmRuntime};

fn report(what: &str, rounds: u32, began: Instant) {
    println!("{what:48} {:8.2} us", began.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let began = Instant::now();
    let host = WasmRuntime::new(&RuntimeSettings::default()).unwrap();
    report("host with a pool of 8,000", 1, began);
    let (misbehaving, counter, rubbish) = (misbehaving(), counter(), rubbish());
    let began = Instant::now();
    let program = prepare(&host, misbehaving, InstanceLimits::default());
    report(&format!("prepare {} KiB", misbehaving.len() >> 10), 1, began);
    let keys = program;
    let program = prepare(&host, counter, InstanceLimits::default());
    let raw = prepare(&host, rubbish, InstanceLimits::default());

    let mut entity = started(&raw, "e").await;
    let began = Instant::now();
    for _ in 0..100_000 {
        ok(&ask(&mut entity, "echo", "hello").await);
    }
    report("hot call without state (raw)", 100_000, began);
    let mut entity = started(&keys, "e").await;
    let began = Instant::now();
    for _ in 0..100_000 {
        ok(&send(&mut entity, "add", ADD).await);
    }
    report("hot call, one get and one set (keys)", 100_000, began);
    let mut entity = started(&program, "e").await;
    let began = Instant::now();
    for _ in 0..100_000 {
        ok(&send(&mut entity, "add", "1").await);
    }
    report("hot call of the counter (struct)", 100_000, began);
    let began = Instant::now();
    for _ in 0..5_000 {
        ok(&send(&mut started(&program, "e").await, "add", "1").await);
    }
    report("instantiate, start, first call, drop", 5_000, began);
    let mut all = Vec::new();
    for id in 0..5_000 {
        all.push(started(&program, &id.to_string()).await);
    }
    for what in
        ["first call of each of 5,000 instances", "going round 5,000 instances", "the same again"]
    {
        let began = Instant::now();
        for entity in &mut all {
            ok(&send(entity, "add", "1").await);
        }
        report(what, 5_000, began);
    }
}
