//! What a copy of an entity needs that runs outside of its shard, and commits nothing (a dry run).

use std::sync::Arc;

use super::action::TurnRecords;
use super::outbox::Outbox;
use super::timers::Timers;
use crate::codec::CodecError;
use crate::records::LoadedEntity;

impl TurnRecords {
    /// What an entity has besides its state, according to the store.
    ///
    /// # Errors
    /// [`CodecError`] if the head is damaged.
    pub fn of_loaded(loaded: LoadedEntity) -> Result<Self, CodecError> {
        let LoadedEntity { head, timers, outbox, dead_letters, .. } = loaded;
        let head = head.unwrap_or_default();
        let outbox = Outbox::load(outbox, dead_letters, head.version, Outbox::default());
        Ok(Self {
            timers: Timers::load(timers).map().clone(),
            outbox: outbox.size(),
            journal: head.journal()?,
            channels: Arc::new(head.channels()?),
            remembered: head.remembered,
            expires_at: head.expires_at,
            has_subscribers: head.subscriptions()?.subscriptions > 0,
        })
    }
}
