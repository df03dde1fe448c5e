//! Reads: each is one statement, so it sees whole turns (R2).

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, Head, HeadFloor, Lane, LoadedEntity, Tell, Timer};
use ostraca_store::entity::{check_record, corrupt_floor};
use ostraca_store::record::RecordKind;
use ostraca_store::{Page, Scan, ScanKind, ScannedRecord, StoreError, keys};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::batch::WAKE;
use crate::error::text;
use crate::row::column;

/// The floor of each entity's shard, then its head, then its lanes, timers, tells and dead letters.
const LOAD: &str = "
    WITH wanted AS (
        SELECT w.place, s.id AS shard, w.type, w.id, s.has_floor, s.floor_version, s.floor_generation,
            s.floor_watermark, s.floor_tell_watermark
        FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bytea[])
            WITH ORDINALITY AS w (namespace, pool, number, type, id, place)
        JOIN ostraca.shards s ON (s.namespace, s.pool, s.number) = (w.namespace, w.pool, w.number)
    )
    SELECT w.place, 0::smallint AS kind, NULL::bytea AS key, h.head AS value, h.commit_sequence, w.has_floor,
        w.floor_version, w.floor_generation, w.floor_watermark, w.floor_tell_watermark
    FROM wanted w LEFT JOIN ostraca.heads h ON h.shard = w.shard AND h.type = w.type AND h.id = w.id
    UNION ALL
    SELECT w.place, r.kind, r.key, r.value, NULL, NULL, NULL, NULL, NULL, NULL
    FROM wanted w JOIN ostraca.records r
        ON r.shard = w.shard AND r.kind IN (4, 5, 6, 9) AND r.type = w.type AND r.id = w.id
    ORDER BY 1, 2, 3";

const CLAIMS: &str = "
    SELECT w.place, s.claim
    FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) WITH ORDINALITY AS w (namespace, pool, number, place)
    JOIN ostraca.shards s ON (s.namespace, s.pool, s.number) = (w.namespace, w.pool, w.number)";

pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(crate) fn failed(error: &tokio_postgres::Error) -> StoreError {
    StoreError::Unavailable(text(error))
}

pub(crate) fn corrupt(what: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("{what}: {why}"))
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Shards, in columns.
#[derive(Default)]
pub(crate) struct Shards {
    namespaces: Vec<Vec<u8>>,
    pools: Vec<Vec<u8>>,
    numbers: Vec<i64>,
}

impl Shards {
    fn new<'a>(shards: impl Iterator<Item = &'a ShardPath>) -> Self {
        let mut all = Self::default();
        shards.for_each(|shard| all.push(shard));
        all
    }

    pub(crate) fn push(&mut self, shard: &ShardPath) {
        self.namespaces.push(shard.namespace.as_bytes().to_vec());
        self.pools.push(shard.pool.as_bytes().to_vec());
        self.numbers.push(shard.shard.0.into());
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter<'_>> {
        vec![
            (&self.namespaces, Type::BYTEA_ARRAY),
            (&self.pools, Type::BYTEA_ARRAY),
            (&self.numbers, Type::INT8_ARRAY),
        ]
    }
}

/// The row's place in the request, counted from 0.
fn place(row: &Row, count: usize) -> Result<usize, StoreError> {
    let place = usize::try_from(column::<i64>(row, 0)?).ok().and_then(|place| place.checked_sub(1));
    place.filter(|place| *place < count).ok_or_else(|| corrupt("a row", "it was not asked for"))
}

pub(crate) async fn claims(
    client: &Client,
    shards: &[ShardPath],
) -> Result<Vec<Option<Claim>>, StoreError> {
    let wanted = Shards::new(shards.iter());
    let rows = client.query_typed(CLAIMS, &wanted.parameters()).await.map_err(|e| failed(&e))?;
    let mut found = vec![None; shards.len()];
    for row in rows {
        let claim = codec::decode(column::<&[u8]>(&row, 1)?);
        found[place(&row, shards.len())?] = Some(claim.map_err(|error| corrupt("a claim", error))?);
    }
    Ok(found)
}

pub(crate) async fn load(
    client: &Client,
    entities: &[(ShardPath, Entity)],
) -> Result<Vec<Result<LoadedEntity, StoreError>>, StoreError> {
    let shards = Shards::new(entities.iter().map(|(shard, _)| shard));
    let bytes = |name: &str| name.as_bytes().to_vec();
    let types: Vec<_> = entities.iter().map(|(_, it)| bytes(&it.entity_type)).collect();
    let ids: Vec<_> = entities.iter().map(|(_, it)| bytes(&it.id)).collect();
    let mut parameters = shards.parameters();
    parameters.push((&types, Type::BYTEA_ARRAY));
    parameters.push((&ids, Type::BYTEA_ARRAY));
    let rows = client.query_typed(LOAD, &parameters).await.map_err(|error| failed(&error))?;
    let mut loaded: Vec<_> = entities.iter().map(|_| Ok(LoadedEntity::default())).collect();
    for row in rows {
        let place = place(&row, entities.len())?;
        if let Ok(entity) = &mut loaded[place]
            && let Err(error) = add(entity, &row)
        {
            loaded[place] = Err(error);
        }
    }
    Ok(loaded)
}

/// Adds a row to an entity. Its head comes first.
fn add(entity: &mut LoadedEntity, row: &Row) -> Result<(), StoreError> {
    let kind: i16 = column(row, 1)?;
    if kind == 0 {
        entity.head = head(row)?;
        return Ok(());
    }
    let Some(head) = &entity.head else { return Ok(()) };
    let damaged = |error: codec::CodecError| corrupt("a head", error);
    let (waiting, dead) = head.outbox_counts().map_err(damaged)?;
    let (key, value): (&[u8], &[u8]) = (column(row, 2)?, column(row, 3)?);
    let tell = |what: &str| -> Result<(u64, Tell), StoreError> {
        let tell = codec::decode(value).map_err(|error| corrupt(what, error))?;
        Ok((keys::last_number(key)?, tell))
    };
    match RecordKind::from_number(u8::try_from(kind).unwrap_or_default()) {
        Some(RecordKind::Lane) if head.spilled_lane_count > 0 => {
            let lane = codec::decode::<Lane>(value).map_err(|error| corrupt("a lane", error))?;
            entity.lanes.push(lane);
        }
        Some(RecordKind::Timer) if head.timer_count().map_err(damaged)? > 0 => {
            let timer = codec::decode::<Timer>(value).map_err(|error| corrupt("a timer", error))?;
            entity.timers.push(timer);
        }
        Some(RecordKind::Outbox) if waiting > 0 => entity.outbox.push(tell("a tell")?),
        Some(RecordKind::DeadLetter) if dead > 0 => {
            entity.dead_letters.push(tell("a dead letter")?)
        }
        _ => {}
    }
    Ok(())
}

/// The stored head, or the one that the shard's floor makes.
fn head(row: &Row) -> Result<Option<Head>, StoreError> {
    let Some(bytes) = column::<Option<&[u8]>>(row, 3)? else {
        if !column::<bool>(row, 5)? {
            return Ok(None);
        }
        let number = |at| column::<i64>(row, at).map(unsigned);
        let floor = HeadFloor {
            version: number(6)?,
            generation: number(7)?,
            watermark: number(8)?,
            tell_watermark: number(9)?,
            ..HeadFloor::default()
        };
        return floor.head().map(Some).map_err(corrupt_floor);
    };
    let mut head: Head = codec::decode(bytes).map_err(|error| corrupt("a head", error))?;
    head.commit_sequence = unsigned(column(row, 4)?);
    Ok(Some(head))
}

/// What a scan reads: a table, a condition on its rows, their order, and where the page begins.
struct ScanPlan {
    statement: String,
    parameters: Vec<(Vec<u8>, Type)>,
}

/// The columns of a page, cut where its bytes end. The sizes of values are known without reading them.
fn page_statement(table: &str, order: &str, value: &str, condition: &str) -> String {
    format!(
        "SELECT type, id, key, value, commit_sequence, total > count(*) OVER () FROM (
            SELECT q.*, count(*) OVER () AS total, row_number() OVER (ORDER BY {order}) AS place,
                sum(octet_length(type) + octet_length(id) + octet_length(key) + octet_length(value))
                    OVER (ORDER BY {order}) AS bytes
            FROM (
                SELECT r.type, r.id, {value}
                FROM ostraca.{table} r JOIN ostraca.shards s ON s.id = r.shard
                WHERE s.namespace = $1 AND s.pool = $2 AND s.number = $3 AND {condition}
                ORDER BY {order} LIMIT $4
            ) q
        ) p WHERE place = 1 OR (place < $4 AND bytes <= $5) ORDER BY {order}"
    )
}

impl ScanPlan {
    fn new(scan: &Scan) -> Result<Self, StoreError> {
        let entity_of = |cursor: &Bytes| {
            keys::parse_entity(cursor).map(|(entity, rest)| (entity, rest.to_vec()))
        };
        let after = scan.after.as_ref();
        let names = |entity: &Entity| {
            vec![entity.entity_type.as_bytes().to_vec(), entity.id.as_bytes().to_vec()]
        };
        const BY_ENTITY: &str = "type, id, key";
        const RECORD: &str = "r.key, r.value, 0::bigint AS commit_sequence";
        let of_entities = |kind: RecordKind, from: &Option<Entity>| -> Result<_, StoreError> {
            let (condition, parameters) = match (after, from) {
                (Some(after), _) => {
                    let (entity, rest) = entity_of(after)?;
                    let mut parameters = names(&entity);
                    parameters.push(rest);
                    ("(r.type, r.id, r.key) > ($6, $7, $8)", parameters)
                }
                (None, Some(from)) => ("(r.type, r.id) >= ($6, $7)", names(from)),
                (None, None) => ("true", Vec::new()),
            };
            let condition = format!("r.kind = {} AND {condition}", kind as i16);
            Ok((page_statement("records", BY_ENTITY, RECORD, &condition), parameters))
        };
        let of_entity =
            |kind: RecordKind, entity: &Entity, first: Option<Vec<u8>>, end: Option<Vec<u8>>| {
                let mut parameters = names(entity);
                let mut condition =
                    format!("r.kind = {} AND r.type = $6 AND r.id = $7", kind as i16);
                let mut bound = |comparison: &str, key: Option<Vec<u8>>| {
                    let Some(key) = key else { return };
                    parameters.push(key);
                    condition += &format!(" AND r.key {comparison} ${}", parameters.len() + 5);
                };
                match after {
                    Some(after) => bound(">", Some(after.to_vec())),
                    None => bound(">=", first),
                }
                bound("<", end);
                (page_statement("records", BY_ENTITY, RECORD, &condition), parameters)
            };
        let (statement, parameters) = match &scan.kind {
            ScanKind::Heads => {
                let (condition, parameters) = match after {
                    Some(after) => ("(r.type, r.id) > ($6, $7)", names(&entity_of(after)?.0)),
                    None => ("true", Vec::new()),
                };
                let head = "''::bytea AS key, r.head AS value, r.commit_sequence";
                (page_statement("heads", "type, id", head, condition), parameters)
            }
            ScanKind::Wakes { from } => {
                let from = from.as_ref().map(|(due, entity)| keys::wake_key(*due, entity));
                let (comparison, key) = match (after, from) {
                    (Some(after), _) => (">", after.to_vec()),
                    (None, from) => (">=", from.unwrap_or_default()),
                };
                let condition = format!(
                    "r.kind = {WAKE} AND r.type = '' AND r.id = '' AND r.key {comparison} $6"
                );
                (page_statement("records", BY_ENTITY, RECORD, &condition), vec![key])
            }
            ScanKind::DeadLetters { from } => of_entities(RecordKind::DeadLetter, from)?,
            ScanKind::Remembered { from } => of_entities(RecordKind::Remembered, from)?,
            ScanKind::State(entity) => of_entity(RecordKind::State, entity, None, None),
            ScanKind::Journal { entity, from } => {
                of_entity(RecordKind::Journal, entity, Some(from.to_be_bytes().to_vec()), None)
            }
            ScanKind::Channel { entity, channel, from } => {
                let whole = keys::channel_prefix(&scan.shard, entity, channel);
                let before = keys::entity_prefix(&scan.shard, RecordKind::ChannelItem, entity);
                let prefix = &whole[before.len()..];
                let first = [prefix, &from.to_be_bytes()].concat();
                // Names end in two zeros, so nothing else lies between.
                let mut end = prefix.to_vec();
                if let Some(last) = end.last_mut() {
                    *last = 1;
                }
                let after = after.map(|after| [prefix, after].concat());
                let mut plan = of_entity(RecordKind::ChannelItem, entity, Some(first), Some(end));
                if let (Some(after), Some(key)) = (after, plan.1.get_mut(2)) {
                    *key = after;
                }
                plan
            }
        };
        let parameters = parameters.into_iter().map(|it| (it, Type::BYTEA)).collect();
        Ok(Self { statement, parameters })
    }
}

pub(crate) async fn scan(client: &Client, scan: &Scan) -> Result<Page, StoreError> {
    check_record(&scan.range().0, 0).map_err(StoreError::LimitExceeded)?;
    let plan = ScanPlan::new(scan)?;
    let namespace = scan.shard.namespace.as_bytes();
    let pool = scan.shard.pool.as_bytes();
    let number = i64::from(scan.shard.shard.0);
    let wanted = scan.max_records.max(1);
    let limit = i64::try_from(wanted.saturating_add(1)).unwrap_or(i64::MAX);
    let bytes = i64::try_from(scan.max_bytes).unwrap_or(i64::MAX);
    let mut parameters: Vec<Parameter<'_>> = vec![
        (&namespace, Type::BYTEA),
        (&pool, Type::BYTEA),
        (&number, Type::INT8),
        (&limit, Type::INT8),
        (&bytes, Type::INT8),
    ];
    parameters.extend(plan.parameters.iter().map(|(value, of)| (value as _, of.clone())));
    let rows = client.query_typed(&plan.statement, &parameters).await;
    let rows = rows.map_err(|error| failed(&error))?;
    let mut page = Page::default();
    for row in rows {
        let (record, cursor) = scanned(scan, &row)?;
        page.records.push(record);
        page.next_cursor = column::<bool>(&row, 5)?.then_some(cursor);
    }
    Ok(page)
}

/// A record of a page, and the cursor behind it.
fn scanned(scan: &Scan, row: &Row) -> Result<(ScannedRecord, Bytes), StoreError> {
    let name = |at, what| -> Result<String, StoreError> {
        String::from_utf8(column::<Vec<u8>>(row, at)?).map_err(|error| corrupt(what, error))
    };
    let entity = || Ok::<_, StoreError>(Entity::new(name(0, "a type")?, name(1, "an id")?));
    let (key, value): (&[u8], Vec<u8>) = (column(row, 2)?, column(row, 3)?);
    let own = Bytes::copy_from_slice(key);
    let of_entity = |entity: &Entity| Bytes::from([&keys::entity_key(entity)[..], key].concat());
    Ok(match &scan.kind {
        ScanKind::Heads => {
            let entity = entity()?;
            let mut head: Head = codec::decode(&value).map_err(|error| corrupt("a head", error))?;
            head.commit_sequence = unsigned(column(row, 4)?);
            let cursor = of_entity(&entity);
            (ScannedRecord::Head(entity, Box::new(head)), cursor)
        }
        ScanKind::State(_) => (ScannedRecord::State(own.clone(), value.into()), own),
        ScanKind::Wakes { .. } => {
            let (due, entity) = keys::parse_wake(key)?;
            (ScannedRecord::Wake(due, entity), own)
        }
        ScanKind::DeadLetters { .. } => {
            let entity = entity()?;
            let tell: Tell = codec::decode(&value).map_err(|error| corrupt("a tell", error))?;
            let cursor = of_entity(&entity);
            (ScannedRecord::DeadLetter(entity, keys::last_number(key)?, Box::new(tell)), cursor)
        }
        ScanKind::Remembered { .. } => {
            let entity = entity()?;
            let cursor = of_entity(&entity);
            (ScannedRecord::Remembered(entity), cursor)
        }
        ScanKind::Journal { .. } => {
            (ScannedRecord::of_journal(keys::last_number(key)?, &value)?, own)
        }
        ScanKind::Channel { .. } => {
            let number = keys::last_number(key)?;
            let cursor = Bytes::copy_from_slice(&number.to_be_bytes());
            (ScannedRecord::of_channel(number, &value)?, cursor)
        }
    })
}
