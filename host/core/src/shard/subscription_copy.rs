//! Subscriptions in a copy of an entity: those of other entities to its channels (R27).
//!
//! In the copy they are a channel whose name no guest can use, with one item for each page, as in the store. A release
//! that does not know them refuses the whole copy because of that name, so it loses none.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::entity_copy::{ChannelCopy, EntityCopy};
use super::subscriptions::{SUBSCRIPTION_PAGES, SubscriptionRequest};
use crate::codec::{self, CodecError};
use crate::ids::Entity;
use crate::records::{Subscription, SubscriptionPage};

/// Maximum number of subscriptions in one item.
const PER_PAGE: usize = 64;
/// Maximum length of a type's name in bytes.
const MAX_TYPE: usize = 255;
/// Maximum length of an entity's id in bytes.
const MAX_ID: usize = 512;

impl EntityCopy {
    /// Sets the subscriptions of other entities, replacing those that it has. The versions since which they exist are
    /// not copied.
    ///
    /// # Errors
    /// [`CodecError`] if they cannot be encoded.
    pub fn set_subscriptions(
        &mut self,
        subscriptions: Vec<Subscription>,
    ) -> Result<(), CodecError> {
        self.channels.retain(|channel| &*channel.name != SUBSCRIPTION_PAGES);
        if subscriptions.is_empty() {
            return Ok(());
        }
        let mut items = Vec::new();
        for part in subscriptions.chunks(PER_PAGE) {
            let subscriptions = part.iter().map(|it| Subscription { since: 0, ..it.clone() });
            let page = SubscriptionPage {
                subscriptions: subscriptions.collect(),
                ..SubscriptionPage::default()
            };
            items.push((0, codec::encode(&page)?.into()));
        }
        let pages = ChannelCopy { name: SUBSCRIPTION_PAGES.into(), first: 1, start: 0, items };
        // Channels are in ascending order of their names, and no other name begins with a control character.
        self.channels.insert(0, pages);
        Ok(())
    }

    /// Removes the subscriptions from the copy, and checks them.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub(super) fn take_subscriptions(&mut self) -> Result<Vec<Subscription>, String> {
        let Some(at) = self.channels.iter().position(|it| &*it.name == SUBSCRIPTION_PAGES) else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for (_, data) in self.channels.remove(at).items {
            let page: SubscriptionPage = codec::decode(&data)
                .map_err(|error| format!("cannot decode a page of subscriptions: {error}"))?;
            all.extend(page.subscriptions);
        }
        check(&all)?;
        Ok(all)
    }
}

fn check(subscriptions: &[Subscription]) -> Result<(), String> {
    let mut known: BTreeSet<(&Arc<str>, &Entity)> = BTreeSet::new();
    for it in subscriptions {
        SubscriptionRequest::check(&it.channel, &it.method)
            .map_err(|why| format!("the subscription of {}: {why}", it.subscriber))?;
        if it.method.is_empty() {
            return Err(format!("the subscription of {}: the method is empty", it.subscriber));
        }
        let (of_type, of_id) = (it.subscriber.entity_type.len(), it.subscriber.id.len());
        if !(1..=MAX_TYPE).contains(&of_type) || !(1..=MAX_ID).contains(&of_id) {
            return Err(format!(
                "a subscriber's type is {of_type} bytes, must be 1 to {MAX_TYPE}; its id is {of_id} bytes, must be 1 to {MAX_ID}"
            ));
        }
        if !known.insert((&it.channel, &it.subscriber)) {
            return Err(format!("{} has subscribed twice to `{}`", it.subscriber, it.channel));
        }
    }
    Ok(())
}
