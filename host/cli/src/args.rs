//! The command line.

mod access;
mod cluster;
mod namespaces;
mod pools;
mod repair;
mod shards;
mod upgrade;
mod variables;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use ostraca_client::MessageId;
use ostraca_node::config::Role;

pub(crate) use access::{
    AsNode, Audit, IssueToken, Policy, PolicyCommand, Revocations, Revoke, Token, TokenCommand,
};
pub(crate) use cluster::{
    ChosenDeadLetters, Cluster, DeadLetterCommand, DeadLetters, Delete, Drain, Entities, Events,
    Export, Forget, ForgetEntity, Import, Inspect, ListedDeadLetters, Rebalance, RestartEntity,
    Top, Undeploy, Watch,
};
pub(crate) use namespaces::{NamespaceArgs, NamespaceCommand, SetQuotas};
pub(crate) use pools::{CopyPool, CreatePool, PoolArgs, PoolCommand};
pub(crate) use repair::{Repair, Reset, ResetCommand, ResetSharding};
pub(crate) use shards::{MoveShards, PinShards, PlaceShards, ShardNumbers, Shards, ShardsCommand};
pub(crate) use upgrade::{Upgrade, UpgradeCommand};
pub(crate) use variables::{
    ListVariables, Secret, SecretCommand, Setting, SettingCommand, VariableName,
};

/// Heading of the options that every command has.
const GLOBAL: &str = "Global options";

const BUILD: &str = "\
What the directory contains shows the language: Cargo.toml Rust, package.json JavaScript or TypeScript,
pyproject.toml Python, src/entity.c C.
A component in Rust is compiled for wasm32-unknown-unknown. On this target, use
ostraca_sdk::clock, ostraca_sdk::random and ostraca_sdk::log: SystemTime::now() panics, and println! goes
nowhere. Integer overflow panics, as in tests.";

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
  9  the node could not be reached by the others, and lost the arbiter's lease";

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
    /// Issue certificates with the cluster's authority
    Ca(Ca),
    /// Issue tokens with the cluster's authority: for clients without a certificate, for hours
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
    /// Undeploy a type of which nothing is left
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
    /// Show who this profile is for the cluster, and what it may do
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
#[command(group(clap::ArgGroup::new("way_to_join").args(["join", "postgres", "etcd", "kubernetes"]).multiple(true)))]
pub(crate) struct Init {
    /// Directory to create the node in; must be empty or not exist yet
    pub(crate) dir: PathBuf,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "ostraca", conflicts_with = "ca")]
    pub(crate) cluster: String,
    /// The node's name [default: node-1; with --ca, the directory's]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// The address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411", value_parser = ip_and_port)]
    pub(crate) listen: SocketAddr,
    /// Number of shards; fixed for the lifetime of the cluster
    #[arg(long, value_name = "N", default_value_t = ostraca_node::init::DEFAULT_SHARDS, conflicts_with = "ca")]
    pub(crate) shards: u32,
    /// A cluster-wide setting, such as lease="10 s"; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, conflicts_with = "ca")]
    pub(crate) set: Vec<(String, String)>,
    /// Address of a node whose cluster the new node joins; may be repeated
    #[arg(long, value_name = "HOST:PORT", requires = "ca",
          conflicts_with_all = ["postgres", "etcd", "kubernetes"],
          value_parser = host_and_port)]
    pub(crate) join: Vec<String>,
    /// Keep the cluster's state in this PostgreSQL database, such as "host=HOST user=USER dbname=DATABASE"; with --ca,
    /// the new node joins the cluster in it
    #[arg(long, value_name = "URL")]
    pub(crate) postgres: Option<String>,
    /// File with the password for the database
    #[arg(long, value_name = "FILE", requires = "postgres")]
    pub(crate) postgres_password_file: Option<PathBuf>,
    /// Encryption of the connections to the database; required unless it is on this machine
    #[arg(long, value_name = "MODE", requires = "postgres", value_enum)]
    pub(crate) postgres_tls: Option<TlsMode>,
    /// PEM file with the authority of the database's certificate [default: the public authorities]
    #[arg(long, value_name = "FILE", requires = "postgres")]
    pub(crate) postgres_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,
    /// Directory of the cluster's authority, with ca.pem and ca.key: the new node joins that cluster
    #[arg(long, value_name = "DIR", requires = "way_to_join")]
    pub(crate) ca: Option<PathBuf>,
    /// Roles of the joining node: manager (may assign shards), host (owns shards and runs entities), host.NAME (the same
    /// for pools with this role), gateway (accepts clients); only the first node has the role store
    #[arg(long, value_name = "ROLES", value_delimiter = ',', requires = "ca",
          default_values = ["manager", "host", "gateway"])]
    pub(crate) roles: Vec<Role>,
}

/// Where etcd is.
#[derive(Debug, clap::Args)]
pub(crate) struct EtcdArgs {
    /// Keep the cluster's rows (nodes, leases, owners of shards, deployments) in etcd: a member, or several separated by
    /// commas; with --ca, the new node joins the cluster in it
    #[arg(long = "etcd", id = "etcd", value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) endpoints: Vec<String>,
    /// What all keys in etcd start with [default: ostraca/]
    #[arg(long = "etcd-prefix", value_name = "PREFIX", requires = "etcd")]
    pub(crate) prefix: Option<String>,
    /// User to log in to etcd as
    #[arg(long = "etcd-user", value_name = "NAME", requires = "etcd")]
    pub(crate) user: Option<String>,
    /// File with the password for etcd
    #[arg(long = "etcd-password-file", value_name = "FILE", requires = "etcd")]
    pub(crate) password_file: Option<PathBuf>,
    /// Encryption of the connections to etcd; required unless it is on this machine
    #[arg(long = "etcd-tls", value_name = "MODE", requires = "etcd", value_enum)]
    pub(crate) tls: Option<TlsMode>,
    /// PEM file with the authority of the certificates of etcd's members [default: the public authorities]
    #[arg(long = "etcd-ca-file", value_name = "FILE", requires = "etcd")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with the certificate to show to etcd
    #[arg(
        long = "etcd-certificate-file",
        id = "etcd_certificate",
        value_name = "FILE",
        requires_all = ["etcd", "etcd_key"]
    )]
    pub(crate) certificate_file: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(
        long = "etcd-key-file",
        id = "etcd_key",
        value_name = "FILE",
        requires_all = ["etcd", "etcd_certificate"]
    )]
    pub(crate) key_file: Option<PathBuf>,
}

/// Where Kubernetes is.
#[derive(Debug, clap::Args)]
pub(crate) struct KubernetesArgs {
    /// Keep the cluster's rows in Kubernetes, as leases in a namespace: the API server's address, or in-cluster for the
    /// pod's; with --ca, the new node joins the cluster there
    #[arg(long = "kubernetes", id = "kubernetes", value_name = "URL", conflicts_with = "etcd")]
    pub(crate) url: Option<String>,
    /// The namespace in Kubernetes [default with in-cluster: the pod's; otherwise required]
    #[arg(
        long = "kubernetes-namespace",
        id = "kubernetes_namespace",
        value_name = "NAME",
        requires = "kubernetes"
    )]
    pub(crate) namespace: Option<String>,
    /// What the names of the leases start with [default: ostraca]
    #[arg(
        long = "kubernetes-name",
        id = "kubernetes_name",
        value_name = "NAME",
        requires = "kubernetes"
    )]
    pub(crate) name: Option<String>,
    /// File with the token for the API server [default with in-cluster: the pod's; otherwise none]
    #[arg(
        long = "kubernetes-token-file",
        id = "kubernetes_token_file",
        value_name = "FILE",
        requires = "kubernetes"
    )]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file with the authority of the API server's certificate [default with in-cluster: the pod's; otherwise the
    /// public authorities]
    #[arg(
        long = "kubernetes-ca-file",
        id = "kubernetes_ca_file",
        value_name = "FILE",
        requires = "kubernetes"
    )]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file with the certificate to show to the API server
    #[arg(
        long = "kubernetes-certificate-file",
        id = "kubernetes_certificate",
        value_name = "FILE",
        requires_all = ["kubernetes", "kubernetes_key"]
    )]
    pub(crate) certificate_file: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(
        long = "kubernetes-key-file",
        id = "kubernetes_key",
        value_name = "FILE",
        requires_all = ["kubernetes", "kubernetes_certificate"]
    )]
    pub(crate) key_file: Option<PathBuf>,
}

/// Encryption of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsMode {
    /// TLS; the server's certificate must carry its host's name
    Verify,
    /// None
    Off,
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
pub(crate) struct Store {
    #[command(subcommand)]
    pub(crate) what: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Accept the PostgreSQL server as it is, although it may lack acknowledged turns: after a fail-over without
    /// synchronous replication, a restore or an upgrade
    Accept {
        /// A node's configuration file, or a directory with an ostraca.toml
        file: PathBuf,
        /// The database was restored from a backup: make it another store, whose epochs and incarnations are above all
        /// that were used after the backup
        #[arg(long)]
        restored: bool,
    },
    /// Create the tables in the databases under `postgres.databases` that have none, so that shards can be moved there
    Add {
        /// A node's configuration file, or a directory with an ostraca.toml
        file: PathBuf,
    },
    /// Move a range of shards to another database while the cluster runs; continues an interrupted move
    Move(StoreMove),
    /// Copy the state and rows of a stopped cluster from a node to PostgreSQL, or back; continues an interrupted copy
    Copy(StoreCopy),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Backup {
    /// The directory of backups; created if missing. What an earlier backup there has written is not written again
    pub(crate) dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Restore {
    /// The directory of backups
    pub(crate) dir: PathBuf,
    /// The backup's name, as `ostraca backup` printed it [default: the newest]
    #[arg(long, value_name = "NAME")]
    pub(crate) backup: Option<String>,
    /// Where to restore it: the configuration of a node without a store, or the connection string of a PostgreSQL
    /// database without one
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) database: DatabaseAccess,
}

/// How a database is reached that is named by its connection string.
#[derive(Debug, clap::Args)]
pub(crate) struct DatabaseAccess {
    /// A file with the password of the connection string's user
    #[arg(long, value_name = "FILE")]
    pub(crate) postgres_password_file: Option<PathBuf>,
    /// Encryption of the connection to the database; required unless it is on this machine
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) postgres_tls: Option<TlsMode>,
    /// Certificates of the authority of the database's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) postgres_ca_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StoreMove {
    /// The first and the last shard, as in 1-128; without it, the move in progress is shown and ended
    #[arg(long, value_name = "FIRST-LAST", requires = "to")]
    pub(crate) shards: Option<String>,
    /// The id of the store that gets them, as `ostraca config check` shows it
    #[arg(long, value_name = "ID", requires = "shards")]
    pub(crate) to: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StoreCopy {
    /// Where they are: the configuration of a node, or the connection string of a PostgreSQL database. Afterwards, no
    /// node can use them there
    #[arg(long, value_name = "PLACE")]
    pub(crate) from: String,
    /// Where to put them: the configuration of a node without a store, or the connection string of a database without
    /// one
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) database: DatabaseAccess,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Ca {
    #[command(subcommand)]
    pub(crate) what: CaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// Issue a certificate with its key
    Issue(Issue),
    /// Replace the authority while the cluster runs: first both are trusted, with --finish only the new one
    Rotate(Rotate),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rotate {
    /// Directory of the authority, with ca.pem and ca.key
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// End the trust in the former authority: shuts out clients whose certificates it issued
    #[arg(long)]
    pub(crate) finish: bool,
    /// Certify the keys of the nodes without asking
    #[arg(long, conflicts_with = "finish")]
    pub(crate) yes: bool,
    /// With --finish: even if nodes, or you, still have certificates that the former authority issued
    #[arg(long, requires = "finish")]
    pub(crate) force: bool,
    /// How long to wait until all live nodes have new certificates
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration, conflicts_with = "finish")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) node: AsNode,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Issue {
    /// Subject of the certificate
    #[arg(value_enum)]
    pub(crate) kind: CertificateKind,
    /// Name of the client or node
    pub(crate) name: String,
    /// Directory of the authority, with ca.pem and ca.key
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// Output directory for NAME.pem and NAME.key, and for a client its profile NAME.toml
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
    /// A node's address for the client's profile; may be repeated
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7411", value_parser = host_and_port)]
    pub(crate) address: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CertificateKind {
    /// A client, which sends messages and deploys
    Client,
    /// A node of the cluster
    Node,
}

#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Name of the project and the entity type: lower-case letters, digits, dashes
    pub(crate) name: String,
    /// The language of the entity
    #[arg(long = "lang", value_name = "LANG", value_enum, default_value_t)]
    pub(crate) language: ProjectLanguage,
}

/// The language of an entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectLanguage {
    /// Rust
    #[default]
    Rust,
    /// JavaScript, built with Node.js
    Js,
    /// TypeScript, built with Node.js
    Ts,
    /// Python
    Python,
    /// C, built with clang
    C,
}

#[derive(Debug, clap::Args)]
#[command(after_help = BUILD)]
pub(crate) struct Build {
    /// The directory with entity.toml, and Cargo.toml, package.json, pyproject.toml or src/entity.c
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Deploy {
    /// A manifest, or a directory with an entity.toml
    #[arg(default_value = ".")]
    pub(crate) manifest: PathBuf,
    /// Deploy only if this is the current revision; 0 if the type is not deployed yet
    #[arg(long, value_name = "N")]
    pub(crate) expect_revision: Option<u64>,
    /// Build the component first
    #[arg(long)]
    pub(crate) build: bool,
    /// Store the revision without activating it
    #[arg(long, conflicts_with = "expect_revision")]
    pub(crate) inactive: bool,
    /// Change nothing: check the deployment, and migrate, start and query copies of entities
    #[arg(long, conflicts_with_all = ["inactive", "expect_revision"])]
    pub(crate) dry_run: bool,
    /// With --dry-run: an entity to try; can be repeated, up to 100 times
    #[arg(long = "id", value_name = "ID", requires = "dry_run", conflicts_with = "sample")]
    pub(crate) ids: Vec<String>,
    /// With --dry-run: how many entities to try
    #[arg(long, value_name = "N", requires = "dry_run", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) sample: u32,
    /// With --dry-run: the query to ask, without arguments; by default the first one that takes none
    #[arg(long, value_name = "METHOD", requires = "dry_run")]
    pub(crate) query: Option<String>,
}

/// Parses a percentage with up to one decimal place, into per mille.
fn parse_percent(text: &str) -> Result<u32, String> {
    let percent: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if !(0.0..=100.0).contains(&percent) {
        return Err("must be 0 to 100".into());
    }
    Ok((percent * 10.0).round() as u32)
}

#[derive(Debug, clap::Args)]
pub(crate) struct Activate {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The revision, as in `ostraca deployments TYPE`; one that was active before gets a new number
    pub(crate) revision: u64,
    /// Only for this share of the entities, in percent: the others run the revision before it
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) share: Option<u32>,
    /// Only for the entities in the shards 1 to N, in addition to --share
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<u32>,
    /// Raise that number by N shards a minute, until all entities run it or one cannot be migrated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rollback {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Deployments {
    /// List the stored revisions of this type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Methods {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TypedClient {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The language
    #[arg(long = "lang", value_name = "LANG", value_enum)]
    pub(crate) language: ClientLanguage,
    /// The file to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// The language of typed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientLanguage {
    /// TypeScript, for the package in host/client/typescript
    Ts,
    /// Python, for the package in host/client/python
    Python,
    /// Rust, for the crate ostraca-client
    Rust,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Send {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The method to call
    pub(crate) method: String,
    /// The arguments; - reads them from standard input
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) json: Option<String>,
    /// Resend the message with this id; returns the recorded outcome if it already ran
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<MessageId>,
    /// Timeout for the outcome, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// Fail unless the method is a command
    #[arg(long, conflicts_with = "query")]
    pub(crate) command: bool,
    /// Fail unless the method is a query
    #[arg(long)]
    pub(crate) query: bool,
    /// The caller's W3C trace context; the node traces the message if it is sampled
    #[arg(long, value_name = "TRACEPARENT", env = "TRACEPARENT", hide_env_values = true)]
    pub(crate) traceparent: Option<String>,
    /// Send the arguments without comparing them with the method's schema
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Send it only once: at most once instead of exactly once; if the reply is lost, its outcome is unknown
    #[arg(long)]
    pub(crate) no_retry: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Tell {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The method to call; must be a command
    pub(crate) method: String,
    /// The arguments; - reads them from standard input
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) json: Option<String>,
    /// Resend the command with this id; it runs only if it has not run yet
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<MessageId>,
    /// Timeout for the acknowledgement, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// The caller's W3C trace context; the node traces the message if it is sampled
    #[arg(long, value_name = "TRACEPARENT", env = "TRACEPARENT", hide_env_values = true)]
    pub(crate) traceparent: Option<String>,
    /// Send the arguments without comparing them with the method's schema
    #[arg(long)]
    pub(crate) no_check: bool,
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
