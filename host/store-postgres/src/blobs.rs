//! Components, by digest (R6).

use bytes::Bytes;
use ostraca_store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::binary::Binary;
use crate::durable::DURABLY;
use crate::error::text;
use crate::row::column;

pub(crate) async fn put(
    client: &Client,
    digest: &[u8; 32],
    data: &Bytes,
) -> Result<(), StoreError> {
    let (digest, data) = (&digest[..], Binary(data.clone()));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&digest, Type::BYTEA), (&data, Type::BYTEA)];
    let statement = format!(
        "{DURABLY} INSERT INTO ostraca.blobs (digest, data) SELECT $1, $2 FROM setting \
         ON CONFLICT (digest) DO NOTHING"
    );
    let failed = |error: tokio_postgres::Error| StoreError::Unavailable(text(&error));
    client.query_typed(&statement, &parameters).await.map(drop).map_err(failed)
}

pub(crate) async fn get(client: &Client, digest: &[u8; 32]) -> Result<Option<Bytes>, StoreError> {
    let wanted = &digest[..];
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&wanted, Type::BYTEA)];
    let statement = "SELECT data FROM ostraca.blobs WHERE digest = $1";
    let rows = client.query_typed(statement, &parameters).await;
    let rows = rows.map_err(|error| StoreError::Unavailable(text(&error)))?;
    let Some(row) = rows.first() else { return Ok(None) };
    let data: Vec<u8> = column(row, 0)?;
    match blake3::hash(&data).as_bytes() == digest {
        true => Ok(Some(data.into())),
        false => Err(StoreError::Corrupt("a component does not have its digest".into())),
    }
}
