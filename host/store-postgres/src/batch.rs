//! A batch of commits as the parameters of the procedure `commit_batch`, and its outcomes.

use std::collections::HashMap;

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, Commit, CommitOutcome, CommitRefusal, OWN_TIMERS, RecordKey};
use ostraca_store::entity::{check_commit, check_record};
use ostraca_store::record::RecordKind;
use ostraca_store::{StoreError, keys};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::binary::Binary;
use crate::error::ColumnError;
use crate::row::column;

/// The kind under which wake-ups are stored. Their keys begin with the time, so they have no type and id.
pub(crate) const WAKE: i16 = 105;

/// Outcomes, as the procedure numbers them.
const COMMITTED: i16 = 0;
const ALREADY: i16 = 1;
const OTHER_CLAIM: i16 = 2;
const OTHER_VERSION: i16 = 3;
const REFUSED: i16 = 4;

/// The columns of a batch: one array each.
#[derive(Default)]
pub(crate) struct Batch {
    namespaces: Vec<Vec<u8>>,
    pools: Vec<Vec<u8>>,
    numbers: Vec<i64>,
    rounds: Vec<i32>,
    shards: Vec<i32>,
    claims: Vec<Vec<u8>>,
    types: Vec<Vec<u8>>,
    ids: Vec<Vec<u8>>,
    expected: Vec<i64>,
    versions: Vec<i64>,
    turns: Vec<Vec<u8>>,
    heads: Vec<Option<Vec<u8>>>,
    removes: Vec<bool>,
    generations: Vec<i64>,
    watermarks: Vec<i64>,
    tell_watermarks: Vec<i64>,
    write_turns: Vec<i32>,
    write_kinds: Vec<i16>,
    write_keys: Vec<Vec<u8>>,
    write_values: Vec<Option<Binary>>,
    /// Why a commit is refused if nothing else refuses it.
    refusals: HashMap<usize, CommitRefusal>,
}

/// A commit that is encoded, or refused unless its claim or version refuses it first.
pub(crate) struct Prepared {
    shard: ShardPath,
    entity: Entity,
    expected: i64,
    version: i64,
    watermark: i64,
    turn: Vec<u8>,
    claim: Vec<u8>,
    encoded: Result<Encoded, CommitRefusal>,
}

struct Encoded {
    /// `None` removes the stored head.
    head: Option<Vec<u8>>,
    generation: u64,
    tell_watermark: u64,
    writes: Vec<(i16, Vec<u8>, Option<Bytes>)>,
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A place in a batch, which the queue's limits keep small.
fn number(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}

fn limit(why: impl Into<String>) -> CommitRefusal {
    CommitRefusal::LimitReached(why.into())
}

/// The kind and the key of a record, without what the other columns hold.
pub(crate) fn stored_key(shard: &ShardPath, entity: &Entity, key: &RecordKey) -> (i16, Vec<u8>) {
    match key {
        RecordKey::Timer { due, .. } if *due != OWN_TIMERS => (WAKE, keys::wake_key(*due, entity)),
        RecordKey::Timer { name, .. } => (RecordKind::Timer as i16, name.as_bytes().to_vec()),
        other => {
            let (full, kind) = keys::record_key(shard, entity, other);
            let prefix = keys::entity_prefix(shard, kind, entity).len();
            (kind as i16, full[prefix..].to_vec())
        }
    }
}

/// The key of a timer from the column, the inverse of [`stored_key`].
pub(crate) fn timer_key(name: &[u8]) -> Result<RecordKey, StoreError> {
    let name = std::str::from_utf8(name)
        .map_err(|error| StoreError::Corrupt(format!("the name of a timer: {error}")))?;
    Ok(RecordKey::Timer { due: OWN_TIMERS, name: name.into() })
}

impl Prepared {
    /// Checks a commit against the limits that all backends share, and encodes it.
    pub(crate) fn new(commit: Commit) -> Self {
        let damaged = |error: codec::CodecError| limit(format!("cannot encode the turn: {error}"));
        let identity = codec::encode(&commit.head.turn)
            .and_then(|turn| codec::encode(&*commit.claim).map(|claim| (turn, claim)));
        let (identity, refused) = match identity {
            Ok(identity) => (identity, None),
            Err(error) => (Default::default(), Some(damaged(error))),
        };
        Self {
            shard: commit.claim.shard.clone(),
            entity: commit.entity.clone(),
            expected: signed(commit.expected_version),
            version: signed(commit.head.version),
            watermark: signed(commit.head.watermark),
            turn: identity.0,
            claim: identity.1,
            encoded: refused.map_or_else(|| encoded(commit), Err),
        }
    }

    /// Whether it removes the stored head.
    fn removes(&self) -> bool {
        self.encoded.as_ref().is_ok_and(|encoded| encoded.head.is_none())
    }

    /// Its bytes in a batch, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let names = self.entity.id.len() + self.turn.len() + self.claim.len();
        let encoded = self.encoded.as_ref().map_or(0, |encoded| {
            let writes = encoded.writes.iter();
            let writes =
                writes.map(|(_, key, value)| 64 + key.len() + value.as_ref().map_or(0, Bytes::len));
            encoded.head.as_ref().map_or(0, Vec::len) + writes.sum::<usize>()
        });
        256 + names + encoded
    }
}

/// The rounds of a shard's commits. The commits of one round are judged together, so each must be right whether or not
/// it sees the others.
struct ShardRounds {
    /// The shard's place in the batch.
    place: i32,
    /// The first round that the next commit may have.
    first: i32,
    /// The last round of a commit so far.
    last: i32,
}

impl ShardRounds {
    /// The round of the next commit, whose entity's last commit was in the round `before`. A removal raises the floor,
    /// by which entities without heads are judged: it comes with or behind all commits before it, and those behind it
    /// come later.
    fn next(&mut self, before: i32, removes: bool) -> i32 {
        let mut round = self.first.max(before + 1);
        if removes {
            round = round.max(self.last);
            self.first = round + 1;
        }
        self.last = self.last.max(round);
        round
    }
}

impl Batch {
    pub(crate) fn new(commits: Vec<Prepared>) -> Self {
        let mut batch = Self::default();
        let mut of_shards: HashMap<ShardPath, ShardRounds> = HashMap::new();
        let mut of_entities: HashMap<(i32, Entity), i32> = HashMap::new();
        for commit in commits {
            let shard = of_shards.entry(commit.shard.clone()).or_insert_with_key(|shard| {
                batch.namespaces.push(shard.namespace.as_bytes().to_vec());
                batch.pools.push(shard.pool.as_bytes().to_vec());
                batch.numbers.push(shard.shard.0.into());
                ShardRounds { place: number(batch.numbers.len()), first: 1, last: 1 }
            });
            let last = of_entities.entry((shard.place, commit.entity.clone())).or_default();
            *last = shard.next(*last, commit.removes());
            let (place, round) = (shard.place, *last);
            batch.push(commit, place, round);
        }
        batch
    }

    fn push(&mut self, commit: Prepared, of_shard: i32, round: i32) {
        let place = self.rounds.len();
        self.rounds.push(round);
        self.shards.push(of_shard);
        self.types.push(commit.entity.entity_type.as_bytes().to_vec());
        self.ids.push(commit.entity.id.as_bytes().to_vec());
        self.expected.push(commit.expected);
        self.versions.push(commit.version);
        self.watermarks.push(commit.watermark);
        self.claims.push(commit.claim);
        self.turns.push(commit.turn);
        let encoded = match commit.encoded {
            Ok(encoded) => Some(encoded),
            Err(refusal) => {
                self.refusals.insert(place, refusal);
                None
            }
        };
        self.removes.push(encoded.as_ref().is_some_and(|encoded| encoded.head.is_none()));
        let (generation, tell_watermark) =
            encoded.as_ref().map_or((0, 0), |it| (it.generation, it.tell_watermark));
        self.generations.push(signed(generation));
        self.tell_watermarks.push(signed(tell_watermark));
        let (head, writes) = encoded.map_or((None, Vec::new()), |it| (it.head, it.writes));
        self.heads.push(head);
        for (kind, key, value) in writes {
            self.write_turns.push(number(place + 1));
            self.write_kinds.push(kind);
            self.write_keys.push(key);
            self.write_values.push(value.map(Binary));
        }
    }

    /// Number of commits.
    pub(crate) fn len(&self) -> usize {
        self.rounds.len()
    }

    /// The parameters of the call, in order, behind those of the connection.
    pub(crate) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        vec![
            (&self.namespaces, Type::BYTEA_ARRAY),
            (&self.pools, Type::BYTEA_ARRAY),
            (&self.numbers, Type::INT8_ARRAY),
            (&self.rounds, Type::INT4_ARRAY),
            (&self.shards, Type::INT4_ARRAY),
            (&self.claims, Type::BYTEA_ARRAY),
            (&self.types, Type::BYTEA_ARRAY),
            (&self.ids, Type::BYTEA_ARRAY),
            (&self.expected, Type::INT8_ARRAY),
            (&self.versions, Type::INT8_ARRAY),
            (&self.turns, Type::BYTEA_ARRAY),
            (&self.heads, Type::BYTEA_ARRAY),
            (&self.removes, Type::BOOL_ARRAY),
            (&self.generations, Type::INT8_ARRAY),
            (&self.watermarks, Type::INT8_ARRAY),
            (&self.tell_watermarks, Type::INT8_ARRAY),
            (&self.write_turns, Type::INT4_ARRAY),
            (&self.write_kinds, Type::INT2_ARRAY),
            (&self.write_keys, Type::BYTEA_ARRAY),
            (&self.write_values, Type::BYTEA_ARRAY),
        ]
    }

    /// The outcomes of the commits, from the procedure's row.
    pub(crate) fn outcomes(&self, row: &Row) -> Result<Vec<CommitOutcome>, String> {
        let failed = |error: ColumnError| error.to_string();
        let outcomes: Vec<i16> = column(row, 0).map_err(failed)?;
        let versions: Vec<Option<i64>> = column(row, 1).map_err(failed)?;
        let claims: Vec<Option<Vec<u8>>> = column(row, 2).map_err(failed)?;
        if [outcomes.len(), versions.len(), claims.len()] != [self.len(); 3] {
            return Err("the server returned another number of outcomes".into());
        }
        let all = outcomes.into_iter().zip(versions).zip(claims).enumerate();
        all.map(|(place, ((outcome, version), claim))| {
            Ok(match outcome {
                COMMITTED => CommitOutcome::Committed,
                ALREADY => CommitOutcome::AlreadyCommitted,
                OTHER_CLAIM => {
                    let decoded = claim.map(|claim| codec::decode::<Claim>(&claim)).transpose();
                    let current = decoded.map_err(|error| error.to_string())?.map(Box::new);
                    CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current })
                }
                OTHER_VERSION => {
                    let stored = version.and_then(|version| version.try_into().ok());
                    let stored = stored.unwrap_or_default();
                    CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored })
                }
                REFUSED => {
                    let why = self.refusals.get(&place).cloned();
                    CommitOutcome::Refused(why.unwrap_or_else(|| limit("refused")))
                }
                other => return Err(format!("the server returned the outcome {other}")),
            })
        })
        .collect()
    }
}

fn encoded(mut commit: Commit) -> Result<Encoded, CommitRefusal> {
    if commit.expected_version.checked_add(1) != Some(commit.head.version) {
        return Err(limit("a commit must increment the version by one"));
    }
    if i64::try_from(commit.head.version).is_err() {
        return Err(limit("the version is beyond what PostgreSQL can store"));
    }
    check_commit(&commit).map_err(CommitRefusal::TooLarge)?;
    let (shard, entity) = (&commit.claim.shard, &commit.entity);
    check_record(&keys::head(shard, entity), 0).map_err(CommitRefusal::TooLarge)?;
    // A commit may write a key more than once: the last value counts.
    let mut places: HashMap<(i16, Vec<u8>), usize> = HashMap::new();
    let mut writes: Vec<(i16, Vec<u8>, Option<Bytes>)> = Vec::with_capacity(commit.writes.len());
    for write in std::mem::take(&mut commit.writes) {
        let full = keys::record_key(shard, entity, &write.key).0;
        let size = write.value.as_ref().map_or(0, Bytes::len);
        check_record(&full, size).map_err(CommitRefusal::TooLarge)?;
        let (kind, key) = stored_key(shard, entity, &write.key);
        match places.get(&(kind, key.clone())) {
            Some(place) => writes[*place].2 = write.value,
            None => {
                places.insert((kind, key.clone()), writes.len());
                writes.push((kind, key, write.value));
            }
        }
    }
    let damaged = |error: codec::CodecError| limit(format!("cannot encode the turn: {error}"));
    let removes = commit.head.is_removed().map_err(damaged)?;
    // The store's own number is in a column.
    commit.head.commit_sequence = 0;
    let head = codec::encode(&commit.head).map_err(damaged)?;
    check_record(&[], head.len()).map_err(CommitRefusal::TooLarge)?;
    Ok(Encoded {
        head: (!removes).then_some(head),
        generation: commit.head.generation().map_err(damaged)?,
        tell_watermark: commit.head.tell_watermark().map_err(damaged)?,
        writes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e17_a_removal_separates_the_commits_around_it() {
        let mut shard = ShardRounds { place: 1, first: 1, last: 1 };
        assert_eq!([shard.next(0, false), shard.next(1, false), shard.next(0, false)], [1, 2, 1]);
        assert_eq!(shard.next(0, true), 2, "with the last one before it");
        assert_eq!([shard.next(0, false), shard.next(2, false), shard.next(3, false)], [3, 3, 4]);
        assert_eq!([shard.next(1, true), shard.next(0, true)], [4, 5]);
    }
}
