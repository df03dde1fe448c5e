//! Why a store could not be created or opened, and what to do about it.

use std::error::Error as _;
use std::path::PathBuf;

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreError;
use tokio_postgres::error::SqlState;

/// The code of the error by which the tables refuse a writer once the store was moved.
const MOVED: &str = "OS002";

/// Why a store could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The connection string cannot be used.
    #[error("invalid PostgreSQL address: {0}")]
    Url(String),
    /// A file with the password or certificates cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A file has no certificates that a server can be checked against.
    #[error("{path} has no certificates of an authority in PEM form: {why}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The server refuses the user, the password or the database, or the user lacks a right.
    #[error("PostgreSQL refuses access: {0}; check the user, the password file and the database")]
    Access(String),
    /// The server cannot be reached.
    #[error("cannot connect to PostgreSQL: {0}")]
    Connect(String),
    /// A statement failed.
    #[error("PostgreSQL refused a statement: {0}")]
    Statement(String),
    /// A column is missing or of another type.
    #[error(transparent)]
    Column(#[from] ColumnError),
    /// The database has no store. It never becomes one automatically (R5).
    #[error(
        "the database has no tables of Ostraca: create them with `ostraca init`, or check the address"
    )]
    Missing,
    /// A store cannot be created where one is.
    #[error(
        "the database already has a store of the cluster {name} ({cluster}): choose another database"
    )]
    Exists {
        /// The cluster that the store belongs to.
        cluster: ClusterId,
        /// That cluster's name.
        name: String,
    },
    /// The store was copied to another place, and must not be used here any more (R26).
    #[error(
        "the store in the database was moved to {to}: use it there, or copy it back with `ostraca store copy`"
    )]
    Moved {
        /// Where it was moved to.
        to: String,
    },
    /// The store is a copy that is not finished.
    #[error(
        "the database has an unfinished copy of a store: continue it with `ostraca store copy`, or drop the schema \
         `ostraca` and use the source"
    )]
    Unfinished,
    /// A newer release made the tables.
    #[error(
        "the tables have version {found}, but this release knows versions up to {known}: use the newer release"
    )]
    NewerSchema {
        /// The version of the tables.
        found: i32,
        /// The newest version that this release knows.
        known: i32,
    },
    /// The store belongs to another cluster (R5).
    #[error("the database belongs to the cluster {name} ({cluster}): check the address")]
    OtherCluster {
        /// The cluster that the store belongs to.
        cluster: ClusterId,
        /// That cluster's name.
        name: String,
    },
    /// The server is set so that a commit could be lost or torn.
    #[error(
        "PostgreSQL runs with {setting} = {value}: a commit could be lost; set {setting} = {needed}"
    )]
    UnsafeSetting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        needed: &'static str,
    },
    /// The server is a standby.
    #[error("PostgreSQL is a standby, which accepts no writes: use the address of the primary")]
    Standby,
    /// The database accepts no writes.
    #[error(
        "the database is read-only (default_transaction_read_only): use another user or database"
    )]
    ReadOnly,
    /// The server is too old.
    #[error("PostgreSQL {found} is too old: 14 or newer is needed")]
    OldServer {
        /// The server's version.
        found: String,
    },
    /// The server has another time line: a standby took over, or a backup was restored, and commits did not wait for a
    /// standby before (R5).
    #[error(
        "PostgreSQL went from time line {from} to {to}, by a fail-over or a restore, without synchronous replication: \
         acknowledged turns may be missing; use the former server, or accept this one with `ostraca store accept`"
    )]
    FailedOver {
        /// The time line before.
        from: i64,
        /// The time line that was found.
        to: i64,
    },
    /// The store is on another server than before (R5).
    #[error(
        "the database was on the PostgreSQL server {expected} and is now on {found}, which was restored or upgraded: \
         use the former one, or accept this one with `ostraca store accept`"
    )]
    OtherServer {
        /// The system identifier of the server before.
        expected: u64,
        /// The system identifier of the server that was found.
        found: u64,
    },
    /// The database lacks batches that this process has committed: it was restored from a backup, or a standby without
    /// them was promoted (R5).
    #[error(
        "the database was rolled back: it lacks batches that were committed; restore its newest state, or recreate the \
         cluster"
    )]
    RolledBack,
}

impl OpenError {
    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Statement(_))
    }

    pub(crate) fn statement(error: &tokio_postgres::Error) -> Self {
        if let Some(reported) = error.as_db_error().filter(|it| it.code().code() == MOVED) {
            return Self::Moved { to: reported.message().into() };
        }
        match refuses_access(error) {
            true => Self::Access(text(error)),
            false => Self::Statement(text(error)),
        }
    }

    pub(crate) fn connect(error: &tokio_postgres::Error) -> Self {
        match refuses_access(error) {
            true => Self::Access(text(error)),
            false => Self::Connect(text(error)),
        }
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        // A running node goes on when the password is right again.
        match error.is_retryable() || matches!(error, OpenError::Access(_)) {
            true => Self::Unavailable(error.to_string()),
            false => Self::Stopped(error.to_string()),
        }
    }
}

/// Whether only the operator can help: wrong user, password or database, or a missing right.
fn refuses_access(error: &tokio_postgres::Error) -> bool {
    // The server wants a password, and there is none: the client says so without a code.
    let missing = error.source().is_some_and(|cause| cause.to_string() == "password missing");
    missing
        || error.code().is_some_and(|code| {
            [
                SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
                SqlState::INVALID_PASSWORD,
                SqlState::INVALID_CATALOG_NAME,
                SqlState::INSUFFICIENT_PRIVILEGE,
            ]
            .contains(code)
        })
}

/// What the server returned has no such column, or one of another type: somebody has altered the tables.
#[derive(Debug, thiserror::Error)]
#[error("the tables are not those of Ostraca: {0}; restore them")]
pub struct ColumnError(String);

impl ColumnError {
    pub(crate) fn new(error: &tokio_postgres::Error) -> Self {
        Self(text(error))
    }

    pub(crate) fn missing() -> Self {
        Self("a row is missing".into())
    }
}

impl From<ColumnError> for StoreError {
    fn from(error: ColumnError) -> Self {
        Self::Corrupt(error.to_string())
    }
}

/// The error with its cause, which the driver leaves out.
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    let Some(reported) = error.as_db_error() else {
        let cause = std::error::Error::source(error);
        return cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    };
    let code = reported.code();
    let detail = reported.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let help = match *code == SqlState::DISK_FULL {
        true => "the disk of PostgreSQL is full, free space there: ",
        false => "",
    };
    format!("{help}{}{detail} [{}]", reported.message(), code.code())
}
