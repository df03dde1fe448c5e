//! Subscriptions of entities, and the turns that spread items to them (R27).
//!
//! None of these turns calls the guest. A message about subscriptions waits in the mailbox until the pages have been
//! read. A tell of a fan-out waits in the outbox until there is room for the tells of one page
//! ([`Outbox`](crate::shard::outbox::Outbox)), so slow subscribers slow the publisher down, and nothing is lost.

use ostraca_codes::Code;

use super::gate::Effects;
use super::{Entity, GuestReply, Machine, Mutation, Outcome, codes};
use crate::extensions::Extensions;
use crate::message::Message;
use crate::records::{ChannelItem, RecordWrite, Subscription};
use crate::shard::entity::ResidentEntity;
use crate::shard::subscriptions::{
    SUBSCRIPTION_PAGES, SubscriptionRequest, Subscriptions, TooManySubscriptions, page_key,
};
use crate::shard::{Action, Emit, FanOut, NewTell, OperatorCommand, TopicMessage};

/// Maximum number and size of the pages in one read.
const READ: (usize, usize) = (64, 1 << 20);

impl Machine {
    /// Runs a message about subscriptions. Returns `false` if it waits until the subscriptions have been read.
    pub(super) fn run_topic_message(
        &mut self,
        entity: &Entity,
        topic: TopicMessage,
        message: &Message,
    ) -> bool {
        let Some(state) = self.residents.get_mut(entity) else { return false };
        if !state.subscriptions.is_read() {
            self.read_subscriptions(entity);
            return false;
        }
        let Some(sender) = message.sender.clone() else {
            let text = "only an entity's tell can do this";
            let outcome = Outcome::not_run(codes::INVALID_MESSAGE, text);
            self.finish(entity, &message.id, outcome, true);
            return true;
        };
        let effects = match topic {
            TopicMessage::Subscribe => self.subscribe(entity, &sender, message),
            TopicMessage::Unsubscribe => self.unsubscribe(entity, &sender, message),
            TopicMessage::FanOut => self.fan_out(entity, message),
        };
        if let Some(state) = self.residents.get_mut(entity) {
            // A subscription creates no entity: its guest has not had a turn.
            state.head.deleted |= state.head.version == 0;
        }
        self.commit_command(entity, message, effects);
        true
    }

    /// Starts reading the entity's subscriptions, unless a read is under way.
    pub(super) fn read_subscriptions(&mut self, entity: &Entity) {
        let reader = self.residents.next_generation() | 1 << 63;
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(from) = state.subscriptions.begin_read(reader) else { return };
        let (max_items, max_bytes) = READ;
        let (entity, channel) = (entity.clone(), SUBSCRIPTION_PAGES.into());
        let read = Action::ReadChannel { entity, reader, channel, from, max_items, max_bytes };
        self.context.push(read);
    }

    /// Handles pages that were read. Returns `false` if the read was another one.
    pub(super) fn on_subscriptions_read(
        &mut self,
        entity: &Entity,
        reader: u64,
        items: &Result<Vec<(u64, ChannelItem)>, String>,
    ) -> bool {
        let Some(state) = self.residents.get_mut(entity) else { return false };
        if !state.subscriptions.take_read(reader) {
            return false;
        }
        let added = items.clone().and_then(|items| state.subscriptions.add_pages(items));
        if let Err(why) = added {
            let text = format!("cannot read the subscriptions of {entity}: {why}");
            let outcome = Outcome::not_run_retryable(codes::STORE_UNAVAILABLE, text, 500);
            // The messages that wait for the pages are at the front.
            while let Some(state) = self.residents.get(entity)
                && let Some(id) = state.mailbox.front()
                && state.entries.get(&id).is_some_and(|entry| waits_for_pages(&entry.message))
            {
                self.finish(entity, &id, outcome.clone(), false);
            }
        }
        self.advance(entity);
        true
    }

    fn subscribe(&mut self, entity: &Entity, sender: &Entity, message: &Message) -> Effects {
        let settings = self.types.of(entity);
        let most = settings.map_or(0, |settings| settings.subscriptions);
        let mut tells = settings.into_iter().flat_map(|settings| &settings.tells);
        if !tells.any(|granted| *granted == sender.entity_type) {
            return refusal(codes::SUBSCRIPTION_NOT_GRANTED, not_granted(entity, sender));
        }
        let request = match SubscriptionRequest::decode(&message.body) {
            Ok(request) if !request.method.is_empty() => request,
            Ok(_) => return refusal(codes::INVALID_MESSAGE, "the method is empty".into()),
            Err(why) => return refusal(codes::INVALID_MESSAGE, why),
        };
        let per_page = self.context.settings.fan_out_page;
        let utc_ms = self.context.now.utc;
        let Some(state) = self.residents.get_mut(entity) else {
            return Effects::of_records(Vec::new());
        };
        let version = state.head.version + 1;
        match state.subscriptions.subscribe(sender, request, version, (most, per_page)) {
            Ok(page) => {
                let page = page.map(|page| state.subscriptions.write(page, version, utc_ms));
                record_counts(state);
                Effects::of_records(page.into_iter().collect())
            }
            Err(TooManySubscriptions) => {
                let text = format!("{entity} has {most} subscriptions (`limits.subscriptions`)");
                refusal(codes::TOO_MANY_SUBSCRIPTIONS, text)
            }
        }
    }

    /// Adds subscriptions that an import contains. Returns the writes.
    pub(super) fn restore_subscriptions(
        &mut self,
        entity: &Entity,
        copied: Vec<Subscription>,
    ) -> Result<Vec<RecordWrite>, (Code, String)> {
        let settings = self.types.of(entity);
        let most = settings.map_or(0, |settings| settings.subscriptions);
        let tells = settings.map_or(&[][..], |settings| &settings.tells);
        let is_granted = |it: &&Subscription| tells.contains(&it.subscriber.entity_type);
        if let Some(it) = copied.iter().find(|it| !is_granted(it)) {
            return Err((codes::SUBSCRIPTION_NOT_GRANTED, not_granted(entity, &it.subscriber)));
        }
        let per_page = self.context.settings.fan_out_page;
        let utc_ms = self.context.now.utc;
        let Some(state) = self.residents.get_mut(entity) else { return Ok(Vec::new()) };
        let version = state.head.version + 1;
        let restored = state.subscriptions.restore(copied, version, (most, per_page));
        let pages = restored.map_err(|TooManySubscriptions| {
            let text = format!(
                "{entity} would have more than {most} subscriptions (`limits.subscriptions`)"
            );
            (codes::TOO_MANY_SUBSCRIPTIONS, text)
        })?;
        record_counts(state);
        let write = |page: u64| state.subscriptions.write(page, version, utc_ms);
        Ok(pages.into_iter().map(write).collect())
    }

    fn unsubscribe(&mut self, entity: &Entity, sender: &Entity, message: &Message) -> Effects {
        let request = match SubscriptionRequest::decode(&message.body) {
            Ok(request) => request,
            Err(why) => return refusal(codes::INVALID_MESSAGE, why),
        };
        let utc_ms = self.context.now.utc;
        let Some(state) = self.residents.get_mut(entity) else {
            return Effects::of_records(Vec::new());
        };
        let version = state.head.version + 1;
        let page = state.subscriptions.unsubscribe(sender, &request.channel);
        let page = page.map(|page| state.subscriptions.write(page, version, utc_ms));
        record_counts(state);
        Effects::of_records(page.into_iter().collect())
    }

    /// Sends an item to the subscribers of one page.
    fn fan_out(&mut self, entity: &Entity, message: &Message) -> Effects {
        let restarts = self.context.has_mutation(Mutation::ForgetFanOutPage);
        let now = self.context.now.cluster_time;
        let Some(state) = self.residents.get_mut(entity) else {
            return Effects::of_records(Vec::new());
        };
        let Some(item) = FanOut::decode(&message.body) else {
            let text = "the body is not an item on its way to subscribers";
            return refusal(codes::INVALID_MESSAGE, text.into());
        };
        let (found, next) = state.subscriptions.of_page(&item.channel, item.version, item.page);
        let tell = |target: &Entity, method: &str, body| NewTell {
            target: target.clone(),
            method: method.into(),
            body,
            content_type: "".into(),
            traceparent: message.context.traceparent.clone(),
            utc_ms: message.context.utc_ms,
        };
        let mut tells: Vec<_> =
            found.iter().map(|it| tell(&it.subscriber, &it.method, item.data.clone())).collect();
        if let Some(page) = next {
            let page = if restarts { page.max(item.page + 2) } else { page };
            let rest = FanOut { page, ..item };
            tells.push(tell(entity, TopicMessage::FanOut.method(), rest.encode()));
        }
        let version = state.head.version + 1;
        Effects::of_records(state.outbox.apply(tells, version, now))
    }

    /// The tells of an entity to itself that begin to spread the items of a turn; none if nobody has subscribed.
    pub(super) fn fan_outs(
        &self,
        entity: &Entity,
        state: &ResidentEntity,
        emits: &[Emit],
    ) -> Vec<NewTell> {
        if state.subscriptions.is_empty() {
            return Vec::new();
        }
        let version = state.head.version + 1;
        let utc_ms = self.context.now.utc;
        let fan_out = |emit: &Emit| {
            let (channel, data) = (emit.channel.clone(), emit.data.clone());
            let extensions = Extensions::default();
            let body = FanOut { channel, version, page: 1, data, extensions }.encode();
            let (content_type, traceparent) = ("".into(), "".into());
            let method = TopicMessage::FanOut.method().into();
            NewTell { target: entity.clone(), method, body, content_type, traceparent, utc_ms }
        };
        emits.iter().map(fan_out).collect()
    }
}

/// Whether a message may wait until the subscriptions have been read.
pub(super) fn waits_for_pages(message: &Message) -> bool {
    let is_import =
        OperatorCommand::of_method(&message.method) == Some(OperatorCommand::ImportEntity);
    is_import || TopicMessage::of_method(&message.method).is_some()
}

fn not_granted(publisher: &Entity, subscriber: &Entity) -> String {
    format!(
        "entities of the type `{}` may not send tells to `{}` (`[grants] tell`)",
        publisher.entity_type, subscriber.entity_type
    )
}

/// Removes the last pages of a deleted entity's subscriptions, as far as the page of the purge has room for them.
/// Returns whether none is left.
pub(super) fn purge_subscriptions(
    state: &mut ResidentEntity,
    records: &mut Vec<RecordWrite>,
    page: usize,
) -> bool {
    let mut counts = state.subscriptions.counts();
    let room = page.saturating_sub(records.len()) as u64;
    let first = counts.pages.saturating_sub(room) + 1;
    let delete = |number| RecordWrite { key: page_key(number), value: None };
    records.extend((first..=counts.pages).map(delete));
    (counts.pages, counts.subscriptions) = (first - 1, 0);
    state.subscriptions = Subscriptions::unread(counts);
    record_counts(state);
    counts.pages == 0
}

/// Copies the counts into the head.
fn record_counts(state: &mut ResidentEntity) {
    // This fails only if a later release has filled the head with its own fields.
    let set = state.head.set_subscriptions(state.subscriptions.counts());
    debug_assert!(set.is_ok(), "{set:?}");
}

/// The effects of a request that is refused for good: its sender's tell becomes a dead letter.
fn refusal(code: Code, message: String) -> Effects {
    let reply = GuestReply::Error { code: code.as_str().into(), message };
    Effects { reply, ..Effects::of_records(Vec::new()) }
}
