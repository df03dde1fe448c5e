//! The router's cost per message, and thus how long a node's gateway holds the router's lock for it: `cargo run
//! --release -p ostraca-core --example routing`.
//!
//! A message takes the lock twice, for its route and for its answer. Both are timed here on one thread, including the
//! lock, with a given number of messages in flight, to shards of this node and of another node.
#![allow(clippy::print_stdout, reason = "a measurement on a terminal")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ostraca_core::ids::{Epoch, Incarnation, NodeId, ShardId};
use ostraca_core::route::{Action, AttemptResult, Router, Settings};
use ostraca_core::rows::Member;

const SHARDS: u32 = 1_024;
const MESSAGES: u64 = 1_000_000;

fn member(node: &str) -> Member {
    let incarnation = Incarnation { counter: 1, nonce: 1 };
    Member { node: NodeId::from(node), incarnation }
}

/// Nanoseconds per message, with `in_flight` messages in flight.
fn measure(owner: &str, in_flight: usize) -> f64 {
    let mut router: Router<Arc<u64>> = Router::new(Settings::default(), SHARDS);
    let mut steps = Vec::new();
    router.set_local(0, Some(member("a")), &mut steps);
    for shard in 1..=SHARDS {
        router.update_route(0, ShardId(shard), Epoch(1), Some(member(owner)), false, &mut steps);
    }
    let router = Mutex::new(router);
    let mut flying = VecDeque::new();
    let begun = Instant::now();
    for number in 0..MESSAGES {
        let shard = ShardId(number as u32 % SHARDS + 1);
        let mut locked = router.lock().expect("not poisoned");
        locked.route_into(number, shard, Arc::new(number), 300, Some(number + 60_000), &mut steps);
        drop(locked);
        for step in steps.drain(..) {
            match step {
                Action::Local { attempt_id: tag, .. } | Action::Remote { attempt_id: tag, .. } => {
                    flying.push_back(tag)
                }
                Action::Buffered | Action::Refuse { .. } => panic!("{number} was not sent"),
            }
        }
        if flying.len() >= in_flight {
            let tag = flying.pop_front().expect("a message is in flight");
            let given = {
                let mut locked = router.lock().expect("not poisoned");
                locked.on_attempt_result(number, tag, AttemptResult::Answered, &mut steps)
            };
            assert!(given.is_some(), "the message was in flight");
        }
    }
    begun.elapsed().as_secs_f64() * 1e9 / MESSAGES as f64
}

fn main() {
    for (owner, in_flight) in [("a", 64), ("a", 10_000), ("b", 64), ("b", 4_000)] {
        let place = if owner == "a" { "this node" } else { "another node" };
        println!(
            "{in_flight} in flight, to {place}: {:.0} ns a message",
            measure(owner, in_flight)
        );
    }
}
