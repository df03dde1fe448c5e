//! Both stores in one sled database, on the node with the role `store`. Other nodes reach it over links
//! (`ostraca-store-peer`).
//!
//! On its own, sled 0.34 syncs nothing reliably, shows writes that are not durable, and panics on some corrupt
//! files. So one thread writes (`committer`): it evaluates queued calls, applies them as one batch, flushes, and
//! syncs the data file through a separate descriptor before it answers. Reads wait until what they have seen is
//! durable (`reader`). Values are small enough never to reach sled's `blobs/` (`records`). `dir` does what must
//! happen before and after sled opens its files (R6). `meta` and `witness` hold the store's identity and
//! detect when the store was replaced, forked or rolled back (R5). `copy` copies a store that no process has open,
//! and `backup` reads one that runs.
//!
//! Confusing at first: there are three counters. A *batch* number counts the batches of this opening, for R2. The
//! store's *sequence* counts writes over all openings; it is also the revision of rows. A shard's *commit sequence*
//! counts its turns, with gaps, and is reserved in blocks in the record of the shard's claim.
//!
//! The threads here work with any executor: futures are completed through channels.

mod backup;
mod batch_builder;
mod blob_worker;
mod changed_keys;
mod committer;
mod copy;
mod database;
mod dir;
mod disk;
mod disk_space;
mod error;
mod head_cache;
mod items;
mod meta;
mod open;
mod options;
mod progress;
mod read_guard;
mod read_queue;
mod reader;
mod records;
mod shard_move;
mod shard_op;
#[cfg(test)]
mod tests;
mod witness;
mod write_op;
mod write_queue;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use crossbeam_channel::Sender as Channel;
use futures::FutureExt;
use futures::channel::oneshot::{Receiver, Sender, channel};
use futures::executor::block_on;
use futures::future::ready;
use ostraca_core::ids::{ClusterId, Entity, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, LoadedEntity};
use ostraca_store::backup::{Manifest, Section};
use ostraca_store::change_history::ChangeHistory;
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, Page, Scan, StoreError,
    StoreFuture, StoreIdentity, StoredRow, Watch,
};

use crate::backup::{Backup, Collecting};
use crate::blob_worker::BlobJob;
use crate::dir::Dir;
use crate::disk_space::DiskSpaceMonitor;
use crate::progress::Progress;
use crate::read_queue::{ReadOp, ReadQueue};
use crate::write_op::{WriteOp, slots};
use crate::write_queue::WriteQueue;

pub use copy::{SledCopySource, SledCopyTarget};
pub use database::{DatabaseOpenError, open_database};
pub use error::OpenError;
pub use options::{BatchObserver, Options};

/// The space of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// What the database takes, without the components.
    pub used_bytes: u64,
    /// What is free on its disk.
    pub free_bytes: u64,
}

/// An open sled store. Dropping it completes the queued calls, closes the database, and releases the directory.
pub struct SledStore {
    identity: StoreIdentity,
    openings: Vec<u64>,
    queue: Arc<WriteQueue>,
    progress: Arc<Progress>,
    changes: ChangeHistory,
    reads: Arc<ReadQueue>,
    jobs: Option<Channel<BlobJob>>,
    backup: Backup,
    space: Arc<DiskSpaceMonitor>,
    threads: Vec<JoinHandle<()>>,
    dir: Dir,
}

impl SledStore {
    /// Creates an empty store of a cluster in a missing or empty directory, and opens it. Blocks.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub fn create(
        dir: &Path,
        options: &Options,
        cluster: ClusterId,
        cluster_name: &str,
    ) -> Result<Self, OpenError> {
        open::create(dir, options, cluster, cluster_name)?;
        open::open(dir, options)
    }

    /// Opens the store in `dir`; never creates one (R5). Blocks.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub fn open(dir: &Path, options: &Options) -> Result<Self, OpenError> {
        open::open(dir, options)
    }

    /// The store's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir.path
    }

    /// The store's identity as of its opening, with the newest `durable_sequence`.
    #[must_use]
    pub fn identity(&self) -> StoreIdentity {
        StoreIdentity { durable_sequence: self.progress.sequence(), ..self.identity.clone() }
    }

    /// Why the store has stopped, if it has. After that, nothing works until it is opened again.
    #[must_use]
    pub fn stop_reason(&self) -> Option<String> {
        self.progress.stop_reason().map(Into::into)
    }

    /// Why commits are refused for lack of free disk space, if they are, according to the last check. Writes
    /// trigger the checks.
    #[must_use]
    pub fn low_disk_reason(&self) -> Option<String> {
        self.progress.low_disk_reason()
    }

    /// The bytes that the store takes on its disk, and those that are free there. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the file system does not say.
    pub fn disk_usage(&self) -> Result<DiskUsage, StoreError> {
        let unknown = |error: &dyn std::fmt::Display| StoreError::Unavailable(error.to_string());
        let used_bytes = self.backup.records.db.size_on_disk().map_err(|error| unknown(&error))?;
        let free_bytes = self.space.free().map_err(|error| unknown(&error))?;
        Ok(DiskUsage { used_bytes, free_bytes })
    }

    /// Number of reads that panicked since the store was opened. Each panic failed only the reads that were served
    /// together with the one that panicked.
    #[must_use]
    pub fn read_panics(&self) -> u64 {
        self.progress.read_panics()
    }

    /// Waits until the store stops; returns the reason, or `None` if the store is closed first.
    pub fn when_stopped(&self) -> StoreFuture<Option<String>> {
        self.progress.when_stopped().map(Result::ok).boxed()
    }

    /// Writes the newest durable sequence to the witness, if the options name one. Call it regularly: a rollback is
    /// detected only if the store falls behind the sequence in the witness.
    pub fn refresh_witness(&self) -> StoreFuture<Result<(), StoreError>> {
        self.job(BlobJob::Witness)
    }

    /// Reads all that the store holds, as of one moment, while turns go on. `sink` gets the chunks in order, and must not
    /// call the store; an error of it ends the backup. The manifest lacks the chunks. One backup can run at a time.
    /// Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if another backup is running; [`StoreError::LimitExceeded`] names a limit that was
    /// reached; [`StoreError::Stopped`] or [`StoreError::Corrupt`] if the store cannot be read.
    pub fn back_up(
        &self,
        sink: &mut (dyn FnMut(Section, Vec<u8>) -> Result<(), StoreError> + '_),
    ) -> Result<Manifest, StoreError> {
        if !self.backup.changed.begin() {
            return Err(StoreError::Unavailable("another backup is running".into()));
        }
        let _collecting = Collecting(self.backup.changed.clone());
        // A batch that was begun before does not collect changes. This read follows it.
        block_on(self.current_claims(Vec::new()))?;
        self.backup.run(sink)
    }

    /// Queues the parts of a write call, or refuses all of them with the reason.
    fn write(&self, works: Vec<WriteOp>) {
        if let Err(error) = self.progress.check() {
            works.into_iter().for_each(|work| work.refuse(&error));
        } else if let Err((works, why)) = self.queue.push(works) {
            let error = StoreError::Unavailable(why);
            works.into_iter().for_each(|work| work.refuse(&error));
        }
    }

    /// Hands a read to the reader threads; `lost` creates the result of a read that cannot be served.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(Sender<T>) -> ReadOp,
        lost: impl FnOnce(StoreError) -> T + Send + 'static,
    ) -> StoreFuture<T> {
        if let Err(error) = self.progress.check() {
            return ready(lost(error)).boxed();
        }
        let (to, answer) = channel();
        let entered = self.reads.enter();
        if entered && let Some(read) = self.queue.park(read(to)) {
            self.reads.push([read]);
        }
        await_response(answer, !entered, "read queue is full (`store.queue-reads`)", lost)
    }

    /// Hands a job to the blob worker's thread.
    fn job<T: Send + 'static>(
        &self,
        job: impl FnOnce(Sender<Result<T, StoreError>>) -> BlobJob,
    ) -> StoreFuture<Result<T, StoreError>> {
        let (to, answer) = channel();
        let full = self.jobs.as_ref().is_none_or(|jobs| jobs.try_send(job(to)).is_err());
        await_response(answer, full, "blob queue is full", Err)
    }
}

fn await_response<T: Send + 'static>(
    answer: Receiver<T>,
    full: bool,
    limit: &'static str,
    lost: impl FnOnce(StoreError) -> T + Send + 'static,
) -> StoreFuture<T> {
    let why = if full { limit } else { "store thread failed" };
    let lost = move || lost(StoreError::Unavailable(why.into()));
    answer.map(|answer| answer.unwrap_or_else(|_| lost())).boxed()
}

const FAILED: &str = "committer thread failed";

impl EntityStore for SledStore {
    fn identity(&self) -> StoreIdentity {
        self.identity()
    }

    fn open_nonces(&self) -> Vec<u64> {
        self.openings.clone()
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let count = claims.len();
        let lost = move || vec![ClaimOutcome::Failed(FAILED.into()); count];
        let (slots, answer) = slots(count);
        let part = |(claim, slot)| WriteOp::Claim(Box::new(claim), slot);
        self.write(claims.into_iter().zip(slots).map(part).collect());
        answer.map(move |answer| answer.unwrap_or_else(|_| lost())).boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.read(|to| ReadOp::Claims(shards, to), Err)
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        let count = turns.len();
        let lost = move || vec![CommitOutcome::Unknown(FAILED.into()); count];
        let (slots, answer) = slots(count);
        let part = |(commit, slot)| WriteOp::Commit(Box::new(commit), slot);
        self.write(turns.into_iter().zip(slots).map(part).collect());
        answer.map(move |answer| answer.unwrap_or_else(|_| lost())).boxed()
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        let count = entities.len();
        self.read(|to| ReadOp::Load(entities, to), move |error| vec![Err(error); count])
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.read(|to| ReadOp::Scan(scan, to), Err)
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.job(|to| BlobJob::Put(bytes, to))
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.job(|to| BlobJob::Get(digest, to))
    }
}

impl ClusterStore for SledStore {
    fn identity(&self) -> StoreIdentity {
        self.identity()
    }

    fn open_nonces(&self) -> Vec<u64> {
        self.openings.clone()
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        self.read(|to| ReadOp::Get(key.into(), to), Err)
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        self.read(|to| ReadOp::List(prefix.into(), to), Err)
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        let lost = || Err(CompareAndSetError::Store(StoreError::Stopped(FAILED.into())));
        let (to, answer) = channel();
        self.write(vec![WriteOp::CompareAndSet(cas, to)]);
        answer.map(move |answer| answer.unwrap_or_else(|_| lost())).boxed()
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        self.changes.watch(prefix, revision)
    }
}

impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, .. } = self;
        f.debug_struct("SledStore")
            .field("dir", &self.dir.path)
            .field("identity", identity)
            .finish_non_exhaustive()
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        // The committer closes the read queue when it ends: until then it releases parked reads.
        self.queue.close();
        self.jobs = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("store thread panicked");
            }
        }
    }
}
