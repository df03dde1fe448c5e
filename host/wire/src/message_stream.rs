//! Batched messages in, batched replies out: what a client's session and a node's stream of forwarded messages have in
//! common.
//!
//! The window is enforced by not reading. While the messages or bytes in flight on a stream reach the limit, the stream
//! is not read, and QUIC's flow control stops the sender. A message is in flight from the time it is decoded until its
//! reply has been handed to QUIC. So nothing is read from a peer that does not read its replies, and no queue here is
//! longer than the window. A reply counts with its size once it exists, and before that with the stream's average reply
//! size: a peer that asks for large replies has few messages in flight.
//!
//! The window bounds one stream. [`budget`](crate::budget) bounds what all streams of a connection, a principal and the
//! node hold together: if the connection's budget is full, the stream waits; if another one is full, the message is
//! refused. A partly received frame must be admitted before the rest of it is read.
//!
//! A node's stream carries messages from many senders, none of whom may delay the others. So its window does not count
//! replies (each sender's budgets do), and its senders get their replies in turns.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ostraca_codes::codes;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::budget::{Account, Charge};
use crate::clock::BootInstant;
use crate::close_code::CloseCode;
use crate::error::{Error, problem, within};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter, LINGER};
use crate::proto::{Envelope, Outcome, Problem, Reply};
use crate::validate::InvalidFrame;

/// Maximum number of replies per write.
const BATCH: usize = 512;

/// The weight of one reply in the average reply size, as a divisor.
const SMOOTHING: u64 = 8;

/// A received message, with the means to answer it.
#[derive(Debug)]
pub struct IncomingMessage {
    /// The message, validated: its names and body are within the limits. In a client's message, `principal` is empty,
    /// since the certificate names it. In a node's message, `session` is the id that entities know, and `principal` is
    /// the sender.
    pub envelope: Envelope,
    /// When the message was read. The time since then is subtracted from `remaining_ms` (R22).
    pub received: BootInstant,
    /// The right to answer the message.
    pub ticket: Ticket,
}

/// The right to answer one message, which occupies the stream's window until its reply has been handed to QUIC. A
/// ticket that is dropped unused answers `unknown`, since every accepted message gets a reply.
#[derive(Debug)]
pub struct Ticket {
    reply_channel: Arc<ReplyChannel>,
    tag: u64,
    sequence: u64,
    bytes: u32,
    charge: Arc<Charge>,
    answered: bool,
}

impl Ticket {
    /// The budget charge of this message: check it before the turn starts, then set the reply size.
    #[must_use]
    pub fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }

    /// The message's sequence in its session.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the reply can no longer be delivered: the connection that the message came through is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.reply_channel.outgoing.is_closed()
    }

    /// Sends the reply, after setting its sequence. Never waits.
    pub fn reply(mut self, reply: Reply) {
        self.send(reply);
    }

    /// Replies that this copy of the message did not run and never will.
    pub fn not_run(self, problem: Problem) {
        self.reply(Reply {
            outcome: Outcome::NotRun.into(),
            problem: Some(problem),
            ..Reply::default()
        });
    }

    fn send(&mut self, reply: Reply) {
        self.answered = true;
        let mut reply = self.charge.admit_reply(reply);
        reply.sequence = self.sequence;
        let (tag, charge) = (self.tag, Arc::clone(&self.charge));
        let bytes =
            u64::from(self.bytes) + self.reply_channel.window.add_reply(reply.encoded_len() as u64);
        if self.reply_channel.outgoing.send(OutgoingReply { tag, reply, bytes, charge }).is_err() {
            self.reply_channel.window.release(1, bytes);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.answered {
            let mut lost = problem(codes::ABANDONED, "the node dropped the message");
            lost.retryable = true;
            self.send(Reply {
                outcome: Outcome::Unknown.into(),
                problem: Some(lost),
                ..Reply::default()
            });
        }
    }
}

/// Decodes the messages that a stream carries, and delivers them.
pub(crate) trait StreamHandler: Sync {
    /// The frame that carries a reply.
    type Frame: Message;

    /// Decodes the message in a frame, and the tag for its reply.
    fn decode(&self, frame: &Bytes) -> Result<(u64, Envelope), InvalidFrame>;

    /// Encodes a reply.
    fn encode(&self, tag: u64, reply: Reply) -> Self::Frame;

    /// The account of the stream itself.
    fn account(&self) -> &Arc<Account>;

    /// The account of a message, if it is not the stream's.
    fn account_for(&self, envelope: &Envelope) -> Option<Arc<Account>>;

    /// Takes messages in the order in which they were sent, and leaves the batch empty. Until it returns,
    /// nothing more is read from the stream.
    fn deliver(&self, batch: &mut Vec<IncomingMessage>) -> impl Future<Output = ()> + Send;
}

/// How much of a stream may be in flight.
pub(crate) struct StreamLimits {
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
    /// Whether the bytes of replies count.
    pub(crate) count_replies: bool,
    /// The largest reply that the peer accepts, in bytes.
    pub(crate) max_reply_bytes: u32,
    /// The setting that holds this limit.
    pub(crate) setting: &'static str,
    /// How long replies may wait for the peer to read any of them.
    pub(crate) reply_timeout: Duration,
}

#[derive(Debug)]
struct OutgoingReply {
    tag: u64,
    reply: Reply,
    /// Size of the message and its reply, as counted in the window.
    bytes: u64,
    charge: Arc<Charge>,
}

#[derive(Debug)]
struct ReplyChannel {
    outgoing: mpsc::UnboundedSender<OutgoingReply>,
    window: Arc<Window>,
}

/// Gives tickets for messages that come from this process, whose replies go to a channel.
#[derive(Debug)]
pub(crate) struct LocalReplies(Arc<ReplyChannel>);

/// Where the replies to messages that came from this process arrive.
#[derive(Debug)]
pub struct LocalReceiver(mpsc::UnboundedReceiver<OutgoingReply>);

/// The reply to a message that came from this process. It counts towards the budgets until it is dropped.
#[derive(Debug)]
pub struct LocalReply {
    reply: Reply,
    charge: Arc<Charge>,
}

impl LocalReply {
    /// The reply, and its charge against the budgets, which is to be held as long as the reply is.
    #[must_use]
    pub fn into_parts(self) -> (Reply, Arc<Charge>) {
        (self.reply, self.charge)
    }
}

/// Creates both ends. There is no window: whoever sends bounds what is in flight.
pub(crate) fn local_replies() -> (LocalReplies, LocalReceiver) {
    let (outgoing, replies) = mpsc::unbounded_channel();
    let window = Arc::new(Window {
        messages: AtomicU32::new(0),
        bytes: AtomicU64::new(0),
        expected: AtomicU64::new(0),
        max_messages: u32::MAX,
        max_bytes: u64::MAX,
        replies: false,
        freed: Notify::new(),
    });
    (LocalReplies(Arc::new(ReplyChannel { outgoing, window })), LocalReceiver(replies))
}

impl LocalReplies {
    pub(crate) fn ticket(&self, sequence: u64, charge: Arc<Charge>) -> Ticket {
        self.0.window.take(0);
        let reply_channel = Arc::clone(&self.0);
        Ticket { reply_channel, tag: sequence, sequence, bytes: 0, charge, answered: false }
    }
}

impl LocalReceiver {
    /// Waits for the next reply; `None` once the session and all its messages have ended.
    pub async fn recv(&mut self) -> Option<LocalReply> {
        let OutgoingReply { reply, charge, .. } = self.0.recv().await?;
        Some(LocalReply { reply, charge })
    }

    /// The next reply, if there is one already.
    pub fn try_recv(&mut self) -> Option<LocalReply> {
        let OutgoingReply { reply, charge, .. } = self.0.try_recv().ok()?;
        Some(LocalReply { reply, charge })
    }
}

/// The messages of a stream that are in flight.
#[derive(Debug)]
struct Window {
    messages: AtomicU32,
    bytes: AtomicU64,
    /// Average size in bytes of the stream's recent replies.
    expected: AtomicU64,
    max_messages: u32,
    max_bytes: u64,
    /// Whether the bytes of replies count.
    replies: bool,
    freed: Notify,
}

impl Window {
    fn take(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds a reply to the average, and returns the bytes that it counts for.
    fn add_reply(&self, bytes: u64) -> u64 {
        if !self.replies {
            return 0;
        }
        // One of two concurrent updates may be lost, which makes the estimate only slightly worse.
        let expected = self.expected.load(Ordering::Relaxed);
        let moved = expected - expected / SMOOTHING + bytes / SMOOTHING;
        self.expected.store(moved, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    fn release(&self, messages: u32, bytes: u64) {
        self.messages.fetch_sub(messages, Ordering::Release);
        self.bytes.fetch_sub(bytes, Ordering::Release);
        self.freed.notify_one();
    }

    fn is_full(&self) -> bool {
        let messages = self.messages.load(Ordering::Acquire);
        let expected = self.expected.load(Ordering::Relaxed).saturating_mul(messages.into());
        let bytes = self.bytes.load(Ordering::Acquire).saturating_add(expected);
        // A single message may have any size.
        messages >= self.max_messages || (messages > 0 && bytes >= self.max_bytes)
    }

    /// Only the stream's reader waits here, so the one permit that `Notify` stores is enough.
    async fn wait_for_room(&self) {
        while self.is_full() {
            self.freed.notified().await;
        }
    }
}

/// Serves a stream to its end.
pub(crate) async fn serve<T: StreamHandler>(
    traffic: &T,
    bound: &StreamLimits,
    stopping: &CancellationToken,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let (outgoing, replies) = mpsc::unbounded_channel();
    let window = Arc::new(Window {
        messages: AtomicU32::new(0),
        bytes: AtomicU64::new(0),
        expected: AtomicU64::new(0),
        max_messages: bound.messages,
        max_bytes: bound.bytes,
        replies: bound.count_replies,
        freed: Notify::new(),
    });
    let lane = Arc::new(ReplyChannel { outgoing, window: Arc::clone(&window) });
    let mut reading = std::pin::pin!(read(traffic, stopping, lane, reader));
    let mut writing = std::pin::pin!(write(traffic, bound, replies, &window, writer));
    let mut read_all = false;
    loop {
        tokio::select! {
            done = &mut reading, if !read_all => {
                done?;
                read_all = true;
            }
            // Ends once all tickets are dropped, and the reader with its half of the channel.
            done = &mut writing => return done,
        }
    }
}

async fn read<T: StreamHandler>(
    traffic: &T,
    stopping: &CancellationToken,
    lane: Arc<ReplyChannel>,
    reader: &mut FrameReader,
) -> Result<(), Error> {
    let account = traffic.account();
    let mut batch = Vec::new();
    // The charge for a partly received frame.
    let mut paid: Option<Arc<Charge>> = None;
    loop {
        lane.window.wait_for_room().await;
        if paid.is_none() && account.connection_is_full() {
            tokio::select! {
                () = stopping.cancelled() => return stop(reader),
                () = account.connection_room() => {}
            }
        }
        let received = BootInstant::now();
        let all = loop {
            if lane.window.is_full() || (paid.is_none() && account.connection_is_full()) {
                break false;
            }
            let Some(frame) = reader.next_buffered()? else { break true };
            let paid = paid.take();
            // The limit on frames, a `u32`, bounds the length.
            let bytes = frame.len() as u32;
            lane.window.take(u64::from(bytes));
            let ticket = |tag, sequence, charge| {
                let lane = Arc::clone(&lane);
                Ticket { reply_channel: lane, tag, sequence, bytes, charge, answered: false }
            };
            match traffic.decode(&frame) {
                Ok((tag, envelope)) => {
                    let payer = traffic.account_for(&envelope);
                    let payer = payer.as_ref().unwrap_or(account);
                    let (charge, full) = match paid {
                        // A message that was admitted before all of it had arrived is not refused now.
                        Some(paid) if paid.is_of(payer) => (paid, None),
                        Some(_) => (payer.charge(bytes.into()), None),
                        None => payer.admit(bytes.into()),
                    };
                    let ticket = ticket(tag, envelope.sequence, charge);
                    match full {
                        Some(full) => ticket.not_run(full),
                        None => batch.push(IncomingMessage { envelope, received, ticket }),
                    }
                }
                Err(InvalidFrame::Message { tag, sequence, problem }) => {
                    ticket(tag, sequence, account.charge(bytes.into())).not_run(*problem);
                }
                Err(InvalidFrame::Stream) => {
                    return Err(Error::violation(
                        CloseCode::InvalidFrame,
                        "frame is not a message",
                    ));
                }
            }
        };
        if !batch.is_empty() {
            traffic.deliver(&mut batch).await;
            batch.clear();
            continue;
        }
        if !all {
            continue;
        }
        if let (None, Some(bytes)) = (&paid, reader.unfinished()) {
            if account.exceeded_budget().is_some() {
                tokio::select! {
                    () = stopping.cancelled() => return stop(reader),
                    () = account.wait_for_room() => {}
                }
            }
            paid = Some(account.charge(bytes.into()));
        }
        tokio::select! {
            () = stopping.cancelled() => return stop(reader),
            more = reader.fill() => if !more? { return Ok(()) },
        }
    }
}

fn stop(reader: &mut FrameReader) -> Result<(), Error> {
    reader.stop(CloseCode::ShuttingDown);
    Ok(())
}

async fn write<T: StreamHandler>(
    traffic: &T,
    bound: &StreamLimits,
    mut replies: mpsc::UnboundedReceiver<OutgoingReply>,
    window: &Window,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let mut waiting = FairReplyQueue::default();
    while let Some(first) = replies.recv().await {
        waiting.put(first);
        while !waiting.is_empty() {
            let mut written = WriteBatch { window, messages: 0, bytes: 0, charges: Vec::new() };
            while written.charges.len() < BATCH && writer.unwritten() < BATCH_BYTES {
                // So a sender that is new to the queue joins the current round.
                while let Ok(next) = replies.try_recv() {
                    waiting.put(next);
                }
                let Some(OutgoingReply { tag, mut reply, bytes, charge }) = waiting.take() else {
                    break;
                };
                written.messages += 1;
                written.bytes += bytes;
                written.charges.push(charge);
                if reply.encoded_len() > bound.max_reply_bytes as usize {
                    reply = fit_reply(reply, bound);
                }
                writer.put(&traffic.encode(tag, reply));
            }
            writer.flush_within(bound.reply_timeout).await?;
            written.release();
        }
    }
    writer.finish();
    // Do not wait for a peer that no longer reads.
    let _ = timeout(LINGER, writer.taken()).await;
    Ok(())
}

/// Replies that are not written yet: in order for each sender, with senders taking turns.
#[derive(Default)]
struct FairReplyQueue {
    /// Keyed by the address of the account, which the charges in the queue keep alive.
    queues: HashMap<usize, VecDeque<OutgoingReply>>,
    /// The senders with queued replies, in the order of their turns.
    turns: VecDeque<usize>,
    /// An empty queue for the next sender. Most streams have only one sender, whose queue becomes empty with each
    /// batch.
    spare: VecDeque<OutgoingReply>,
}

impl FairReplyQueue {
    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn put(&mut self, outgoing: OutgoingReply) {
        let account = Arc::as_ptr(outgoing.charge.account()).addr();
        let spare = || std::mem::take(&mut self.spare);
        let queue = self.queues.entry(account).or_insert_with(spare);
        if queue.is_empty() {
            self.turns.push_back(account);
        }
        queue.push_back(outgoing);
    }

    fn take(&mut self) -> Option<OutgoingReply> {
        let account = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&account)?;
        let next = queue.pop_front();
        if !queue.is_empty() {
            self.turns.push_back(account);
        } else if let Some(empty) = self.queues.remove(&account) {
            self.spare = empty;
        }
        next
    }
}

/// The replies in the writer. They leave the window once they have been handed to QUIC.
struct WriteBatch<'a> {
    window: &'a Window,
    messages: u32,
    bytes: u64,
    charges: Vec<Arc<Charge>>,
}

impl WriteBatch<'_> {
    fn release(&mut self) {
        self.charges.clear();
        self.window.release(std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes));
    }
}

/// Replaces a result that is too large for the peer: the command remains committed, but its caller does not get the
/// result. In other replies, cuts the text of the problem.
fn fit_reply(reply: Reply, bound: &StreamLimits) -> Reply {
    if let (Some(problem), true) = (&reply.problem, reply.outcome() != Outcome::Result) {
        let rest = reply.encoded_len() - problem.encoded_len();
        let most = (bound.max_reply_bytes as usize).saturating_sub(rest);
        return Reply { problem: Some(within(problem.clone(), most)), ..reply };
    }
    let (size, most, setting) = (reply.encoded_len(), bound.max_reply_bytes, bound.setting);
    let text = format!("reply of {size} bytes exceeds the peer's limit of {most} (`{setting}`)");
    Reply {
        sequence: reply.sequence,
        outcome: Outcome::Unknown.into(),
        problem: Some(problem(codes::REPLY_TOO_LARGE, text)),
        epoch: reply.epoch,
        entity_version: reply.entity_version,
        kind: reply.kind,
        ..Reply::default()
    }
}
