//! Arguments of `ostraca repair` and `ostraca reset`.

use std::path::PathBuf;

use clap::Subcommand;

const REPAIR: &str = "\
The rows say which nodes there are, who owns which shard, and what is deployed. Without --apply, no row is
changed. Entities never are. Stop all nodes first. A check without --apply may run beside nodes if no node has a
store of its own; if only the rows are outside the nodes, the node with the store must be stopped.";

const RESET: &str = "\
Ends the leases of all nodes, removes the owners of all shards, and removes the node's cache of routes. Entities,
types, pools and the policy remain, and so do the numbers that a cluster never uses twice: epochs, terms and
incarnations. The nodes assign all shards anew when they start. Stop all nodes first.";

#[derive(Debug, clap::Args)]
#[command(after_help = REPAIR)]
pub(crate) struct Repair {
    /// The configuration file of the node with the store, or of any node if both the rows and the state are outside
    /// the nodes; or a directory with an ostraca.toml
    pub(crate) file: PathBuf,
    /// Fix what can be fixed
    #[arg(long)]
    pub(crate) apply: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Reset {
    #[command(subcommand)]
    pub(crate) what: ResetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ResetCommand {
    /// Remove leases, owners of shards, hand-offs and routes, never entities
    Sharding(ResetSharding),
}

#[derive(Debug, clap::Args)]
#[command(after_help = RESET)]
pub(crate) struct ResetSharding {
    /// The configuration file of the node with the store, or of any node if both the rows and the state are outside
    /// the nodes; or a directory with an ostraca.toml
    pub(crate) file: PathBuf,
    /// Apply the reset; without this flag, only show what would be removed
    #[arg(long)]
    pub(crate) yes: bool,
}
