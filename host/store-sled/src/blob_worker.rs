//! Blobs (R6): files named by their digest. A file is written under a temporary name, synced and renamed, so a file
//! whose name is its digest is complete. It is still verified when it is read.
//!
//! The thread that serves blobs also writes the witness: both are file operations that must not block an async
//! worker.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::Receiver;
use futures::channel::oneshot::Sender;
use ostraca_store::witness::{Witness, write_file_atomically};
use ostraca_store::{StoreError, StoreIdentity};

use crate::dir::sync_dir;
use crate::disk_space::DiskSpaceMonitor;
use crate::progress::Progress;

pub(crate) enum BlobJob {
    Put(Bytes, Sender<Result<[u8; 32], StoreError>>),
    Get([u8; 32], Sender<Result<Option<Bytes>, StoreError>>),
    Witness(Sender<Result<(), StoreError>>),
}

pub(crate) struct BlobWorker {
    pub(crate) jobs: Receiver<BlobJob>,
    pub(crate) folder: PathBuf,
    pub(crate) witness: Option<PathBuf>,
    pub(crate) identity: StoreIdentity,
    pub(crate) progress: Arc<Progress>,
    pub(crate) space: Arc<DiskSpaceMonitor>,
}

impl BlobWorker {
    /// Serves jobs until every sender is dropped.
    pub(crate) fn run(self) {
        while let Ok(job) = self.jobs.recv() {
            match job {
                BlobJob::Put(bytes, to) => drop(to.send(self.put(&bytes))),
                BlobJob::Get(digest, to) => drop(to.send(self.get(&digest))),
                BlobJob::Witness(to) => drop(to.send(self.refresh_witness())),
            }
        }
    }

    fn put(&self, bytes: &[u8]) -> Result<[u8; 32], StoreError> {
        self.progress.check()?;
        let digest = *blake3::hash(bytes).as_bytes();
        let path = self.path(&digest);
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            // The process that renamed the file may have died before it synced the directory.
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.and_then(|()| sync_dir(&self.folder)).map_err(unavailable)?;
        } else {
            self.space.check();
            if let Some(why) = self.progress.low_disk_reason() {
                return Err(StoreError::Unavailable(format!("component not stored: {why}")));
            }
            write_file_atomically(&path, bytes).map_err(unavailable)?;
        }
        Ok(digest)
    }

    fn get(&self, digest: &[u8; 32]) -> Result<Option<Bytes>, StoreError> {
        self.progress.check()?;
        match fs::read(self.path(digest)) {
            Ok(bytes) if blake3::hash(&bytes).as_bytes() == digest => Ok(Some(bytes.into())),
            Ok(_) => Err(StoreError::Corrupt(format!(
                "component {} is corrupt (digest mismatch): deploy it again",
                blake3::Hash::from(*digest)
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    fn refresh_witness(&self) -> Result<(), StoreError> {
        let Some(path) = &self.witness else { return Ok(()) };
        let sequence = self.progress.sequence();
        let identity = StoreIdentity { durable_sequence: sequence, ..self.identity.clone() };
        Witness::from_identity(&identity).write(path).map_err(unavailable)
    }

    fn path(&self, digest: &[u8; 32]) -> PathBuf {
        self.folder.join(blake3::Hash::from(*digest).to_hex().as_str())
    }
}

fn unavailable(error: io::Error) -> StoreError {
    StoreError::Unavailable(format!("file operation failed: {error}"))
}
