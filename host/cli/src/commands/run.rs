//! `ostraca run`: runs a node until a signal stops it.

use std::time::Duration;

use ostraca_codes::codes;
use ostraca_node::{Config, Node, NodeError};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::config_file;
use crate::args::Run;
use crate::failure::{Exit, Failure};
use crate::output;

/// How long a graceful stop may take before it is abandoned; unanswered messages then have the outcome `unknown`.
const GRACE: Duration = Duration::from_secs(20);
/// The limit for a node of which a part has failed: its shards cannot be handed over gracefully.
const BROKEN: Duration = Duration::from_secs(4);

pub(crate) async fn run(args: &Run) -> Result<Exit, Failure> {
    let mut stop = Stop::listen()?;
    let config = Config::load_with_join(&config_file(&args.config), &args.join)?;
    let mut node = tokio::select! {
        begun = Node::launch(config) => begun?,
        // The node has not served any client yet, so it may abandon its store at any moment.
        () = stop.recv() => return Ok(Exit::Done),
    };
    let settled = tokio::select! {
        settled = node.wait_until_ready() => settled,
        // The node may own shards by now.
        () = stop.recv() => return finish(node, stop, None).await,
    };
    if let Err(error) = settled {
        return finish(node, stop, Some(error)).await;
    }
    output::line(&ready(&node));
    if let Some(url) = node.http_url() {
        output::line(&format!("HTTP gateway at {url}"));
    }
    let why = tokio::select! {
        () = stop.recv() => None,
        why = node.wait_for_failure() => Some(why),
    };
    finish(node, stop, why).await
}

/// The line that reports that the node is ready.
pub(crate) fn ready(node: &Node) -> String {
    let it = node.summary();
    format!(
        "ready: node {} of cluster {} ({}) at {}",
        it.node,
        it.cluster_name,
        it.cluster,
        node.address()
    )
}

/// Stops gracefully, or immediately at a second signal.
pub(crate) async fn finish(
    node: Node,
    mut stop: Stop,
    why: Option<NodeError>,
) -> Result<Exit, Failure> {
    let grace = if why.is_some() { BROKEN } else { GRACE };
    tokio::select! {
        () = node.stop(grace) => {}
        () = stop.recv() => return Ok(Exit::Interrupted),
    }
    match why {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Done),
    }
}

/// Receives SIGTERM and SIGINT.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::unexpected(
                    codes::SIGNAL_HANDLER_FAILED,
                    format!("cannot listen for signals: {error}"),
                )
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
