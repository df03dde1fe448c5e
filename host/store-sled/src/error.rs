//! Why a store could not be created or opened, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use ostraca_core::ids::ClusterId;

/// Why a store could not be created or opened. Most messages say what to do next.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory does not exist.
    #[error(
        "there is no store at {0}: create one with `ostraca init`, or check that its disk is mounted"
    )]
    Missing(PathBuf),
    /// The directory is empty. An empty directory never becomes a store automatically (R5).
    #[error(
        "the directory {0} is empty, but a store is expected there: create one with `ostraca init`, or check that its disk is mounted"
    )]
    Empty(PathBuf),
    /// The directory holds something, but no complete store.
    #[error(
        "the directory {0} holds no complete store: if its creation was interrupted, remove it and create it again"
    )]
    NotAStore(PathBuf),
    /// The store was copied to another place, and must not be used here any more (R26).
    #[error(
        "the store at {dir} was moved to {to}: use it there, or copy it back with `ostraca store copy`"
    )]
    Moved {
        /// The store's directory.
        dir: PathBuf,
        /// Where it was moved to.
        to: String,
    },
    /// A store cannot be created in a directory that is not empty.
    #[error("the directory {0} is not empty: choose another one, or open the store in it")]
    NotEmpty(PathBuf),
    /// Another process has the store open.
    #[error(
        "the store at {dir} is in use by {holder}: stop that process first, or use another directory"
    )]
    InUse {
        /// The store's directory.
        dir: PathBuf,
        /// The process that has the store open, as far as known.
        holder: String,
    },
    /// The directory or a file in it cannot be written.
    #[error("the directory {dir} is not writable: make it writable for this user ({source})")]
    Unwritable {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A newer release wrote the store.
    #[error(
        "the store at {dir} has format {format}, but this release reads formats up to {ours}: use the newer release that wrote it"
    )]
    NewerFormat {
        /// The store's directory.
        dir: PathBuf,
        /// The store's format.
        format: u32,
        /// The newest format that this release reads.
        ours: u32,
    },
    /// A program from before the first release wrote the store.
    #[error(
        "the store at {dir} has format {format}, but this release reads formats from {ours}: an unreleased program wrote it; recreate the cluster with `ostraca init`"
    )]
    OlderFormat {
        /// The store's directory.
        dir: PathBuf,
        /// The store's format.
        format: u32,
        /// The oldest format that this release reads.
        ours: u32,
    },
    /// The store belongs to another cluster (R5).
    #[error(
        "the store at {dir} belongs to the cluster {name} ({cluster}): check the data directory in the configuration"
    )]
    OtherCluster {
        /// The store's directory.
        dir: PathBuf,
        /// The cluster that the store belongs to.
        cluster: ClusterId,
        /// That cluster's name.
        name: String,
    },
    /// The witness remembers another store (R5).
    #[error(
        "the store at {dir} is not the one that this node used before ({witness}): restore the former one, or remove the witness to accept this one"
    )]
    OtherStore {
        /// The store's directory.
        dir: PathBuf,
        /// The witness.
        witness: PathBuf,
    },
    /// The store and a copy of it were opened separately (R5).
    #[error(
        "the store at {dir} has forked: its opening {open_count} is not the one that {witness} remembers; use the original store, or remove the witness to accept that this one may lack acknowledged turns"
    )]
    Forked {
        /// The store's directory.
        dir: PathBuf,
        /// The witness.
        witness: PathBuf,
        /// The opening that the witness remembers.
        open_count: u64,
    },
    /// The store lacks writes that it once had on stable storage (R5).
    #[error(
        "the store at {dir} was rolled back: it is at sequence {found_sequence}, but {witness} remembers {witnessed_sequence}; acknowledged turns are missing: restore the newer copy, or remove the witness to accept their loss"
    )]
    RolledBack {
        /// The store's directory.
        dir: PathBuf,
        /// The witness.
        witness: PathBuf,
        /// The store's sequence.
        found_sequence: u64,
        /// The sequence that the witness remembers.
        witnessed_sequence: u64,
    },
    /// The witness file is not a witness.
    #[error("{0} is not a witness file: restore it, or remove it to continue without the check")]
    InvalidWitness(PathBuf),
    /// The data cannot be read.
    #[error("cannot read the store at {dir}, restore it from a backup: {reason}")]
    Corrupt {
        /// The store's directory.
        dir: PathBuf,
        /// What is wrong with the data.
        reason: String,
    },
    /// Another file operation failed.
    #[error("file operation on {path} failed: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// The error for a failed file operation.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Unwritable { dir: path, source }
            }
            _ => Self::Io { path, source },
        }
    }
}
