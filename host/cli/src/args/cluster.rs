//! The command line of commands on a running cluster.

use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct Shards {
    /// A line for each shard instead of the map
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Entities {
    /// Only of this entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: Option<String>,
    /// Only of this shard
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) shard: Option<u32>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Go on where an earlier list ended: it printed the cursor
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// Show what stands under its keys, too: the first 4 KiB of each. Only for who may send to the type
    #[arg(long)]
    pub(crate) values: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Drain {
    /// The node's name
    pub(crate) node: String,
    /// Let it have shards again
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) undo: bool,
    /// How long to watch; the drain itself goes on
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Forget {
    /// The node's name; one that lives is refused
    pub(crate) node: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Cluster {
    /// Change a setting of all nodes, as in lease="10 s"; may be given more than once
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub(crate) set: Vec<(String, String)>,
    /// Let nodes write the newest format that all of them read
    #[arg(long)]
    pub(crate) upgrade_format: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rebalance {
    /// Only say what would be moved
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    /// Go on with what happens from now on
    #[arg(long)]
    pub(crate) follow: bool,
    /// Show each shard's events, where many shards change at once; JSON always has them all
    #[arg(long)]
    pub(crate) shards: bool,
    /// From this event on [default: all that the node keeps]
    #[arg(long, value_name = "N")]
    pub(crate) from_sequence: Option<u64>,
}
