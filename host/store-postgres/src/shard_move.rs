//! Moves of single shards between two databases that are both in use (R26).
//!
//! What writes is one statement each, which locks the shard's row if it has the expected claim, and finds nothing to do
//! otherwise. So a statement that arrives late has no effect, and a client that stops holds no lock (R4).

use bytes::Bytes;
use futures::FutureExt;
use ostraca_core::codec;
use ostraca_core::ids::ShardPath;
use ostraca_core::records::{Claim, HeadFloor, Presence};
use ostraca_store::transfer::{Item, ItemPage};
use ostraca_store::{MovableShards, ShardMoveError, StoreError, StoreFuture};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::PostgresStore;
use crate::copy::columns::Columns;
use crate::copy::contents::{query, shard_page};
use crate::copy::signed;
use crate::reads::{Parameter, corrupt};
use crate::row::column;

/// The shard with the expected claim, locked against another one.
const HELD: &str = "
    WITH held AS (
        SELECT s.id FROM ostraca.shards s
        WHERE s.namespace = $1 AND s.pool = $2 AND s.number = $3 AND s.claim = $4 FOR SHARE
    )";
/// Each commit waits for the disk, whatever the server's default: a pool is compared with its copy only once.
const WRITE_HEADS: &str = ", setting AS MATERIALIZED (SELECT set_config('synchronous_commit', $11, true)),
    written AS (
        INSERT INTO ostraca.heads (shard, type, id, version, turn, commit_sequence, head)
        SELECT held.id, h.type, h.id, h.version, h.turn, h.commit_sequence, h.head
        FROM held, setting, unnest($5::bytea[], $6::bytea[], $7::bigint[], $8::bytea[], $9::bigint[], $10::bytea[])
            AS h (type, id, version, turn, commit_sequence, head)
        ON CONFLICT DO NOTHING
    )
    SELECT count(*) FROM held";
const WRITE_RECORDS: &str = ", setting AS MATERIALIZED (SELECT set_config('synchronous_commit', $10, true)),
    written AS (
        INSERT INTO ostraca.records (shard, kind, type, id, key, value)
        SELECT held.id, r.kind, r.type, r.id, r.key, r.value
        FROM held, setting, unnest($5::smallint[], $6::bytea[], $7::bytea[], $8::bytea[], $9::bytea[])
            AS r (kind, type, id, key, value)
        ON CONFLICT DO NOTHING
    )
    SELECT count(*) FROM held";
const REMOVE: &str = ", heads AS (
        DELETE FROM ostraca.heads h WHERE h.ctid = ANY (ARRAY(
            SELECT h.ctid FROM ostraca.heads h WHERE h.shard = (SELECT held.id FROM held) LIMIT $5))
        RETURNING 1
    ), records AS (
        DELETE FROM ostraca.records r WHERE r.ctid = ANY (ARRAY(
            SELECT r.ctid FROM ostraca.records r WHERE r.shard = (SELECT held.id FROM held) LIMIT $5))
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM held), greatest((SELECT count(*) FROM heads), (SELECT count(*) FROM records))";
const FINISH: &str = "
    WITH setting AS MATERIALIZED (SELECT set_config('synchronous_commit', $5, true)),
    finished AS (
        UPDATE ostraca.shards s SET claim = $6, sequence_base = $7, has_floor = $8, floor_version = $9,
            floor_generation = $10, floor_watermark = $11, floor_tell_watermark = $12
        FROM setting WHERE s.namespace = $1 AND s.pool = $2 AND s.number = $3 AND s.claim = $4
        RETURNING 1
    )
    SELECT count(*) FROM finished";
/// Number of heads, and of records, that are removed at once.
const REMOVED_AT_ONCE: i64 = 1000;

/// A shard, and the claim that it must have.
struct Expected {
    claim: Claim,
    encoded: Vec<u8>,
    number: i64,
}

impl Expected {
    fn new(claim: Claim) -> Result<Self, ShardMoveError> {
        let encoded = codec::encode(&claim)?;
        let number = claim.shard.shard.0.into();
        Ok(Self { claim, encoded, number })
    }

    /// Runs a statement whose first column counts the shards with this claim.
    async fn run(
        &self,
        client: &Client,
        statement: &str,
        more: Vec<Parameter<'_>>,
    ) -> Result<Row, ShardMoveError> {
        let ShardPath { namespace, pool, .. } = &self.claim.shard;
        let (namespace, pool) = (namespace.as_bytes(), pool.as_bytes());
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&namespace, Type::BYTEA),
            (&pool, Type::BYTEA),
            (&self.number, Type::INT8),
            (&self.encoded, Type::BYTEA),
        ];
        parameters.extend(more);
        let row = query(client, statement, &parameters).await?.pop();
        let row = row.ok_or_else(|| corrupt("a statement", "it returned nothing"))?;
        match column::<i64>(&row, 0).map_err(StoreError::from)? {
            0 => Err(ShardMoveError::Superseded(None)),
            _ => Ok(row),
        }
    }
}

async fn write_incoming(
    client: &Client,
    incoming: &Expected,
    synchronous: &str,
    items: Vec<Item>,
) -> Result<(), ShardMoveError> {
    let columns = Columns::of(items)?;
    let (has_heads, has_records) = columns.holds();
    if has_heads {
        let statement = format!("{HELD}{WRITE_HEADS}");
        let mut more: Vec<Parameter<'_>> = columns.head_parameters().into();
        more.push((&synchronous, Type::TEXT));
        incoming.run(client, &statement, more).await?;
    }
    if has_records {
        let statement = format!("{HELD}{WRITE_RECORDS}");
        let mut more: Vec<Parameter<'_>> = columns.record_parameters().into();
        more.push((&synchronous, Type::TEXT));
        incoming.run(client, &statement, more).await?;
    }
    Ok(())
}

async fn finish(
    client: &Client,
    incoming: &Expected,
    synchronous: &str,
    claim: &Claim,
    floor: Option<HeadFloor>,
    last_sequence: u64,
) -> Result<(), ShardMoveError> {
    let wanted = codec::encode(claim)?;
    let (base, has_floor) = (signed(last_sequence)?, floor.is_some());
    let floor = floor.unwrap_or_default();
    let numbers = [floor.version, floor.generation, floor.watermark, floor.tell_watermark];
    let numbers = numbers.map(signed);
    let [version, generation, watermark, tell_watermark] = numbers;
    let numbers = [version?, generation?, watermark?, tell_watermark?];
    let mut more: Vec<Parameter<'_>> = vec![
        (&synchronous, Type::TEXT),
        (&wanted, Type::BYTEA),
        (&base, Type::INT8),
        (&has_floor, Type::BOOL),
    ];
    more.extend(numbers.iter().map(|number| (number as _, Type::INT8)));
    incoming.run(client, FINISH, more).await.map(drop)
}

impl PostgresStore {
    /// Runs what concerns a move of the claim's shard, after the calls that were made before. The outer error is that of
    /// the connection.
    fn for_move<T: Send + 'static>(
        &self,
        claim: Claim,
        is_right: fn(Presence) -> bool,
        run: impl for<'a> FnOnce(
            &'a Client,
            Expected,
        ) -> futures::future::BoxFuture<'a, Result<T, ShardMoveError>>
        + Send
        + 'static,
    ) -> StoreFuture<Result<T, ShardMoveError>> {
        let shard = claim.shard.clone();
        let expected = match claim.presence() {
            Ok(presence) if is_right(presence) => Expected::new(claim),
            Ok(_) => Err(ShardMoveError::Superseded(None)),
            Err(error) => Err(error.into()),
        };
        let expected = match expected {
            Ok(expected) => expected,
            Err(error) => return futures::future::ready(Err(error)).boxed(),
        };
        let running = self.read(&[&shard], move |client| run(client, expected).map(Ok).boxed());
        running.map(|result| result?).boxed()
    }
}

fn is_incoming(presence: Presence) -> bool {
    matches!(presence, Presence::IncomingFrom(_))
}

impl MovableShards for PostgresStore {
    fn shard_page(
        &self,
        shard: ShardPath,
        cursor: Option<Bytes>,
    ) -> StoreFuture<Result<ItemPage, StoreError>> {
        let of = shard.clone();
        self.read(&[&shard], move |client| {
            async move { shard_page(client, &of, cursor.as_deref()).await }.boxed()
        })
    }

    fn write_incoming(
        &self,
        incoming: Claim,
        items: Vec<Item>,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        let synchronous = self.options.durability.setting();
        self.for_move(incoming, is_incoming, move |client, incoming| {
            async move { write_incoming(client, &incoming, synchronous, items).await }.boxed()
        })
    }

    fn remove_absent(&self, claim: Claim) -> StoreFuture<Result<bool, ShardMoveError>> {
        self.for_move(
            claim,
            |presence| presence != Presence::Here,
            |client, absent| {
                async move {
                    let more: Vec<Parameter<'_>> = vec![(&REMOVED_AT_ONCE, Type::INT8)];
                    let row = absent.run(client, &format!("{HELD}{REMOVE}"), more).await?;
                    let removed: i64 = column(&row, 1).map_err(StoreError::from)?;
                    Ok(removed == REMOVED_AT_ONCE)
                }
                .boxed()
            },
        )
    }

    fn finish_incoming(
        &self,
        incoming: Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        let synchronous = self.options.durability.setting();
        self.for_move(incoming, is_incoming, move |client, incoming| {
            async move {
                finish(client, &incoming, synchronous, &claim, floor, last_sequence).await
            }
            .boxed()
        })
    }
}
