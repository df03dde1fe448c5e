//! Subscriptions of other entities to an entity's channels (R27).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::extensions::{Extensible, Extensions};
use crate::ids::Entity;

/// One entity's subscription to a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The channel.
    pub channel: Arc<str>,
    /// The entity that gets the items.
    pub subscriber: Entity,
    /// Its method, which is called with each item.
    pub method: Arc<str>,
    /// The publishing entity's version after the turn that recorded it. Items of later versions reach the subscriber.
    pub since: u64,
}

/// Some of an entity's subscriptions. They are stored like items of a channel whose name no guest can use, by page
/// number; the page is the item's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionPage {
    /// The subscriptions.
    pub subscriptions: Vec<Subscription>,
    /// Fields of later releases.
    pub extensions: Extensions<SubscriptionPage>,
}

impl Extensible for SubscriptionPage {
    const NAME: &'static str = "SubscriptionPage";
}

/// How many subscriptions an entity has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionCounts {
    /// The highest number of a stored page; pages are numbered from 1.
    pub pages: u64,
    /// Number of subscriptions.
    pub subscriptions: u64,
}
