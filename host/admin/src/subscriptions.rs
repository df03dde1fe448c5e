//! Reads the subscriptions of other entities to an entity's channels (R27) from the store.

use std::collections::BTreeMap;

use ostraca_codes::codes;
use ostraca_core::codec::{self, CodecError};
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::records::{Head, Subscription, SubscriptionPage};
use ostraca_core::shard::SUBSCRIPTION_PAGES;
use ostraca_store::{ScanKind, ScannedRecord};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{ChannelSubscriptions, EntityDetail, Problem, SubscriptionDetail};

use super::AdminService;

impl AdminService {
    /// All subscriptions, in the order in which items reach them.
    pub(super) async fn subscriptions(
        &self,
        shard: ShardId,
        entity: &Entity,
        head: &Head,
    ) -> Result<Vec<Subscription>, Problem> {
        let (found, damaged) = self.readable_subscriptions(shard, entity, head).await?;
        match damaged {
            None => Ok(found),
            Some(error) => {
                let text = format!("cannot decode a page of subscriptions of {entity}: {error}");
                Err(problem(codes::STORE_UNAVAILABLE, text, ""))
            }
        }
    }

    /// The subscriptions on pages that can be decoded, and why another page cannot.
    async fn readable_subscriptions(
        &self,
        shard: ShardId,
        entity: &Entity,
        head: &Head,
    ) -> Result<(Vec<Subscription>, Option<CodecError>), Problem> {
        let (mut found, mut damaged) = (Vec::new(), None);
        if head.subscriptions().unwrap_or_default().subscriptions == 0 {
            return Ok((found, damaged));
        }
        let channel = SUBSCRIPTION_PAGES.into();
        let kind = ScanKind::Channel { entity: entity.clone(), channel, from: 1 };
        self.read_all(shard, kind, |record| {
            let ScannedRecord::ChannelItem(_, item) = record else { return };
            match codec::decode::<SubscriptionPage>(&item.data) {
                Ok(page) => found.extend(page.subscriptions),
                Err(error) => damaged = Some(error),
            }
        })
        .await?;
        Ok((found, damaged))
    }

    /// Adds the first subscriptions, up to `most`, and the counts of all. Damaged pages are left out: an operator must
    /// see the rest of the entity.
    pub(super) async fn show_subscriptions(
        &self,
        shard: ShardId,
        entity: &Entity,
        head: &Head,
        most: usize,
        detail: &mut EntityDetail,
    ) -> Result<(), Problem> {
        let found = self.readable_subscriptions(shard, entity, head).await?.0;
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for subscription in &found {
            *counts.entry(subscription.channel.to_string()).or_default() += 1;
        }
        let count = |(channel, count)| ChannelSubscriptions { channel, count };
        detail.channel_subscriptions = counts.into_iter().map(count).collect();
        detail.subscription_count = head.subscriptions().unwrap_or_default().subscriptions;
        detail.subscriptions = found.into_iter().take(most).map(subscription_to_wire).collect();
        Ok(())
    }
}

pub(super) fn subscription_to_wire(it: Subscription) -> SubscriptionDetail {
    SubscriptionDetail {
        channel: it.channel.to_string(),
        r#type: it.subscriber.entity_type.to_string(),
        id: it.subscriber.id.to_string(),
        method: it.method.to_string(),
    }
}
