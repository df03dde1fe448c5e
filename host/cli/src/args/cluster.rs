//! The arguments of the commands that work on a running cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use ostraca_client::MessageId;

#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Time between two views; rates are averages over it
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one view and exit; text output does so anyway if there is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}

/// Each view asks all nodes, so they must not follow each other too closely.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let range = Duration::from_millis(100)..=Duration::from_secs(3_600);
    if range.contains(&interval) { Ok(interval) } else { Err("must be from 100ms to 1h".into()) }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Entities {
    /// Only entities of this type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: Option<String>,
    /// Only entities of this shard
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) shard: Option<u32>,
    /// Maximum number of entities
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Continue from the cursor of a previous page
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// Also show values (first 4 KiB each); needs the permission read-state
    #[arg(long)]
    pub(crate) values: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// Resend the command with this id; it runs only if it has not run yet
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<MessageId>,
    /// Timeout for the acknowledgement, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeadLetters {
    #[command(subcommand)]
    pub(crate) what: DeadLetterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetterCommand {
    /// List dead letters of all entities, of one type or of one entity
    List(ListedDeadLetters),
    /// Resend dead letters, each as a new tell behind all other tells to its target
    Resend(ChosenDeadLetters),
    /// Delete dead letters
    Drop(ChosenDeadLetters),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListedDeadLetters {
    /// Only dead letters sent by this type, or by this entity, as in order/17
    #[arg(value_name = "TYPE[/ID]")]
    pub(crate) sender: Option<String>,
    /// Maximum number of dead letters
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Continue from the cursor of a previous page
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    /// Also show bodies (first 4 KiB each); needs the permission read-state
    #[arg(long, requires = "sender")]
    pub(crate) values: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChosenDeadLetters {
    /// The entity that sent the tells, as in order/17
    #[arg(value_name = "TYPE/ID")]
    pub(crate) sender: String,
    /// Numbers of the dead letters, as `ostraca dead-letters list` shows them
    #[arg(value_name = "NUMBER", required_unless_present = "all")]
    pub(crate) numbers: Vec<u64>,
    /// All dead letters that the entity has now
    #[arg(long, conflicts_with = "numbers")]
    pub(crate) all: bool,
    /// Timeout, including connecting
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ForgetEntity {
    /// The remembered entity, as in order/17
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// Timeout, including connecting
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestartEntity {
    /// The entity, as in order/17
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// Timeout, including connecting
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Drain {
    /// The node's name
    pub(crate) node: String,
    /// Cancel the drain: the node may own shards again
    #[arg(long, conflicts_with = "timeout")]
    pub(crate) undo: bool,
    /// How long to wait; the drain continues afterwards
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The file to write; an existing one is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// The entity to create, as in counter/alice; it need not be the one that was exported
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The file that `ostraca export` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Delete the entity first, if it exists; what it was is written to FILE.replaced
    #[arg(long)]
    pub(crate) replace: bool,
    /// Leave out the subscriptions of other entities to its channels
    #[arg(long)]
    pub(crate) without_subscriptions: bool,
    /// Timeout for the acknowledgement, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Undeploy {
    /// The type's name
    #[arg(value_name = "TYPE")]
    pub(crate) name: String,
    /// Delete all entities of the type first
    #[arg(long)]
    pub(crate) delete_state: bool,
    /// Timeout for all of it, including connecting
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Forget {
    /// The node's name; a live node is refused
    pub(crate) node: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Cluster {
    /// Change a cluster-wide setting, such as lease="10 s"; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub(crate) set: Vec<(String, String)>,
    /// Let nodes write the newest storage format that all of them can read
    #[arg(long)]
    pub(crate) upgrade_format: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// The entity: TYPE/ID
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The channel [default: the entity's only channel]
    pub(crate) channel: Option<String>,
    /// Start at the oldest item that is available
    #[arg(long, conflicts_with_all = ["after", "after_version"])]
    pub(crate) oldest: bool,
    /// Continue behind the item with this cursor
    #[arg(long, value_name = "CURSOR", conflicts_with = "after_version")]
    pub(crate) after: Option<String>,
    /// Start at the first item of a later version of the entity
    #[arg(long, value_name = "VERSION")]
    pub(crate) after_version: Option<u64>,
    /// Stop after this many items
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rebalance {
    /// Only print the planned moves
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    /// Keep printing new events
    #[arg(long)]
    pub(crate) follow: bool,
    /// Show every shard's events instead of grouping them; JSON always has them all
    #[arg(long)]
    pub(crate) shards: bool,
    /// Start at this event [default: the oldest that the node keeps]
    #[arg(long, value_name = "N")]
    pub(crate) from_sequence: Option<u64>,
}
