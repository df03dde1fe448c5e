//! Reads of channels by the gateway itself, on behalf of its clients. They take the path of clients' queries, so that
//! routes, hand-offs and fail-overs are handled in one place.

use std::sync::Arc;
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{Entity, ScopedSessionId};
use ostraca_core::records::ChannelCursor;
use ostraca_core::shard::{ChannelPage, ChannelPosition, ChannelRead, PageItem};
use ostraca_wire::proto::{ChannelItem, ChannelItems, Envelope, Outcome, Problem, Reply};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Gateway;
use super::pending_message::PendingMessage;

/// How long a read may take beyond the time for which it waits for items.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The pauses after a refusal that may pass: twice as long each time, between these.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Maximum number of items in one page.
const MAX_ITEMS: u32 = 256;

/// Who reads which channel.
#[derive(Clone, Debug)]
pub(super) struct ChannelReader {
    pub(super) entity: Entity,
    pub(super) channel: Arc<str>,
    pub(super) principal: Arc<str>,
    session: [u8; 16],
    sequence: u64,
}

impl ChannelReader {
    pub(super) fn new(entity: Entity, channel: Arc<str>, principal: Arc<str>) -> Self {
        Self { entity, channel, principal, session: rand::random(), sequence: 0 }
    }

    /// Reads a page, which waits for items for up to `wait`. Repeats the read until it is answered.
    ///
    /// # Errors
    /// A refusal that does not pass.
    pub(super) async fn read(
        &mut self,
        gateway: &Gateway,
        from: ChannelPosition,
        max_bytes: u32,
        wait: Duration,
    ) -> Result<ChannelPage, Problem> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let read = ChannelRead {
            channel: self.channel.clone(),
            from,
            max_items: MAX_ITEMS,
            max_bytes,
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            extensions: Extensions::default(),
        };
        let mut pause = PAUSES.0;
        loop {
            self.sequence += 1;
            let envelope = Envelope::of_channel_read(
                &self.entity,
                &self.principal,
                &read,
                (self.session, self.sequence),
                millis(wait + READ_TIMEOUT),
            );
            let session = ScopedSessionId::derive(&self.principal, &self.session);
            let reply = gateway.query(session, envelope).await;
            let problem = match reply.map(|reply| (reply.outcome(), reply)) {
                Some((Outcome::Result, reply)) => match ChannelPage::decode(&reply.body) {
                    Ok(page) => return Ok(page),
                    Err(error) => {
                        let text = format!("cannot decode a page of a channel: {error}");
                        ostraca_wire::problem(codes::UNEXPECTED_RESPONSE, text)
                    }
                },
                Some((Outcome::NotRun, reply)) => reply.problem.unwrap_or_default(),
                // Nobody knows: a query has no effect, so it is repeated.
                _ => Problem { retryable: true, ..Problem::default() },
            };
            // The deadline of the read says nothing about the subscription.
            if !problem.retryable && problem.code != codes::DEADLINE_EXCEEDED.as_str() {
                return Err(problem);
            }
            let asked = Duration::from_millis(problem.retry_after_ms.into());
            sleep(pause.max(asked).min(PAUSES.1)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

impl Gateway {
    /// Routes a query of this node, and waits for its reply; `None` if it is dropped.
    async fn query(&self, session: ScopedSessionId, mut envelope: Envelope) -> Option<Reply> {
        let (reply, answer) = oneshot::channel();
        let (now, utc) = (self.now(), self.clock.utc_ms());
        self.resolver.apply_limits(&mut envelope, utc);
        let shard = self.likely_shard(&self.types.snapshot(), &envelope);
        let (bytes, deadline) = (envelope.body.len() + 256, envelope.deadline(now, 0));
        let pending = PendingMessage::of_query(shard, session, envelope, reply);
        let mut steps = Vec::new();
        {
            let mut router = self.router()?;
            router.route_into(now, shard, pending, bytes, deadline, &mut steps);
        }
        self.execute_steps(steps);
        answer.await.ok()
    }
}

/// Converts a page's items for clients.
pub(super) fn items_to_wire(generation: u64, items: Vec<PageItem>) -> ChannelItems {
    let item = |PageItem { number, version, utc_ms, data }| ChannelItem {
        cursor: ChannelCursor { generation, version, number }.to_string(),
        version,
        utc_ms,
        data,
    };
    ChannelItems { items: items.into_iter().map(item).collect() }
}
