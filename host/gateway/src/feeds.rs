//! Feeds: one read of a channel for all of this node's subscribers that follow it.
//!
//! A feed waits at the owner for the next items of one channel, and passes each page on. So a channel takes one place
//! on the link to its owner, however many subscribers it has here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_core::shard::{ChannelPosition, Lost};
use ostraca_wire::outcome::permanent_problem;
use ostraca_wire::proto::{ChannelItems, Problem};
use ostraca_wire::server::{Account, Charge};
use tokio::sync::broadcast;

use super::channel_query::{ChannelReader, items_to_wire};
use super::{Gateway, lock};

/// How long one read of a feed waits for items. A node that stops waits for the answers to its messages, so this is
/// short.
const WAIT: Duration = Duration::from_secs(2);
/// Maximum number of pages that a subscriber may be behind its feed before it reads on its own.
const PAGES: usize = 8;
/// Maximum size of a feed's page in bytes, unless it holds a single item.
const PAGE_BYTES: u32 = 32 << 10;

/// A page of a feed: consecutive items, or none after a loss.
#[derive(Clone, Debug)]
pub(super) struct FeedPage {
    /// The generation of the entity.
    pub(super) generation: u64,
    /// The number of the first item.
    pub(super) first: u64,
    /// Whether something was lost before it: then each subscriber must find out what it has missed.
    pub(super) breaks: bool,
    pub(super) items: Arc<ChannelItems>,
    /// The charge for the items against the node's budget, held while any subscriber may still need them.
    _charge: Arc<Charge>,
}

type FeedKey = (Entity, Arc<str>);

/// The feeds of this node.
pub(super) struct Feeds {
    feeds: Mutex<HashMap<FeedKey, broadcast::Sender<FeedPage>>>,
    most: usize,
}

impl Feeds {
    /// At most this many channels are followed at the same time.
    pub(super) fn new(most: usize) -> Self {
        Self { feeds: Mutex::default(), most }
    }

    /// Joins the feed of a channel, and starts it if there is none. Pages from now on are received; the feed may begin
    /// later.
    ///
    /// # Errors
    /// The node already follows as many channels as it may.
    pub(super) fn join(
        &self,
        gateway: &Arc<Gateway>,
        reader: &ChannelReader,
        account: &Account,
    ) -> Result<broadcast::Receiver<FeedPage>, Problem> {
        let key = (reader.entity.clone(), reader.channel.clone());
        let mut feeds = lock(&self.feeds);
        if let Some(feed) = feeds.get(&key) {
            return Ok(feed.subscribe());
        }
        if feeds.len() >= self.most {
            let text = format!(
                "the node follows {} channels for its subscribers (`gateway.max-channel-feeds`)",
                self.most
            );
            let help = "subscribe at another node, or raise the limit";
            let problem = permanent_problem(codes::TOO_MANY_SUBSCRIBERS, text, help);
            return Err(Problem { retryable: true, retry_after_ms: 1_000, ..problem });
        }
        let (sender, receiver) = broadcast::channel(PAGES);
        feeds.insert(key.clone(), sender.clone());
        drop(feeds);
        let (gateway, reader) = (gateway.clone(), reader.clone());
        let account = account.of_node("feeds of channels");
        tokio::spawn(async move {
            let feed = Feed { gateway: &gateway, key, account, sender };
            feed.run(reader).await;
        });
        Ok(receiver)
    }

    /// Number of channels that are followed.
    pub(super) fn count(&self) -> usize {
        lock(&self.feeds).len()
    }
}

struct Feed<'a> {
    gateway: &'a Gateway,
    key: FeedKey,
    account: Arc<Account>,
    sender: broadcast::Sender<FeedPage>,
}

impl Drop for Feed<'_> {
    fn drop(&mut self) {
        lock(&self.gateway.feeds.feeds).remove(&self.key);
    }
}

impl Feed<'_> {
    /// Follows the channel until nobody receives it, a read is refused, or the node has no room for a page. Its
    /// subscribers then read on their own, and learn the reason from their own reads.
    async fn run(self, reader: ChannelReader) {
        let entity = reader.entity.clone();
        let mut reader = ChannelReader::new(entity, reader.channel, reader.principal);
        let mut from = ChannelPosition::Now;
        while !self.is_unused() {
            let page = match reader.read(self.gateway, from, PAGE_BYTES, WAIT).await {
                Ok(page) => page,
                Err(_) => return,
            };
            from = ChannelPosition::After(page.next);
            let breaks = page.lost != Lost::Nothing;
            if breaks || !page.items.is_empty() {
                let (generation, end) = (page.next.generation, page.next.number + 1);
                let first = page.items.first().map_or(end, |item| item.number);
                let items = Arc::new(items_to_wire(generation, page.items));
                let Ok(charge) = self.account.charge_items(&items) else {
                    return;
                };
                let page = FeedPage { generation, first, breaks, items, _charge: charge };
                // Whether anybody receives it is checked above.
                let _ = self.sender.send(page);
            }
        }
    }

    /// Whether nobody receives the feed. Then it is no longer listed, so nobody can join it.
    fn is_unused(&self) -> bool {
        let mut feeds = lock(&self.gateway.feeds.feeds);
        let unused = self.sender.receiver_count() == 0;
        if unused {
            feeds.remove(&self.key);
        }
        unused
    }
}
