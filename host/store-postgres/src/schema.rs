//! The tables: their creation and version, and the store's identity (R5).

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreIdentity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::connection::Connection;
use crate::durable::DURABLY;
use crate::error::OpenError;
use crate::fail_over::{self, REPLICATED, TIMELINE};
use crate::health::{History, ServerState};
use crate::options::Options;
use crate::row::{column, first};

/// The tables of version 1.
const TABLES: &str = include_str!("schema_1.sql");

/// The version of the tables that this release uses.
const VERSION: i32 = 1;

pub(crate) struct Opened {
    pub(crate) identity: StoreIdentity,
    pub(crate) openings: Vec<u64>,
    /// The revision of the last change of a row.
    pub(crate) revision: u64,
}

fn failed(error: tokio_postgres::Error) -> OpenError {
    OpenError::statement(&error)
}

fn id(bytes: &[u8]) -> u128 {
    bytes.try_into().map_or(0, u128::from_be_bytes)
}

/// The store's row, if the database has one.
async fn store_row(client: &Client) -> Result<Option<Row>, OpenError> {
    let exists = "SELECT to_regclass('ostraca.store') IS NOT NULL";
    let found = client.query_typed(exists, &[]).await.map_err(failed)?;
    if !first::<bool>(&found)? {
        return Ok(None);
    }
    let statement = "SELECT schema_version, store_id, cluster_id, cluster_name, moved_to, copy FROM ostraca.store";
    let rows = client.query_typed(statement, &[]).await.map_err(failed)?;
    Ok(rows.into_iter().next())
}

/// The cluster of the store's row, and its name.
fn cluster_of(row: &Row) -> Result<(ClusterId, String), OpenError> {
    Ok((ClusterId(id(column(row, 2)?)), column(row, 3)?))
}

/// Creates the tables of a new store. `copy` is the state of a copy into it, if it is not to be used yet.
pub(crate) async fn create(
    client: &Client,
    cluster: ClusterId,
    cluster_name: &str,
    copy: Option<&[u8]>,
) -> Result<(), OpenError> {
    if let Some(row) = store_row(client).await? {
        let (cluster, name) = cluster_of(&row)?;
        return Err(OpenError::Exists { cluster, name });
    }
    let store: u128 = rand::random();
    let name = cluster_name.replace('\'', "''");
    let copy = copy.map_or("NULL".into(), |state| {
        let hex: String = state.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("'\\x{hex}'")
    });
    // All or nothing: the statements of one message are one transaction.
    let script = format!(
        "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL synchronous_commit = on;
         CREATE SCHEMA IF NOT EXISTS ostraca; {TABLES}
         INSERT INTO ostraca.store (schema_version, store_id, cluster_id, cluster_name, open_count, ended_batches,
             system_identifier, timeline, replicated, copy)
         SELECT {VERSION}, '\\x{store:032x}', '\\x{cluster:032x}', '{name}', 0, 0, system_identifier, {TIMELINE},
             {REPLICATED}, {copy}
         FROM pg_control_system(); COMMIT",
        cluster = cluster.0,
    );
    client.batch_execute(&script).await.map_err(failed)
}

/// The store's row, as far as it concerns copies.
pub(crate) struct Probed {
    pub(crate) identity: StoreIdentity,
    /// Where the store was moved to.
    pub(crate) moved_to: Option<String>,
    /// The state of an unfinished copy into the store.
    pub(crate) copy: Option<Vec<u8>>,
}

/// Checks whose store it is and the version of its tables; it may be moved or an unfinished copy. Openings and batches
/// are not read.
pub(crate) async fn probe_any(
    client: &Client,
    cluster: Option<ClusterId>,
) -> Result<Option<Probed>, OpenError> {
    let Some(row) = store_row(client).await? else { return Ok(None) };
    let (found, store_id) = (column::<i32>(&row, 0)?, id(column(&row, 1)?));
    let (actual, cluster_name) = cluster_of(&row)?;
    if cluster.is_some_and(|cluster| cluster != actual) {
        return Err(OpenError::OtherCluster { cluster: actual, name: cluster_name });
    }
    if found > VERSION {
        return Err(OpenError::NewerSchema { found, known: VERSION });
    }
    let identity = StoreIdentity {
        store_id,
        cluster: actual,
        cluster_name,
        open_count: 0,
        open_nonce: 0,
        durable_sequence: 0,
    };
    Ok(Some(Probed { identity, moved_to: column(&row, 4)?, copy: column(&row, 5)? }))
}

/// Checks whose store it is, the version of its tables, and that it can be used. Openings and batches are not read.
pub(crate) async fn probe(
    client: &Client,
    cluster: Option<ClusterId>,
) -> Result<StoreIdentity, OpenError> {
    let found = probe_any(client, cluster).await?.ok_or(OpenError::Missing)?;
    match found {
        Probed { moved_to: Some(to), .. } => Err(OpenError::Moved { to }),
        Probed { copy: Some(_), .. } => Err(OpenError::Unfinished),
        Probed { identity, .. } => Ok(identity),
    }
}

/// Checks whose store it is and the version of its tables, ends what the last opening left, and counts an opening.
pub(crate) async fn open(connection: &Connection, options: &Options) -> Result<Opened, OpenError> {
    let client = &connection.client;
    let identity = probe(client, options.cluster).await?;
    fail_over::check_opened(client, connection.server).await?;
    if let Some(ended) = options.last_opening {
        let ended = ended.cast_signed();
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&ended, Type::INT8)];
        let statement = format!("{DURABLY} SELECT ostraca.end_opening($1) FROM setting");
        client.query_typed(&statement, &parameters).await.map_err(failed)?;
    }
    let nonce: u64 = rand::random();
    let stored = nonce.cast_signed();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&stored, Type::INT8)];
    let statement = format!("{DURABLY} SELECT ostraca.open_store($1) FROM setting");
    let opened = client.query_typed(&statement, &parameters).await;
    let opened = opened.map_err(failed)?;
    let open_count = first::<i64>(&opened)?.cast_unsigned();
    let statement = "SELECT nonce FROM ostraca.openings WHERE number <= $1 ORDER BY number";
    let number = open_count.cast_signed();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&number, Type::INT8)];
    let rows = client.query_typed(statement, &parameters).await.map_err(failed)?;
    let nonces = rows.iter().map(|row| column::<i64>(row, 0).map(i64::cast_unsigned));
    let openings = nonces.collect::<Result<_, _>>()?;
    let durable_sequence = sequence(client).await?;
    let rows =
        client.query_typed("SELECT last FROM ostraca.revision", &[]).await.map_err(failed)?;
    let revision = first::<i64>(&rows)?.cast_unsigned();
    let identity = StoreIdentity { open_count, open_nonce: nonce, durable_sequence, ..identity };
    Ok(Opened { identity, openings, revision })
}

/// The number of batches of all writers: the store's sequence.
pub(crate) async fn sequence(client: &Client) -> Result<u64, OpenError> {
    Ok(read_progress(client).await?.sequence)
}

/// How far the store is, and where.
pub(crate) struct Progress {
    /// The store's sequence.
    pub(crate) sequence: u64,
    /// The server that has answered.
    pub(crate) server: ServerState,
    /// Whether the store's row says that commits wait for a standby.
    pub(crate) stored_replicated: bool,
}

/// Reads the store's sequence and the state of the server in one statement: behind a pooler, another server may run the
/// next one.
pub(crate) async fn read_progress(client: &Client) -> Result<Progress, OpenError> {
    let statement = format!(
        "SELECT (ended_batches + coalesce((SELECT sum(batches) FROM ostraca.writers), 0))::bigint, replicated, \
         {REPLICATED}, pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()), \
         CASE WHEN pg_is_in_recovery() THEN 0 ELSE {TIMELINE} END FROM ostraca.store"
    );
    let rows = client.query_typed(&statement, &[]).await.map_err(failed)?;
    let row = rows.first().ok_or(OpenError::Missing)?;
    if column(row, 3)? {
        return Err(OpenError::Standby);
    }
    let history = History { system: column(row, 4)?, timeline: column(row, 5)? };
    Ok(Progress {
        sequence: u64::try_from(column::<i64>(row, 0)?).unwrap_or_default(),
        server: ServerState { history, replicated: column(row, 2)? },
        stored_replicated: column(row, 1)?,
    })
}
