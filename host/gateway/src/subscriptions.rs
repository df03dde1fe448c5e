//! Subscriptions: how a client gets a channel's items, in order, across hand-offs and fail-overs.
//!
//! A subscription first reads page by page until it has everything that is available. Then it receives the channel's
//! feed. If it falls behind, or the feed ends, it reads on its own again, from where it stands.

use std::sync::Arc;
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_core::records::ChannelCursor;
use ostraca_core::shard::{ChannelPosition, Lost};
use ostraca_wire::outcome::permanent_problem;
use ostraca_wire::proto::{
    ChannelItems, LostItems, Problem, Subscribe, SubscriptionPosition, subscribe,
};
use ostraca_wire::server::{Account, BudgetExceeded, Charge, ClientInfo, SubscriptionEvent};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::Gateway;
use super::channel_query::{ChannelReader, items_to_wire};
use super::feeds::FeedPage;

/// Maximum size of a page in bytes, unless it holds a single item.
const PAGE_BYTES: u32 = 64 << 10;
/// The pause before a subscription whose feed has ended reads on its own.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a subscription stays in its feed while its client does not take a page. The feed's pages are charged to the
/// node alone.
const SLOW_CLIENT: Duration = Duration::from_secs(1);

impl Gateway {
    /// Subscribes a client to a channel. The subscription ends when the receiver is dropped, or with a problem.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn subscribe(
        self: &Arc<Self>,
        client: &ClientInfo,
        request: Subscribe,
    ) -> Result<mpsc::Receiver<SubscriptionEvent>, Problem> {
        let from = match request.from {
            None => ChannelPosition::Now,
            Some(subscribe::From::Oldest(_)) => ChannelPosition::Oldest,
            Some(subscribe::From::AfterVersion(version)) => ChannelPosition::AfterVersion(version),
            Some(subscribe::From::AfterCursor(text)) => match text.parse() {
                Ok(cursor) => ChannelPosition::After(cursor),
                Err(error) => {
                    let help = "use the cursor of an item of this channel, unchanged";
                    let text = format!("{error}");
                    return Err(permanent_problem(codes::INVALID_CURSOR, text, help));
                }
            },
        };
        let entity = Entity::new(request.r#type, request.id);
        let (principal, account) = (client.principal_name.clone(), client.account().clone());
        let reader = ChannelReader::new(entity, request.channel.into(), principal);
        // One page is on its way to the client, and another one waits.
        let (sender, receiver) = mpsc::channel(1);
        let gateway = self.clone();
        let subscription = Subscription { gateway, reader, account, sender, position: from };
        tokio::spawn(subscription.run());
        Ok(receiver)
    }

    /// Number of channels that this node follows for its subscribers.
    #[must_use]
    pub fn channel_feeds(&self) -> usize {
        self.feeds.count()
    }
}

/// Why a subscription stops for now.
enum Interrupted {
    /// Nobody reads it any more.
    Unread,
    /// It is refused.
    Refused(Problem),
}

struct Subscription {
    gateway: Arc<Gateway>,
    reader: ChannelReader,
    /// The budgets of the client. A page is charged from before it is read until the client's connection has taken it.
    account: Arc<Account>,
    sender: mpsc::Sender<SubscriptionEvent>,
    position: ChannelPosition,
}

/// Without room for a page, the subscription ends, and the client opens it again.
fn admitted(charge: Result<Arc<Charge>, BudgetExceeded>) -> Result<Arc<Charge>, Interrupted> {
    charge.map_err(|full| Interrupted::Refused(full.problem("no room for a page of a channel")))
}

impl Subscription {
    async fn run(mut self) {
        if let Err(Interrupted::Refused(problem)) = self.follow().await {
            let _ = self.sender.send(SubscriptionEvent::Problem(problem)).await;
        }
    }

    async fn follow(&mut self) -> Result<(), Interrupted> {
        // The client learns where it stands even if there is no item yet.
        let mut must_say = true;
        loop {
            // Joined first, so that no item is emitted between the last page and the feed.
            let mut feed = self
                .gateway
                .feeds
                .join(&self.gateway, &self.reader, &self.account)
                .map_err(Interrupted::Refused)?;
            self.catch_up(&mut must_say).await?;
            loop {
                if !self.soon_has_room().await? {
                    drop(feed);
                    self.wait_for_room().await?;
                    break;
                }
                let page = tokio::select! {
                    () = self.sender.closed() => return Err(Interrupted::Unread),
                    page = feed.recv() => page,
                };
                match page {
                    Ok(page) if self.follows(&page) => self.pass_on(page).await?,
                    // It has missed pages.
                    Ok(_) | Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => {
                        sleep(PAUSE).await;
                        break;
                    }
                }
            }
        }
    }

    /// Whether the client takes the page before the next one within [`SLOW_CLIENT`].
    async fn soon_has_room(&self) -> Result<bool, Interrupted> {
        if self.sender.capacity() > 0 {
            return Ok(true);
        }
        timeout(SLOW_CLIENT, self.wait_for_room())
            .await
            .map_or(Ok(false), |room| room.map(|()| true))
    }

    /// Waits until the client has taken the page before the next one.
    async fn wait_for_room(&self) -> Result<(), Interrupted> {
        self.sender.reserve().await.map(drop).map_err(|_| Interrupted::Unread)
    }

    /// Reads until nothing more is available.
    async fn catch_up(&mut self, must_say: &mut bool) -> Result<(), Interrupted> {
        loop {
            // A read at `Now` returns no items.
            let expected = if self.position == ChannelPosition::Now { 0 } else { PAGE_BYTES };
            // Only admitted: the read may wait for an owner, and nothing is in memory meanwhile.
            drop(admitted(self.account.charge_page(expected.into()))?);
            let reading =
                self.reader.read(&self.gateway, self.position, PAGE_BYTES, Duration::ZERO);
            let page = tokio::select! {
                () = self.sender.closed() => return Err(Interrupted::Unread),
                page = reading => page.map_err(Interrupted::Refused)?,
            };
            let was_now = self.position == ChannelPosition::Now;
            let items = items_to_wire(page.next.generation, page.items);
            // Before anything is said about this page, since a refusal reads it again.
            let charge = admitted(self.account.charge_items(&items))?;
            self.position = ChannelPosition::After(page.next);
            match page.lost {
                Lost::Nothing => {}
                Lost::Items(count) => {
                    self.send(SubscriptionEvent::Lost(LostItems { count: Some(count) })).await?;
                }
                Lost::Unknown => {
                    self.send(SubscriptionEvent::Lost(LostItems { count: None })).await?;
                }
            }
            if !items.items.is_empty() {
                *must_say = false;
                self.send(SubscriptionEvent::Items(Arc::new(items), charge)).await?;
                continue;
            }
            if std::mem::take(must_say) || page.lost != Lost::Nothing {
                let cursor = page.next.to_string();
                self.send(SubscriptionEvent::Position(SubscriptionPosition { cursor })).await?;
            }
            // A read from now on returns before it has looked for items.
            if !was_now {
                return Ok(());
            }
        }
    }

    /// Whether a page of the feed continues what the client has.
    fn follows(&self, page: &FeedPage) -> bool {
        let ChannelPosition::After(cursor) = self.position else { return false };
        !page.breaks && cursor.generation == page.generation && page.first <= cursor.number + 1
    }

    /// Passes on the items of the feed's page that the client does not have yet.
    async fn pass_on(&mut self, page: FeedPage) -> Result<(), Interrupted> {
        let ChannelPosition::After(cursor) = self.position else { return Ok(()) };
        let known = usize::try_from(cursor.number + 1 - page.first).unwrap_or(usize::MAX);
        let items = match known {
            0 => page.items,
            _ => Arc::new(ChannelItems {
                items: page.items.items.iter().skip(known).cloned().collect(),
            }),
        };
        let Some(last) = items.items.last() else { return Ok(()) };
        let number = cursor.number + items.items.len() as u64;
        let (generation, version) = (cursor.generation, last.version);
        let charge = admitted(self.account.charge_items(&items))?;
        self.position = ChannelPosition::After(ChannelCursor { generation, version, number });
        self.send(SubscriptionEvent::Items(items, charge)).await
    }

    async fn send(&self, event: SubscriptionEvent) -> Result<(), Interrupted> {
        self.sender.send(event).await.map_err(|_| Interrupted::Unread)
    }
}
