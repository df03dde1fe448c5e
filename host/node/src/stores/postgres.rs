//! The cluster's stores in PostgreSQL.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ostraca_config::config::Config;
use ostraca_core::ids::ClusterId;
use ostraca_store::witness::{ObservedStore, ReadError, Witness};
use ostraca_store::{EntityStore, StoreIdentity};
use ostraca_store_peer::ConnectError;
use ostraca_store_postgres::{Options, PostgresStore};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{ClusterInfo, PAUSES, WITNESS, read_cluster_info};
use crate::blocking::blocking;
use crate::error::NodeError;

/// The store in a database.
pub(crate) struct DatabaseStore {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) cluster_info: ClusterInfo,
}

/// Opens the stores, and compares them with what this node knew of them before (R5). Retries for `limit` after errors
/// that are retryable. The connections for rows are driven on `control`.
///
/// # Errors
/// [`NodeError::OpenPostgres`], [`NodeError::StoreConnect`], or an error about rows, a pool or settings.
pub(crate) async fn open(
    config: &Config,
    options: Options,
    cluster: ClusterId,
    control: &Handle,
    limit: Duration,
) -> Result<DatabaseStore, NodeError> {
    let options = Options { cluster: Some(cluster), ..options };
    let (began, mut pause) = (Instant::now(), PAUSES.0);
    loop {
        let error = match open_once(config, &options, control).await {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        if !error.is_retryable() || began.elapsed() >= limit {
            return Err(error);
        }
        tracing::warn!(%error, "the database cannot be used yet");
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn open_once(
    config: &Config,
    options: &Options,
    control: &Handle,
) -> Result<DatabaseStore, NodeError> {
    let store = Arc::new(PostgresStore::open_with(options.clone(), control).await?);
    let (path, seen) = (witness_path(config), store.clone());
    blocking(move || update_witness(&path, &seen)).await??;
    let cluster_info = read_cluster_info(&*store, config).await?;
    Ok(DatabaseStore { store, cluster_info })
}

/// Path of the witness of the database.
fn witness_path(config: &Config) -> PathBuf {
    config.data.join("postgres.witness")
}

/// Compares the store with the witness, and writes the witness anew. Blocks.
fn update_witness(path: &Path, store: &PostgresStore) -> Result<(), ConnectError> {
    let identity: StoreIdentity = EntityStore::identity(store);
    let io = |source| ConnectError::Io { path: path.into(), source };
    let known = Witness::read(path).map_err(|error| match error {
        ReadError::InvalidFormat => ConnectError::InvalidWitness(path.into()),
        ReadError::Io(source) => io(source),
    })?;
    let openings = EntityStore::open_nonces(store);
    let found = ObservedStore {
        store_id: identity.store_id,
        open_count: identity.open_count,
        open_nonces: &openings,
        sequence: identity.durable_sequence,
    };
    if let Some(known) = known {
        known.check(found).map_err(|difference| {
            ConnectError::Refused(format!(
                "the database is not the one that this node used before: {difference}; use or restore that one, or \
                 remove the witness {} to accept this one, which may lack acknowledged turns",
                path.display()
            ))
        })?;
    }
    let fresh = Witness::from_identity(&identity);
    let witness = known.map_or(fresh, |known| known.merge(fresh));
    witness.write(path).map_err(io)
}

/// Writes the witness periodically, until the node ends.
pub(crate) fn keep_witness(config: &Config, store: &Arc<PostgresStore>, tasks: &mut JoinSet<()>) {
    let (path, store) = (witness_path(config), Arc::downgrade(store));
    tasks.spawn(async move {
        loop {
            sleep(WITNESS).await;
            let Some(store) = store.upgrade() else { return };
            // So the witness knows of the other nodes' batches, too. Without an answer, it has those known so far.
            if let Err(error) = store.read_sequence().await {
                tracing::debug!(%error, "failed to read the store's sequence");
            }
            let path = path.clone();
            match blocking(move || update_witness(&path, &store)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "failed to write the witness"),
                Err(error) => tracing::warn!(%error, "failed to write the witness"),
            }
        }
    });
}
