//! A node with an allocation strategy of its own: `own-strategy OSTRACA.TOML [SHARDS PER HOST]`.
//!
//! Everything else is as with `ostraca run`; `ostraca` works with such a cluster like with any other. All nodes that may
//! become the manager should be this program.

#![allow(clippy::print_stdout, reason = "it prints where it serves")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostraca_node::{Config, Node, NodeParts, compiler_main};
use own_strategy::Packed;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This call must come first: the node starts this program again to compile components.
    compiler_main();

    let mut arguments = std::env::args_os().skip(1);
    let file = arguments.next().map(PathBuf::from).ok_or("name the node's configuration file")?;
    let per_host = match arguments.next() {
        Some(number) => number.to_string_lossy().parse()?,
        None => 64,
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        let strategy = Some(Arc::new(Packed { per_host }) as _);
        let parts = NodeParts { strategy, ..NodeParts::default() };
        let mut node = Node::start_with(Config::load(&file)?, parts).await?;
        println!("serving at {}", node.address());
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let failure = tokio::select! {
            stop = tokio::signal::ctrl_c() => { stop?; None }
            _ = terminated.recv() => None,
            failure = node.wait_for_failure() => Some(failure),
        };
        node.stop(Duration::from_secs(20)).await;
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    })
}
