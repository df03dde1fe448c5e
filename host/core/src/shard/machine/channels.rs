//! Reads of channels: a subscriber's query waits here, without an instance, until there is a durable item to return.
//!
//! The query is answered like any other: by the owner, under a valid lease (R8). It is refused when the shard moves,
//! and its sender repeats it at the new owner.

use super::{Action, Entity, Machine, Mutation, Outcome, codes};
use crate::message::{Message, MessageKind};
use crate::records::{ChannelItem, GuestReply, RecordWrite};
use crate::shard::channel_feed::{ChannelScan, ReadStep};
use crate::shard::entity::ResidentEntity;
use crate::shard::{ChannelRead, Emit, READ_CHANNEL};

impl Machine {
    /// Takes the message if it reads a channel, and returns whether it does.
    pub(super) fn take_channel_read(&mut self, message: &Message) -> bool {
        if &*message.method != READ_CHANNEL || message.kind != MessageKind::Query {
            return false;
        }
        let (token, entity) = (message.reply_token, &message.target);
        let read = match ChannelRead::decode(&message.body) {
            Ok(read) => read,
            Err(why) => {
                self.context.reply(token, Outcome::not_run(codes::INVALID_MESSAGE, why));
                return true;
            }
        };
        let now = self.context.mono();
        let most = self.context.settings.max_channel_reads;
        let state = self.residents.get_or_create(&self.context, entity);
        if state.channels.reader_count() >= most {
            let text = format!(
                "{most} subscribers wait for items of {entity} (`entities.max-channel-reads`)"
            );
            let outcome = Outcome::not_run_retryable(codes::TOO_MANY_SUBSCRIBERS, text, 1_000);
            self.context.reply(token, outcome);
        } else {
            let wait = now.saturating_add(read.wait_ms.into());
            let until = message.deadline.map_or(wait, |deadline| deadline.min(wait));
            state.channels.add(token, read, until, now);
        }
        self.advance(entity);
        true
    }

    /// Emits a turn's items. Returns the writes.
    pub(super) fn emit(&mut self, entity: &Entity, emits: Vec<Emit>) -> Vec<RecordWrite> {
        let keep = self.types.of(entity).map(|settings| settings.keep).unwrap_or_default();
        let early = self.context.has_mutation(Mutation::PublishBeforeCommit);
        let utc_ms = self.context.now.utc;
        let Some(state) = self.residents.get_mut(entity) else { return Vec::new() };
        let version = state.head.version + 1;
        let writes = state.channels.emit(emits, keep, version, utc_ms);
        // This fails only if a later release has filled the head with its own fields.
        let set = state.head.set_channels(state.channels.current());
        debug_assert!(set.is_ok(), "{set:?}");
        if early {
            state.channels.on_durable(version, u64::MAX, 0);
        }
        writes
    }

    /// Forgets the items of channels that nobody reads any more.
    pub(super) fn expire_channels(&mut self, entity: &Entity) {
        let now = self.context.mono();
        if let Some(state) = self.residents.get_mut(entity)
            && !state.channels.is_unused()
        {
            state.channels.expire(now);
        }
    }

    /// When the entity must be examined next for its channels, on the node's clock.
    pub(super) fn channels_due(&self, state: &ResidentEntity) -> Option<u64> {
        let serves = state.stage.is_loaded()
            && self.claim.is_serving()
            && self.lease.may_reply(&self.context);
        let answer = state.channels.answer_due().filter(|_| serves);
        answer.into_iter().chain(state.channels.expiry_due()).min()
    }

    /// Answers the reads that can be answered now, and reads the store for others.
    pub(super) fn serve_channels(&mut self, entity: &Entity) {
        let now = self.context.mono();
        let Some(state) = self.residents.get(entity) else { return };
        if state.channels.reader_count() == 0 || !state.stage.is_loaded() {
            return;
        }
        if !self.claim.is_serving() || !self.lease.may_reply(&self.context) {
            return self.schedule.stall(entity);
        }
        let Some(state) = self.residents.get_mut(entity) else { return };
        let version = state.head.version;
        for (reader, step) in state.channels.steps(version, now) {
            match step {
                ReadStep::Answer(token, page) => {
                    let reply = GuestReply::Result(page);
                    self.context.reply(token, Outcome::Final { reply, version });
                }
                ReadStep::Scan(ChannelScan { channel, from, max_items, max_bytes }) => {
                    self.context.push(Action::ReadChannel {
                        entity: entity.clone(),
                        reader,
                        channel,
                        from,
                        max_items,
                        max_bytes,
                    });
                }
                ReadStep::Wait => {}
            }
        }
    }

    pub(super) fn on_channel_read(
        &mut self,
        entity: &Entity,
        reader: u64,
        items: Result<Vec<(u64, ChannelItem)>, String>,
    ) {
        if self.on_subscriptions_read(entity, reader, &items) {
            return;
        }
        let now = self.context.mono();
        let may_reply = self.claim.is_serving() && self.lease.may_reply(&self.context);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let version = state.head.version;
        match items {
            Ok(items) if may_reply => {
                let page = state.channels.on_scanned(reader, &items, version, now);
                if let Some((token, page)) = page {
                    let reply = GuestReply::Result(page);
                    self.context.reply(token, Outcome::Final { reply, version });
                }
            }
            other => {
                let why = match other {
                    Ok(_) => "the node's lease was not renewed in time".into(),
                    Err(why) => format!("cannot read a channel of {entity}: {why}"),
                };
                if let Some(token) = state.channels.on_scan_failed(reader, now) {
                    let outcome = Outcome::not_run_retryable(codes::STORE_UNAVAILABLE, why, 500);
                    self.context.reply(token, outcome);
                }
            }
        }
        self.advance(entity);
    }

    /// Refuses all reads of an entity's channels.
    pub(super) fn refuse_channel_reads(&mut self, entity: &Entity, outcome: &Outcome) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        for token in state.channels.take_readers() {
            self.context.reply(token, outcome.clone());
        }
    }
}
