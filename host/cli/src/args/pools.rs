//! Arguments of `ostraca pool`.

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    pub(crate) what: PoolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// List the pools
    List,
    /// Create a pool, whose properties never change; a pool that exists with the same properties is left as it is
    Create(CreatePool),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreatePool {
    /// The pool's name: lower-case letters, digits and `-`
    pub(crate) name: String,
    /// Number of shards; about ten for each node that will ever host the pool
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    pub(crate) shards: u32,
    /// The role of the nodes that host it: host, or host.NAME [default: host]
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Option<String>,
    /// What maps an entity to a shard: murmur3_x86_32, fnv1a_32 or java_string [default: murmur3_x86_32]
    #[arg(long, value_name = "NAME")]
    pub(crate) hash: Option<String>,
    /// What decides which host gets which shard: average, least-shard, ranges, rendezvous, load or external [default:
    /// as in the manager's configuration]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    /// How many of its hosts there must be before its shards are allocated for the first time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) min_hosts: u32,
}
