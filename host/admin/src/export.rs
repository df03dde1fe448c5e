//! Exports one entity: everything that it is, apart from its place in the cluster.
//!
//! The store is read page by page, while the entity may handle messages. So its version is read before and after; if it
//! has changed, everything is read again.

use bytes::Bytes;
use ostraca_catalog::types::unknown_type;
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::records::{ChannelExtent, Head, LoadedEntity, RecordKey, Timer};
use ostraca_gateway::Gateway;
use ostraca_store::{Scan, ScanKind, ScannedRecord};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    EntityExport, ExportRequest, ExportedChannel, ExportedItem, ExportedJournal, ExportedKey,
    ExportedSnapshot, ExportedTimer, Problem,
};
use ostraca_wire::server::AdminOutput;

use super::pages::PAGE;
use super::subscriptions::subscription_to_wire;
use super::{AdminService, store_failed};

/// How often an entity is read that changes meanwhile.
const ATTEMPTS: u32 = 5;
/// Maximum size of the state, the journal and the channels of an entity that is exported, in bytes: as much as a client
/// accepts in one frame by default.
const MOST_BYTES: u64 = 64 << 20;
/// The formats of an export, without and with subscriptions. A release refuses formats higher than it knows.
const FORMATS: (u32, u32) = (1, 2);

impl AdminService {
    pub(super) async fn export(
        &self,
        gateway: &Gateway,
        request: ExportRequest,
    ) -> Result<AdminOutput, Problem> {
        let types = gateway.types.snapshot();
        let Some(entry) = types.get(request.r#type.as_str()) else {
            return Err(unknown_type(&types, &request.r#type));
        };
        let shard = self.shard_of(&entry.manifest, &request.id)?;
        let entity = Entity::new(request.r#type.as_str(), request.id.as_str());
        for _ in 0..ATTEMPTS {
            let (loaded, head) = self.existing(shard, &entity).await?;
            check_size(&entity, &head)?;
            let export = self.read_entity(shard, &entity, loaded, &head).await?;
            let (_, after) = self.existing(shard, &entity).await?;
            if (after.version, after.turn) == (head.version, head.turn) {
                return Ok(AdminOutput::Export(Box::new(export)));
            }
        }
        let text = format!("{entity} changed each of the {ATTEMPTS} times that it was read");
        let mut busy = problem(codes::ENTITY_CHANGING, text, "try again when it handles less");
        busy.retryable = true;
        Err(busy)
    }

    async fn existing(
        &self,
        shard: ShardId,
        entity: &Entity,
    ) -> Result<(LoadedEntity, Head), Problem> {
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
        match loaded.head.clone().filter(|head| !head.deleted) {
            Some(head) => Ok((loaded, head)),
            None => {
                let text = format!("{entity} does not exist");
                Err(problem(codes::UNKNOWN_ENTITY, text, "`ostraca entities` lists entities"))
            }
        }
    }

    async fn read_entity(
        &self,
        shard: ShardId,
        entity: &Entity,
        loaded: LoadedEntity,
        head: &Head,
    ) -> Result<EntityExport, Problem> {
        let mut timers: Vec<_> = loaded.timers.into_iter().map(exported_timer).collect();
        timers.sort_by(|a, b| a.name.cmp(&b.name));
        let own_expiry = head.has_own_expiry().unwrap_or_default();
        let mut export = EntityExport {
            format: FORMATS.0,
            r#type: entity.entity_type.to_string(),
            id: entity.id.to_string(),
            version: head.version,
            revision: head.revision,
            timers,
            remembered: head.remembered,
            expires_unix_ms: head.expires_at.filter(|_| own_expiry),
            schema: head.schema().unwrap_or_default(),
            outbox_count: loaded.outbox.len() as u64,
            ..EntityExport::default()
        };
        let state = ScanKind::State(entity.clone());
        self.read_all(shard, state, |record| {
            if let ScannedRecord::State(key, value) = record {
                export.state.push(ExportedKey { key, value });
            }
        })
        .await?;
        let extent = head.journal().unwrap_or_default();
        let (first_number, start) = (extent.first, extent.start);
        let mut journal = ExportedJournal { first_number, start, ..ExportedJournal::default() };
        let kind = ScanKind::Journal { entity: entity.clone(), from: RecordKey::SNAPSHOT };
        self.read_all(shard, kind, |record| match record {
            ScannedRecord::Snapshot(it) => {
                journal.snapshot = Some(ExportedSnapshot { through: it.through, data: it.data });
            }
            ScannedRecord::Event(number, event) if number >= first_number => {
                journal.events.push(event.data);
            }
            _ => {}
        })
        .await?;
        export.journal = Some(journal);
        for extent in head.channels().unwrap_or_default().values() {
            let channel = self.read_channel(shard, entity, extent).await?;
            export.channels.push(channel);
        }
        let subscriptions = self.subscriptions(shard, entity, head).await?;
        if !subscriptions.is_empty() {
            export.format = FORMATS.1;
        }
        export.subscriptions = subscriptions.into_iter().map(subscription_to_wire).collect();
        Ok(export)
    }

    async fn read_channel(
        &self,
        shard: ShardId,
        entity: &Entity,
        extent: &ChannelExtent,
    ) -> Result<ExportedChannel, Problem> {
        let (first_number, start) = (extent.first.number, extent.first.start);
        let name = extent.name.to_string();
        let mut channel = ExportedChannel { name, first_number, start, items: Vec::new() };
        let (entity, name) = (entity.clone(), extent.name.clone());
        let kind = ScanKind::Channel { entity, channel: name, from: first_number };
        self.read_all(shard, kind, |record| {
            if let ScannedRecord::ChannelItem(number, item) = record
                && (first_number..extent.next).contains(&number)
            {
                channel.items.push(ExportedItem { unix_ms: item.utc_ms, data: item.data });
            }
        })
        .await?;
        Ok(channel)
    }

    pub(super) async fn read_all(
        &self,
        shard: ShardId,
        kind: ScanKind,
        mut take: impl FnMut(ScannedRecord),
    ) -> Result<(), Problem> {
        let mut after: Option<Bytes> = None;
        loop {
            let scan = Scan {
                shard: self.gateway.pools.path(shard),
                kind: kind.clone(),
                after,
                max_records: PAGE.0,
                max_bytes: PAGE.1,
            };
            let found = self.entity_store.scan(scan).await.map_err(|error| store_failed(&error))?;
            found.records.into_iter().for_each(&mut take);
            after = found.next_cursor;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

/// Refuses an entity that is too large, before any of it is read.
fn check_size(entity: &Entity, head: &Head) -> Result<(), Problem> {
    let channels = head.channels().unwrap_or_default();
    let kept = channels.values().map(ChannelExtent::bytes);
    let parts = [head.state_bytes, head.journal().unwrap_or_default().bytes()];
    let bytes = parts.into_iter().chain(kept).fold(0, u64::saturating_add);
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let text = format!("{entity} has {bytes} bytes, an export has at most {MOST_BYTES}");
    let help = "truncate the journal, keep fewer items, or read the state with queries";
    Err(problem(codes::EXPORT_TOO_LARGE, text, help))
}

fn exported_timer(timer: Timer) -> ExportedTimer {
    ExportedTimer {
        name: timer.name.to_string(),
        due_unix_ms: timer.due,
        interval_ms: timer.interval,
        payload: timer.payload,
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::records::JournalExtent;

    use super::*;

    #[test]
    fn an_entity_beyond_64_mib_is_not_read_for_an_export() {
        let entity = Entity::new("cart", "a");
        let mut head = Head { state_bytes: MOST_BYTES - 10, ..Head::default() };
        let mut journal = JournalExtent { end: 10, ..JournalExtent::default() };
        head.set_journal(&journal).expect("set");
        assert_eq!(check_size(&entity, &head), Ok(()));
        journal.end = 11;
        head.set_journal(&journal).expect("set");
        let refused = check_size(&entity, &head).expect_err("too large");
        assert_eq!(refused.code, "export-too-large");
        assert!(refused.message.contains("67108865 bytes"), "{}", refused.message);
    }
}
