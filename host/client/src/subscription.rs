//! Subscriptions to channels of entities.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_wire::framed::FrameReader;
use ostraca_wire::proto::subscription_frame::Frame;
use ostraca_wire::proto::{Problem, Subscribe, SubscriptionFrame, subscribe};
use ostraca_wire::reconnect::{Backoff, BackoffPolicy};
use ostraca_wire::{Error, decode_error_message, problem};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::info;

use crate::connect::Client;
use crate::connection_state::ConnectionState;
use crate::namespace::namespace_of;

/// The pauses before a subscription is opened again.
const REOPEN: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(20), longest: Duration::from_secs(1) };

/// Where a subscription begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubscribeFrom {
    /// Behind everything that has been emitted.
    #[default]
    Now,
    /// At the oldest item that is available.
    Oldest,
    /// At the first item of a later version of the entity. With the version of a command's reply: every item that was
    /// emitted since.
    AfterVersion(u64),
    /// Behind the item with this cursor ([`ChannelItem::cursor`], [`Subscription::cursor`]).
    After(String),
}

/// What a subscription delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// The next item.
    Item(ChannelItem),
    /// The subscriber has missed this many items, which its channel no longer keeps. `None` if the number is unknown,
    /// possibly 0: the entity was deleted or its store was restored, or the subscription began at a version from before
    /// the first item that is available.
    Lost(Option<u64>),
}

/// An item of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelItem {
    /// The position behind the item, from which another subscription can continue. Opaque.
    pub cursor: String,
    /// The entity's version after the turn that emitted it.
    pub version: u64,
    /// When that turn ran, in milliseconds since the Unix epoch (UTC).
    pub utc_ms: u64,
    /// The item. With the Rust SDK: JSON, unless the entity emitted bytes.
    pub data: Bytes,
}

/// A subscription was refused, and has ended.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {}", .0.code, .0.message)]
pub struct SubscribeError(pub Box<Problem>);

impl SubscribeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.0.code
    }
}

/// A subscription to a channel of an entity. It continues where it stands when its connection breaks, at whichever node
/// the client is connected to then. Dropping it ends it.
pub struct Subscription {
    links: watch::Receiver<ConnectionState>,
    request: Subscribe,
    /// `None` until the subscription is opened, and after its stream has ended.
    reader: Option<FrameReader>,
    backoff: Backoff,
    /// The pause before the subscription is opened again.
    pause: Duration,
    /// What was received and not returned yet.
    received: VecDeque<ChannelEvent>,
    ended: Option<SubscribeError>,
}

impl Client {
    /// Subscribes to a channel of an entity. The items of a channel come in the order in which they were emitted, and
    /// none comes twice. Needs permission to send to the entity's type.
    #[must_use]
    pub fn subscribe(&self, entity: &Entity, channel: &str, from: SubscribeFrom) -> Subscription {
        let from = match from {
            SubscribeFrom::Now => None,
            SubscribeFrom::Oldest => Some(subscribe::From::Oldest(true)),
            SubscribeFrom::AfterVersion(version) => Some(subscribe::From::AfterVersion(version)),
            SubscribeFrom::After(cursor) => Some(subscribe::From::AfterCursor(cursor)),
        };
        let request = Subscribe {
            namespace: namespace_of(&self.namespace(), entity),
            r#type: entity.entity_type.to_string(),
            id: entity.id.to_string(),
            channel: channel.into(),
            from,
        };
        Subscription {
            links: self.connection.clone(),
            request,
            reader: None,
            backoff: Backoff::new(REOPEN),
            pause: Duration::ZERO,
            received: VecDeque::new(),
            ended: None,
        }
    }
}

impl Subscription {
    /// Waits until the node has accepted the subscription: later items are not missed. [`Subscription::next`] does this
    /// too. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`], after which nothing follows.
    pub async fn established(&mut self) -> Result<(), SubscribeError> {
        while self.cursor().is_none() && self.received.is_empty() {
            self.receive().await?;
        }
        Ok(())
    }

    /// Waits for the next item, or learns that items were missed. Waits while there is no connection, without a timeout.
    /// Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`], after which nothing follows.
    pub async fn next(&mut self) -> Result<ChannelEvent, SubscribeError> {
        loop {
            if let Some(event) = self.received.pop_front() {
                if let ChannelEvent::Item(item) = &event {
                    self.request.from = Some(subscribe::From::AfterCursor(item.cursor.clone()));
                }
                return Ok(event);
            }
            self.receive().await?;
        }
    }

    /// Where the subscription stands: behind the last item that [`Subscription::next`] returned. `None` until it is
    /// established.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        match &self.request.from {
            Some(subscribe::From::AfterCursor(cursor)) => Some(cursor),
            _ => None,
        }
    }

    /// Receives one frame.
    async fn receive(&mut self) -> Result<(), SubscribeError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let frame = match self.next_frame().await {
            Ok(frame) => frame,
            Err(error) => {
                info!(%error, "a subscription's stream failed");
                self.reader = None;
                self.pause = self.backoff.next_pause();
                return Ok(());
            }
        };
        if !matches!(frame.frame, Some(Frame::Problem(_))) {
            self.backoff.reset();
        }
        match frame.frame {
            Some(Frame::Items(page)) => {
                let item = |item: ostraca_wire::proto::ChannelItem| ChannelItem {
                    cursor: item.cursor,
                    version: item.version,
                    utc_ms: item.utc_ms,
                    data: item.data,
                };
                self.received.extend(page.items.into_iter().map(item).map(ChannelEvent::Item));
            }
            Some(Frame::Position(position)) => {
                self.request.from = Some(subscribe::From::AfterCursor(position.cursor));
            }
            Some(Frame::Lost(lost)) => self.received.push_back(ChannelEvent::Lost(lost.count)),
            Some(Frame::Problem(problem)) if problem.retryable => {
                info!(code = problem.code, "a subscription is refused: {}", problem.message);
                self.reader = None;
                let least = Duration::from_millis(problem.retry_after_ms.into());
                self.pause = self.backoff.next_pause().max(least);
            }
            Some(Frame::Problem(problem)) => {
                self.reader = None;
                let ended = SubscribeError(Box::new(problem));
                self.ended = Some(ended.clone());
                return Err(ended);
            }
            // From a later release.
            None => {}
        }
        Ok(())
    }

    async fn next_frame(&mut self) -> Result<SubscriptionFrame, Error> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => {
                sleep(self.pause).await;
                let link = match self.links.wait_for(|it| it.connection.is_some()).await {
                    Ok(state) => state.connection.clone(),
                    Err(_) => None,
                };
                let Some(link) = link else {
                    let closed = problem(codes::CLIENT_CLOSED, "the client was closed");
                    let closed = Problem { retryable: false, ..closed };
                    return Ok(SubscriptionFrame { frame: Some(Frame::Problem(closed)) });
                };
                let (mut writer, reader) = link.subscribe(self.request.clone()).await?;
                writer.flush().await?;
                writer.finish();
                self.reader.insert(reader)
            }
        };
        let frame = reader.next().await?;
        let frame = frame.ok_or_else(|| {
            Error::ConnectionLost("the node closed the subscription's stream".into())
        })?;
        SubscriptionFrame::decode(frame).map_err(|error| {
            let text = decode_error_message(&error);
            Error::ConnectionLost(format!("invalid frame from the node: {text}"))
        })
    }
}
