//! Entities that subscribe to each other's channels in the simulated clusters, and the check that each of them gets
//! every item of its subscription once and in order (R27).
//!
//! The check reads only what took effect: which turns emitted items, which turns made and ended subscriptions, and
//! which turns ran items, each in the order of versions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::message::Message;
use ostraca_core::records::{Commit, Lane, RecordKey};
use ostraca_core::shard::{NewTell, SUBSCRIPTION_PAGES, TopicMessage};

use crate::channels::CHANNEL;
use crate::rng::Rng;
use crate::store::Image;
use crate::tells::OutboxChange;
use crate::violation::{Violation, ViolationKind};

/// The method that subscribers name.
pub(crate) const METHOD: &str = "item";

/// The subscriptions that a command's turn makes or ends.
pub(crate) fn by_command(rng: &mut Rng, entities: u64, utc_ms: u64) -> Vec<NewTell> {
    if !rng.chance(25) {
        return Vec::new();
    }
    let topic = match rng.chance(75) {
        true => TopicMessage::Subscribe,
        false => TopicMessage::Unsubscribe,
    };
    vec![NewTell {
        target: Entity::new("counter", format!("e{}", rng.range(0, entities))),
        method: topic.method().into(),
        body: Bytes::from(format!("{CHANNEL}\n{METHOD}")),
        content_type: "".into(),
        traceparent: "".into(),
        utc_ms,
    }]
}

/// The tell that a turn ran without the guest.
#[derive(Clone, Debug)]
pub(crate) struct RanTopic {
    pub(crate) sender: Entity,
    pub(crate) number: u64,
    /// Whether it changed the subscriptions.
    changed: bool,
}

impl RanTopic {
    /// The tell that the turn of this commit ran, if it ran one.
    pub(crate) fn of(commit: &Commit) -> Option<Self> {
        let spilled = commit.writes.iter().filter_map(|write| match (&write.key, &write.value) {
            (RecordKey::Lane(_), Some(value)) => codec::decode::<Lane>(value).ok(),
            _ => None,
        });
        let is_page = |key: &RecordKey| match key {
            RecordKey::ChannelItem { channel, .. } => &**channel == SUBSCRIPTION_PAGES,
            _ => false,
        };
        let changed = commit.writes.iter().any(|write| is_page(&write.key));
        commit.head.lanes.iter().map(|lane| (**lane).clone()).chain(spilled).find_map(|lane| {
            let sender = lane.sender().ok()??;
            let reply = lane.replies.iter().find(|reply| reply.version == commit.head.version)?;
            Some(Self { sender, number: reply.sequence, changed })
        })
    }
}

/// What the simulator saw of subscriptions.
#[derive(Default)]
pub(crate) struct SeenTopics {
    /// By turn without the guest, the tell that it ran.
    pub(crate) ran: HashMap<TurnId, RanTopic>,
    /// The methods of tells: by sender, target and number.
    pub(crate) methods: BTreeMap<(Entity, Entity, u64), Arc<str>>,
    /// The number of items that turns emitted.
    pub(crate) emitted: HashMap<TurnId, usize>,
}

#[derive(Debug)]
enum Change {
    Emitted(TurnId, usize),
    Subscribed(Entity),
    Unsubscribed(Entity),
}

/// The items and subscriptions in all stores.
#[derive(Default)]
pub(crate) struct SubscriptionCheck {
    /// By publisher, in order of versions.
    changes: BTreeMap<Entity, Vec<Change>>,
    /// By publisher and subscriber: the turns whose items the subscriber ran, in order.
    got: BTreeMap<(Entity, Entity), Vec<TurnId>>,
    given_up: BTreeSet<(Entity, u64)>,
}

impl SubscriptionCheck {
    pub(crate) fn add<'a>(
        &mut self,
        image: &Image,
        seen: &SeenTopics,
        message_of: impl Fn(&TurnId) -> Option<&'a Message>,
    ) {
        for (entity, _, turn) in &image.turns {
            let changes = self.changes.entry(entity.clone()).or_default();
            if let Some(count) = seen.emitted.get(turn) {
                changes.push(Change::Emitted(*turn, *count));
            }
            if let Some(ran) = seen.ran.get(turn).filter(|ran| ran.changed) {
                let key = (ran.sender.clone(), entity.clone(), ran.number);
                let method = seen.methods.get(&key).and_then(|it| TopicMessage::of_method(it));
                changes.extend(match method {
                    Some(TopicMessage::Subscribe) => Some(Change::Subscribed(ran.sender.clone())),
                    Some(TopicMessage::Unsubscribe) => {
                        Some(Change::Unsubscribed(ran.sender.clone()))
                    }
                    _ => None,
                });
            }
            if let Some(message) = message_of(turn).filter(|message| &*message.method == METHOD)
                && let (Some(sender), Ok(item)) = (&message.sender, codec::decode(&message.body))
            {
                self.got.entry((sender.clone(), entity.clone())).or_default().push(item);
            }
        }
        self.given_up.extend(image.outbox_changes.iter().filter_map(|change| match change {
            OutboxChange::GivenUp(sender, number) => Some((sender.clone(), *number)),
            _ => None,
        }));
    }

    /// Returns the violations, and the number of items that reached subscribers.
    pub(crate) fn judge(mut self, seen: &SeenTopics) -> (Vec<Violation>, usize) {
        let lost_pairs: BTreeSet<(Entity, Entity)> = seen
            .methods
            .keys()
            .filter(|(sender, _, number)| self.given_up.contains(&(sender.clone(), *number)))
            .map(|(sender, target, _)| (sender.clone(), target.clone()))
            .collect();
        let items = self.got.values().map(Vec::len).sum();
        let mut found = Vec::new();
        for (publisher, changes) in &self.changes {
            let subscribers: BTreeSet<&Entity> = changes
                .iter()
                .filter_map(|change| match change {
                    Change::Subscribed(subscriber) => Some(subscriber),
                    _ => None,
                })
                .collect();
            for subscriber in subscribers {
                let pair = (publisher.clone(), subscriber.clone());
                let got = self.got.remove(&pair).unwrap_or_default();
                if !lost_pairs.contains(&pair)
                    && let Err(why) = follow(&spans(changes, subscriber), &got)
                {
                    let why = format!("{subscriber} got {got:?} from {publisher}: {why}");
                    found.push(ViolationKind::SubscriptionWrong.because(why));
                }
            }
        }
        for ((publisher, subscriber), got) in self.got {
            let why = format!("{subscriber} got {got:?} from {publisher} without a subscription");
            found.push(ViolationKind::SubscriptionWrong.because(why));
        }
        (found, items)
    }
}

/// The items emitted during each subscription, and whether it has ended.
fn spans(changes: &[Change], subscriber: &Entity) -> Vec<(Vec<TurnId>, bool)> {
    let (mut spans, mut open) = (Vec::new(), None);
    for change in changes {
        match change {
            Change::Subscribed(it) if it == subscriber => {
                open.get_or_insert_with(Vec::new);
            }
            Change::Unsubscribed(it) if it == subscriber => {
                spans.extend(open.take().map(|items| (items, true)));
            }
            Change::Emitted(turn, count) => {
                if let Some(items) = &mut open {
                    items.extend(std::iter::repeat_n(*turn, *count));
                }
            }
            _ => {}
        }
    }
    spans.extend(open.map(|items| (items, false)));
    spans
}

/// Checks that a subscriber got the items of each of its subscriptions in order: all of them, or, if the subscription
/// has ended, the first ones.
fn follow(spans: &[(Vec<TurnId>, bool)], got: &[TurnId]) -> Result<(), String> {
    let mut rest = got;
    for (items, has_ended) in spans {
        let same = items.iter().zip(rest).take_while(|(item, got)| item == got).count();
        if same < items.len() && !has_ended {
            return Err(format!("item {same} of {items:?} is missing or out of order"));
        }
        rest = &rest[same..];
    }
    match rest.first() {
        Some(more) => Err(format!("{more:?} does not follow")),
        None => Ok(()),
    }
}
