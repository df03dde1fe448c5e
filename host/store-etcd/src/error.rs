//! Why a store could not be created or opened, and what to do about it.

use std::error::Error;
use std::path::PathBuf;

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreError;
use tonic::{Code, Status};

/// Why a store could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address of a member cannot be used.
    #[error("invalid address of an etcd member, {endpoint}: {why}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong.
        why: String,
    },
    /// A file with the password or certificates cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A file has no certificates that a server can be checked against.
    #[error("{path} has no certificate of an authority in PEM form")]
    Authority {
        /// The file.
        path: PathBuf,
    },
    /// No member can be reached, or none answers.
    #[error("cannot reach etcd: {0}")]
    Unreachable(String),
    /// The user or password is wrong.
    #[error("etcd refuses the login as {user}: {why}; check `user` and `password-file`")]
    Login {
        /// The user.
        user: String,
        /// What etcd says.
        why: String,
    },
    /// The user may not read or write the keys.
    #[error(
        "etcd refuses access to the keys {prefix}: {why}; the user needs readwrite on this prefix"
    )]
    Permission {
        /// What the keys start with.
        prefix: String,
        /// What etcd says.
        why: String,
    },
    /// etcd refused a request.
    #[error("etcd refused a request: {0}")]
    Refused(String),
    /// etcd has reached its quota. It may have carried out the request nevertheless.
    #[error(
        "etcd has no space left: {0}; compact and defragment its members, or raise `--quota-backend-bytes`, then run \
         `etcdctl alarm disarm`"
    )]
    Full(String),
    /// There is no store. None is ever created automatically (R5).
    #[error(
        "etcd has no store of Ostraca under {prefix}: create it with `ostraca init`, or check the addresses and the prefix"
    )]
    Missing {
        /// What the keys start with.
        prefix: String,
    },
    /// A store cannot be created where one is.
    #[error(
        "etcd already has a store of the cluster {name} ({cluster}) under {prefix}: choose another prefix"
    )]
    Exists {
        /// What the keys start with.
        prefix: String,
        /// The cluster that the store belongs to.
        cluster: ClusterId,
        /// That cluster's name.
        name: String,
    },
    /// A newer release made the store.
    #[error(
        "the store has format {found}, but this release knows formats up to {known}: use the newer release"
    )]
    NewerFormat {
        /// The store's format.
        found: u32,
        /// The newest format that this release knows.
        known: u32,
    },
    /// The store's own key cannot be read.
    #[error("the value of {key} in etcd is not one of Ostraca: {why}; restore it")]
    Corrupt {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// The store belongs to another cluster (R5).
    #[error(
        "etcd has the store of the cluster {name} ({cluster}) under {prefix}: check the addresses and the prefix"
    )]
    OtherCluster {
        /// What the keys start with.
        prefix: String,
        /// The cluster that the store belongs to.
        cluster: ClusterId,
        /// That cluster's name.
        name: String,
    },
    /// The servers are too old.
    #[error("etcd {found} is too old: 3.4 or newer is needed")]
    OldServer {
        /// The server's version.
        found: String,
    },
}

impl OpenError {
    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Refused(_) | Self::Full(_))
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        // A running node goes on when the password or the right is there again.
        let access = matches!(error, OpenError::Login { .. } | OpenError::Permission { .. });
        match error.is_retryable() || access {
            true => Self::Unavailable(error.to_string()),
            false => Self::Stopped(error.to_string()),
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It was not carried out, and another member or attempt may succeed.
    NotSent(OpenError),
    /// It may have been carried out.
    InDoubt(String),
    /// It was not carried out, and never will be as long as nobody intervenes.
    Refused(OpenError),
    /// The revision that it reads is no longer there.
    Compacted,
}

impl CallError {
    /// What etcd's answer means.
    pub(crate) fn from_status(status: &Status, prefix: &str) -> Self {
        let why = text(status);
        match status.code() {
            Code::OutOfRange => Self::Compacted,
            // So etcd refuses a client without a login.
            Code::InvalidArgument if why.contains("user name is empty") => {
                let why = format!("{why}; set `user` and `password-file`");
                Self::Refused(OpenError::Permission { prefix: prefix.into(), why })
            }
            Code::PermissionDenied => {
                Self::Refused(OpenError::Permission { prefix: prefix.into(), why })
            }
            // A token that has expired, or is of before a change of users or roles: the next connection logs in again.
            Code::Unauthenticated => Self::NotSent(OpenError::Refused(why)),
            Code::InvalidArgument if why.contains("revision of auth store is old") => {
                Self::NotSent(OpenError::Refused(why))
            }
            // No other member has room either, so nothing is sent again. etcd says this also of a change that it has
            // carried out, if its quota was reached by then.
            Code::ResourceExhausted if why.contains("space exceeded") => {
                Self::Refused(OpenError::Full(why))
            }
            Code::InvalidArgument | Code::ResourceExhausted | Code::FailedPrecondition => {
                Self::Refused(OpenError::Refused(why))
            }
            Code::Unimplemented => Self::Refused(OpenError::OldServer { found: why }),
            _ => Self::InDoubt(why),
        }
    }

    /// The reason in words, or as an error that says what to do.
    pub(crate) fn into_open_error(self) -> OpenError {
        match self {
            Self::NotSent(error) | Self::Refused(error) => error,
            Self::InDoubt(why) => OpenError::Unreachable(why),
            Self::Compacted => OpenError::Refused("the revision has been compacted".into()),
        }
    }
}

/// The status with its causes, which its own text leaves out.
fn text(status: &Status) -> String {
    let causes = status.source().map(|cause| format!(": {}", chain(cause))).unwrap_or_default();
    match status.message() {
        "" => format!("{}{causes}", status.code()),
        message => format!("{message}{causes}"),
    }
}

/// The error with its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_before_a_change_of_roles_is_replaced() {
        let status = Status::invalid_argument("etcdserver: revision of auth store is old");
        let error = CallError::from_status(&status, "ostraca/");
        assert!(matches!(&error, CallError::NotSent(why) if why.is_retryable()), "{error:?}");
        let other = Status::invalid_argument("etcdserver: duplicate key given in txn request");
        let error = CallError::from_status(&other, "ostraca/");
        assert!(matches!(error, CallError::Refused(_)), "{error:?}");
    }
}
