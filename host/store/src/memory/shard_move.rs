//! Moves of shards between memory stores.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use ostraca_core::ids::ShardPath;
use ostraca_core::records::{Claim, HeadFloor, Presence};

use super::{Data, MemoryStore, starting_with};
use crate::record::RecordKind;
use crate::shard_move::{MovableShards, ShardMoveError};
use crate::transfer::{Item, ItemPage};
use crate::{StoreError, StoreFuture, keys};

/// Number of items in a page, and of those that are removed at once: few, so that tests see many pages.
const PAGE: usize = 8;

impl Data {
    fn items(&self, shard: &ShardPath) -> Result<Vec<Item>, StoreError> {
        let claim = self.claims.get(&keys::claim(shard)).cloned();
        let base = self.sequence_bases.get(shard).copied().unwrap_or_default();
        let floor = self.floors.get(shard).cloned();
        let last_sequence = base + self.identity.durable_sequence;
        let mut items: Vec<_> =
            claim.map(|claim| Item::Shard { claim, floor, last_sequence }).into_iter().collect();
        for (key, head) in starting_with(&self.heads, &keys::kind_prefix(shard, RecordKind::Head)) {
            let entity = keys::parse_entity(key)?.0;
            items.push(Item::Head { shard: shard.clone(), entity, head: Box::new(head.clone()) });
        }
        let prefix = keys::shard_prefix(shard);
        for (rest, value) in starting_with(&self.records, &prefix) {
            let (shard, kind, rest) = keys::parse_kind(&[&prefix[..], rest].concat())
                .map(|(shard, kind, rest)| (shard, kind, rest.to_vec()))?;
            let (entity, key) = keys::parse_record(kind, &rest)?;
            items.push(Item::Record { shard, entity, key, value: value.clone() });
        }
        Ok(items)
    }

    /// Fails unless this claim is the shard's current one, and satisfies a condition.
    fn check(
        &self,
        claim: &Claim,
        is_right: impl Fn(Presence) -> bool,
    ) -> Result<(), ShardMoveError> {
        let current = self.claims.get(&keys::claim(&claim.shard));
        match current == Some(claim) && is_right(claim.presence()?) {
            true => Ok(()),
            false => Err(ShardMoveError::Superseded(current.cloned().map(Box::new))),
        }
    }

    fn write_incoming(&mut self, claim: &Claim, items: Vec<Item>) -> Result<(), ShardMoveError> {
        self.check(claim, |presence| matches!(presence, Presence::IncomingFrom(_)))?;
        for item in items {
            match item {
                Item::Head { shard, entity, head } => {
                    self.heads.entry(keys::head(&shard, &entity)).or_insert(*head);
                }
                Item::Record { shard, entity, key, value } => {
                    let key = keys::record_key(&shard, &entity, &key).0;
                    self.records.entry(key).or_insert(value);
                }
                Item::Shard { .. } | Item::Component(_) | Item::Row { .. } => {}
            }
        }
        Ok(())
    }

    fn remove_absent(&mut self, claim: &Claim) -> Result<bool, ShardMoveError> {
        self.check(claim, |presence| presence != Presence::Here)?;
        let prefix = keys::shard_prefix(&claim.shard);
        let heads: Vec<_> = starting_with(&self.heads, &prefix).take(PAGE).collect();
        let heads = heads.into_iter().map(|(key, _)| [&prefix[..], key].concat());
        let records: Vec<_> = starting_with(&self.records, &prefix).take(PAGE).collect();
        let records = records.into_iter().map(|(key, _)| [&prefix[..], key].concat());
        let (heads, records): (Vec<_>, Vec<_>) = (heads.collect(), records.collect());
        for key in &heads {
            self.heads.remove(key);
        }
        for key in &records {
            self.records.remove(key);
        }
        self.floors.remove(&claim.shard);
        Ok(heads.len().max(records.len()) == PAGE)
    }
}

impl MovableShards for MemoryStore {
    fn shard_page(
        &self,
        shard: ShardPath,
        cursor: Option<Bytes>,
    ) -> StoreFuture<Result<ItemPage, StoreError>> {
        let from =
            cursor.and_then(|cursor| cursor[..].try_into().ok()).map_or(0, u64::from_be_bytes);
        let page = self.lock().items(&shard).map(|items| {
            // As with other stores, the first page has only the shard.
            let size = if from == 0 { 1 } else { PAGE };
            let next = from + size as u64;
            let has_more = (items.len() as u64) > next;
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let items = items.into_iter().skip(from).take(size).collect();
            let next_cursor = has_more.then(|| Bytes::copy_from_slice(&next.to_be_bytes()));
            ItemPage { items, next_cursor }
        });
        ready(page).boxed()
    }

    fn write_incoming(
        &self,
        incoming: Claim,
        items: Vec<Item>,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        ready(self.lock().write_incoming(&incoming, items)).boxed()
    }

    fn remove_absent(&self, claim: Claim) -> StoreFuture<Result<bool, ShardMoveError>> {
        ready(self.lock().remove_absent(&claim)).boxed()
    }

    fn finish_incoming(
        &self,
        incoming: Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        let mut data = self.lock();
        let is_incoming = |presence| matches!(presence, Presence::IncomingFrom(_));
        let finished = data.check(&incoming, is_incoming).map(|()| {
            let shard = claim.shard.clone();
            data.sequence_bases.insert(shard.clone(), last_sequence);
            if let Some(floor) = floor {
                data.floors.insert(shard.clone(), floor);
            }
            data.claims.insert(keys::claim(&shard), claim);
        });
        ready(finished).boxed()
    }
}
