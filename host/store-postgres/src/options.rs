//! The settings of a PostgreSQL store.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ostraca_core::ids::ClusterId;
use tokio_postgres::config::Host;

/// Settings, each with a default except the address.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the database is and how to log in, as a PostgreSQL connection string:
    /// `host=db.example.org user=ostraca dbname=ostraca`, or `postgres://ostraca@db.example.org/ostraca`.
    pub url: String,
    /// A file with the password, read at each login. Default: none.
    pub password_file: Option<PathBuf>,
    /// Encryption of the connections, whatever `sslmode` the connection string says. Default [`Tls::Off`].
    pub tls: Tls,
    /// The cluster that the store must belong to. Default: any.
    pub cluster: Option<ClusterId>,
    /// The number of the opening by the process before this one, which has ended: what that one left in the database is
    /// removed. Default: unknown.
    pub last_opening: Option<u64>,
    /// What a commit waits for. Default [`Durability::Local`].
    pub durability: Durability,
    /// Number of connections that write. The shards are divided among them. Default 4.
    pub writers: usize,
    /// Maximum number of connections that read. Default 8.
    pub readers: usize,
    /// How long opening a connection may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long the server may work on one statement, and how long a statement may wait for a lock. Must be shorter
    /// than the lease (R4). Default 2 s.
    pub statement_timeout: Duration,
    /// How long a call may be unanswered before its connection is given up and the outcome counts as unknown. Default
    /// 5 s.
    pub call_timeout: Duration,
    /// Number of commits in one batch at which no further commit joins it. Default 1,024.
    pub batch_commits: usize,
    /// Bytes in one batch at which no further commit joins it. Default 8 MiB.
    pub batch_bytes: usize,
    /// Maximum number of commits and claims that wait for a connection; further ones are refused. Default 65,536.
    pub queue_commits: usize,
    /// Maximum size in bytes of all commits that wait for a connection; further ones are refused. Default 64 MiB.
    pub queue_bytes: usize,
    /// Maximum number of calls for the cluster's rows that wait; further ones are refused. Default 16,384.
    pub queue_rows: usize,
    /// Number of changes of the cluster's rows that the database keeps for nodes that were cut off; one that missed
    /// more lists the rows again. Default 10,000.
    pub row_changes: usize,
    /// Whether the server tells the nodes of changes of rows (`LISTEN`). A pooler between them may not pass that on:
    /// then set it to false on all nodes, and only `watch_interval` counts. Default true.
    pub listen: bool,
    /// How often the database is asked for changes of rows that it has not told. Default 250 ms.
    pub watch_interval: Duration,
    /// Number of changes of rows that are kept in memory for watches of this process. Default 8,192.
    pub watch_history_changes: usize,
    /// Size in bytes of these changes. Default 16 MiB.
    pub watch_history_bytes: usize,
    /// Maximum number of reads that run or wait; further ones are refused. Default 65,536.
    pub queue_reads: usize,
}

/// What a commit waits for before it counts as durable (`synchronous_commit`). The server must not be set to less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The server's own disk, and that of the synchronous standbys if `synchronous_standby_names` names any (`on`).
    #[default]
    Local,
    /// The same, and the standbys show it (`remote_apply`).
    Applied,
}

impl Durability {
    /// The value of `synchronous_commit`.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Local => "on",
            Self::Applied => "remote_apply",
        }
    }
}

/// Encryption of the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// None: everyone on the way to the server can read and change what is sent.
    #[default]
    Off,
    /// TLS 1.2 or 1.3. The server's certificate must carry the host's name.
    Verify {
        /// PEM file with the certificates that the server's one is checked against. `None`: those of the public
        /// authorities.
        ca: Option<PathBuf>,
    },
}

impl Options {
    /// Checks the address.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check_url(url: &str) -> Result<(), String> {
        let parsed = url.parse::<tokio_postgres::Config>();
        let parsed = parsed.map_err(|error| crate::error::text(&error))?;
        match parsed.get_hosts().is_empty() && parsed.get_hostaddrs().is_empty() {
            true => Err("it names no host".into()),
            false => Ok(()),
        }
    }

    /// The database in words, without the password.
    #[must_use]
    pub fn place(&self) -> String {
        let Ok(parsed) = self.url.parse::<tokio_postgres::Config>() else {
            return "PostgreSQL".into();
        };
        let hosts = parsed.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts: Vec<_> = hosts.collect();
        let name = parsed.get_dbname().or(parsed.get_user()).unwrap_or_default();
        format!("PostgreSQL at {}, database {name}", hosts.join(","))
    }

    /// Whether each host of the address is this machine.
    #[must_use]
    pub fn is_local(url: &str) -> bool {
        let Ok(parsed) = url.parse::<tokio_postgres::Config>() else { return false };
        let is_local = |host: &Host| match host {
            Host::Tcp(name) => {
                name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            Host::Unix(_) => true,
        };
        let addresses = parsed.get_hostaddrs();
        match addresses.is_empty() {
            true => parsed.get_hosts().iter().all(is_local),
            false => addresses.iter().all(IpAddr::is_loopback),
        }
    }

    /// The default settings for a database.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password_file: None,
            tls: Tls::default(),
            cluster: None,
            last_opening: None,
            durability: Durability::default(),
            writers: 4,
            readers: 8,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(5),
            batch_commits: 1024,
            batch_bytes: 8 << 20,
            queue_commits: 65_536,
            queue_bytes: 64 << 20,
            queue_rows: 16_384,
            row_changes: 10_000,
            listen: true,
            watch_interval: Duration::from_millis(250),
            watch_history_changes: 8192,
            watch_history_bytes: 16 << 20,
            queue_reads: 65_536,
        }
    }
}
