//! Errors that keep a node from being created, starting or continuing. Each has a stable code, help text, and
//! the exit code of the command line.

use std::path::PathBuf;

use ostraca_codes::{Code, codes};
use ostraca_store::StoreError;
use ostraca_store_peer::ConnectError;
use ostraca_store_sled::OpenError;
use ostraca_wire::identity::IdentityError;

use ostraca_config::config::ConfigError;

/// Why a node cannot be created, start or continue. The node itself never retries; [`NodeError::is_retryable`] says
/// whether starting it again may help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory in which a node was to be created is not empty.
    #[error("the directory {0} is not empty")]
    DirectoryNotEmpty(PathBuf),
    /// An invalid name, count or address.
    #[error("{0}")]
    InvalidValue(String),
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// `read`, `write`, `create` or `remove`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The node cannot run with its configuration, although the configuration itself is valid.
    #[error(transparent)]
    Settings(#[from] ostraca_config::Error),
    /// The store could not be created or opened.
    #[error(transparent)]
    OpenStore(#[from] OpenError),
    /// The stores in PostgreSQL could not be created or opened.
    #[error(transparent)]
    OpenPostgres(#[from] ostraca_store_postgres::OpenError),
    /// The store in etcd could not be created or opened.
    #[error(transparent)]
    OpenEtcd(#[from] ostraca_store_etcd::OpenError),
    /// The store in Kubernetes could not be created or opened.
    #[error(transparent)]
    OpenKubernetes(#[from] ostraca_store_kubernetes::OpenError),
    /// The health check cannot be used.
    #[error(transparent)]
    HealthCheck(#[from] ostraca_health::HealthCheckError),
    /// The store with the state of entities is not the one that the cluster's rows name (R5).
    #[error(
        "the state of entities is in the store {expected:032x} according to the cluster's rows, but the configured one is {actual:032x}"
    )]
    OtherStateStore {
        /// The id of the store that the rows name.
        expected: u128,
        /// The id of the store that is configured.
        actual: u128,
    },
    /// The rows name a store of the state that the configuration does not.
    #[error(
        "the store {0:032x} has state of entities, but the configuration does not name its database"
    )]
    UnknownStore(u128),
    /// Nodes use the store that is to be copied.
    #[error("nodes of the cluster are running: stop all of them before their stores are copied")]
    ClusterRuns,
    /// Nodes renewed their leases while their cluster's rows were to be changed.
    #[error("these nodes are running: {}", .0.join(", "))]
    NodesRun(Vec<String>),
    /// Somebody else changed a row that was to be changed, after others were.
    #[error("{written} of {planned} rows were written; then the row `{key}` had changed")]
    RowsChanged {
        /// The row that was not written.
        key: String,
        /// How many rows were written before.
        written: usize,
        /// How many rows were to be written.
        planned: usize,
    },
    /// A copy of the stores cannot go on.
    #[error(transparent)]
    Copy(ostraca_store::transfer::CopyError),
    /// A backup could not be written or read.
    #[error(transparent)]
    Backup(#[from] ostraca_store::backup::BackupError),
    /// The HTTP gateway cannot be started.
    #[error(transparent)]
    Http(#[from] ostraca_http::BindError),
    /// Traces cannot be sent.
    #[error(transparent)]
    Trace(#[from] ostraca_trace::TraceError),
    /// A row of the cluster could not be read or written.
    #[error(transparent)]
    Catalog(#[from] ostraca_catalog::Error),
    /// No node of the cluster that this node was to join responded.
    #[error("cannot reach the cluster's store: {0}")]
    StoreUnreachable(String),
    /// Nodes responded, but none of them has the store or knows where it is.
    #[error("no node under `join` has the store or knows where it is: {0}")]
    NoStoreNode(String),
    /// This node refused a node of the cluster that it was to join, or was refused by that node.
    #[error("cannot join the cluster at {place}: {source}")]
    Join {
        /// The node's `host:port`.
        place: String,
        /// The reason.
        source: ostraca_wire::Error,
    },
    /// The store of the cluster to join must not be used.
    #[error(transparent)]
    StoreConnect(#[from] ConnectError),
    /// The cluster's pool differs from the configuration, or this program cannot use it.
    #[error(
        "pool `default` has {property} = {actual}, but this node is configured with {expected}"
    )]
    PoolMismatch {
        /// `shards` or `hash`.
        property: &'static str,
        /// What this node requires.
        expected: String,
        /// What the cluster has.
        actual: String,
    },
    /// The WebAssembly runtime could not be created.
    #[error("{0}")]
    Wasm(#[from] ostraca_wasm::Error),
    /// A worker could not be started.
    #[error(transparent)]
    Workers(#[from] ostraca_workers::Error),
    /// The network endpoint could not be created.
    #[error(transparent)]
    Wire(#[from] ostraca_wire::Error),
    /// The control thread could not be started, or reports that the node cannot continue.
    #[error(transparent)]
    Control(#[from] ostraca_control::Error),
    /// Another process renews the lease under this node's name (R7).
    #[error(
        "another process runs as node {node}, from {addresses}: it renews the lease, so this one cannot register"
    )]
    NameInUse {
        /// The node's name.
        node: String,
        /// The addresses of the other process.
        addresses: String,
    },
    /// A part of the node ended unexpectedly.
    #[error("a part of the node ended unexpectedly: {0}")]
    UnexpectedExit(String),
}

impl NodeError {
    /// The stable code; `docs/errors.md` lists all codes.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Config(error) => error.code(),
            Self::DirectoryNotEmpty(_) => codes::DIRECTORY_NOT_EMPTY,
            Self::InvalidValue(_) => codes::INVALID_VALUE,
            Self::File { .. } => codes::FILE_ERROR,
            Self::Settings(error) => error.code(),
            Self::OpenStore(error) => open_code(error),
            Self::OpenPostgres(error) => postgres_code(error),
            Self::OpenEtcd(error) => etcd_code(error),
            Self::OpenKubernetes(error) => kubernetes_code(error),
            Self::OtherStateStore { .. } => codes::STORE_MISMATCH,
            Self::UnknownStore(_) => codes::UNKNOWN_STORE,
            Self::ClusterRuns | Self::NodesRun(_) => codes::STORE_IN_USE,
            Self::RowsChanged { .. } => codes::ROW_CONFLICT,
            Self::Copy(error) => copy_code(error),
            Self::Backup(error) => backup_code(error),
            Self::Catalog(error) => error.code(),
            Self::Trace(_) | Self::HealthCheck(_) => codes::INVALID_CONFIG,
            Self::Http(error) => match error {
                ostraca_http::BindError::Listen { source, .. }
                    if source.kind() == std::io::ErrorKind::AddrInUse =>
                {
                    codes::ADDRESS_IN_USE
                }
                ostraca_http::BindError::Listen { .. } => codes::CANNOT_LISTEN,
                ostraca_http::BindError::NoTls(_) => codes::INVALID_CONFIG,
                ostraca_http::BindError::Tls { .. } => codes::FILE_ERROR,
            },
            Self::StoreUnreachable(_) | Self::StoreConnect(ConnectError::Unreachable(_)) => {
                codes::STORE_UNREACHABLE
            }
            Self::NoStoreNode(_) => codes::NO_STORE_NODE,
            Self::Join { source, .. } => source.code(),
            Self::StoreConnect(ConnectError::Refused(_)) => codes::STORE_REFUSED,
            Self::StoreConnect(ConnectError::InvalidWitness(_)) => codes::INVALID_WITNESS,
            Self::StoreConnect(ConnectError::Io { .. }) => codes::STORE_IO,
            Self::PoolMismatch { property: "hash", .. } => codes::HASH_MISMATCH,
            Self::PoolMismatch { .. } => codes::SHARD_COUNT_MISMATCH,
            Self::Wasm(error) => error.code(),
            Self::Workers(error) => error.code(),
            Self::Wire(error) => error.code(),
            Self::Control(error) => error.code(),
            Self::NameInUse { .. } => codes::NAME_IN_USE,
            Self::UnexpectedExit(_) => codes::NODE_FAILED,
        }
    }

    /// What to do; `None` if the error message already says it, or if there is no specific advice.
    #[must_use]
    pub fn help_text(&self) -> Option<String> {
        let help = match self {
            Self::Config(error) => return error.help_text().map(Into::into),
            Self::DirectoryNotEmpty(_) => {
                "choose another directory; existing files are never overwritten"
            }
            Self::Workers(error) => error.help_text(),
            Self::Trace(_) => "check [traces] in the configuration",
            Self::HealthCheck(_) => "check [health-check] in the configuration",
            Self::File { .. } => "check the path and its permissions",
            Self::Settings(error) => error.help_text(),
            Self::Http(ostraca_http::BindError::NoTls(_)) => return None,
            Self::Http(ostraca_http::BindError::Listen { setting, .. }) => {
                return Some(format!(
                    "choose another address (`{setting}`), or end the process that uses it"
                ));
            }
            Self::Http(ostraca_http::BindError::Tls { .. }) => "check [http] in the configuration",
            Self::Wire(ostraca_wire::Error::Identity(_)) => {
                "check [identity] in the configuration; `ostraca ca issue node NAME` creates a new one"
            }
            Self::Join { source, .. } => match source.code() {
                codes::NODES_ONLY => {
                    "give the node a certificate of its own with `ostraca ca issue node NAME`, and name it under \
                     [identity] in the configuration"
                }
                codes::NODE_MISMATCH => {
                    "check `node` and [identity] in the configuration: the certificate belongs to another node"
                }
                codes::SHARD_COUNT_MISMATCH | codes::HASH_MISMATCH => {
                    "fix `shards` and `hash` in [cluster] of the configuration, or join another cluster"
                }
                codes::CLUSTER_MISMATCH => "check `join` and [identity] in the configuration",
                codes::UNSUPPORTED_PROTOCOL | codes::UNKNOWN_FEATURE => {
                    "run the release that the cluster runs"
                }
                _ => return None,
            },
            Self::Catalog(error) => return error.help_text().map(Into::into),
            Self::StoreUnreachable(_) => {
                "check the addresses under `join`, and that the node with the role `store` is running"
            }
            Self::NoStoreNode(_) => {
                "name the node with the role `store` under `join`, or start the node again later"
            }
            Self::OtherStateStore { .. } => {
                "check `postgres.url`, `data` and the section `etcd` or `kubernetes` of the configuration: they belong to \
                 two clusters, or one of the stores was replaced"
            }
            Self::UnknownStore(_) => {
                "add the database to `postgres.databases` in the configuration"
            }
            Self::PoolMismatch { .. } => {
                "fix `shards` and `hash` in [cluster] of the configuration, or join another cluster"
            }
            Self::NameInUse { .. } => {
                "stop the other process; a copied data directory needs its own name and identity (`ostraca init`)"
            }
            Self::Wasm(ostraca_wasm::Error::Setting { setting, .. }) => {
                let setting = setting.replace('_', "-");
                return Some(format!("change `{setting}` in [guests] of the configuration"));
            }
            Self::Control(error) => return error.help_text().map(Into::into),
            Self::RowsChanged { .. } => {
                "a node is running: stop all nodes of the cluster, and run the command again"
            }
            Self::NodesRun(_) => "stop all nodes of the cluster, and run the command again",
            Self::InvalidValue(_)
            | Self::ClusterRuns
            | Self::Copy(_)
            | Self::Backup(_)
            | Self::OpenStore(_)
            | Self::OpenPostgres(_)
            | Self::OpenEtcd(_)
            | Self::OpenKubernetes(_)
            | Self::StoreConnect(_)
            | Self::Wasm(_)
            | Self::Wire(_)
            | Self::UnexpectedExit(_) => return None,
        };
        Some(help.into())
    }

    /// Whether starting the node again may succeed without any other change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::UnexpectedExit(_) => true,
            Self::Control(error) => error.is_retryable(),
            Self::Catalog(error) => error.is_retryable(),
            Self::StoreUnreachable(_) | Self::NoStoreNode(_) => true,
            Self::StoreConnect(error) => error.is_retryable(),
            Self::OpenPostgres(error) => error.is_retryable(),
            Self::OpenEtcd(error) => error.is_retryable(),
            Self::OpenKubernetes(error) => error.is_retryable(),
            Self::Settings(error) => error.is_retryable(),
            Self::Join { source, .. } => source.is_retryable(),
            Self::Wasm(error) => error.is_retryable(),
            Self::Workers(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// The exit code of the command line: 2 for invalid input, 9 after a lost arbitration, 7 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::DirectoryNotEmpty(_) | Self::InvalidValue(_) => 2,
            Self::Control(ostraca_control::Error::ArbitrationLost { .. }) => 9,
            _ => 7,
        }
    }
}

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> Self {
        Self::Catalog(error.into())
    }
}

impl From<IdentityError> for NodeError {
    fn from(error: IdentityError) -> Self {
        Self::Settings(error.into())
    }
}

fn open_code(error: &OpenError) -> Code {
    match error {
        OpenError::Missing(_) => codes::STORE_MISSING,
        OpenError::Empty(_) => codes::STORE_EMPTY,
        OpenError::Moved { .. } => codes::STORE_MOVED,
        OpenError::NotAStore(_) => codes::NOT_A_STORE,
        OpenError::NotEmpty(_) => codes::DIRECTORY_NOT_EMPTY,
        OpenError::InUse { .. } => codes::STORE_IN_USE,
        OpenError::Unwritable { .. } => codes::STORE_UNWRITABLE,
        OpenError::NewerFormat { .. } => codes::STORE_NEWER_FORMAT,
        OpenError::OlderFormat { .. } => codes::STORE_OLDER_FORMAT,
        OpenError::OtherCluster { .. } => codes::STORE_CLUSTER_MISMATCH,
        OpenError::OtherStore { .. } => codes::STORE_MISMATCH,
        OpenError::Forked { .. } => codes::STORE_FORKED,
        OpenError::RolledBack { .. } => codes::STORE_ROLLED_BACK,
        OpenError::InvalidWitness(_) => codes::INVALID_WITNESS,
        OpenError::Corrupt { .. } => codes::STORE_CORRUPT,
        OpenError::Io { .. } => codes::STORE_IO,
    }
}

fn copy_code(error: &ostraca_store::transfer::CopyError) -> Code {
    use ostraca_store::transfer::CopyError;
    match error {
        CopyError::Moved { .. } => codes::STORE_MOVED,
        CopyError::SourceChanged { .. } | CopyError::OtherSource { .. } => codes::UNFINISHED_COPY,
        CopyError::Differs { .. } => codes::COPY_DIFFERS,
        CopyError::Store(_) => codes::STORE_FAILED,
    }
}

fn backup_code(error: &ostraca_store::backup::BackupError) -> Code {
    use ostraca_store::backup::BackupError;
    match error {
        BackupError::OtherDirectory(_) => codes::DIRECTORY_NOT_EMPTY,
        BackupError::NoBackup(_) | BackupError::Unknown { .. } => codes::UNKNOWN_BACKUP,
        BackupError::Damaged(_) => codes::BACKUP_DAMAGED,
        BackupError::Io { .. } => codes::FILE_ERROR,
    }
}

fn postgres_code(error: &ostraca_store_postgres::OpenError) -> Code {
    use ostraca_store_postgres::OpenError;
    match error {
        OpenError::Connect(_) => codes::STORE_UNREACHABLE,
        OpenError::Access(_) => codes::STORE_ACCESS_DENIED,
        OpenError::Missing => codes::STORE_MISSING,
        OpenError::Exists { .. } => codes::STORE_EXISTS,
        OpenError::Moved { .. } => codes::STORE_MOVED,
        OpenError::Unfinished => codes::UNFINISHED_COPY,
        OpenError::NewerSchema { .. } => codes::STORE_NEWER_FORMAT,
        OpenError::OtherCluster { .. } => codes::STORE_CLUSTER_MISMATCH,
        OpenError::UnsafeSetting { .. }
        | OpenError::Standby
        | OpenError::ReadOnly
        | OpenError::OldServer { .. } => codes::UNSUITABLE_DATABASE,
        OpenError::RolledBack => codes::STORE_ROLLED_BACK,
        OpenError::FailedOver { .. } | OpenError::OtherServer { .. } => codes::STORE_FAILED_OVER,
        OpenError::Column(_) => codes::STORE_CORRUPT,
        OpenError::Url(_) | OpenError::Authority { .. } => codes::INVALID_CONFIG,
        OpenError::File { .. } => codes::FILE_ERROR,
        _ => codes::STORE_FAILED,
    }
}

fn etcd_code(error: &ostraca_store_etcd::OpenError) -> Code {
    use ostraca_store_etcd::OpenError;
    match error {
        OpenError::Unreachable(_) => codes::STORE_UNREACHABLE,
        OpenError::Missing { .. } => codes::STORE_MISSING,
        OpenError::Exists { .. } => codes::STORE_EXISTS,
        OpenError::NewerFormat { .. } => codes::STORE_NEWER_FORMAT,
        OpenError::OtherCluster { .. } => codes::STORE_CLUSTER_MISMATCH,
        OpenError::Login { .. } | OpenError::Permission { .. } => codes::STORE_ACCESS_DENIED,
        OpenError::OldServer { .. } => codes::UNSUITABLE_DATABASE,
        OpenError::Corrupt { .. } => codes::STORE_CORRUPT,
        OpenError::Endpoint { .. } | OpenError::Authority { .. } => codes::INVALID_CONFIG,
        OpenError::File { .. } => codes::FILE_ERROR,
        _ => codes::STORE_FAILED,
    }
}

fn kubernetes_code(error: &ostraca_store_kubernetes::OpenError) -> Code {
    use ostraca_store_kubernetes::OpenError;
    match error {
        OpenError::Unreachable(_) => codes::STORE_UNREACHABLE,
        OpenError::Missing { .. } => codes::STORE_MISSING,
        OpenError::Exists { .. } => codes::STORE_EXISTS,
        OpenError::NewerFormat { .. } => codes::STORE_NEWER_FORMAT,
        OpenError::OtherCluster { .. } => codes::STORE_CLUSTER_MISMATCH,
        OpenError::Recreated { .. } => codes::STORE_ROLLED_BACK,
        OpenError::Login(_) | OpenError::Permission { .. } => codes::STORE_ACCESS_DENIED,
        OpenError::Version { .. } => codes::UNSUITABLE_DATABASE,
        OpenError::Corrupt { .. } => codes::STORE_CORRUPT,
        OpenError::Url { .. }
        | OpenError::Name { .. }
        | OpenError::NotInCluster
        | OpenError::UnnamedPod
        | OpenError::Pod { .. }
        | OpenError::TerminationLog { .. }
        | OpenError::Namespace { .. }
        | OpenError::Certificate { .. } => codes::INVALID_CONFIG,
        OpenError::File { .. } => codes::FILE_ERROR,
        _ => codes::STORE_FAILED,
    }
}
