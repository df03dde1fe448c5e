//! Imports an entity that was exported elsewhere: an operator's command, in one turn that does not call the guest.
//!
//! The turn gives everything its own version. A subscriber's cursor from the source therefore does not fit: it is told
//! that an unknown number of items is lost, and continues with the oldest one.

use std::collections::BTreeMap;

use bytes::Bytes;

use ostraca_codes::Code;

use super::gate::Effects;
use super::{Entity, Machine, Outcome, codes};
use crate::codec;
use crate::message::Message;
use crate::records::{DelayedTell, JournalExtent, RecordKey, RecordWrite};
use crate::shard::channels;
use crate::shard::delayed_tells::delayed_tell_name;
use crate::shard::entity_copy::EntityCopy;
use crate::shard::{JournalChange, OperatorCommand, TimerChange};

impl Machine {
    /// Imports a copy, unless the entity exists. Returns whether the entity's messages must wait, because it is
    /// loaded again or its subscriptions are read first.
    pub(super) fn import(&mut self, entity: &Entity, message: &Message) -> bool {
        let Some(state) = self.residents.get(entity) else { return false };
        let exists = state.head.version > 0 && !state.head.deleted;
        let decoded = EntityCopy::decode(&message.body)
            .and_then(|mut copy| copy.take_subscriptions().map(|pages| (copy, pages)));
        let copied = match decoded {
            Err(why) => Err((codes::INVALID_IMPORT, why)),
            Ok(_) if exists => Err((codes::ENTITY_EXISTS, format!("{entity} exists"))),
            Ok(copied) => Ok(copied),
        };
        // An entity that has never run, or that was deleted, can have subscriptions.
        if copied.as_ref().is_ok_and(|(_, subscriptions)| !subscriptions.is_empty())
            && !state.subscriptions.is_read()
        {
            self.read_subscriptions(entity);
            return true;
        }
        let restored = copied.and_then(|(copy, subscriptions)| {
            self.check_delayed_tells(entity, &copy)?;
            Ok((copy, self.restore_subscriptions(entity, subscriptions)?))
        });
        let (copy, pages) = match restored {
            Ok(restored) => restored,
            Err((code, text)) => {
                self.finish(entity, &message.id, Outcome::not_run(code, text), true);
                return false;
            }
        };
        let is_remembered = copy.remembered;
        let mut effects = self.apply_copy(entity, copy);
        effects.records.extend(pages);
        self.commit_command(entity, message, effects);
        if is_remembered {
            self.start_again_at(entity, self.context.mono());
        }
        // Everything in memory is read again: channels, expiry and the instance, if queries have started one.
        self.drop_instance(entity);
        true
    }

    /// An imported entity gets no delayed tells that its own guest could not have sent: whoever may import it need not have
    /// a permission for their targets.
    fn check_delayed_tells(
        &self,
        entity: &Entity,
        copy: &EntityCopy,
    ) -> Result<(), (Code, String)> {
        let refused = |why: String| Err((codes::INVALID_IMPORT, why));
        for timer in &copy.timers {
            let Some(name) = delayed_tell_name(&timer.name) else { continue };
            let Ok(tell) = codec::decode::<DelayedTell>(&timer.payload) else {
                return refused(format!("the delayed tell `{name}` cannot be read"));
            };
            let is_granted = self
                .types
                .of(entity)
                .is_some_and(|settings| settings.tells.contains(&tell.target.entity_type));
            if !is_granted {
                let target = &tell.target.entity_type;
                return refused(format!(
                    "the delayed tell `{name}` goes to `{target}`, to which `{}` may not send: grant it in the manifest (`[grants] tell`), or remove the tell from the file",
                    entity.entity_type
                ));
            }
            if OperatorCommand::of_method(&tell.method).is_some() {
                return refused(format!("the delayed tell `{name}` is an operator's command"));
            }
        }
        Ok(())
    }

    fn apply_copy(&mut self, entity: &Entity, copy: EntityCopy) -> Effects {
        let keep = self.types.of(entity).map(|settings| settings.keep).unwrap_or_default();
        let state_bytes = Some(copy.state_bytes());
        let nothing = Effects::of_records(Vec::new());
        let mut effects = Effects { state_bytes, sets_revision: true, ..nothing };
        let revision = self.types.of(entity).map_or(0, |settings| settings.revision);
        let Some(state) = self.residents.get_mut(entity) else { return effects };
        // If the deployment's component has another schema, it migrates the state before the next start.
        (state.revision, state.schema) = (revision, copy.schema);
        let version = state.head.version + 1;
        effects.state = copy.state.into_iter().map(|(key, value)| (key, Some(value))).collect();
        let timers = copy.timers.into_iter().map(|timer| TimerChange::Set {
            name: timer.name,
            due: timer.due,
            interval: timer.interval,
            payload: timer.payload,
        });
        effects.records.extend(state.timers.apply(None, timers.collect(), version));
        let (first, start) = (copy.journal.first, copy.journal.start);
        let mut extent =
            JournalExtent { first, next: first, start, end: start, ..JournalExtent::default() };
        let change = JournalChange {
            events: copy.journal.events,
            keep_from: None,
            snapshot: copy.journal.snapshot,
        };
        effects.records.extend(change.apply(&mut extent, version));
        let mut all = BTreeMap::new();
        for channel in copy.channels {
            effects.records.extend(channels::restore(&mut all, channel, keep, version));
        }
        // These fail only if a later release has filled the head with its own fields.
        let set = state.head.set_journal(&extent).and_then(|()| state.head.set_channels(&all));
        debug_assert!(set.is_ok(), "{set:?}");
        let set = state.head.set_own_expiry(copy.expires_at.is_some());
        debug_assert!(set.is_ok(), "{set:?}");
        state.journal = extent;
        state.head.expires_at = copy.expires_at;
        state.head.remembered = copy.remembered;
        state.head.deleted = false;
        if copy.remembered {
            let value = Some(Bytes::new());
            effects.records.push(RecordWrite { key: RecordKey::Remembered, value });
        }
        effects
    }
}
