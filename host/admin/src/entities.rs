//! Lists entities by page and shows one in detail. Any node can read stored state; only the owner knows what is
//! in memory.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::join_all;
use ostraca_catalog::pool::shard_key;
use ostraca_catalog::types::unknown_type;
use ostraca_codes::codes;
use ostraca_core::hash::shard_of;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::rows::Member;
use ostraca_gateway::{Gateway, failure_to_wire};
use ostraca_store::{Scan, ScanKind, ScannedRecord};
use ostraca_wire::envelope::{TypeInfo, access_denied};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    Entities, EntitiesRequest, EntityDetail, EntityInfo, InspectRequest, NodeIssue, Problem,
    StateKey,
};
use ostraca_wire::server::AdminOutput;

use super::{AdminService, store_failed};

/// Maximum number and bytes of heads read from the store at a time.
const PAGE: (usize, usize) = (512, 1 << 20);
/// Maximum number of an entity's state keys that are shown.
const KEYS: usize = 50;
/// Maximum bytes shown of a value, chosen so that the values of all shown keys fit into one frame.
const VALUE: usize = 4 << 10;

/// Length of the checksum at a cursor's end, which distinguishes a cursor from garbage.
const CHECK: usize = 8;

fn check_of(cursor: &[u8]) -> [u8; CHECK] {
    let hash = blake3::hash(cursor);
    let mut check = [0; CHECK];
    check.copy_from_slice(&hash.as_bytes()[..CHECK]);
    check
}

/// Splits a cursor into its shard and the store's cursor within that shard. `None` if the checksum does not
/// match, so no earlier page returned it.
fn cursor(given: &[u8]) -> Option<(u32, &[u8])> {
    let (payload, check) = given.split_last_chunk::<CHECK>()?;
    let (shard, rest) = payload.split_first_chunk::<4>()?;
    (*check == check_of(payload)).then(|| (u32::from_be_bytes(*shard), rest))
}

impl AdminService {
    /// Returns one page. Its cursor is the shard and the store's cursor within that shard.
    pub(super) async fn entities(
        &self,
        gateway: &Gateway,
        request: EntitiesRequest,
    ) -> Result<AdminOutput, Problem> {
        let types = gateway.types.snapshot();
        if !request.r#type.is_empty() && !types.contains_key(request.r#type.as_str()) {
            return Err(unknown_type(&types, &request.r#type));
        }
        if request.shard > self.shard_count {
            let text = format!(
                "shard {} does not exist; the pool has {} shards",
                request.shard, self.shard_count
            );
            return Err(problem(codes::UNKNOWN_SHARD, text, "shards are counted from 1"));
        }
        let (first, mut after) = match request.shard {
            0 => (1, None),
            shard => (shard, None),
        };
        let last = if request.shard == 0 { self.shard_count } else { request.shard };
        let mut shard = first;
        if !request.cursor.is_empty() {
            let Some((at, rest)) =
                cursor(&request.cursor).filter(|(at, _)| (first..=last).contains(at))
            else {
                let help = "pass the cursor of an earlier page, or leave it out";
                return Err(problem(
                    codes::INVALID_CURSOR,
                    "the cursor is not from an earlier page",
                    help,
                ));
            };
            shard = at;
            after = (!rest.is_empty()).then(|| Bytes::copy_from_slice(rest));
        }
        let limit = request.limit as usize;
        let mut page = Vec::new();
        while shard <= last {
            loop {
                let scan = Scan {
                    shard: shard_key(ShardId(shard)),
                    kind: ScanKind::Heads,
                    after: after.take(),
                    max_records: PAGE.0.min(limit - page.len()),
                    max_bytes: PAGE.1,
                };
                let found =
                    self.entity_store.scan(scan).await.map_err(|error| store_failed(&error))?;
                for record in found.records {
                    let ScannedRecord::Head(entity, head) = record else { continue };
                    if !request.r#type.is_empty() && *entity.entity_type != *request.r#type {
                        continue;
                    }
                    page.push(EntityInfo {
                        r#type: entity.entity_type.to_string(),
                        id: entity.id.to_string(),
                        shard,
                        version: head.version,
                        revision: head.revision,
                        state_bytes: head.state_bytes,
                        ..EntityInfo::default()
                    });
                }
                after = found.next_cursor;
                if after.is_none() || page.len() >= limit {
                    break;
                }
            }
            if page.len() >= limit {
                break;
            }
            shard += 1;
        }
        let more = after.is_some() || (page.len() >= limit && shard < last);
        let mut next = BytesMut::new();
        if more {
            next.put_u32(if after.is_some() { shard } else { shard + 1 });
            next.extend_from_slice(after.as_deref().unwrap_or_default());
            let check = check_of(&next);
            next.extend_from_slice(&check);
        }
        let unanswered = self.inspect_owners(gateway, &mut page).await;
        Ok(AdminOutput::Entities(Entities {
            entities: page,
            next_cursor: next.freeze(),
            unresponsive_owners: unanswered,
        }))
    }

    /// Asks the owners of a page's entities and fills in the owner and whether the entity is active. Returns
    /// the nodes that did not respond.
    async fn inspect_owners(&self, gateway: &Gateway, page: &mut [EntityInfo]) -> Vec<NodeIssue> {
        let view = self.current_view();
        let mut by_owner: BTreeMap<Member, BTreeMap<u32, Vec<usize>>> = BTreeMap::new();
        for (place, info) in page.iter_mut().enumerate() {
            let Some(owner) = view.owner(ShardId(info.shard)) else { continue };
            info.owner = owner.node.to_string();
            by_owner.entry(owner.clone()).or_default().entry(info.shard).or_default().push(place);
        }
        let named = |place: &usize| Entity::new(&*page[*place].r#type, &*page[*place].id);
        let requests = by_owner.iter().map(|(owner, shards)| {
            let question = shards.iter().map(|(shard, places)| {
                (ShardId(*shard), places.iter().map(named).collect::<Vec<_>>())
            });
            gateway.inspect(owner, question.collect())
        });
        let responses = join_all(requests.collect::<Vec<_>>()).await;
        let mut unanswered = Vec::new();
        for (shards, answer) in by_owner.values().zip(responses) {
            match answer {
                Ok(seen) => {
                    for (places, seen) in shards.values().zip(seen) {
                        for (place, entity) in places.iter().zip(seen.entities) {
                            page[*place].active = Some(entity.active);
                        }
                    }
                }
                Err(why) => unanswered.push(why),
            }
        }
        unanswered
    }

    pub(super) async fn inspect(
        &self,
        gateway: &Gateway,
        principal: &str,
        request: InspectRequest,
    ) -> Result<AdminOutput, Problem> {
        let types = gateway.types.snapshot();
        let Some(entry) = types.get(request.r#type.as_str()) else {
            return Err(unknown_type(&types, &request.r#type));
        };
        // State values are shown only to principals that may message the type.
        if request.values && !entry.admits(principal) {
            return Err(access_denied(&entry.name, principal));
        }
        let values = request.values;
        let shard = shard_of(entry.manifest.shard_key.shard_key(&request.id), self.shard_count);
        let entity = Entity::new(request.r#type.as_str(), request.id.as_str());
        let response = self.entity_store.load(vec![(shard_key(shard), entity.clone())]).await.pop();
        let loaded = match response {
            Some(Ok(loaded)) => loaded,
            Some(Err(error)) => return Err(store_failed(&error)),
            None => return Err(problem(codes::STORE_UNAVAILABLE, "the store did not respond", "")),
        };
        let view = self.current_view();
        let (epoch, owner) = (view.epoch(shard), view.owner(shard));
        let mut detail = EntityDetail {
            r#type: request.r#type,
            id: request.id,
            shard: shard.0,
            epoch: epoch.0,
            owner: owner.map_or_else(String::new, |owner| owner.node.to_string()),
            ..EntityDetail::default()
        };
        if let Some(owner) = owner {
            match gateway.inspect(owner, vec![(shard, vec![entity.clone()])]).await {
                Ok(seen) => {
                    let seen = seen.first().and_then(|shard| shard.entities.first());
                    detail.active = seen.map(|seen| seen.active);
                    detail.mailbox_length = seen.map(|seen| seen.mailbox_length as u64);
                    let failure = seen.and_then(|seen| seen.last_failure.clone());
                    detail.last_failure = failure.map(failure_to_wire);
                }
                Err(why) => detail.unresponsive_owner = Some(why),
            }
        }
        if let Some(head) = loaded.head {
            detail.exists = true;
            detail.version = head.version;
            detail.revision = head.revision;
            detail.last_commit_sequence = head.commit_sequence;
            let lanes = head.lanes.iter().chain(&loaded.lanes);
            detail.unsettled_replies = lanes.map(|lane| lane.replies.len() as u64).sum();
            detail.lane_count = head.lanes.len() as u64 + u64::from(head.spilled_lane_count);
            detail.state_bytes = head.state_bytes;
            self.keys(shard, &entity, values, &mut detail).await?;
        }
        Ok(AdminOutput::Entity(Box::new(detail)))
    }

    async fn keys(
        &self,
        shard: ShardId,
        entity: &Entity,
        values: bool,
        detail: &mut EntityDetail,
    ) -> Result<(), Problem> {
        let mut after = None;
        loop {
            let scan = Scan {
                shard: shard_key(shard),
                kind: ScanKind::State(entity.clone()),
                after,
                max_records: PAGE.0,
                max_bytes: PAGE.1,
            };
            let found = self.entity_store.scan(scan).await.map_err(|error| store_failed(&error))?;
            for record in found.records {
                let ScannedRecord::State(key, value) = record else { continue };
                detail.key_count += 1;
                if detail.keys.len() < KEYS {
                    let key = String::from_utf8_lossy(&key).into_owned();
                    let shown =
                        if values { value.slice(..value.len().min(VALUE)) } else { Bytes::new() };
                    detail.keys.push(StateKey { key, size: value.len() as u64, value: shown });
                }
            }
            after = found.next_cursor;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_no_page_returned_is_refused() {
        let payload = [&7_u32.to_be_bytes()[..], b"key"].concat();
        let given = [payload.clone(), check_of(&payload).to_vec()].concat();
        assert_eq!(cursor(&given), Some((7, &b"key"[..])));
        for garbage in [&b""[..], b"garbage", b"more garbage than that", &payload] {
            assert_eq!(cursor(garbage), None, "{garbage:?}");
        }
        let changed = given.iter().enumerate().map(|(at, b)| if at == 5 { b ^ 1 } else { *b });
        assert_eq!(cursor(&changed.collect::<Vec<u8>>()), None);
    }
}
