//! Subscriptions of other entities to an entity's channels (R27): the messages that make them and spread items, and the
//! subscriptions in memory.
//!
//! A subscriber is a tell's sender, so a subscription is made exactly once and in order. Publishing is a tell of the
//! entity to itself. Running it is a turn that does not call the guest: it sends tells to the subscribers of one page,
//! and a tell to itself for the next page. So where a fan-out stands is in the outbox, and survives any crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::channel_reads::check_channel_name;
use crate::codec;
use crate::extensions::{Extensible, Extensions};
use crate::ids::Entity;
use crate::records::{
    ChannelItem, RecordKey, RecordWrite, Subscription, SubscriptionCounts, SubscriptionPage,
};

/// The name under which the pages of subscriptions are stored like items of a channel. No guest can use it.
pub const SUBSCRIPTION_PAGES: &str = "\u{1}subscriptions";

/// Maximum length of the subscriber's method in bytes.
const MAX_METHOD: usize = 128;

/// A message between entities about subscriptions. No guest can declare its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicMessage {
    /// Subscribes its sender. The body is an encoded [`SubscriptionRequest`].
    Subscribe,
    /// Ends the subscription of its sender. The body is an encoded [`SubscriptionRequest`] whose method is empty.
    Unsubscribe,
    /// Sends an item to the next page of subscribers. The entity tells it to itself; the body is an encoded [`FanOut`].
    FanOut,
}

impl TopicMessage {
    /// The method.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Subscribe => "\u{1}subscribe",
            Self::Unsubscribe => "\u{1}unsubscribe",
            Self::FanOut => "\u{1}fan-out",
        }
    }

    /// The message that has this method, if there is one.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        if !method.starts_with('\u{1}') {
            return None;
        }
        let all = [Self::Subscribe, Self::Unsubscribe, Self::FanOut];
        all.into_iter().find(|message| message.method() == method)
    }
}

/// The body of [`TopicMessage::Subscribe`] and [`TopicMessage::Unsubscribe`]: the channel, a line feed, and the method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRequest {
    /// The channel.
    pub channel: Arc<str>,
    /// The subscriber's method.
    pub method: Arc<str>,
}

impl SubscriptionRequest {
    /// Decodes and checks a body.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        let (channel, method) = text.split_once('\n').unwrap_or((text, ""));
        Self::check(channel, method)?;
        Ok(Self { channel: channel.into(), method: method.into() })
    }

    /// Checks a channel and a method, which may be empty.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(super) fn check(channel: &str, method: &str) -> Result<(), String> {
        check_channel_name(channel)?;
        if method.len() > MAX_METHOD {
            return Err(format!("the method is {} bytes, must be 1 to {MAX_METHOD}", method.len()));
        }
        if method.chars().any(char::is_control) {
            return Err("the method must not contain control characters".into());
        }
        Ok(())
    }
}

/// An item on its way to the subscribers of one page after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanOut {
    /// The channel.
    pub channel: Arc<str>,
    /// The entity's version after the turn that emitted the item.
    pub version: u64,
    /// The first page that has not been served.
    pub page: u64,
    /// The item.
    pub data: Bytes,
    /// Fields of later releases.
    pub extensions: Extensions<FanOut>,
}

impl Extensible for FanOut {
    const NAME: &'static str = "FanOut";
}

impl FanOut {
    /// Encodes it as a message's body.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        codec::encode(self).unwrap_or_default().into()
    }

    /// Decodes a message's body.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        codec::decode(body).ok()
    }
}

/// An entity's subscriptions after its last turn. They are read when they are first needed.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscriptions {
    counts: SubscriptionCounts,
    /// The pages that have been read; all of them unless `next` is set.
    pages: BTreeMap<u64, SubscriptionPage>,
    /// The page of each subscription.
    places: BTreeMap<(Arc<str>, Entity), u64>,
    /// The first page to read.
    next: Option<u64>,
    /// The number of the read in flight.
    reader: Option<u64>,
}

/// Why a subscription is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySubscriptions;

impl Subscriptions {
    /// Subscriptions that have not been read.
    pub(super) fn unread(counts: SubscriptionCounts) -> Self {
        Self { counts, next: (counts.pages > 0).then_some(1), ..Self::default() }
    }

    pub(super) fn counts(&self) -> SubscriptionCounts {
        self.counts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.subscriptions == 0
    }

    /// Whether all pages are in memory.
    pub(super) fn is_read(&self) -> bool {
        self.next.is_none()
    }

    #[cfg(debug_assertions)]
    pub(super) fn is_reading(&self) -> bool {
        self.reader.is_some()
    }

    /// Begins to read the next pages, unless they are being read. Returns the number of the first one.
    pub(super) fn begin_read(&mut self, reader: u64) -> Option<u64> {
        let next = self.next.filter(|_| self.reader.is_none())?;
        self.reader = Some(reader);
        Some(next)
    }

    /// Whether the result of a read is the expected one.
    pub(super) fn take_read(&mut self, reader: u64) -> bool {
        self.reader.take_if(|expected| *expected == reader).is_some()
    }

    /// Adds pages that were read; `items` is not empty unless no page is left.
    ///
    /// # Errors
    /// A message, if a page is damaged.
    pub(super) fn add_pages(&mut self, items: Vec<(u64, ChannelItem)>) -> Result<(), String> {
        let last = items.last().map(|(number, _)| *number);
        for (number, item) in items {
            let page: SubscriptionPage =
                codec::decode(&item.data).map_err(|error| error.to_string())?;
            for it in &page.subscriptions {
                self.places.insert((it.channel.clone(), it.subscriber.clone()), number);
            }
            self.pages.insert(number, page);
        }
        self.next = last.filter(|last| *last < self.counts.pages).map(|last| last + 1);
        Ok(())
    }

    /// Adds or changes a subscription in the turn that makes version `since`, within limits on all subscriptions and on
    /// those of a page. Returns the page to write, if it changes.
    pub(super) fn subscribe(
        &mut self,
        subscriber: &Entity,
        request: SubscriptionRequest,
        since: u64,
        (most, per_page): (u64, usize),
    ) -> Result<Option<u64>, TooManySubscriptions> {
        let SubscriptionRequest { channel, method } = request;
        let key = (channel.clone(), subscriber.clone());
        if let Some(number) = self.places.get(&key).copied() {
            let subscriptions = self.pages.get_mut(&number).map(|page| &mut page.subscriptions);
            let known = subscriptions.into_iter().flatten().find(|it| is_of(it, &key));
            let changed =
                known.is_some_and(|it| std::mem::replace(&mut it.method, method.clone()) != method);
            return Ok(changed.then_some(number));
        }
        if self.counts.subscriptions >= most {
            return Err(TooManySubscriptions);
        }
        let has_room =
            |(_, page): &(&u64, &SubscriptionPage)| page.subscriptions.len() < per_page.max(1);
        let with_room = self.pages.iter().find(has_room).map(|(number, _)| *number);
        let number = with_room.unwrap_or_else(|| {
            let gap = (1..).zip(self.pages.keys()).find(|(number, page)| number != *page);
            gap.map_or(self.pages.len() as u64 + 1, |(number, _)| number)
        });
        let subscription = Subscription { channel, subscriber: subscriber.clone(), method, since };
        self.pages.entry(number).or_default().subscriptions.push(subscription);
        self.places.insert(key, number);
        self.counts.subscriptions += 1;
        self.counts.pages = self.counts.pages.max(number);
        Ok(Some(number))
    }

    /// Adds copied subscriptions in the turn that makes version `since`, within the same limits. Those that exist stay
    /// as they are. Returns the pages to write.
    pub(super) fn restore(
        &mut self,
        copied: Vec<Subscription>,
        since: u64,
        limits: (u64, usize),
    ) -> Result<BTreeSet<u64>, TooManySubscriptions> {
        let is_new = |it: &Subscription| {
            !self.places.contains_key(&(it.channel.clone(), it.subscriber.clone()))
        };
        let new: Vec<_> = copied.into_iter().filter(is_new).collect();
        if self.counts.subscriptions + new.len() as u64 > limits.0 {
            return Err(TooManySubscriptions);
        }
        let mut pages = BTreeSet::new();
        for Subscription { channel, subscriber, method, .. } in new {
            let request = SubscriptionRequest { channel, method };
            pages.extend(self.subscribe(&subscriber, request, since, limits)?);
        }
        Ok(pages)
    }

    /// Removes a subscription. Returns the page to write, if there was one.
    pub(super) fn unsubscribe(&mut self, subscriber: &Entity, channel: &Arc<str>) -> Option<u64> {
        let key = (channel.clone(), subscriber.clone());
        let number = self.places.remove(&key)?;
        let page = self.pages.get_mut(&number)?;
        page.subscriptions.retain(|it| !is_of(it, &key));
        if page.subscriptions.is_empty() {
            self.pages.remove(&number);
        }
        self.counts.subscriptions = self.counts.subscriptions.saturating_sub(1);
        self.counts.pages = self.pages.last_key_value().map_or(0, |(number, _)| *number);
        Some(number)
    }

    /// The write of a page.
    pub(super) fn write(&self, number: u64, version: u64, utc_ms: u64) -> RecordWrite {
        let item = self.pages.get(&number).map(|page| ChannelItem {
            version,
            utc_ms,
            data: codec::encode(page).unwrap_or_default().into(),
            extensions: Extensions::default(),
        });
        let value = item.map(|item| codec::encode(&item).unwrap_or_default().into());
        RecordWrite { key: page_key(number), value }
    }

    /// The subscriptions of a page that get an item of this version, and the next page. Each turn of a fan-out serves
    /// exactly one page, even if it has no such subscription: so the items of a channel reach each page in order.
    pub(super) fn of_page(
        &self,
        channel: &str,
        version: u64,
        number: u64,
    ) -> (Vec<&Subscription>, Option<u64>) {
        let gets = |it: &&Subscription| *it.channel == *channel && it.since < version;
        let page = self.pages.get(&number).map(|page| &page.subscriptions);
        let found = page.into_iter().flatten().filter(gets).collect();
        (found, (number < self.counts.pages).then(|| number + 1))
    }
}

/// The key of a page.
pub(super) fn page_key(number: u64) -> RecordKey {
    RecordKey::ChannelItem { channel: SUBSCRIPTION_PAGES.into(), number }
}

fn is_of(subscription: &Subscription, (channel, subscriber): &(Arc<str>, Entity)) -> bool {
    subscription.channel == *channel && subscription.subscriber == *subscriber
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(channel: &str, method: &str) -> SubscriptionRequest {
        SubscriptionRequest { channel: channel.into(), method: method.into() }
    }

    fn entity(number: usize) -> Entity {
        Entity::new("reader", format!("{number}"))
    }

    fn names(found: &[&Subscription]) -> String {
        found.iter().map(|it| &*it.subscriber.id).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_subscription_gets_only_later_items() {
        let mut all = Subscriptions::default();
        assert_eq!(all.subscribe(&entity(1), request("news", "m"), 3, (9, 64)), Ok(Some(1)));
        assert_eq!(all.subscribe(&entity(2), request("news", "m"), 4, (9, 64)), Ok(Some(1)));
        assert_eq!(all.subscribe(&entity(2), request("other", "m"), 4, (9, 64)), Ok(Some(1)));
        assert_eq!(names(&all.of_page("news", 4, 1).0), "1");
        assert_eq!(names(&all.of_page("news", 5, 1).0), "1 2");
        assert_eq!(all.subscribe(&entity(1), request("news", "m"), 8, (9, 64)), Ok(None));
        assert_eq!(all.subscribe(&entity(1), request("news", "n"), 8, (9, 64)), Ok(Some(1)));
        assert_eq!(names(&all.of_page("news", 4, 1).0), "1", "it keeps its place");
        assert_eq!(all.unsubscribe(&entity(1), &"news".into()), Some(1));
        assert_eq!(all.unsubscribe(&entity(1), &"news".into()), None);
        assert_eq!(names(&all.of_page("news", 9, 1).0), "2");
        assert_eq!(all.counts(), SubscriptionCounts { pages: 1, subscriptions: 2 });
    }

    #[test]
    fn pages_are_bounded_and_their_places_are_used_again() {
        let mut all = Subscriptions::default();
        for number in 0..129 {
            let page = number as u64 / 64 + 1;
            assert_eq!(
                all.subscribe(&entity(number), request("news", "m"), 1, (129, 64)),
                Ok(Some(page))
            );
        }
        let one_more = all.subscribe(&entity(999), request("news", "m"), 1, (129, 64));
        assert_eq!(one_more, Err(TooManySubscriptions));
        for (number, expected) in [(1, (64, Some(2))), (2, (64, Some(3))), (3, (1, None))] {
            let (found, next) = all.of_page("news", 2, number);
            assert_eq!((found.len(), next), expected);
        }
        for number in 64..128 {
            assert_eq!(all.unsubscribe(&entity(number), &"news".into()), Some(2));
        }
        assert_eq!(all.write(2, 1, 1).value, None);
        assert_eq!(all.counts().pages, 3);
        let (found, next) = all.of_page("news", 2, 2);
        assert_eq!((found.len(), next), (0, Some(3)), "it is not skipped, so items stay in order");
        all.unsubscribe(&entity(128), &"news".into());
        assert_eq!(all.counts(), SubscriptionCounts { pages: 1, subscriptions: 64 });
    }

    #[test]
    fn what_is_written_is_read_back_page_by_page() {
        let mut all = Subscriptions::default();
        for number in 0..130 {
            all.subscribe(&entity(number), request("news", "m"), 1, (999, 64)).unwrap();
        }
        let items: Vec<(u64, ChannelItem)> = (1..=3)
            .map(|number| {
                let write = all.write(number, 7, 8);
                (number, codec::decode(&write.value.unwrap()).unwrap())
            })
            .collect();
        let mut read = Subscriptions::unread(all.counts());
        assert_eq!((read.begin_read(5), read.begin_read(6)), (Some(1), None));
        assert!(!read.take_read(6) && read.take_read(5));
        read.add_pages(items[..2].to_vec()).unwrap();
        assert_eq!((read.is_read(), read.begin_read(7)), (false, Some(3)));
        assert!(read.take_read(7));
        read.add_pages(items[2..].to_vec()).unwrap();
        assert!(read.is_read());
        assert_eq!((read.pages, read.places), (all.pages, all.places));
    }

    #[test]
    fn a_bad_request_is_named() {
        for (body, part) in [
            (&b"\xff"[..], "utf-8"),
            (b"", "0 bytes"),
            (b"a\x02\nm", "control"),
            (b"a\nm\x02", "control"),
            (&[b'a'; 129], "129 bytes"),
            (&[&b"a\n"[..], &[b'm'; 129]].concat(), "129 bytes"),
        ] {
            let error = SubscriptionRequest::decode(body).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(SubscriptionRequest::decode(b"news\nm"), Ok(request("news", "m")));
        for message in [TopicMessage::Subscribe, TopicMessage::Unsubscribe, TopicMessage::FanOut] {
            assert_eq!(TopicMessage::of_method(message.method()), Some(message));
        }
    }
}
