//! Why a store could not be created or opened, and what to do about it.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreError;

/// Why a store could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address of the API server cannot be used.
    #[error("invalid address of the Kubernetes API server, {url}: {why}")]
    Url {
        /// The address.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The name of the store or of the namespace cannot be used.
    #[error("invalid name `{name}` of the store or its namespace: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The process is not in a pod.
    #[error(
        "not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; name the API server in `kubernetes.url`, or after `--kubernetes`"
    )]
    NotInCluster,
    /// A file with the token or certificates cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A file has no certificate or key in PEM form.
    #[error("{path} cannot be used for TLS: {why}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The API server cannot be reached, or does not answer.
    #[error("cannot reach the Kubernetes API server: {0}")]
    Unreachable(String),
    /// The token or certificate is not accepted.
    #[error(
        "the Kubernetes API server does not accept the token or certificate: {0}; check `token-file`"
    )]
    Login(String),
    /// The service account lacks a permission.
    #[error(
        "Kubernetes refuses to {verb} {resource} in the namespace {namespace}: {why}; a Role with this verb must be \
         bound to the service account"
    )]
    Permission {
        /// The verb of RBAC.
        verb: &'static str,
        /// The resource of RBAC.
        resource: &'static str,
        /// The namespace.
        namespace: String,
        /// What Kubernetes says.
        why: String,
    },
    /// The namespace does not exist.
    #[error("the namespace {namespace} does not exist: create it, or check `namespace`")]
    Namespace {
        /// The namespace.
        namespace: String,
    },
    /// The pod of this process is unknown.
    #[error(
        "the name of this node's pod is unknown, since HOSTNAME is not set: set `kubernetes.pod`"
    )]
    UnnamedPod,
    /// The pod of this process does not exist.
    #[error(
        "there is no pod {pod} in the namespace {namespace}: name the pod of this node in `kubernetes.pod`"
    )]
    Pod {
        /// The namespace.
        namespace: String,
        /// The pod.
        pod: String,
    },
    /// The termination log cannot be written.
    #[error(
        "cannot write the termination log {path}: {why}; `kubernetes.termination-log` must be the `terminationMessagePath` of the container"
    )]
    TerminationLog {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The API server refused a request.
    #[error("the Kubernetes API server refused a request: {0}")]
    Refused(String),
    /// The server's versions of resources are no numbers, so changes have no order.
    #[error(
        "the server has the resource version `{found}`, which is no decimal number: it is not supported"
    )]
    Version {
        /// The version.
        found: String,
    },
    /// There is no store. None is ever created automatically (R5).
    #[error(
        "there is no store of Ostraca in {place}: create it with `ostraca init`, or check the namespace and the name"
    )]
    Missing {
        /// The namespace and the store's name.
        place: String,
    },
    /// A store cannot be created where one is.
    #[error(
        "{place} already have the store of the cluster {name} ({cluster}): choose another name"
    )]
    Exists {
        /// The namespace and the store's name.
        place: String,
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
    /// The store's own object cannot be read.
    #[error("the lease {name} is not one of Ostraca: {why}; restore it")]
    Corrupt {
        /// The object's name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The store belongs to another cluster (R5).
    #[error(
        "{place} have the store of the cluster {name} ({cluster}): check the namespace and the name"
    )]
    OtherCluster {
        /// The namespace and the store's name.
        place: String,
        /// The cluster that the store belongs to.
        cluster: ClusterId,
        /// That cluster's name.
        name: String,
    },
    /// The store's own object is not the one that was created first (R5).
    #[error(
        "the lease {name} was deleted and created again, as a restore from a backup does: its rows may be of an earlier \
         state; restore the etcd of Kubernetes itself, since no command accepts such rows yet"
    )]
    Recreated {
        /// The object's name.
        name: String,
    },
}

impl OpenError {
    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Refused(_))
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        // A running node goes on when the token, the right or the file is there again.
        let access = matches!(
            error,
            OpenError::Login(_)
                | OpenError::Permission { .. }
                | OpenError::Namespace { .. }
                | OpenError::File { .. }
                | OpenError::Certificate { .. }
        );
        match error.is_retryable() || access {
            true => Self::Unavailable(error.to_string()),
            false => Self::Stopped(error.to_string()),
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It was not carried out, and another attempt may succeed, after this pause if there is one.
    NotSent(OpenError, Option<Duration>),
    /// It may have been carried out.
    InDoubt(String, Option<Duration>),
    /// It was not carried out, and never will be as long as nobody intervenes.
    Refused(OpenError),
    /// The object is not as the request expects it: another one changed, created or deleted it.
    Conflict(String),
    /// The resource version that it reads from is no longer there.
    Expired,
}

impl CallError {
    /// The reason as an error that says what to do.
    pub(crate) fn into_open_error(self) -> OpenError {
        match self {
            Self::NotSent(error, _) | Self::Refused(error) => error,
            Self::InDoubt(why, _) => OpenError::Unreachable(why),
            Self::Conflict(why) => OpenError::Refused(why),
            Self::Expired => OpenError::Refused("the resource version is too old".into()),
        }
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
