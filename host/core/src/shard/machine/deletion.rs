//! Deletions: by a turn of the guest or by an operator's command (E17).
//!
//! An entity may have more records than one commit can remove. So a deletion has two steps. The first is one commit:
//! it marks the head as deleted, raises the generation, and drops the instance. From then on nobody sees what the
//! entity was. The second step, the *purge*, removes the records page by page, in commits that do not call the guest.
//! Until it is complete, no turn of the guest starts, so none sees a part of the old state. The wake-up at time 0
//! leads a new owner to a purge that was interrupted.
//!
//! Lanes remain, so that a copy of an old command gets its recorded reply and nothing runs twice (R17). Tells remain in
//! the outbox, since they were sent. The head remains, because it holds what must never fall: the version, from which
//! tells get their numbers, the generation, and the watermarks. The module `sweep` removes it later.

use bytes::Bytes;

use super::gate::Effects;
use super::subscriptions::purge_subscriptions;
use super::{Action, Entity, GuestReply, Machine, Mutation, Outcome, Phase, TurnId, codes};
use crate::message::Message;
use crate::records::{JournalExtent, RecordKey, RecordWrite};
use crate::shard::entity::{ResidentEntity, Stage};
use crate::shard::lanes::Lanes;
use crate::shard::{Channels, DeadLetterAction, NewTell};

impl Machine {
    /// Commits a deletion with the tells of its turn. The entity is loaded again afterwards.
    pub(super) fn delete(
        &mut self,
        entity: &Entity,
        turn: TurnId,
        effects: Effects,
        tells: Vec<NewTell>,
    ) {
        let now = self.context.now.cluster_time;
        let deletes_lanes = self.context.has_mutation(Mutation::DeleteLanes);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let mut records = state.outbox.apply(tells, state.head.version + 1, now);
        if std::mem::take(&mut state.head.remembered) {
            records.push(RecordWrite { key: RecordKey::Remembered, value: None });
        }
        if deletes_lanes {
            state.lanes = Lanes::default();
        }
        state.head.deleted = true;
        state.head.expires_at = None;
        // These fail only if a field is damaged, or if a later release has filled the head with its own fields.
        let generation = state.head.generation().unwrap_or_default();
        let set = state.head.set_generation(generation.saturating_add(1));
        debug_assert!(set.is_ok(), "{set:?}");
        let set = state.head.set_purged(true).and_then(|()| state.head.set_own_expiry(false));
        debug_assert!(set.is_ok(), "{set:?}");
        state.is_purged = true;
        self.commit(entity, turn, Effects { records, ..effects });
        self.drop_instance(entity);
    }

    /// Handles an operator's command to delete the entity. Returns whether it is deleted.
    pub(super) fn delete_by_command(&mut self, entity: &Entity, message: &Message) -> bool {
        let Some(state) = self.residents.get_mut(entity) else { return false };
        if state.head.version == 0 || state.head.deleted {
            let text = format!("{entity} does not exist");
            let outcome = Outcome::not_run(codes::UNKNOWN_ENTITY, text);
            self.finish(entity, &message.id, outcome, true);
            return false;
        }
        state.mailbox.remove(&message.id);
        let turn = self.claim.next_turn();
        let reply = GuestReply::Result(Bytes::new());
        let deletion = Effects { message: Some(message.id), ..Effects::of_records(Vec::new()) };
        self.delete(entity, turn, Effects { reply, ..deletion }, Vec::new());
        if let Some(state) = self.residents.get_mut(entity) {
            state.mailbox.unpark(&message.id);
        }
        true
    }

    /// Deletes an entity that has expired, without calling its guest.
    pub(super) fn expire(&mut self, entity: &Entity) {
        self.wakes.hold(entity);
        let turn = self.claim.next_turn();
        self.delete(entity, turn, Effects::of_records(Vec::new()), Vec::new());
    }

    /// When the entity expires, in milliseconds since the Unix epoch (UTC). A time that followed from a time to live no
    /// longer applies once the type has none.
    pub(super) fn expiry(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        let at = state.head.expires_at.filter(|_| state.is_read && !state.head.deleted)?;
        let has_limit = self.types.of(entity).is_some_and(|settings| settings.time_to_live > 0);
        (has_limit || state.head.has_own_expiry().unwrap_or_default()).then_some(at)
    }

    /// Whether the entity has expired and can be deleted now.
    pub(super) fn is_expired(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        let Some(at) = self.expiry(entity, state) else { return false };
        let early = if self.context.has_mutation(Mutation::ExpireEarly) { 50 } else { 0 };
        let utc = self.context.now.utc;
        utc > 0 && at <= utc + early && self.wakes.postponed_until(&self.context, entity).is_none()
    }

    /// Continues the purge of a deleted entity that is loaded. Returns whether its guest must wait.
    pub(super) fn purge(&mut self, entity: &Entity) -> bool {
        let Some(state) = self.residents.get(entity) else { return false };
        // What the next turn reads from the store must not include what a pending commit removes.
        if self.purge_waits(entity, state) || !state.is_purged {
            return !state.gate.is_empty() || state.is_purged;
        }
        self.wakes.hold(entity);
        let Some(state) = self.residents.get_mut(entity) else { return false };
        state.stage = Stage::Purging;
        let (entity, generation) = (entity.clone(), state.generation);
        let max_records = self.context.settings.purge_page.max(1);
        self.context.push(Action::ScanKeys { entity, generation, max_records });
        true
    }

    /// Handles a page of keys: removes them, and other records as far as the page's limit allows.
    pub(super) fn on_keys(
        &mut self,
        entity: &Entity,
        generation: u64,
        page: Result<(Vec<Bytes>, bool), String>,
    ) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        if state.stage != Stage::Purging || state.generation != generation {
            return;
        }
        state.stage = Stage::Loaded;
        let may_commit = self.claim.is_serving() && !self.lease.is_paused(&self.context);
        match page {
            Ok((keys, more)) if may_commit => self.purge_page(entity, keys, more),
            // It is read again.
            Ok(_) => {}
            Err(_) => self.wakes.postpone(&self.context, entity),
        }
        self.advance(entity);
    }

    fn purge_page(&mut self, entity: &Entity, keys: Vec<Bytes>, more: bool) {
        let keeps_state = self.context.has_mutation(Mutation::KeepDeletedState);
        let turn = self.claim.next_turn();
        let page = self.context.settings.purge_page.max(1);
        let (utc, lane_ttl) = (self.context.now.utc, self.context.settings.lane_ttl.max(1));
        let Some(state) = self.residents.get_mut(entity) else { return };
        let more = more && !keeps_state;
        let mut records = state.timers.remove_first(page);
        let dead = state.outbox.first_dead_letters(page - records.len());
        let drop = DeadLetterAction::Drop;
        records.extend(state.outbox.take_dead_letters(drop, &dead, 0, 0, false).1);
        purge_journal(&mut state.journal, &mut records, page);
        let room = page.saturating_sub(records.len());
        let is_last = keys.len() <= room && !more;
        let delete = |key| RecordWrite { key: RecordKey::State(key), value: None };
        if !keeps_state {
            records.extend(keys.into_iter().take(room).map(delete));
        }
        let mut channels = state.head.channels().unwrap_or_default();
        purge_channels(&mut channels, &mut records, page);
        let has_no_subscriptions = purge_subscriptions(state, &mut records, page);
        let is_empty = has_no_subscriptions
            && state.timers.map().is_empty()
            && channels.is_empty()
            && state.outbox.first_dead_letters(1).is_empty()
            && state.journal == JournalExtent::default();
        state.is_purged = !(is_last && is_empty);
        if !state.is_purged {
            state.head.expires_at = Some(utc.saturating_add(lane_ttl));
        }
        // These fail only if a later release has filled the head with its own fields.
        let set = state.head.set_purged(state.is_purged);
        debug_assert!(set.is_ok(), "{set:?}");
        let set = state.head.set_channels(&channels);
        debug_assert!(set.is_ok(), "{set:?}");
        let set = state.head.set_journal(&state.journal);
        debug_assert!(set.is_ok(), "{set:?}");
        let mut effects = Effects::of_records(records);
        effects.state_bytes = (!state.is_purged).then_some(0);
        self.commit(entity, turn, effects);
    }

    /// Whether a purge that has not ended must wait for a commit, or until the store is tried again.
    pub(super) fn purge_waits(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        state.head.deleted
            && (!state.gate.is_empty()
                || state.is_purged && self.wakes.postponed_until(&self.context, entity).is_some())
    }

    /// Whether the entity must be in memory because its purge has not ended.
    pub(super) fn purge_needs(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        state.is_purged
            && matches!(self.claim.phase(), Phase::Claiming | Phase::Serving)
            && self.wakes.postponed_until(&self.context, entity).is_none()
    }

    /// When a purge that was postponed continues, on the node's clock.
    pub(super) fn purge_due(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        self.wakes.postponed_until(&self.context, entity).filter(|_| state.is_purged)
    }
}

/// Removes kept items of channels, as far as the page has room for them.
fn purge_channels(channels: &mut Channels, records: &mut Vec<RecordWrite>, page: usize) {
    for extent in channels.values_mut() {
        let room = page.saturating_sub(records.len()) as u64;
        let until = extent.next.min(extent.stored.saturating_add(room));
        let channel = &extent.name;
        let delete = |number| RecordWrite {
            key: RecordKey::ChannelItem { channel: channel.clone(), number },
            value: None,
        };
        records.extend((extent.stored..until).map(delete));
        extent.stored = until;
    }
    channels.retain(|_, extent| extent.stored < extent.next);
}

/// Removes the first events and the snapshot, as far as the page has room for it.
fn purge_journal(journal: &mut JournalExtent, records: &mut Vec<RecordWrite>, page: usize) {
    let delete = |number| RecordWrite { key: RecordKey::Journal { number }, value: None };
    let room = page.saturating_sub(records.len()) as u64;
    let next = journal.next.min(journal.first.saturating_add(room));
    records.extend((journal.first..next).map(delete));
    journal.first = next;
    if journal.first == journal.next && records.len() < page {
        if journal.snapshot_bytes > 0 {
            records.push(delete(RecordKey::SNAPSHOT));
        }
        *journal = JournalExtent::default();
    }
}
