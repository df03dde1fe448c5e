//! Creates and opens stores: locks the directory, opens the database and starts the threads.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crossbeam_channel::bounded;
use ostraca_core::ids::ClusterId;
use ostraca_store::change_history::ChangeHistory;
use ostraca_store::record::Codec;
use ostraca_store::witness::Witness;
use ostraca_store::{StoreError, StoreIdentity};
use sled::{Batch, Db};

use crate::backup::Backup;
use crate::batch_builder::BatchBuilder;
use crate::blob_worker::BlobWorker;
use crate::changed_keys::ChangedKeys;
use crate::committer::Committer;
use crate::database::{DatabaseOpenError, open_database};
use crate::dir::Dir;
use crate::disk::{Disk, RealDisk};
use crate::disk_space::DiskSpaceMonitor;
use crate::meta::{IDENTITY, IdentityRecord, SEQUENCE, StoreSequence};
use crate::progress::Progress;
use crate::read_queue::ReadQueue;
use crate::reader::Reader;
use crate::records::{Records, Table, put};
use crate::write_queue::WriteQueue;
use crate::{OpenError, Options, SledStore, witness};

/// The size of sled's segments, twice its default. A page may take a quarter of a segment, and 257 of the longest
/// keys must fit in one page, or sled would put the page into its unsynced `blobs/`.
const SEGMENT_BYTES: usize = 1 << 20;

/// Maximum number of jobs waiting for the blob worker; each may hold a whole component in memory.
const WAITING_FILES: usize = 64;

pub(crate) fn create(
    path: &Path,
    options: &Options,
    cluster: ClusterId,
    cluster_name: &str,
) -> Result<(), OpenError> {
    let dir = Dir::lock_empty(path)?;
    let records = open_sled(&dir, options)?;
    let data = dir.sync_and_open_data()?;
    let corrupt = |error: StoreError| corrupt(path, error.to_string());
    let mut batch = Batch::default();
    let (identity_key, sequence_key) = (Table::Meta.key(IDENTITY), Table::Meta.key(SEQUENCE));
    let identity = IdentityRecord::new(cluster, cluster_name);
    let identity = records.codec.encode(&identity_key, &identity).map_err(corrupt)?;
    let sequence = records.codec.encode(&sequence_key, &StoreSequence(0)).map_err(corrupt)?;
    put(&mut batch, identity_key, identity, 0);
    put(&mut batch, sequence_key, sequence, 0);
    write(&records.db, batch, &data, path)?;
    dir.finish()
}

pub(crate) fn open(path: &Path, options: &Options) -> Result<SledStore, OpenError> {
    open_on(path, options, Arc::new(RealDisk))
}

pub(crate) fn open_on(
    path: &Path,
    options: &Options,
    disk: Arc<dyn Disk>,
) -> Result<SledStore, OpenError> {
    let dir = Dir::lock_existing(path)?;
    dir.forget_cached_pages()?;
    let records = open_sled(&dir, options)?;
    let data = dir.sync_and_open_data()?;
    let (identity, openings) = count_opening(&records, &data, path, options)?;

    let progress = Arc::new(Progress::new(identity.durable_sequence));
    let queue = Arc::new(WriteQueue::new(options));
    let changes = ChangeHistory::new(
        identity.durable_sequence,
        options.watch_history_changes,
        options.watch_history_bytes,
    );
    let reads = Arc::new(ReadQueue::new(options.queue_reads));
    let changed = Arc::new(ChangedKeys::new(options.backup_changes));
    let space = Arc::new(DiskSpaceMonitor {
        disk: disk.clone(),
        progress: progress.clone(),
        dir: path.to_owned(),
        low_water_bytes: options.low_water_bytes,
        every: options.low_water_check_interval,
        last_check: Mutex::new(None),
    });
    let mut threads = Vec::new();
    let committer = Committer {
        queue: queue.clone(),
        progress: progress.clone(),
        changes: changes.clone(),
        batch_builder: BatchBuilder::new(
            records.clone(),
            identity.cluster,
            identity.durable_sequence,
            options.head_cache,
            changed.clone(),
        ),
        db: records.db.clone(),
        data,
        disk,
        space: space.clone(),
        reads: reads.clone(),
        changed: changed.clone(),
        on_batch: options.on_batch.clone(),
    };
    let backup = Backup {
        records: records.clone(),
        progress: progress.clone(),
        changed,
        components: dir.components(),
        identity: identity.clone(),
    };
    let (jobs, to_do) = bounded(WAITING_FILES);
    let files = BlobWorker {
        jobs: to_do,
        folder: dir.components(),
        witness: options.witness.clone(),
        identity: identity.clone(),
        progress: progress.clone(),
        space: space.clone(),
    };
    let spawned = (|| {
        threads.push(spawn("store-files", move || files.run())?);
        for _ in 0..options.readers.max(1) {
            let (reads, records, progress) = (reads.clone(), records.clone(), progress.clone());
            let reader = Reader { reads, records, progress };
            threads.push(spawn("store-reader", move || reader.run())?);
        }
        threads.push(spawn("store-committer", move || committer.run())?);
        Ok(())
    })();
    spawned.map_err(|error| OpenError::io(path, error))?;
    Ok(SledStore {
        identity,
        openings,
        queue,
        progress,
        changes,
        reads,
        jobs: Some(jobs),
        backup,
        space,
        threads,
        dir,
    })
}

/// Opens sled's database.
pub(crate) fn open_sled(dir: &Dir, options: &Options) -> Result<Records, OpenError> {
    let every = u64::try_from(options.flush_interval.as_millis()).unwrap_or(u64::MAX).max(1);
    let config = sled::Config::new()
        .path(dir.sled())
        .cache_capacity(options.cache_bytes)
        .segment_size(SEGMENT_BYTES)
        .flush_every_ms(Some(every));
    match open_database(&config) {
        Ok(db) => Ok(Records { db, codec: Codec::default() }),
        Err(DatabaseOpenError::InUse(error) | DatabaseOpenError::Io(error)) => {
            Err(OpenError::io(&dir.sled(), error))
        }
        Err(DatabaseOpenError::Corrupt(why)) => Err(corrupt(&dir.path, why)),
    }
}

/// Reads the store's identity and sequence, and checks them against the options and the witness.
pub(crate) fn read_identity(
    records: &Records,
    path: &Path,
    options: &Options,
) -> Result<(IdentityRecord, u64), OpenError> {
    let corrupt = |error: StoreError| corrupt(path, error.to_string());
    let missing = || StoreError::Corrupt("its identity or sequence record is missing".into());
    let (key, sequence_key) = (Table::Meta.key(IDENTITY), Table::Meta.key(SEQUENCE));
    let identity = records
        .get::<IdentityRecord>(&key)
        .and_then(|it| it.ok_or_else(missing))
        .map_err(corrupt)?;
    let sequence = records
        .get::<StoreSequence>(&sequence_key)
        .and_then(|it| it.ok_or_else(missing))
        .map_err(corrupt)?
        .0;
    if options.cluster.is_some_and(|cluster| cluster != identity.cluster) {
        let (dir, cluster, name) = (path.to_owned(), identity.cluster, identity.cluster_name);
        return Err(OpenError::OtherCluster { dir, cluster, name });
    }
    if let Some(witness) = &options.witness {
        witness::check(witness, path, &identity, sequence)?;
    }
    Ok((identity, sequence))
}

/// Reads the store's identity, checks it against the witness, and counts this opening durably (R5).
fn count_opening(
    records: &Records,
    data: &File,
    path: &Path,
    options: &Options,
) -> Result<(StoreIdentity, Vec<u64>), OpenError> {
    let corrupt = |error: StoreError| corrupt(path, error.to_string());
    let key = Table::Meta.key(IDENTITY);
    let (mut identity, sequence) = read_identity(records, path, options)?;
    identity.record_opening();
    let mut batch = Batch::default();
    let record = records.codec.encode(&key, &identity).map_err(corrupt)?;
    put(&mut batch, key, record, 0);
    write(&records.db, batch, data, path)?;
    let nonces = identity.open_nonces.clone();
    let identity = identity.store_identity(sequence);
    if let Some(witness) = &options.witness {
        Witness::from_identity(&identity)
            .write(witness)
            .map_err(|error| OpenError::io(witness, error))?;
    }
    Ok((identity, nonces))
}

/// Applies a batch durably.
pub(crate) fn write(db: &Db, batch: Batch, data: &File, path: &Path) -> Result<(), OpenError> {
    let written = db.apply_batch(batch).and_then(|()| db.flush());
    written.map_err(|error| corrupt(path, error.to_string()))?;
    data.sync_data().map_err(|error| OpenError::io(path, error))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(run)
}

fn corrupt(path: &Path, why: String) -> OpenError {
    OpenError::Corrupt { dir: path.into(), reason: why }
}
