//! Arguments of `ostraca pool`.

use std::time::Duration;

use clap::Subcommand;

const COPY: &str = "\
The types of the old pool are stopped meanwhile: messages to their entities wait for gateway.buffer-timeout, and are then
refused as not run. Other pools work. Each entity gets the shard that it has in the other pool; nothing else of it changes.
Both pools are read again and compared, type by type, before the types are switched. From then on, the name of the old pool
stands for the other one in bindings and manifests, so nothing has to be deployed again. What is left in the old pool is
removed. The node that has the store copies, and goes on if this command ends. If that node ends, repeat the command: it
continues. Until the copy is done, nobody uses an entity of either pool.";

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
    /// Copy the state of a pool to a new one with another number of shards or another hash, and switch its types to it
    Copy(CopyPool),
}

#[derive(Debug, clap::Args)]
#[command(after_help = COPY)]
pub(crate) struct CopyPool {
    /// The pool that has the state
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// The pool that gets it, which `ostraca pool create` has created and which has no entities
    #[arg(value_name = "TO")]
    pub(crate) to: String,
    /// How long to wait until the hosts have given up the shards of both pools, before the copy is given up
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub(crate) release_timeout: Duration,
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
    /// What decides which host gets which shard: average, least-shard, ranges, rendezvous, load, external or stateless
    /// [default: as in the manager's configuration]
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<String>,
    /// How many of its hosts there must be before its shards are allocated for the first time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) min_hosts: u32,
}
