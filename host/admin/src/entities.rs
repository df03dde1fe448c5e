//! Lists entities by page and shows one in detail. Any node can read stored state; only the owner knows what is
//! in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::join_all;
use ostraca_catalog::types::unknown_type;
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::records::{ChannelExtent, JournalExtent, Tell, Timer};
use ostraca_core::rows::Member;
use ostraca_core::shard::{delayed_tell, delayed_tell_name};
use ostraca_gateway::{Gateway, failure_to_wire, migration_to_wire};
use ostraca_store::{Scan, ScanKind, ScannedRecord};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    ChannelDetail, DelayedTellDetail, Entities, EntitiesRequest, EntityDetail, EntityInfo,
    InspectRequest, JournalDetail, NodeIssue, Problem, StateKey, TellDetail, TimerDetail,
};
use ostraca_wire::server::AdminOutput;

use super::listing::unknown_shard;
use super::pages::{PAGE, Taken};
use super::{AdminService, store_failed};

/// Maximum number of entries shown in each of an entity's lists: state keys, timers, tells, dead letters.
const KEYS: usize = 50;
/// Maximum number of bytes shown of a value, chosen so that the values of all shown keys fit into one frame.
pub(super) const VALUE: usize = 4 << 10;

impl AdminService {
    /// Returns one page. Its cursor holds a shard and the store's cursor within that shard.
    pub(super) async fn entities(
        &self,
        gateway: &Gateway,
        request: EntitiesRequest,
    ) -> Result<AdminOutput, Problem> {
        let types = gateway.types.snapshot();
        if !request.r#type.is_empty() && !types.contains_key(request.r#type.as_str()) {
            return Err(unknown_type(&types, &request.r#type));
        }
        let count = self.shard_count();
        if request.shard > count {
            return Err(unknown_shard(request.shard, count));
        }
        let shards = match request.shard {
            0 => 1..=count,
            shard => shard..=shard,
        };
        let mut page = Vec::new();
        let add = |shard, record| {
            let ScannedRecord::Head(entity, head) = record else { return Taken::Skipped };
            let is_other = !request.r#type.is_empty() && *entity.entity_type != *request.r#type;
            if is_other || head.deleted {
                return Taken::Skipped;
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
            Taken::Added
        };
        let (kind, limit) = (ScanKind::Heads, request.limit as usize);
        let next_cursor = self.read_page(shards, kind, &request.cursor, limit, add).await?;
        let unanswered = self.inspect_owners(gateway, &mut page).await;
        Ok(AdminOutput::Entities(Entities {
            entities: page,
            next_cursor,
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
        request: InspectRequest,
    ) -> Result<AdminOutput, Problem> {
        let types = gateway.types.snapshot();
        let Some(entry) = types.get(request.r#type.as_str()) else {
            return Err(unknown_type(&types, &request.r#type));
        };
        let values = request.values;
        let shard = self.shard_of(&entry.manifest, &request.id)?;
        let entity = Entity::new(request.r#type.as_str(), request.id.as_str());
        let response = self
            .entity_store
            .load(vec![(self.gateway.pools.path(shard), entity.clone())])
            .await
            .pop();
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
                    detail.activity = seen.and_then(|seen| seen.activity.clone());
                    let failure = seen.and_then(|seen| seen.last_failure.clone());
                    detail.last_failure = failure.map(failure_to_wire);
                    detail.running_revision = seen.map_or(0, |seen| seen.running_revision);
                    let failed = seen.and_then(|seen| seen.failed_migration.clone());
                    detail.failed_migration = failed.map(migration_to_wire);
                }
                Err(why) => detail.unresponsive_owner = Some(why),
            }
        }
        // An entity without a head of its own has nothing to show.
        if let Some(head) = loaded.head.filter(|head| head.is_removed() != Ok(true)) {
            detail.exists = !head.deleted;
            detail.deleted = head.deleted;
            detail.generation = head.generation().unwrap_or_default();
            detail.version = head.version;
            detail.revision = head.revision;
            detail.last_commit_sequence = head.commit_sequence;
            let lanes = head.lanes.iter().map(|lane| &**lane).chain(&loaded.lanes);
            detail.unsettled_replies = lanes.map(|lane| lane.replies.len() as u64).sum();
            detail.lane_count = head.lanes.len() as u64 + u64::from(head.spilled_lane_count);
            detail.outbox_count = loaded.outbox.len() as u64;
            let tells = loaded.outbox.into_iter().take(KEYS);
            detail.outbox = tells.map(|(number, tell)| tell_to_wire(number, tell)).collect();
            let dead = head.outbox_counts().unwrap_or_default().1;
            if dead > 0 && head.is_purged() == Ok(false) {
                detail.dead_letter_count = dead.into();
                detail.dead_letters = self.first_dead_letters(shard, &entity).await?;
            }
            if head.is_purged() == Ok(false) {
                // An entity that has never run, or that was deleted, can have them too.
                self.show_subscriptions(shard, &entity, &head, KEYS, &mut detail).await?;
            }
            if head.deleted {
                // What remains of the rest is being removed.
                return Ok(AdminOutput::Entity(Box::new(detail)));
            }
            detail.state_bytes = head.state_bytes;
            let is_tell = |timer: &Timer| delayed_tell_name(&timer.name).is_some();
            let (delayed, timers): (Vec<_>, Vec<_>) = loaded.timers.into_iter().partition(is_tell);
            detail.timer_count = timers.len() as u64;
            detail.timers = timers.into_iter().take(KEYS).map(timer_to_wire).collect();
            detail.delayed_tell_count = delayed.len() as u64;
            detail.delayed_tells = delayed.iter().take(KEYS).map(delayed_to_wire).collect();
            detail.remembered = head.remembered;
            let channels = head.channels().unwrap_or_default();
            detail.channels = channels.values().map(channel_to_wire).collect();
            detail.expires_unix_ms = head.expires_at.filter(|_| !head.deleted);
            detail.schema = head.schema().unwrap_or_default();
            detail.journal = journal_to_wire(&head.journal().unwrap_or_default());
            self.keys(shard, &entity, values, &mut detail).await?;
        }
        Ok(AdminOutput::Entity(Box::new(detail)))
    }

    /// The first dead letters of an entity.
    async fn first_dead_letters(
        &self,
        shard: ShardId,
        entity: &Entity,
    ) -> Result<Vec<TellDetail>, Problem> {
        let scan = Scan {
            shard: self.gateway.pools.path(shard),
            kind: ScanKind::DeadLetters { from: Some(entity.clone()) },
            after: None,
            max_records: KEYS,
            max_bytes: PAGE.1,
        };
        let found = self.entity_store.scan(scan).await.map_err(|error| store_failed(&error))?;
        let own = |record| match record {
            ScannedRecord::DeadLetter(sender, number, tell) if sender == *entity => {
                Some(tell_to_wire(number, *tell))
            }
            _ => None,
        };
        Ok(found.records.into_iter().filter_map(own).collect())
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
                shard: self.gateway.pools.path(shard),
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

pub(super) fn tell_to_wire(number: u64, tell: Tell) -> TellDetail {
    TellDetail {
        number,
        r#type: tell.target.entity_type.to_string(),
        id: tell.target.id.to_string(),
        method: tell.method.to_string(),
        body_size: tell.body.len() as u64,
        attempts: tell.attempts,
        failure: tell.failure.to_string(),
    }
}

fn delayed_to_wire(timer: &Timer) -> DelayedTellDetail {
    let tell = delayed_tell(timer).ok().flatten();
    let tell = tell.map_or_else(TellDetail::default, |tell| TellDetail {
        r#type: tell.target.entity_type.to_string(),
        id: tell.target.id.to_string(),
        method: tell.method.to_string(),
        body_size: tell.body.len() as u64,
        ..TellDetail::default()
    });
    DelayedTellDetail {
        name: delayed_tell_name(&timer.name).unwrap_or_default().to_owned(),
        due_unix_ms: timer.due.max(timer.retry_at),
        tell: Some(TellDetail {
            attempts: timer.attempts,
            failure: timer.failure.to_string(),
            ..tell
        }),
        set_aside: timer.set_aside,
    }
}

/// `None` if the journal was never used.
fn journal_to_wire(extent: &JournalExtent) -> Option<JournalDetail> {
    let snapshot = (extent.snapshot_bytes > 0).then_some(extent.snapshot);
    (*extent != JournalExtent::default()).then(|| JournalDetail {
        first_number: extent.first,
        next_number: extent.next,
        bytes: extent.bytes(),
        snapshot_through: snapshot,
    })
}

fn channel_to_wire(extent: &ChannelExtent) -> ChannelDetail {
    ChannelDetail {
        name: extent.name.to_string(),
        next_number: extent.next,
        first_number: extent.first.number,
        bytes: extent.bytes(),
        last_version: extent.last_version,
    }
}

fn timer_to_wire(timer: Timer) -> TimerDetail {
    TimerDetail {
        name: timer.name.to_string(),
        due_unix_ms: timer.due.max(timer.retry_at),
        interval_ms: timer.interval,
        payload_size: timer.payload.len() as u64,
        attempts: timer.attempts,
        failure: timer.failure.to_string(),
        set_aside: timer.set_aside,
    }
}
