//! Messages that one node forwards to another: both halves of their stream.
//!
//! ```text
//! let link: MessageLink = peer_link.open_forwarding(sink).await?;   // sink: Arc<dyn ReplyHandler>
//! link.send(&mut batch)?;                                           // never waits; what does not fit remains
//! forwarding::serve(reader, writer, &peer, kind, &service).await;   // at the other node
//! ```
//!
//! The sender's limit counts messages *without a reply*, both queued and in flight. A reply says what is known about a
//! message (R16). A broken link says only which tags were never sent and which are in doubt; it is up to the sender to
//! send those messages again.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use prost::Message;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::pending::{PendingLimits, PendingRequests};
use super::{FRAME_OVERHEAD, NegotiatedLimits, PeerInfo};
use crate::budget::{Account, Budgets, ReplyBudget};
use crate::clock::BootInstant;
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter};
use crate::message_stream::{self, IncomingMessage, StreamHandler, StreamLimits};
use crate::proto::{self, Envelope, ForwardedReply, Reply};
use crate::validate::{self, InvalidFrame};

/// Number of a stream's senders at which unused ones are first purged.
const KEPT: usize = 64;

/// A message to forward.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// The tag that its reply carries: from 1, and unique on the link.
    pub tag: u64,
    /// The message, with `session` as the entity knows it, and with `principal`, `origin`, `hops` and `route_epoch`
    /// set. `remaining_ms` counts from the call of [`MessageLink::send`]: the time in the link's queue is subtracted
    /// when the message is sent (R22).
    pub envelope: Envelope,
}

/// Receives the replies of a link. The link's task calls both methods, so they must not wait.
pub trait ReplyHandler: Send + Sync + 'static {
    /// Takes replies with their tags, and leaves the batch empty.
    fn on_replies(&self, batch: &mut Vec<(u64, Reply)>);

    /// Called once, when the link has ended and no more replies will come.
    fn on_closed(&self, lost: UnansweredMessages);
}

/// The messages that had no reply when a link broke.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnansweredMessages {
    /// Tags of messages that the other node never receives, in the order in which they were queued.
    pub not_sent: Vec<u64>,
    /// Tags of messages that may have arrived, in ascending order.
    pub in_doubt: Vec<u64>,
    /// Why the link ended.
    pub reason: String,
}

type PendingMessages = PendingRequests<(Envelope, BootInstant), ()>;

/// The sending half. Dropping it ends the link.
pub struct MessageLink {
    pending: Arc<PendingMessages>,
    /// The largest frame that the peer accepts, in bytes.
    frame: u32,
    _stop: DropGuard,
}

impl MessageLink {
    /// Sends messages over a stream. Must be called within a tokio runtime: one of its tasks drives the stream
    /// until the stream ends or this is dropped.
    #[must_use]
    pub fn new(
        writer: FrameWriter,
        reader: FrameReader,
        bounds: &NegotiatedLimits,
        sink: Arc<dyn ReplyHandler>,
    ) -> Self {
        let pending = Arc::new(PendingRequests::new(PendingLimits {
            count: (bounds.in_flight_messages, "messages", "peers.in-flight-messages"),
            bytes: (
                bounds.in_flight_message_bytes,
                "bytes of messages",
                "peers.in-flight-message-bytes",
            ),
        }));
        let stop = CancellationToken::new();
        let (batch, waiting) = (Vec::new(), Arc::clone(&pending));
        tokio::spawn(Driver { pending: waiting, sink, writer, reader, batch }.run(stop.clone()));
        Self { pending, frame: bounds.max_frame, _stop: stop.drop_guard() }
    }

    /// Queues messages in order; never waits. Removes the accepted messages from the batch. An error is about the first
    /// message that remains.
    ///
    /// # Errors
    ///
    /// [`Error::Overloaded`], [`Error::NotSent`] and [`Error::TooLarge`]: nothing that remains in the batch is sent.
    pub fn send(&self, batch: &mut Vec<Forward>) -> Result<(), Error> {
        let now = BootInstant::now();
        let mut taken = 0;
        let done = self.pending.queue(|pending| {
            for Forward { tag, envelope } in batch.iter_mut() {
                let bytes = envelope.encoded_len();
                if bytes + FRAME_OVERHEAD > self.frame as usize {
                    let (bytes, limit) = (bytes as u64, u64::from(self.frame));
                    let (what, setting) = ("a message", "peers.max-frame");
                    return Err(Error::TooLarge { what, bytes, limit, setting });
                }
                pending.check(*tag, bytes as u64)?;
                pending.put(*tag, bytes as u64, (std::mem::take(envelope), now), ());
                taken += 1;
            }
            Ok(())
        });
        batch.drain(..taken);
        done
    }

    /// Number of messages without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Waits until the link has ended and [`ReplyHandler::on_closed`] has been called.
    pub async fn closed(&self) {
        self.pending.ended().cancelled().await;
    }
}

/// Drives the stream.
struct Driver {
    pending: Arc<PendingMessages>,
    sink: Arc<dyn ReplyHandler>,
    writer: FrameWriter,
    reader: FrameReader,
    batch: Vec<(u64, Reply)>,
}

impl Driver {
    async fn run(mut self, stop: CancellationToken) {
        let (code, why) = tokio::select! {
            // Checked first, so that nothing queued is sent after this side has closed the link.
            biased;
            () = stop.cancelled() => (CloseCode::Done, "this side closed the link".to_owned()),
            error = self.work() => (error.close_code(), error.to_string()),
        };
        self.reader.stop(code);
        self.writer.reset(code);
        self.lose(why);
    }

    async fn work(&mut self) -> Error {
        loop {
            if let Err(error) = self.step().await {
                return error;
            }
        }
    }

    async fn step(&mut self) -> Result<(), Error> {
        self.take_replies()?;
        self.put_messages();
        tokio::select! {
            () = self.pending.queued(), if self.writer.unwritten() < BATCH_BYTES => {}
            done = self.writer.write_some(), if !self.writer.is_flushed() => done?,
            more = self.reader.fill() => if !more? {
                return Err(Error::ConnectionLost("the peer closed the stream".into()));
            },
        }
        Ok(())
    }

    fn put_messages(&mut self) {
        if self.writer.unwritten() >= BATCH_BYTES {
            return;
        }
        let now = BootInstant::now();
        self.pending.send(|tag, (envelope, since)| {
            let held = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            let envelope = Some(deduct_elapsed(envelope, held));
            self.writer.put(&proto::ForwardedMessage { tag, envelope });
            self.writer.unwritten() < BATCH_BYTES
        });
    }

    fn take_replies(&mut self) -> Result<(), Error> {
        let mut come = Vec::new();
        let read = loop {
            match self.reader.next_buffered() {
                Ok(Some(frame)) => match ForwardedReply::decode(frame) {
                    Ok(ForwardedReply { tag, reply: Some(reply) }) => come.push((tag, reply)),
                    Ok(_) => {
                        break Err(Error::violation(CloseCode::InvalidFrame, "an empty reply"));
                    }
                    Err(e) => {
                        let text = format!("invalid reply: {}", decode_error_message(&e));
                        break Err(Error::violation(CloseCode::InvalidFrame, text));
                    }
                },
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let batch = &mut self.batch;
        let known = self.pending.complete(come.into_iter(), |tag, (), reply| {
            batch.push((tag, reply));
        });
        // Replies that arrived before the failure are valid.
        if !self.batch.is_empty() {
            self.sink.on_replies(&mut self.batch);
            self.batch.clear();
        }
        known.map_err(|tag| {
            let text = format!("reply with unknown tag {tag}");
            Error::violation(CloseCode::UnexpectedFrame, text)
        })?;
        read
    }

    fn lose(&self, why: String) {
        if self.pending.ended().is_cancelled() {
            return;
        }
        let unanswered = self.pending.lose(&why);
        let tags = |of: Vec<(u64, ())>| of.into_iter().map(|(tag, ())| tag).collect();
        let (not_sent, in_doubt) = (tags(unanswered.not_sent), tags(unanswered.in_doubt));
        self.sink.on_closed(UnansweredMessages { not_sent, in_doubt, reason: why });
        self.pending.end();
    }
}

impl Drop for Driver {
    /// Also ends the link if the runtime shuts down or the task panics.
    fn drop(&mut self) {
        self.lose("link task ended".into());
    }
}

/// Each node subtracts the time for which it held a message from the remaining time. An expired deadline becomes 1,
/// since 0 means that there is no deadline.
fn deduct_elapsed(mut envelope: Envelope, millis: u64) -> Envelope {
    if envelope.remaining_ms > 0 {
        envelope.remaining_ms = envelope.remaining_ms.saturating_sub(millis).max(1);
    }
    envelope
}

/// Handles the messages that other nodes forward to this node.
pub trait ForwardedMessageHandler: Send + Sync {
    /// Takes messages of one stream in the order in which they were sent, and leaves the batch empty: a message that
    /// is left in it is answered with `unknown`. Until this returns, nothing more is read from the stream.
    fn handle_messages(
        &self,
        peer: &Arc<PeerInfo>,
        batch: &mut Vec<IncomingMessage>,
    ) -> impl Future<Output = ()> + Send;
}

struct ForwardedStream<'a, S> {
    service: &'a S,
    peer: &'a Arc<PeerInfo>,
    /// The other node's account, for frames whose sender is not known yet.
    account: Arc<Account>,
    senders: Mutex<SenderAccounts>,
}

/// The accounts of a stream's senders, kept as long as anything is held for them.
struct SenderAccounts {
    /// The account of the last message, which the next one often shares.
    last: Arc<Account>,
    by_name: HashMap<Arc<str>, Weak<Account>>,
    /// Number of senders at which unused ones are purged.
    purge_at: usize,
    link: Arc<ReplyBudget>,
}

impl SenderAccounts {
    fn account(&mut self, budgets: &Budgets, principal: &str) -> Arc<Account> {
        if **self.last.principal() == *principal {
            return Arc::clone(&self.last);
        }
        let known = self.by_name.get(principal).and_then(Weak::upgrade);
        self.last = known.unwrap_or_else(|| {
            if self.by_name.len() >= self.purge_at {
                self.by_name.retain(|_, account| account.strong_count() > 0);
                self.purge_at = KEPT.max(self.by_name.len() * 2);
            }
            let account = budgets.on_link(principal, &self.link);
            self.by_name.insert(Arc::clone(account.principal()), Arc::downgrade(&account));
            account
        });
        Arc::clone(&self.last)
    }
}

impl<S: ForwardedMessageHandler> StreamHandler for ForwardedStream<'_, S> {
    type Frame = ForwardedReply;

    fn decode(&self, frame: &Bytes) -> Result<(u64, Envelope), InvalidFrame> {
        let (tag, mut envelope) =
            validate::decode_forwarded_message(frame, self.peer.limits.max_message)?;
        // The origin is the node that the link's certificate names, whatever the envelope says.
        let node = &*self.peer.member.node.0;
        if envelope.origin != node {
            node.clone_into(&mut envelope.origin);
        }
        Ok((tag, envelope))
    }

    fn encode(&self, tag: u64, reply: Reply) -> ForwardedReply {
        ForwardedReply { tag, reply: Some(reply) }
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn account_for(&self, envelope: &Envelope) -> Option<Arc<Account>> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        Some(senders.account(&self.peer.budgets, &envelope.principal))
    }

    async fn deliver(&self, batch: &mut Vec<IncomingMessage>) {
        self.service.handle_messages(self.peer, batch).await;
    }
}

/// The receiving half: serves a stream of messages to its end. `window` holds the limits on unanswered messages and on
/// their bytes that the peer asked for when it opened the stream; 0 stands for this side's own limit, which always
/// applies. When the node stops, reads nothing more, and answers what has been accepted.
///
/// # Errors
///
/// [`Error::Violation`] if the peer violated the protocol, else how the stream or connection ended.
pub async fn serve<S: ForwardedMessageHandler>(
    mut reader: FrameReader,
    mut writer: FrameWriter,
    peer: &Arc<PeerInfo>,
    window: (u32, u64),
    service: &S,
) -> Result<(), Error> {
    let bounds = &peer.limits;
    let bound = StreamLimits {
        messages: if window.0 == 0 {
            bounds.in_flight_messages
        } else {
            window.0.min(bounds.in_flight_messages)
        },
        bytes: if window.1 == 0 {
            bounds.in_flight_message_bytes
        } else {
            window.1.min(bounds.in_flight_message_bytes)
        },
        count_replies: false,
        max_reply_bytes: bounds.max_frame.saturating_sub(FRAME_OVERHEAD as u32),
        setting: "peers.max-frame",
        reply_timeout: peer.budgets.limits().reply_timeout,
    };
    let account = peer.budgets.forwarded_account(&format!("node/{}", peer.member.node));
    let senders = Mutex::new(SenderAccounts {
        last: Arc::clone(&account),
        by_name: HashMap::new(),
        purge_at: KEPT,
        link: ReplyBudget::new(bounds.in_flight_message_bytes),
    });
    let incoming = ForwardedStream { service, peer, account, senders };
    let done =
        message_stream::serve(&incoming, &bound, &peer.stopping, &mut reader, &mut writer).await;
    if let Err(error) = &done {
        reader.stop(error.close_code());
        writer.reset(error.close_code());
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_held_is_subtracted_from_the_remaining_time() {
        let envelope = Envelope { created_ms: 5, remaining_ms: 10, ..Envelope::default() };
        let held = deduct_elapsed(envelope.clone(), 4);
        assert_eq!((held.created_ms, held.remaining_ms), (5, 6));
        assert_eq!(deduct_elapsed(envelope.clone(), 40).remaining_ms, 1);
        assert_eq!(deduct_elapsed(Envelope { remaining_ms: 0, ..envelope }, 40).remaining_ms, 0);
    }
}
