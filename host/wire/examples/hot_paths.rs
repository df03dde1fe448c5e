//! The cost of encoding and decoding an envelope: `cargo run --release -p ostraca-wire --example hot_paths`.
//!
//! The arguments and the output are those of the core's example of the same name.
#![allow(clippy::print_stdout, reason = "a measurement on a terminal")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_wire::proto::{Envelope, MessageKind};
use prost::Message as _;

/// A path's name, what a round of it is, its default number of rounds, and the function that runs it.
type Path = (&'static str, &'static str, u64, fn(u64) -> Duration);

const PATHS: [Path; 2] = [
    ("encode envelope", "as a client sends it", 1_000_000, encode),
    ("decode envelope", "as a client sends it", 1_000_000, decode),
];

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            for (path, what, rounds, run) in PATHS {
                let ns = run(rounds).as_secs_f64() * 1e9 / rounds as f64;
                println!(r#"{{"path":"{path}","ns":{ns:.1},"rounds":{rounds},"what":"{what}"}}"#);
            }
        }
        [path, rounds] => {
            let rounds = rounds.parse().expect("a number");
            let (.., run) = PATHS.into_iter().find(|it| it.0 == path).expect("a path");
            println!("{}", run(rounds).as_nanos());
        }
        _ => panic!("hot_paths [PATH ROUNDS]"),
    }
}

fn envelope() -> Envelope {
    Envelope {
        r#type: "counter".into(),
        id: "alice".into(),
        sequence: 1_000,
        after: 999,
        settled: 900,
        kind: MessageKind::Command.into(),
        created_ms: 1_700_000_000_000,
        remaining_ms: 10_000,
        content_type: "application/json".into(),
        method: "add".into(),
        body: Bytes::from_static(b"1"),
        ..Envelope::default()
    }
}

fn encode(rounds: u64) -> Duration {
    let envelope = envelope();
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(black_box(&envelope).encode_to_vec());
    }
    begun.elapsed()
}

fn decode(rounds: u64) -> Duration {
    let bytes = Bytes::from(envelope().encode_to_vec());
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(Envelope::decode(black_box(bytes.clone())).expect("an envelope"));
    }
    begun.elapsed()
}
