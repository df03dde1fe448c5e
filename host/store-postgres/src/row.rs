//! Reads columns. A table that somebody has altered is an error, never a panic.

use ostraca_store::StoreError;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::error::ColumnError;

pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, ColumnError> {
    row.try_get(at).map_err(|error| ColumnError::new(&error))
}

/// The first column of the first row.
pub(crate) fn first<'a, T: FromSql<'a>>(rows: &'a [Row]) -> Result<T, ColumnError> {
    column(rows.first().ok_or_else(ColumnError::missing)?, 0)
}

/// A row's key, which somebody may have altered.
pub(crate) fn key_text(bytes: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(bytes)
        .map_err(|error| StoreError::Corrupt(format!("the key of a row: {error}")))
}
