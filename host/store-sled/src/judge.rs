//! Judges writing calls in order and gathers what they write into one batch (R1, R4, R5).
//!
//! What was judged but is not applied yet stands in the maps here, which every judgement asks first: so each
//! call sees those before it, in the same batch or the last. The maps are never wrong afterwards, because
//! the only other end of a batch is that the store stops.

use std::collections::HashMap;

use ostraca_core::ids::{ClusterId, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, Head, RecordKey,
};
use ostraca_store::entity::{check_commit, check_record};
use ostraca_store::record::{Kind, StandingClaim};
use ostraca_store::{Cas, Conflict, Row, RowEvent, StoreError, keys};
use sled::Batch;

use crate::heads::{Heads, Mark};
use crate::meta::{RowBody, SEQUENCE, Sequence};
use crate::records::{Records, Table, piece_prefix, pieces, put, remove};

/// How many commit sequences of a shard are spoken for at once: so often its claim record is written again.
const SEQUENCES: u64 = 4096;

pub(crate) struct Judge {
    records: Records,
    cluster: ClusterId,
    sequence: u64,
    shards: HashMap<ShardPath, Shard>,
    heads: Heads,
    /// Pieces of the records beside heads that this batch writes, of entities that have any in pieces.
    beside: HashMap<Vec<u8>, u32>,
    rows: HashMap<String, Option<Row>>,
    batch: Batch,
    events: Vec<RowEvent>,
    /// Whether `batch` holds anything.
    wrote: bool,
}

struct Shard {
    standing: StandingClaim,
    last: u64,
}

/// What a batch writes.
pub(crate) struct Judged {
    pub(crate) batch: Batch,
    pub(crate) events: Vec<RowEvent>,
    pub(crate) sequence: u64,
}

impl Judge {
    pub(crate) fn new(
        records: Records,
        cluster: ClusterId,
        sequence: u64,
        head_cache: usize,
    ) -> Self {
        Self {
            records,
            cluster,
            sequence,
            shards: HashMap::new(),
            heads: Heads::new(head_cache),
            beside: HashMap::new(),
            rows: HashMap::new(),
            batch: Batch::default(),
            events: Vec::new(),
            wrote: false,
        }
    }

    /// Ends the batch; `None` if it writes nothing.
    pub(crate) fn finish(&mut self) -> Result<Option<Judged>, StoreError> {
        self.beside.clear();
        self.rows.clear();
        self.heads.age();
        if !std::mem::take(&mut self.wrote) {
            return Ok(None);
        }
        let key = Table::Meta.key(SEQUENCE);
        let record = self.records.codec.encode(&key, &Sequence(self.sequence))?;
        self.batch.insert(key, record);
        let batch = std::mem::take(&mut self.batch);
        let events = std::mem::take(&mut self.events);
        Ok(Some(Judged { batch, events, sequence: self.sequence }))
    }

    pub(crate) fn claim(&mut self, claim: Claim) -> ClaimOutcome {
        if claim.cluster != self.cluster {
            return ClaimOutcome::OtherCluster { store_cluster: self.cluster };
        }
        if let Err(limit) = check_record(&keys::claim(&claim.shard), 0) {
            return ClaimOutcome::Failed(limit);
        }
        match self.shard(&claim.shard) {
            Err(error) => return ClaimOutcome::Failed(error.to_string()),
            Ok(Some(shard)) if !claim.supersedes(&shard.standing.claim) => {
                return ClaimOutcome::Refused { current: Box::new(shard.standing.claim.clone()) };
            }
            Ok(Some(shard)) if claim == shard.standing.claim => return ClaimOutcome::Granted,
            Ok(_) => {}
        }
        let old = self.shards.get(&claim.shard);
        let (reserved, last) = old.map_or((0, 0), |old| (old.standing.reserved, old.last));
        let extensions = old.map(|old| old.standing.extensions.clone()).unwrap_or_default();
        let shard = Shard { standing: StandingClaim { claim, reserved, extensions }, last };
        match self.stand(shard) {
            Ok(()) => ClaimOutcome::Granted,
            Err(error) => ClaimOutcome::Failed(error.to_string()),
        }
    }

    pub(crate) fn commit(&mut self, commit: Commit) -> CommitOutcome {
        match self.try_commit(commit) {
            Ok(outcome) => outcome,
            Err(error) => CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string())),
        }
    }

    fn try_commit(&mut self, mut commit: Commit) -> Result<CommitOutcome, StoreError> {
        let key = keys::head(&commit.claim.shard, &commit.entity);
        if let Err(limit) = check_record(&key, 0) {
            return Ok(too_large(limit));
        }
        let head_key = Table::Entities.key(&key);
        let mut mark = self.mark(&head_key)?;
        if mark.version == commit.head.version && mark.version > 0 && mark.turn == commit.head.turn
        {
            return Ok(CommitOutcome::AlreadyCommitted);
        }
        let standing = self.shard(&commit.claim.shard)?.map(|shard| &shard.standing.claim);
        if standing != Some(&*commit.claim) {
            let standing = standing.cloned().map(Box::new);
            return Ok(CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current: standing }));
        }
        if mark.version != commit.expected_version {
            return Ok(CommitOutcome::Refused(CommitRefusal::VersionMismatch {
                stored: mark.version,
            }));
        }
        if commit.expected_version.checked_add(1) != Some(commit.head.version) {
            return Ok(CommitOutcome::Refused(CommitRefusal::LimitReached(
                "a commit raises the version by one".into(),
            )));
        }
        if let Err(limit) = check_commit(&commit) {
            return Ok(too_large(limit));
        }
        let mut state = Beside::new(&commit, Kind::State);
        let mut lanes = Beside::new(&commit, Kind::Lane);
        let mut writes = Vec::with_capacity(commit.writes.len());
        for write in std::mem::take(&mut commit.writes) {
            let (beside, in_pieces, last) = match &write.key {
                RecordKey::State(key) => (&mut state, &mut mark.state_in_pieces, &key[..]),
                RecordKey::Lane(session) => (&mut lanes, &mut mark.lanes_in_pieces, &session.0[..]),
            };
            let key = beside.key(last);
            let value = write.value;
            let size = value.as_ref().map_or(0, bytes::Bytes::len);
            if let Err(limit) = check_record(&key[1..], size) {
                return Ok(too_large(limit));
            }
            let kind = beside.kind;
            let in_pieces = match *in_pieces {
                Some(known) => known,
                None => *in_pieces.insert(self.records.has(&piece_prefix(&beside.prefix))?),
            };
            let old = if in_pieces { self.pieces_beside(kind, &key)? } else { 0 };
            writes.push((key, kind, value, old, in_pieces));
        }
        commit.head.commit_sequence = self.next_sequence(&commit.claim.shard)?;
        let head = self.records.codec.encode(&head_key, &commit.head)?;
        if let Err(limit) = check_record(&[], head.len()) {
            return Ok(too_large(limit));
        }

        // From here on nothing can fail: a commit is written whole or not at all.
        for (key, kind, value, mut old, in_pieces) in writes {
            // A key written twice in one commit has the pieces of its last value.
            if let Some(pieces) = self.beside.get(&key) {
                old = *pieces;
            }
            let new = match value {
                Some(value) => {
                    let record = self.records.codec.encode_bytes(kind, &key, value);
                    put(&mut self.batch, key.clone(), record, old)
                }
                None => {
                    remove(&mut self.batch, key.clone(), old);
                    0
                }
            };
            if in_pieces || new > 0 {
                self.beside.insert(key, new);
            }
            if new > 0 {
                match kind {
                    Kind::Lane => mark.lanes_in_pieces = Some(true),
                    _ => mark.state_in_pieces = Some(true),
                }
            }
        }
        let pieces = put(&mut self.batch, head_key.clone(), head, mark.pieces);
        let Head { version, turn, .. } = commit.head;
        self.heads.insert(head_key, Mark { version, turn, pieces, ..mark });
        self.sequence += 1;
        self.wrote = true;
        Ok(CommitOutcome::Committed)
    }

    pub(crate) fn compare_and_set(&mut self, cas: Cas) -> Result<u64, Conflict> {
        cas.check()?;
        let key = Table::Rows.key(cas.key.as_bytes());
        let raw = self.records.raw(&key)?;
        let row = match self.rows.get(&cas.key) {
            Some(row) => row.clone(),
            None => raw.as_ref().map(|raw| row(&self.records, &key, raw)).transpose()?,
        };
        if row.as_ref().map(|row| row.revision) != cas.expected {
            return Err(Conflict::Changed(row));
        }
        // Rows may be written more than once in a batch: the most pieces that one can have are removed.
        let old = match (&raw, self.rows.contains_key(&cas.key)) {
            (_, true) => MOST_ROW_PIECES,
            (Some(raw), false) => pieces(Kind::Row, raw)?,
            (None, false) => 0,
        };
        let revision = self.sequence + 1;
        let (row, event) = if let Some(value) = cas.value {
            let body = RowBody { revision, value: value.clone() };
            let record = self.records.codec.encode(&key, &body)?;
            put(&mut self.batch, key, record, old);
            let row = Row { key: cas.key.clone(), revision, value };
            (Some(row.clone()), RowEvent::Set(row))
        } else {
            remove(&mut self.batch, key, old);
            (None, RowEvent::Deleted { key: cas.key.clone(), revision })
        };
        self.rows.insert(cas.key, row);
        self.events.push(event);
        self.sequence = revision;
        self.wrote = true;
        Ok(revision)
    }

    /// The shard, if it was ever claimed.
    fn shard(&mut self, key: &ShardPath) -> Result<Option<&Shard>, StoreError> {
        if !self.shards.contains_key(key) {
            let claim_key = Table::Entities.key(&keys::claim(key));
            let Some(standing) = self.records.get::<StandingClaim>(&claim_key)? else {
                return Ok(None);
            };
            // Which of the reserved sequences were used is not known: go on behind them.
            let last = standing.reserved;
            self.shards.insert(key.clone(), Shard { standing, last });
        }
        Ok(self.shards.get(key))
    }

    fn next_sequence(&mut self, key: &ShardPath) -> Result<u64, StoreError> {
        self.shard(key)?;
        let Some(shard) = self.shards.get_mut(key) else {
            return Err(StoreError::Corrupt("a claim vanished".into()));
        };
        let next = shard.last + 1;
        if next <= shard.standing.reserved {
            shard.last = next;
            return Ok(next);
        }
        let mut standing = shard.standing.clone();
        standing.reserved = next + SEQUENCES;
        self.stand(Shard { standing, last: next })?;
        Ok(next)
    }

    /// Adds the writing of a shard's claim to the batch.
    fn stand(&mut self, shard: Shard) -> Result<(), StoreError> {
        let key = Table::Entities.key(&keys::claim(&shard.standing.claim.shard));
        let record = self.records.codec.encode(&key, &shard.standing)?;
        put(&mut self.batch, key, record, 0);
        self.shards.insert(shard.standing.claim.shard.clone(), shard);
        self.sequence += 1;
        self.wrote = true;
        Ok(())
    }

    fn mark(&mut self, key: &[u8]) -> Result<Mark, StoreError> {
        if let Some(mark) = self.heads.get(key) {
            return Ok(mark);
        }
        let Some(raw) = self.records.raw(key)? else {
            // Without a head there is nothing beside it.
            let nothing = Some(false);
            let (state_in_pieces, lanes_in_pieces) = (nothing, nothing);
            return Ok(Mark { state_in_pieces, lanes_in_pieces, ..Mark::default() });
        };
        let head = self.records.decode::<Head>(key, &raw)?;
        let pieces = pieces(Kind::Head, &raw)?;
        Ok(Mark { version: head.version, turn: head.turn, pieces, ..Mark::default() })
    }

    fn pieces_beside(&self, kind: Kind, key: &[u8]) -> Result<u32, StoreError> {
        if let Some(count) = self.beside.get(key) {
            return Ok(*count);
        }
        self.records.raw(key)?.map_or(Ok(0), |raw| pieces(kind, &raw))
    }
}

/// More pieces than the largest row has.
const MOST_ROW_PIECES: u32 = 20;

/// The row that was read under `key`, the table's letter included.
pub(crate) fn row(records: &Records, key: &[u8], raw: &[u8]) -> Result<Row, StoreError> {
    let RowBody { revision, value } = records.decode(key, raw)?;
    let name = key.get(1..).map(|name| String::from_utf8(name.to_vec()));
    match name {
        Some(Ok(key)) => Ok(Row { key, revision, value }),
        _ => Err(StoreError::Corrupt("a row's key is no text".into())),
    }
}

fn too_large(why: String) -> CommitOutcome {
    CommitOutcome::Refused(CommitRefusal::TooLarge(why))
}

/// The keys of one kind of an entity's records.
struct Beside {
    kind: Kind,
    prefix: Vec<u8>,
}

impl Beside {
    fn new(commit: &Commit, kind: Kind) -> Self {
        let prefix = keys::of_entity(&commit.claim.shard, kind, &commit.entity);
        Self { kind, prefix: Table::Entities.key(&prefix) }
    }

    fn key(&self, last: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + last.len());
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(last);
        key
    }
}

#[cfg(test)]
mod tests;
