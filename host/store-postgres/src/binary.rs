//! Shared bytes as a parameter of the type `bytea`.

use bytes::{Bytes, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

#[derive(Clone, Debug)]
pub(crate) struct Binary(pub(crate) Bytes);

impl ToSql for Binary {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::BYTEA
    }

    to_sql_checked!();
}
