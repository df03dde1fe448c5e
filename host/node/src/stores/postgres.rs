//! The stores in PostgreSQL: the state of entities, and the cluster's rows unless another store has them.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_config::config::Config;
use ostraca_core::ids::ClusterId;
use ostraca_store::EntityStore;
use ostraca_store_postgres::{Options, PostgresStore};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::WITNESS;
use super::witness::WitnessFile;
use crate::error::NodeError;

/// Opens the store, and compares it with what this node knew of it before (R5). If it has the cluster's rows, the
/// connections for them are driven on `for_rows`.
///
/// # Errors
/// [`NodeError::OpenPostgres`], [`NodeError::StoreConnect`].
pub(super) async fn open(
    config: &Config,
    options: Options,
    cluster: ClusterId,
    for_rows: Option<&Handle>,
) -> Result<(Arc<PostgresStore>, BoxFuture<'static, ()>), NodeError> {
    let file = WitnessFile {
        path: config.data.join("postgres.witness"),
        store: "the PostgreSQL database",
    };
    let last_opening = file.last_opening().await?;
    let options = Options { cluster: Some(cluster), last_opening, ..options };
    let store = match for_rows {
        Some(runtime) => PostgresStore::open_with(options, runtime).await?,
        None => PostgresStore::open_for_state(options).await?,
    };
    let store = Arc::new(store);
    update_witness(&file, &store).await?;
    let keeper = keep_witness(file, store.clone()).boxed();
    Ok((store, keeper))
}

/// Opens a further database with state of entities. Its witness is named by the store's id.
///
/// # Errors
/// As [`open`].
pub(super) async fn open_further(
    config: &Config,
    options: Options,
    cluster: ClusterId,
) -> Result<(Arc<PostgresStore>, BoxFuture<'static, ()>), NodeError> {
    let options = Options { cluster: Some(cluster), ..options };
    let identity = PostgresStore::probe(&options).await?;
    let name = format!("postgres-{:032x}.witness", identity.store_id);
    let file = WitnessFile { path: config.data.join(name), store: "a further PostgreSQL database" };
    let last_opening = file.last_opening().await?;
    let store = PostgresStore::open_for_state(Options { last_opening, ..options }).await?;
    let store = Arc::new(store);
    update_witness(&file, &store).await?;
    let keeper = keep_witness(file, store.clone()).boxed();
    Ok((store, keeper))
}

async fn update_witness(file: &WitnessFile, store: &PostgresStore) -> Result<(), NodeError> {
    file.update(EntityStore::identity(store), EntityStore::open_nonces(store)).await
}

/// Writes the witness periodically, as long as the node uses the store.
async fn keep_witness(file: WitnessFile, store: Arc<PostgresStore>) {
    let store = Arc::downgrade(&store);
    loop {
        sleep(WITNESS).await;
        let Some(store) = store.upgrade() else { return };
        // So the witness knows of the other nodes' batches, too. Without an answer, it has those known so far.
        if let Err(error) = store.read_sequence().await {
            tracing::debug!(%error, "failed to read the store's sequence");
        }
        if let Err(error) = update_witness(&file, &store).await {
            tracing::warn!(%error, "failed to write the witness of the database");
        }
    }
}
