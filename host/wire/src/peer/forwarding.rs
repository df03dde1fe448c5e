//! Messages that one node passes on to another: both halves of their stream.
//!
//! ```text
//! let link: MessageLink = peer_link.messages(sink).await?;   // sink: impl Replies
//! link.send(&mut batch)?;                                    // never waits; what there is no room for stays
//! messages::serve(reader, writer, &peer, kind, &service).await;   // at the other node
//! ```
//!
//! What is confusing: the sender's bound is on what has *no reply*, whether it was written or not, so that
//! one bound covers queue and flight. A reply says what is known of a message (R16); a broken link says only
//! which tags were never handed to it and which are in doubt: to send those again is the sender's business.

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

/// Senders of a stream that are kept before those without use are looked for.
const KEPT: usize = 64;

/// A message to pass on.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// Under which its reply comes; from 1, and of no other message of the link.
    pub tag: u64,
    /// With `session` as the entity knows it, and `principal`, `origin`, `hops`, `route_epoch` set.
    /// `remaining_ms` holds for now: the time in the link's queue is taken off on the way (R22).
    pub envelope: Envelope,
}

/// Where a link's replies go. Both are called by the link's task, and must not wait.
pub trait ReplyHandler: Send + Sync + 'static {
    /// Takes replies by their tags, and leaves the batch empty.
    fn on_replies(&self, batch: &mut Vec<(u64, Reply)>);

    /// The link is of no more use; no reply comes any more. Called once.
    fn on_closed(&self, lost: UnansweredMessages);
}

/// What had no reply when a link broke.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnansweredMessages {
    /// Tags of messages that the other node never hears of, in the order in which they were sent.
    pub not_sent: Vec<u64>,
    /// Tags of messages that may have arrived, in rising order.
    pub in_doubt: Vec<u64>,
    /// What happened.
    pub reason: String,
}

type PendingMessages = PendingRequests<(Envelope, BootInstant), ()>;

/// The sending half. When it is dropped, the link ends.
pub struct MessageLink {
    pending: Arc<PendingMessages>,
    /// Bytes of a frame that the other side takes.
    frame: u32,
    _stop: DropGuard,
}

impl MessageLink {
    /// Takes a stream of messages over. Must be called within a tokio runtime: a task of it works until
    /// the stream or this ends.
    #[must_use]
    pub fn new(
        writer: FrameWriter,
        reader: FrameReader,
        bounds: &NegotiatedLimits,
        sink: Arc<dyn ReplyHandler>,
    ) -> Self {
        let pending = Arc::new(PendingRequests::new(PendingLimits {
            count: (bounds.in_flight_messages, "messages", "peer_messages"),
            bytes: (bounds.in_flight_message_bytes, "bytes of messages", "peer_message_bytes"),
        }));
        let stop = CancellationToken::new();
        let (batch, waiting) = (Vec::new(), Arc::clone(&pending));
        tokio::spawn(Driver { pending: waiting, sink, writer, reader, batch }.run(stop.clone()));
        Self { pending, frame: bounds.max_frame, _stop: stop.drop_guard() }
    }

    /// Queues messages, in their order, and never waits. Those that are taken are taken from the batch; the
    /// error is about the first of those that stay.
    ///
    /// # Errors
    ///
    /// [`Error::Overloaded`] and [`Error::NotSent`]: nothing of what stays in the batch is sent.
    pub fn send(&self, batch: &mut Vec<Forward>) -> Result<(), Error> {
        let now = BootInstant::now();
        let mut taken = 0;
        let done = self.pending.queue(|pending| {
            for Forward { tag, envelope } in batch.iter_mut() {
                let bytes = envelope.encoded_len();
                if bytes + FRAME_OVERHEAD > self.frame as usize {
                    let (bytes, limit) = (bytes as u64, u64::from(self.frame));
                    let (what, setting) = ("a message", "peer_max_frame");
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

    /// How many messages have no reply yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Waits until the link is of no more use, and [`Replies::lost`] has been told so.
    pub async fn closed(&self) {
        self.pending.ended().cancelled().await;
    }
}

/// What works on the stream.
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
            // First, so that what is queued when this side gives up is not sent any more.
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
                return Err(Error::ConnectionLost("the other side ended the stream".into()));
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
                        let text = format!("no reply: {}", decode_error_message(&e));
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
        // What was answered before something went wrong is an answer all the same.
        if !self.batch.is_empty() {
            self.sink.on_replies(&mut self.batch);
            self.batch.clear();
        }
        known.map_err(|tag| {
            let text = format!("a reply to message {tag}, which waits for none");
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
    /// A runtime that ends, or a panic, ends the link as well.
    fn drop(&mut self) {
        self.lose("what worked on the link has ended".into());
    }
}

/// Every holder takes the time that it held a message off what remains. A deadline that has passed stays one.
fn deduct_elapsed(mut envelope: Envelope, millis: u64) -> Envelope {
    if envelope.remaining_ms > 0 {
        envelope.remaining_ms = envelope.remaining_ms.saturating_sub(millis).max(1);
    }
    envelope
}

/// What a node does with messages that others pass on to it.
pub trait ForwardedMessageHandler: Send + Sync {
    /// Takes messages of one stream in the order they were sent, and leaves the batch empty: what is
    /// left in it is answered as `unknown`. While it waits, nothing more of this stream is read.
    fn handle_messages(
        &self,
        peer: &Arc<PeerInfo>,
        batch: &mut Vec<IncomingMessage>,
    ) -> impl Future<Output = ()> + Send;
}

struct ForwardedStream<'a, S> {
    service: &'a S,
    peer: &'a Arc<PeerInfo>,
    /// Of the other node: for frames whose sender is not known yet.
    account: Arc<Account>,
    senders: Mutex<SenderAccounts>,
}

/// The senders of a stream's messages: each has one account as long as anything is held for it.
struct SenderAccounts {
    /// Of the last message's, which the next one often has too.
    last: Arc<Account>,
    by_name: HashMap<Arc<str>, Weak<Account>>,
    /// When names without use are looked for.
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
        validate::decode_forwarded_message(frame, self.peer.limits.max_message)
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

/// The receiving half: serves a stream of messages to its end. `window` is what the other side wants to have
/// without a reply at most, in messages and bytes, as its stream's kind says; 0 stands for this side's own
/// bound, which holds anyway. When the node stops, nothing more is read, and what was taken is answered.
///
/// # Errors
///
/// [`Error::Violation`] by what the other side sent, else how the stream or connection ended.
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
        setting: "peer_max_frame",
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
