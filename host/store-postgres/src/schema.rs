//! The tables: their creation and versions, and the store's identity (R5).

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreIdentity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::error::OpenError;

/// The statements that lead from each version of the tables to the next one, from 0 (none) on.
const STEPS: [&str; 1] = [include_str!("schema_1.sql")];

/// The version of the tables that this release uses.
const VERSION: i32 = STEPS.len() as i32;

pub(crate) struct Opened {
    pub(crate) identity: StoreIdentity,
    pub(crate) openings: Vec<u64>,
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
    if !found.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let statement = "SELECT schema_version, store_id, cluster_id, cluster_name FROM ostraca.store";
    let rows = client.query_typed(statement, &[]).await.map_err(failed)?;
    Ok(rows.into_iter().next())
}

/// Creates the tables of a new store.
pub(crate) async fn create(
    client: &Client,
    cluster: ClusterId,
    cluster_name: &str,
) -> Result<(), OpenError> {
    if let Some(row) = store_row(client).await? {
        let cluster = ClusterId(id(row.get(2)));
        return Err(OpenError::Exists { cluster, name: row.get(3) });
    }
    let store: u128 = rand::random();
    let name = cluster_name.replace('\'', "''");
    let steps = STEPS.join("\n");
    // All or nothing: the statements of one message are one transaction.
    let script = format!(
        "BEGIN; SET LOCAL statement_timeout = 0; CREATE SCHEMA IF NOT EXISTS ostraca; {steps}
         INSERT INTO ostraca.store (schema_version, store_id, cluster_id, cluster_name, open_count, ended_batches)
         VALUES ({VERSION}, '\\x{store:032x}', '\\x{cluster:032x}', '{name}', 0, 0); COMMIT",
        cluster = cluster.0,
    );
    client.batch_execute(&script).await.map_err(failed)
}

/// Brings the tables to this release's version, and counts an opening.
pub(crate) async fn open(client: &Client, cluster: Option<ClusterId>) -> Result<Opened, OpenError> {
    let Some(row) = store_row(client).await? else { return Err(OpenError::Missing) };
    let found: i32 = row.get(0);
    let (store_id, actual) = (id(row.get(1)), ClusterId(id(row.get(2))));
    let cluster_name: String = row.get(3);
    if cluster.is_some_and(|cluster| cluster != actual) {
        return Err(OpenError::OtherCluster { cluster: actual, name: cluster_name });
    }
    if found > VERSION {
        return Err(OpenError::NewerSchema { found, known: VERSION });
    }
    let nonce: u64 = rand::random();
    let stored = nonce.cast_signed();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&stored, Type::INT8)];
    let opened = client.query_typed("SELECT ostraca.open_store($1)", &parameters).await;
    let opened = opened.map_err(failed)?;
    let open_count = opened.first().map_or(0, |row| row.get::<_, i64>(0)).cast_unsigned();
    let statement = "SELECT nonce FROM ostraca.openings WHERE number <= $1 ORDER BY number";
    let number = open_count.cast_signed();
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&number, Type::INT8)];
    let rows = client.query_typed(statement, &parameters).await.map_err(failed)?;
    let openings = rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect();
    let statement =
        "SELECT (ended_batches + coalesce((SELECT sum(batches) FROM ostraca.writers), 0))::bigint
                     FROM ostraca.store";
    let rows = client.query_typed(statement, &[]).await.map_err(failed)?;
    let batches = rows.first().map_or(0, |row| row.get::<_, i64>(0)).cast_unsigned();
    let identity = StoreIdentity {
        store_id,
        cluster: actual,
        cluster_name,
        open_count,
        open_nonce: nonce,
        durable_sequence: batches,
    };
    Ok(Opened { identity, openings })
}
