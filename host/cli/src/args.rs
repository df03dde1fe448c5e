//! The command line.

mod access;
mod ca;
mod cluster;
mod init;
mod messages;
mod namespaces;
mod pools;
mod projects;
mod repair;
mod shards;
mod store;
mod types;
mod upgrade;
mod variables;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};

pub(crate) use access::{
    AsNode, Audit, IssueToken, Policy, PolicyCommand, Revocations, Revoke, Token, TokenCommand,
};
pub(crate) use ca::{Ca, CaCommand, CertificateKind, Issue, Rotate};
pub(crate) use cluster::{
    ChosenDeadLetters, Cluster, DeadLetterCommand, DeadLetters, Delete, Drain, Entities, Events,
    Export, Forget, ForgetEntity, Import, Inspect, ListedDeadLetters, Rebalance, RestartEntity,
    Top, Undeploy, Watch,
};
pub(crate) use init::{Init, TlsMode};
pub(crate) use messages::{Send, Tell};
pub(crate) use namespaces::{Limit, NamespaceArgs, NamespaceCommand, SetQuotas};
pub(crate) use pools::{CopyPool, CreatePool, PoolArgs, PoolCommand};
pub(crate) use projects::{Build, New, ProjectLanguage};
pub(crate) use repair::{Repair, Reset, ResetCommand, ResetSharding};
pub(crate) use shards::{MoveShards, PinShards, PlaceShards, ShardNumbers, Shards, ShardsCommand};
pub(crate) use store::{
    Backup, DatabaseAccess, Restore, Store, StoreCommand, StoreCopy, StoreMove,
};
pub(crate) use types::{
    Activate, ClientLanguage, Deploy, Deployments, Methods, Rollback, TypedClient,
};
pub(crate) use upgrade::{Upgrade, UpgradeCommand};
pub(crate) use variables::{
    ListVariables, Secret, SecretCommand, Setting, SettingCommand, VariableName,
};

/// Heading of the options that every command has.
const GLOBAL: &str = "Global options";

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  unexpected failure
  2  usage error, or an invalid input file
  3  no node responds, or the node refuses this client
  4  the entity refused the message with an application error; this is final
  5  not run: the message had no effect, and never will
  6  it is unknown whether the message ran: resend it with the same id
  7  the node could not start, or ended unexpectedly
  8  the cluster is unhealthy (status), or its rows contradict each other (repair)
  9  nodes could not reach each other, and this one lost the arbitration
  130  stopped by a signal before it was ready, or by a second signal";

/// Hosts durable entities whose logic is a WebAssembly component.
#[derive(Debug, Parser)]
#[command(name = "ostraca", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// The profile: a cluster's addresses and the client's certificate [default: $OSTRACA_PROFILE, else the nearest
    /// .ostraca/profile.toml in this directory or a parent]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// The namespace of the types that the command names [default: the profile's, which is `default` unless it says
    /// otherwise]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "NAME", env = "OSTRACA_NAMESPACE", hide_env_values = true)]
    pub(crate) namespace: Option<String>,
    /// Output format of results and errors
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
    /// Increase log verbosity (-v: info, -vv: debug); overridden by --log and RUST_LOG
    #[arg(short, long, global = true, help_heading = GLOBAL, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Format of log lines
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FORMAT", value_enum, default_value_t, env = "OSTRACA_LOG_FORMAT", hide_env_values = true)]
    pub(crate) log_format: LogFormat,
    /// Log filter, such as `info,ostraca_gateway=debug`
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILTER", env = "RUST_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Human-readable text
    #[default]
    Table,
    /// JSON; events are one object per line
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a cluster and its first node; with --ca, a node that joins an existing cluster
    Init(Box<Init>),
    /// Run a node until SIGTERM or SIGINT; a second signal stops it immediately
    Run(Run),
    /// Run a development node; with DIR, build and deploy that project on every save
    Dev(Dev),
    /// Show, check or explain a node's configuration
    Config(Config),
    /// Add PostgreSQL databases, move shards among them, copy stores, or accept a server after a fail-over
    Store(Store),
    /// Check the rows of a stopped cluster for contradictions, and fix them
    Repair(Repair),
    /// Reset parts of a stopped cluster
    Reset(Reset),
    /// Issue certificates with the cluster's authority, or replace it
    Ca(Ca),
    /// Issue short-lived tokens for clients without a certificate, signed by the cluster's authority
    Token(Token),
    /// Create an entity project in ./NAME
    New(New),
    /// Compile an entity to a component
    Build(Build),
    /// Deploy a component with its manifest
    Deploy(Deploy),
    /// Activate a stored revision of a type
    Activate(Activate),
    /// Go back to the revision before the current one, as a new revision
    Rollback(Rollback),
    /// List deployments, or the revisions of one type
    Deployments(Deployments),
    /// Remove a type that has no entities or other data left; with --delete-state, delete them first
    Undeploy(Undeploy),
    /// List a type's methods
    Methods(Methods),
    /// Write a type's methods as typed calls in TypeScript, Python or Rust
    Client(TypedClient),
    /// Send a message to an entity and print the result
    Send(Send),
    /// Send a command and print only whether it was committed
    Tell(Tell),
    /// Print the items that an entity emits on a channel
    Watch(Watch),
    /// Show cluster health and how to fix problems
    Status,
    /// List the nodes and the current manager
    Nodes,
    /// Show live node activity, the slowest methods and the hottest entities
    Top(Top),
    /// Show which node owns which shard, as a map
    Shards(Shards),
    /// List entities
    Entities(Entities),
    /// Show one entity's state
    Inspect(Inspect),
    /// Delete one entity, without calling its guest
    Delete(Delete),
    /// Write one entity to a file
    Export(Export),
    /// Back up the embedded store of a running cluster, as of one moment
    Backup(Backup),
    /// Restore a backup to a node without a store, or to a PostgreSQL database
    Restore(Restore),
    /// Create an entity from a file that `export` wrote
    Import(Import),
    /// List, resend or drop dead letters (tells whose target refused them or kept failing)
    DeadLetters(DeadLetters),
    /// Stop remembering an entity: it is no longer started without a message
    ForgetEntity(ForgetEntity),
    /// Let a stopped entity start again, or retry a failed migration
    RestartEntity(RestartEntity),
    /// Move all shards off a node and keep it drained
    Drain(Drain),
    /// Mark a permanently lost node as removed
    Forget(Forget),
    /// Show or change cluster-wide settings
    Cluster(Cluster),
    /// Follow a rolling upgrade of the nodes
    Upgrade(Upgrade),
    /// Show, check or replace the policy: who may do what
    Policy(Policy),
    /// List the cluster's namespaces, create more of them, or set their quotas
    Namespace(NamespaceArgs),
    /// Manage pools: spaces of shards, each with its own hosts
    Pool(PoolArgs),
    /// Show as whom the cluster knows you (the principal), your roles, and what you may do
    Whoami,
    /// Revoke a client's credentials: its connections are closed, and no node accepts it any more
    Revoke(Revoke),
    /// List what is revoked
    Revocations(Revocations),
    /// Manage secrets that a type's entities may read
    Secret(Secret),
    /// Manage settings that a type's entities may read
    Setting(Setting),
    /// Show who has asked for which change of the cluster
    Audit(Audit),
    /// Distribute the shards evenly over the nodes
    Rebalance(Rebalance),
    /// Show the cluster's events
    Events(Events),
    /// Print a shell completion script
    Completions(Completions),
    /// Print candidates for the last word, for completion scripts
    #[command(hide = true)]
    Complete(Complete),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The node's configuration, or a directory with an ostraca.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// A node of the cluster to join, overriding the configuration; may be repeated
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(crate) join: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Dev {
    /// An entity project to build and deploy now, and again when a source file is saved
    pub(crate) dir: Option<PathBuf>,
    /// The node's data directory; created if missing
    #[arg(long, value_name = "DIR", default_value = ".ostraca")]
    pub(crate) data: PathBuf,
    /// The address to listen on; port 0 picks a free one [default: the previous address, else 127.0.0.1:0]
    #[arg(long, value_name = "ADDR", value_parser = ip_and_port)]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    pub(crate) what: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a configuration with every default filled in
    Show {
        /// The node's configuration file, or a directory with an ostraca.toml
        file: PathBuf,
    },
    /// Check a configuration, and that PostgreSQL, etcd and Kubernetes answer if it names them
    Check {
        /// The node's configuration file, or a directory with an ostraca.toml
        file: PathBuf,
        /// Check the file alone
        #[arg(long)]
        offline: bool,
    },
    /// Print every setting with its default and meaning
    Default,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Complete {
    /// The words of the command line so far, without `ostraca`
    #[arg(last = true)]
    pub(crate) words: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

fn ip_and_port(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an IP address and a port, as in 127.0.0.1:7411")
}

/// Checks HOST:PORT here, since a mistake that is written to a file would be refused only when a node reads the file.
fn host_and_port(text: &str) -> Result<String, &'static str> {
    let good = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    good.then(|| text.to_owned()).ok_or("write HOST:PORT with a numeric port")
}

/// Parses KEY=VALUE.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.trim().into(), value.trim().into()))
}
