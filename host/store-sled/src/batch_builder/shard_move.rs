//! Evaluates the steps of a move of a single shard (R26).

use ostraca_core::records::{Claim, HeadFloor, Presence};
use ostraca_store::record::{ClaimRecord, RecordKind};
use ostraca_store::transfer::Item;
use ostraca_store::{ShardMoveError, StoreError, entity, keys};

use super::{BatchBuilder, ShardClaim};
use crate::head_cache::CachedHead;
use crate::records::{Table, fragment_count, put, read_error, remove};
use crate::shard_op::ShardOp;

/// Number of records that are removed at once.
const REMOVED_AT_ONCE: usize = 1_000;

/// An item that is ready to be written.
struct Incoming {
    key: Vec<u8>,
    record: Vec<u8>,
    /// If it is a head.
    head: Option<CachedHead>,
}

impl BatchBuilder {
    /// Evaluates a step. Returns whether something is left to be removed.
    pub(crate) fn move_shard(&mut self, step: ShardOp) -> Result<bool, ShardMoveError> {
        match step {
            ShardOp::Write { incoming, items } => self.write_incoming(&incoming, items),
            ShardOp::Remove { absent } => self.remove_absent(&absent),
            ShardOp::Finish { incoming, claim, floor, last_sequence } => {
                self.finish_incoming(&incoming, claim, floor, last_sequence)
            }
        }
    }

    /// Fails unless this is the shard's current claim, and says the right thing about its data.
    fn check_presence(
        &mut self,
        claim: &Claim,
        is_right: fn(Presence) -> bool,
    ) -> Result<(), ShardMoveError> {
        let is_right = is_right(claim.presence()?);
        let current = self.shard(&claim.shard)?.map(|shard| &shard.record.claim);
        match current == Some(claim) && is_right {
            true => Ok(()),
            false => Err(ShardMoveError::Superseded(current.cloned().map(Box::new))),
        }
    }

    fn write_incoming(&mut self, claim: &Claim, items: Vec<Item>) -> Result<bool, ShardMoveError> {
        self.check_presence(claim, is_incoming)?;
        let mut writes = Vec::with_capacity(items.len());
        for item in items {
            let Some(write) = self.encode(claim, item)? else { continue };
            let is_there = match self.moved.get(&write.key) {
                Some(written) => written.is_some(),
                None => self.records.raw(&write.key)?.is_some(),
            };
            if !is_there {
                writes.push(write);
            }
        }
        // Nothing below can fail.
        for Incoming { key, record, head } in writes {
            self.note_changed(&key);
            let fragments = put(&mut self.batch, key.clone(), record, 0);
            if let Some(head) = head {
                self.heads.insert(key.clone(), CachedHead { fragment_count: fragments, ..head });
            }
            self.moved.insert(key, Some(fragments));
            self.sequence += 1;
            self.wrote = true;
        }
        Ok(false)
    }

    /// `None` for what is no head or record of the claim's shard.
    fn encode(&self, claim: &Claim, item: Item) -> Result<Option<Incoming>, StoreError> {
        Ok(match item {
            Item::Head { shard, entity, head } if shard == claim.shard => {
                let key = Table::Entities.key(&keys::head(&shard, &entity));
                let record = self.records.codec.encode(&key, &*head)?;
                let (version, turn) = (head.version, head.turn);
                let head = Some(CachedHead { version, turn, ..CachedHead::default() });
                Some(Incoming { key, record, head })
            }
            Item::Record { shard, entity, key, value } if shard == claim.shard => {
                let (key, kind) = keys::record_key(&shard, &entity, &key);
                let key = Table::Entities.key(&key);
                let record = self.records.codec.encode_bytes(kind, &key, value);
                Some(Incoming { key, record, head: None })
            }
            _ => None,
        })
    }

    fn remove_absent(&mut self, claim: &Claim) -> Result<bool, ShardMoveError> {
        self.check_presence(claim, |presence| presence != Presence::Here)?;
        let prefix = Table::Entities.key(&keys::shard_prefix(&claim.shard));
        let mut found: Vec<(Vec<u8>, RecordKind, u32)> = Vec::new();
        // What the batch itself has written is not in the tree yet.
        let of_batch = self.moved.iter().filter(|(key, _)| key.starts_with(&prefix));
        let mut written = Vec::new();
        for (key, fragments) in of_batch {
            let Some(fragments) = fragments else { continue };
            written.push((key.clone(), kind_of(key)?, *fragments));
        }
        for record in self.records.db.scan_prefix(&prefix) {
            let (key, raw) = record.map_err(read_error)?;
            let kind = kind_of(&key)?;
            if kind == RecordKind::Claim || self.moved.contains_key(&key[..]) {
                continue;
            }
            found.push((key.to_vec(), kind, fragment_count(kind, &raw)?));
            if found.len() > REMOVED_AT_ONCE {
                break;
            }
        }
        let is_left = found.len() > REMOVED_AT_ONCE;
        found.truncate(REMOVED_AT_ONCE);
        found.extend(written);
        for (key, kind, fragments) in found {
            self.note_changed(&key);
            remove(&mut self.batch, key.clone(), fragments);
            if kind == RecordKind::Head {
                self.heads.insert(key.clone(), CachedHead::none());
            }
            self.moved.insert(key, None);
            self.sequence += 1;
            self.wrote = true;
        }
        Ok(is_left)
    }

    fn finish_incoming(
        &mut self,
        incoming: &Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> Result<bool, ShardMoveError> {
        self.check_presence(incoming, is_incoming)?;
        let extensions = ostraca_core::extensions::Extensions::default();
        let mut record = ClaimRecord { claim, reserved_sequence: last_sequence, extensions };
        if let Some(floor) = floor {
            record.set_floor(&floor).map_err(entity::corrupt_floor)?;
        }
        self.put_claim(ShardClaim { record, last: last_sequence })?;
        Ok(false)
    }

    /// Remembers the key of an entity's record for a backup that runs.
    fn note_changed(&mut self, key: &[u8]) {
        if self.changed.are_wanted() {
            self.changed_keys.push(key.to_vec());
        }
    }
}

fn is_incoming(presence: Presence) -> bool {
    matches!(presence, Presence::IncomingFrom(_))
}

/// The kind of the record with this full key.
fn kind_of(key: &[u8]) -> Result<RecordKind, StoreError> {
    Ok(keys::parse_kind(key.get(1..).unwrap_or_default())?.1)
}
