//! Reads the contents of a store page by page.

use bytes::Bytes;
use futures::FutureExt;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardId, ShardPath};
use ostraca_core::records::{Claim, Head, HeadFloor};
use ostraca_store::record::RecordKind;
use ostraca_store::transfer::{Item, ItemPage, PAGE_BYTES, PAGE_ITEMS};
use ostraca_store::{StoreError, StoreIdentity, keys};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::batch::{WAKE, timer_key};
use crate::connection::Connection;
use crate::options::Options;
use crate::reads::{Parameter, corrupt, failed, unsigned};
use crate::row::{column, key_text};

const SHARDS: &str = "
    SELECT s.id, s.claim, s.has_floor, s.floor_version, s.floor_generation, s.floor_watermark, s.floor_tell_watermark,
        s.sequence_base + (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ostraca.commits)
    FROM ostraca.shards s";
/// Values are read only for as many rows as fit in the page, and for the first one.
const HEADS: &str = "
    SELECT shard, type, id, namespace, pool, number, commit_sequence, head FROM (
        SELECT h.*, s.namespace, s.pool, s.number,
            sum(64 + octet_length(h.head)) OVER (ORDER BY h.shard, h.type, h.id) AS bytes,
            row_number() OVER (ORDER BY h.shard, h.type, h.id) AS place
        FROM (SELECT * FROM ostraca.heads h WHERE (h.shard, h.type, h.id) > ($1, $2, $3) AND h.shard <= $6
            ORDER BY h.shard, h.type, h.id LIMIT $4) h
        JOIN ostraca.shards s ON s.id = h.shard
    ) page WHERE place = 1 OR bytes <= $5 ORDER BY place";
const RECORDS: &str = "
    SELECT shard, kind, type, id, key, namespace, pool, number, value FROM (
        SELECT r.*, s.namespace, s.pool, s.number,
            sum(64 + octet_length(r.value)) OVER (ORDER BY r.shard, r.kind, r.type, r.id, r.key) AS bytes,
            row_number() OVER (ORDER BY r.shard, r.kind, r.type, r.id, r.key) AS place
        FROM (SELECT * FROM ostraca.records r WHERE (r.shard, r.kind, r.type, r.id, r.key) > ($1, $2, $3, $4, $5)
                AND r.shard <= $8
            ORDER BY r.shard, r.kind, r.type, r.id, r.key LIMIT $6) r
        JOIN ostraca.shards s ON s.id = r.shard
    ) page WHERE place = 1 OR bytes <= $7 ORDER BY place";
const COMPONENTS: &str =
    "SELECT digest, data FROM ostraca.blobs WHERE digest > $1 ORDER BY digest LIMIT 1";
const ROWS: &str = "
    SELECT key, value FROM (
        SELECT r.key, r.value, sum(64 + octet_length(r.value)) OVER (ORDER BY r.key) AS bytes,
            row_number() OVER (ORDER BY r.key) AS place
        FROM (SELECT * FROM ostraca.rows r WHERE r.key > $1 ORDER BY r.key LIMIT $2) r
    ) page WHERE place = 1 OR bytes <= $3 ORDER BY place";

/// The last item of a page.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    Shard(i32),
    Head(i32, Vec<u8>, Vec<u8>),
    Record(i32, i16, Vec<u8>, Vec<u8>, Vec<u8>),
    Component(Vec<u8>),
    Row(Vec<u8>),
}

/// What a query has found: the items, and the cursor behind the last one; none at the end of its table.
struct Found {
    items: Vec<Item>,
    last: Option<Cursor>,
}

/// A store that no node uses.
pub(super) struct Contents {
    pub(super) options: Options,
    pub(super) connection: Connection,
    pub(super) identity: StoreIdentity,
}

impl Contents {
    pub(super) async fn client(&mut self) -> Result<&mut Client, StoreError> {
        if self.connection.client.is_closed() {
            self.connection = Connection::open(&self.options).await?;
        }
        Ok(&mut self.connection.client)
    }

    /// Reads a page.
    pub(super) async fn page(&mut self, cursor: Option<Bytes>) -> Result<ItemPage, StoreError> {
        let damaged = |error| corrupt("the cursor is of another store", error);
        let cursor = cursor.map(|cursor| codec::decode::<Cursor>(&cursor)).transpose();
        let mut cursor = cursor.map_err(damaged)?.unwrap_or(Cursor::Shard(0));
        let limit = self.options.call_timeout;
        let client = self.client().await?;
        loop {
            let (reading, next) = match &cursor {
                Cursor::Shard(after) => {
                    (shards(client, *after).boxed(), Some(Cursor::Head(0, vec![], vec![])))
                }
                Cursor::Head(shard, of, id) => (
                    heads(client, i32::MAX, *shard, of, id).boxed(),
                    Some(Cursor::Record(0, 0, vec![], vec![], vec![])),
                ),
                Cursor::Record(shard, kind, of, id, key) => (
                    records(client, i32::MAX, *shard, *kind, of, id, key).boxed(),
                    Some(Cursor::Component(vec![])),
                ),
                Cursor::Component(after) => {
                    (components(client, after).boxed(), Some(Cursor::Row(vec![])))
                }
                Cursor::Row(after) => (rows(client, after).boxed(), None),
            };
            let late = |_| StoreError::Unavailable(format!("no answer within {limit:?}"));
            let found = timeout(limit, reading).await.map_err(late)??;
            let next = found.last.or(next);
            let next = next.map(|next| codec::encode(&next).map(Bytes::from)).transpose();
            let next_cursor = next.map_err(|error| corrupt("a cursor", error))?;
            match (&next_cursor, found.items.is_empty()) {
                (Some(next), true) => cursor = codec::decode(next).map_err(damaged)?,
                _ => return Ok(ItemPage { items: found.items, next_cursor }),
            }
        }
    }
}

fn limits() -> (i64, i64) {
    let number = |size| i64::try_from(size).unwrap_or(i64::MAX);
    (number(PAGE_ITEMS), number(PAGE_BYTES))
}

pub(crate) async fn query(
    client: &Client,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, StoreError> {
    client.query_typed(statement, parameters).await.map_err(|error| failed(&error))
}

/// The shard in three columns.
fn shard_path(row: &Row, at: usize) -> Result<ShardPath, StoreError> {
    let name = |at| -> Result<String, StoreError> {
        String::from_utf8(column::<Vec<u8>>(row, at)?).map_err(|error| corrupt("a shard", error))
    };
    let number = u32::try_from(column::<i64>(row, at + 2)?);
    Ok(ShardPath {
        namespace: name(at)?.into(),
        pool: name(at + 1)?.into(),
        shard: ShardId(number.map_err(|error| corrupt("the number of a shard", error))?),
    })
}

fn entity(of: &[u8], id: &[u8]) -> Result<Entity, StoreError> {
    let name = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec()).map_err(|error| corrupt("the name of an entity", error))
    };
    Ok(Entity::new(name(of)?, name(id)?))
}

async fn shards(client: &Client, after: i32) -> Result<Found, StoreError> {
    let (most, _) = limits();
    let statement = format!("{SHARDS} WHERE s.id > $1 ORDER BY s.id LIMIT $2");
    let found = query(client, &statement, &[(&after, Type::INT4), (&most, Type::INT8)]).await?;
    let (mut items, mut last) = (Vec::new(), None);
    for row in &found {
        items.push(shard_item(row)?);
        last = Some(Cursor::Shard(column(row, 0)?));
    }
    Ok(Found { items, last })
}

fn shard_item(row: &Row) -> Result<Item, StoreError> {
    let claim: Claim = codec::decode(column(row, 1)?).map_err(|error| corrupt("a claim", error))?;
    let number = |at| column::<i64>(row, at).map(unsigned);
    let floor = match column::<bool>(row, 2)? {
        true => Some(HeadFloor {
            version: number(3)?,
            generation: number(4)?,
            watermark: number(5)?,
            tell_watermark: number(6)?,
            ..HeadFloor::default()
        }),
        false => None,
    };
    Ok(Item::Shard { claim, floor, last_sequence: number(7)? })
}

/// Reads a page of one shard's contents.
pub(crate) async fn shard_page(
    client: &Client,
    shard: &ShardPath,
    cursor: Option<&[u8]>,
) -> Result<ItemPage, StoreError> {
    let damaged = |error| corrupt("the cursor is of another store", error);
    let cursor = cursor.map(codec::decode::<Cursor>).transpose().map_err(damaged)?;
    let (items, next) = match cursor {
        None => {
            let (namespace, pool) = (shard.namespace.as_bytes(), shard.pool.as_bytes());
            let number = i64::from(shard.shard.0);
            let parameters: [Parameter<'_>; 3] =
                [(&namespace, Type::BYTEA), (&pool, Type::BYTEA), (&number, Type::INT8)];
            let statement =
                format!("{SHARDS} WHERE s.namespace = $1 AND s.pool = $2 AND s.number = $3");
            let found = query(client, &statement, &parameters).await?;
            let Some(row) = found.first() else { return Ok(ItemPage::default()) };
            (vec![shard_item(row)?], Some(Cursor::Head(column(row, 0)?, vec![], vec![])))
        }
        Some(Cursor::Head(own, of, id)) => {
            let Found { items, last } = heads(client, own, own, &of, &id).await?;
            (items, Some(last.unwrap_or(Cursor::Record(own, 0, vec![], vec![], vec![]))))
        }
        Some(Cursor::Record(own, kind, of, id, key)) => {
            let Found { items, last } = records(client, own, own, kind, &of, &id, &key).await?;
            (items, last)
        }
        Some(_) => return Err(corrupt("the cursor is of another store", "not of a shard")),
    };
    let next = next.map(|next| codec::encode(&next).map(Bytes::from)).transpose();
    Ok(ItemPage { items, next_cursor: next.map_err(|error| corrupt("a cursor", error))? })
}

/// Reads heads behind the given one, up to a shard.
async fn heads(
    client: &Client,
    last_shard: i32,
    shard: i32,
    of: &[u8],
    id: &[u8],
) -> Result<Found, StoreError> {
    let (most, bytes) = limits();
    let parameters: [Parameter<'_>; 6] = [
        (&shard, Type::INT4),
        (&of, Type::BYTEA),
        (&id, Type::BYTEA),
        (&most, Type::INT8),
        (&bytes, Type::INT8),
        (&last_shard, Type::INT4),
    ];
    let found = query(client, HEADS, &parameters).await?;
    let (mut items, mut last) = (Vec::new(), None);
    for row in &found {
        let (of, id): (&[u8], &[u8]) = (column(row, 1)?, column(row, 2)?);
        let mut head: Head =
            codec::decode(column(row, 7)?).map_err(|error| corrupt("a head", error))?;
        head.commit_sequence = unsigned(column(row, 6)?);
        let (shard, entity) = (shard_path(row, 3)?, entity(of, id)?);
        items.push(Item::Head { shard, entity, head: Box::new(head) });
        last = Some(Cursor::Head(column(row, 0)?, of.to_vec(), id.to_vec()));
    }
    Ok(Found { items, last })
}

/// Reads records behind the given one, up to a shard.
async fn records(
    client: &Client,
    last_shard: i32,
    shard: i32,
    kind: i16,
    of: &[u8],
    id: &[u8],
    key: &[u8],
) -> Result<Found, StoreError> {
    let (most, bytes) = limits();
    let parameters: [Parameter<'_>; 8] = [
        (&shard, Type::INT4),
        (&kind, Type::INT2),
        (&of, Type::BYTEA),
        (&id, Type::BYTEA),
        (&key, Type::BYTEA),
        (&most, Type::INT8),
        (&bytes, Type::INT8),
        (&last_shard, Type::INT4),
    ];
    let found = query(client, RECORDS, &parameters).await?;
    let (mut items, mut last) = (Vec::new(), None);
    for row in &found {
        let kind: i16 = column(row, 1)?;
        let (of, id, key): (&[u8], &[u8], &[u8]) =
            (column(row, 2)?, column(row, 3)?, column(row, 4)?);
        let (entity, record) = match kind {
            WAKE => keys::parse_record(RecordKind::Timer, key)?,
            _ => {
                let known = RecordKind::from_number(u8::try_from(kind).unwrap_or_default());
                let known = known.ok_or_else(|| corrupt("a record's kind", kind))?;
                let name = entity(of, id)?;
                // A timer's key is its name alone.
                match known {
                    RecordKind::Timer => (name, timer_key(key)?),
                    _ => {
                        let rest = [&keys::entity_key(&name)[..], key].concat();
                        keys::parse_record(known, &rest)?
                    }
                }
            }
        };
        let value = Bytes::from(column::<Vec<u8>>(row, 8)?);
        items.push(Item::Record { shard: shard_path(row, 5)?, entity, key: record, value });
        let shard = column(row, 0)?;
        last = Some(Cursor::Record(shard, kind, of.to_vec(), id.to_vec(), key.to_vec()));
    }
    Ok(Found { items, last })
}

async fn components(client: &Client, after: &[u8]) -> Result<Found, StoreError> {
    let found = query(client, COMPONENTS, &[(&after, Type::BYTEA)]).await?;
    let (mut items, mut last) = (Vec::new(), None);
    for row in &found {
        let (digest, data): (&[u8], Vec<u8>) = (column(row, 0)?, column(row, 1)?);
        if blake3::hash(&data).as_bytes() != digest {
            return Err(StoreError::Corrupt("a component does not have its digest".into()));
        }
        items.push(Item::Component(data.into()));
        last = Some(Cursor::Component(digest.to_vec()));
    }
    Ok(Found { items, last })
}

async fn rows(client: &Client, after: &[u8]) -> Result<Found, StoreError> {
    let (most, bytes) = limits();
    let parameters: [Parameter<'_>; 3] =
        [(&after, Type::BYTEA), (&most, Type::INT8), (&bytes, Type::INT8)];
    let found = query(client, ROWS, &parameters).await?;
    let (mut items, mut last) = (Vec::new(), None);
    for row in &found {
        let (key, value): (Vec<u8>, Vec<u8>) = (column(row, 0)?, column(row, 1)?);
        items.push(Item::Row { key: key_text(key.clone())?, value: value.into() });
        last = Some(Cursor::Row(key));
    }
    Ok(Found { items, last })
}
