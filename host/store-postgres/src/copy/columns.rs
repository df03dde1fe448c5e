//! Writes the items of a page: one statement for each kind.

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_store::StoreError;
use ostraca_store::transfer::Item;
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::signed;
use crate::batch::{WAKE, stored_key};
use crate::binary::Binary;
use crate::reads::{Parameter, Shards, corrupt, failed};

const WRITE_SHARDS: &str = "
    INSERT INTO ostraca.shards (namespace, pool, number, claim, has_floor, floor_version, floor_generation,
        floor_watermark, floor_tell_watermark)
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::boolean[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[])";
const WRITE_HEADS: &str = "
    INSERT INTO ostraca.heads (shard, type, id, version, turn, commit_sequence, head)
    SELECT s.id, h.type, h.id, h.version, h.turn, h.commit_sequence, h.head
    FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bytea[],
        $8::bigint[], $9::bytea[]) AS h (namespace, pool, number, type, id, version, turn, commit_sequence, head)
    LEFT JOIN ostraca.shards s ON (s.namespace, s.pool, s.number) = (h.namespace, h.pool, h.number)";
const WRITE_RECORDS: &str = "
    INSERT INTO ostraca.records (shard, kind, type, id, key, value)
    SELECT s.id, r.kind, r.type, r.id, r.key, r.value
    FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::smallint[], $5::bytea[], $6::bytea[], $7::bytea[],
        $8::bytea[]) AS r (namespace, pool, number, kind, type, id, key, value)
    LEFT JOIN ostraca.shards s ON (s.namespace, s.pool, s.number) = (r.namespace, r.pool, r.number)";
const WRITE_COMPONENT: &str =
    "INSERT INTO ostraca.blobs (digest, data) VALUES ($1, $2) ON CONFLICT DO NOTHING";
/// Each row gets a revision of its own.
const WRITE_ROWS: &str = "
    WITH counted AS (
        UPDATE ostraca.revision v SET last = v.last + cardinality($1::bytea[]),
            forgotten = v.last + cardinality($1::bytea[])
        RETURNING v.last - cardinality($1::bytea[]) AS before
    )
    INSERT INTO ostraca.rows (key, revision, value)
    SELECT r.key, c.before + r.place, r.value
    FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS r (key, value, place), counted c";
/// No commit may get a sequence that was used before.
const RAISE_SEQUENCE: &str = "
    SELECT setval('ostraca.commits', greatest($1, (SELECT last_value FROM ostraca.commits)))";

pub(super) async fn execute(
    transaction: &Transaction<'_>,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> Result<(), StoreError> {
    transaction.query_typed(statement, parameters).await.map(drop).map_err(|error| failed(&error))
}

/// The items of a page, in columns.
#[derive(Default)]
pub(crate) struct Columns {
    shards: Shards,
    claims: Vec<Vec<u8>>,
    has_floors: Vec<bool>,
    floors: [Vec<i64>; 4],
    of_heads: Shards,
    head_types: Vec<Vec<u8>>,
    head_ids: Vec<Vec<u8>>,
    versions: Vec<i64>,
    turns: Vec<Vec<u8>>,
    sequences: Vec<i64>,
    heads: Vec<Vec<u8>>,
    of_records: Shards,
    kinds: Vec<i16>,
    record_types: Vec<Vec<u8>>,
    record_ids: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
    values: Vec<Binary>,
    components: Vec<Bytes>,
    row_keys: Vec<Vec<u8>>,
    row_values: Vec<Binary>,
    /// The highest sequence of a commit.
    last_sequence: i64,
}

impl Columns {
    pub(crate) fn of(items: Vec<Item>) -> Result<Self, StoreError> {
        let damaged = |error| corrupt("an item", error);
        let mut columns = Self::default();
        for item in items {
            match item {
                Item::Shard { claim, floor, last_sequence } => {
                    columns.shards.push(&claim.shard);
                    columns.claims.push(codec::encode(&claim).map_err(damaged)?);
                    columns.has_floors.push(floor.is_some());
                    let floor = floor.unwrap_or_default();
                    let numbers =
                        [floor.version, floor.generation, floor.watermark, floor.tell_watermark];
                    for (column, number) in columns.floors.iter_mut().zip(numbers) {
                        column.push(signed(number)?);
                    }
                    columns.last_sequence = columns.last_sequence.max(signed(last_sequence)?);
                }
                Item::Head { shard, entity, mut head } => {
                    columns.of_heads.push(&shard);
                    columns.head_types.push(entity.entity_type.as_bytes().to_vec());
                    columns.head_ids.push(entity.id.as_bytes().to_vec());
                    columns.versions.push(signed(head.version)?);
                    columns.turns.push(codec::encode(&head.turn).map_err(damaged)?);
                    columns.sequences.push(signed(head.commit_sequence)?);
                    head.commit_sequence = 0;
                    columns.heads.push(codec::encode(&*head).map_err(damaged)?);
                }
                Item::Record { shard, entity, key, value } => {
                    columns.of_records.push(&shard);
                    let (kind, key) = stored_key(&shard, &entity, &key);
                    let name = |name: &str| match kind {
                        WAKE => Vec::new(),
                        _ => name.as_bytes().to_vec(),
                    };
                    columns.record_types.push(name(&entity.entity_type));
                    columns.record_ids.push(name(&entity.id));
                    columns.kinds.push(kind);
                    columns.keys.push(key);
                    columns.values.push(Binary(value));
                }
                Item::Component(bytes) => columns.components.push(bytes),
                Item::Row { key, value } => {
                    columns.row_keys.push(key.into_bytes());
                    columns.row_values.push(Binary(value));
                }
            }
        }
        let newest = columns.sequences.iter().copied().max().unwrap_or_default();
        columns.last_sequence = columns.last_sequence.max(newest);
        Ok(columns)
    }

    /// The columns of heads, without their shards.
    pub(crate) fn head_parameters(&self) -> [Parameter<'_>; 6] {
        [
            (&self.head_types, Type::BYTEA_ARRAY),
            (&self.head_ids, Type::BYTEA_ARRAY),
            (&self.versions, Type::INT8_ARRAY),
            (&self.turns, Type::BYTEA_ARRAY),
            (&self.sequences, Type::INT8_ARRAY),
            (&self.heads, Type::BYTEA_ARRAY),
        ]
    }

    /// The columns of records, without their shards.
    pub(crate) fn record_parameters(&self) -> [Parameter<'_>; 5] {
        [
            (&self.kinds, Type::INT2_ARRAY),
            (&self.record_types, Type::BYTEA_ARRAY),
            (&self.record_ids, Type::BYTEA_ARRAY),
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.values, Type::BYTEA_ARRAY),
        ]
    }

    /// Whether they hold heads, and records.
    pub(crate) fn holds(&self) -> (bool, bool) {
        (!self.heads.is_empty(), !self.values.is_empty())
    }

    /// Writes them as a part of the transaction.
    pub(super) async fn write(&self, transaction: &Transaction<'_>) -> Result<(), StoreError> {
        let [versions, generations, watermarks, tell_watermarks] = &self.floors;
        if !self.claims.is_empty() {
            let mut parameters = self.shards.parameters();
            parameters.extend([
                (&self.claims as _, Type::BYTEA_ARRAY),
                (&self.has_floors as _, Type::BOOL_ARRAY),
                (versions as _, Type::INT8_ARRAY),
                (generations as _, Type::INT8_ARRAY),
                (watermarks as _, Type::INT8_ARRAY),
                (tell_watermarks as _, Type::INT8_ARRAY),
            ]);
            execute(transaction, WRITE_SHARDS, &parameters).await?;
        }
        if !self.heads.is_empty() {
            let mut parameters = self.of_heads.parameters();
            parameters.extend(self.head_parameters());
            execute(transaction, WRITE_HEADS, &parameters).await?;
        }
        if !self.values.is_empty() {
            let mut parameters = self.of_records.parameters();
            parameters.extend(self.record_parameters());
            execute(transaction, WRITE_RECORDS, &parameters).await?;
        }
        for component in &self.components {
            let digest = blake3::hash(component);
            let (digest, data) = (&digest.as_bytes()[..], Binary(component.clone()));
            let parameters: [Parameter<'_>; 2] = [(&digest, Type::BYTEA), (&data, Type::BYTEA)];
            execute(transaction, WRITE_COMPONENT, &parameters).await?;
        }
        if !self.row_keys.is_empty() {
            let parameters: [Parameter<'_>; 2] =
                [(&self.row_keys, Type::BYTEA_ARRAY), (&self.row_values, Type::BYTEA_ARRAY)];
            execute(transaction, WRITE_ROWS, &parameters).await?;
        }
        if self.last_sequence > 0 {
            let parameters: [Parameter<'_>; 1] = [(&self.last_sequence, Type::INT8)];
            execute(transaction, RAISE_SEQUENCE, &parameters).await?;
        }
        Ok(())
    }
}
