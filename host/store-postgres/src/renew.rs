//! Makes the store in a database that was restored from a backup another one (R5).

use bytes::Bytes;
use ostraca_store::{StoreError, StoreIdentity};
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};

use crate::binary::Binary;
use crate::connection::Connection;
use crate::error::OpenError;
use crate::options::Options;
use crate::row::{column, key_text};
use crate::{fail_over, schema};

/// Changes the value of a row: gets its key and value, and the ids of the store before and of the new one.
pub type RewriteRow<'a> = dyn Fn(&str, Bytes, u128, u128) -> Result<Bytes, StoreError> + Sync + 'a;

const ROWS: &str = "SELECT key, value FROM ostraca.rows ORDER BY key FOR UPDATE";
/// Each row gets a revision of its own. Watches that know changes of before must list again.
const WRITE: &str = "
    WITH counted AS (
        UPDATE ostraca.revision v SET last = v.last + cardinality($1::bytea[]),
            forgotten = v.last + cardinality($1::bytea[])
        RETURNING v.last - cardinality($1::bytea[]) AS before
    )
    UPDATE ostraca.rows r SET value = n.value, revision = c.before + n.place
    FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS n (key, value, place), counted c
    WHERE r.key = n.key";
const END_WRITERS: &str = "
    WITH gone AS (DELETE FROM ostraca.writers RETURNING batches)
    UPDATE ostraca.store SET store_id = $1,
        ended_batches = ended_batches + (SELECT coalesce(sum(batches), 0) FROM gone)";

/// Gives the store a new id, ends all writers, and changes all rows, in one transaction; and accepts the server as it is.
pub(crate) async fn renew(
    options: &Options,
    rewrite: &RewriteRow<'_>,
) -> Result<StoreIdentity, OpenError> {
    let failed = |error: tokio_postgres::Error| OpenError::statement(&error);
    let damaged = |error: StoreError| OpenError::Statement(error.to_string());
    let mut connection = Connection::open(options).await?;
    let before = schema::probe(&connection.client, options.cluster).await?;
    let store_id: u128 = rand::random();
    let renewing = async {
        let transaction = connection.client.transaction().await.map_err(failed)?;
        let durable = transaction.batch_execute("SET LOCAL synchronous_commit = on").await;
        durable.map_err(failed)?;
        let found = transaction.query_typed(ROWS, &[]).await.map_err(failed)?;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for row in &found {
            let (key, value): (Vec<u8>, Vec<u8>) = (column(row, 0)?, column(row, 1)?);
            let name = key_text(key.clone()).map_err(damaged)?;
            let value = rewrite(&name, value.into(), before.store_id, store_id).map_err(damaged)?;
            keys.push(key);
            values.push(Binary(value));
        }
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&keys, Type::BYTEA_ARRAY), (&values, Type::BYTEA_ARRAY)];
        transaction.query_typed(WRITE, &parameters).await.map_err(failed)?;
        let id = &store_id.to_be_bytes()[..];
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&id, Type::BYTEA)];
        transaction.query_typed(END_WRITERS, &parameters).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)
    };
    let late = || OpenError::Connect(format!("no answer within {:?}", options.call_timeout));
    timeout(options.call_timeout, renewing).await.map_err(|_| late())??;
    fail_over::accept(&connection.client, connection.server).await?;
    Ok(StoreIdentity { store_id, ..before })
}
