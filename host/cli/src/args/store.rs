//! Arguments of `ostraca store`, `backup` and `restore`.

use std::path::PathBuf;

use clap::Subcommand;

use super::TlsMode;

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
    /// The first and the last shard, as in 1-128; without it, the progress of the current move is shown until it is complete
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
