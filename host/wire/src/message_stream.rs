//! Messages come in batches, replies go out in batches: what a client's session and a node's stream of
//! forwarded messages have in common.
//!
//! The window is kept by not reading: while a stream has its messages or bytes in flight, it is left
//! alone and QUIC's flow control holds the sender. A message is in flight from its decoding until its
//! reply has been handed to QUIC, so whoever does not read its replies is not read either, and no queue
//! here is longer than the window. Replies count for the window as they are made, and before that as the
//! stream's replies mostly are: whoever asks for large ones has few messages in flight.
//!
//! The window bounds one stream. What all streams of a connection, a principal and the node hold together is
//! bounded by [`budget`](crate::budget): at a full connection's the stream waits, at the others' the message is
//! refused. A frame that has come in part has to be let in before its rest is read.
//!
//! A stream of a node carries messages of many senders, none of whom may delay the others. So its window does not
//! count replies (each sender's budgets do), and its senders take turns in being answered.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
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

/// Replies that go into one write.
const BATCH: usize = 512;

/// The part by which one reply moves what the next ones are expected to be.
const SMOOTHING: u64 = 8;

/// A message, and what it is answered with.
#[derive(Debug)]
pub struct IncomingMessage {
    /// Checked against the limits of names and bodies. From a client, `principal` is empty, since its
    /// certificate says it; from a node, `session` is the entity's and `principal` is the sender.
    pub envelope: Envelope,
    /// When it was read: the time since is taken off `remaining_ms` (R22).
    pub received: BootInstant,
    /// The right to answer it.
    pub ticket: Ticket,
}

/// The right to answer one message, which keeps its place in the stream's window. Dropped without
/// an answer it says `unknown`, since no accepted message ends in silence.
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
    /// What the message costs its sender: to be asked before its turn starts, and told what the turn has made.
    #[must_use]
    pub fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }

    /// The message's place in its session.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the answer can go nowhere: the connection that the message came through is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.reply_channel.outgoing.is_closed()
    }

    /// Answers the message; the reply's sequence is set here. Never waits.
    pub fn reply(mut self, reply: Reply) {
        self.send(reply);
    }

    /// Answers that this copy of the message was not run, and never will be.
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
            let mut lost = problem("abandoned", "the node gave the message up");
            lost.retryable = true;
            self.send(Reply {
                outcome: Outcome::Unknown.into(),
                problem: Some(lost),
                ..Reply::default()
            });
        }
    }
}

/// What flows on a stream, and where it goes.
pub(crate) trait StreamHandler: Sync {
    /// What a reply is sent as.
    type Frame: Message;

    /// A frame's message, with the tag that its reply is sent under.
    fn decode(&self, frame: &Bytes) -> Result<(u64, Envelope), InvalidFrame>;

    /// A reply's frame.
    fn encode(&self, tag: u64, reply: Reply) -> Self::Frame;

    /// Who is charged for the stream itself.
    fn account(&self) -> &Arc<Account>;

    /// Who is charged for a message, if that is somebody else.
    fn account_for(&self, envelope: &Envelope) -> Option<Arc<Account>>;

    /// Takes messages in the order they were sent, and leaves the batch empty. While it waits, nothing
    /// more of the stream is read.
    fn deliver(&self, batch: &mut Vec<IncomingMessage>) -> impl Future<Output = ()> + Send;
}

/// How much of a stream may be in flight.
pub(crate) struct StreamLimits {
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
    /// Whether replies count for the bytes.
    pub(crate) count_replies: bool,
    /// Bytes of a reply that the other side takes, and its setting.
    pub(crate) max_reply_bytes: u32,
    pub(crate) setting: &'static str,
    /// How long replies may wait for the other side to take any of them.
    pub(crate) reply_timeout: Duration,
}

#[derive(Debug)]
struct OutgoingReply {
    tag: u64,
    reply: Reply,
    /// Of the message and the reply.
    bytes: u64,
    charge: Arc<Charge>,
}

#[derive(Debug)]
struct ReplyChannel {
    outgoing: mpsc::UnboundedSender<OutgoingReply>,
    window: Arc<Window>,
}

/// What of a stream is in flight.
#[derive(Debug)]
struct Window {
    messages: AtomicU32,
    bytes: AtomicU64,
    /// Bytes that a reply of the stream has, by those that were made.
    expected: AtomicU64,
    max_messages: u32,
    max_bytes: u64,
    /// Whether replies count.
    replies: bool,
    freed: Notify,
}

impl Window {
    fn take(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A reply was made: the bytes that it counts for.
    fn add_reply(&self, bytes: u64) -> u64 {
        if !self.replies {
            return 0;
        }
        // Two at once may lose one of them, which only makes the guess a little worse.
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
        // Alone a message may have any size.
        messages >= self.max_messages || (messages > 0 && bytes >= self.max_bytes)
    }

    /// Only the stream's reader waits here, so the one permit that `Notify` keeps is enough.
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
            // Ends when every ticket is gone, and the reader with its share of the lane.
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
    // For the rest of a frame that has come in part.
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
            // At most the frames' limit, which is a u32.
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
                        // What was let in before all of it had come is not refused now.
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
                        "a frame that is no message",
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
                // Whoever comes only now has the next turn.
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
    // Whoever reads nothing more is not waited for.
    let _ = timeout(LINGER, writer.taken()).await;
    Ok(())
}

/// Replies that are not written yet: each sender's in their order, and senders take turns.
#[derive(Default)]
struct FairReplyQueue {
    /// By their accounts' addresses: the charges in a queue keep its account.
    queues: HashMap<usize, VecDeque<OutgoingReply>>,
    /// Who has replies here, in the order of their turns.
    turns: VecDeque<usize>,
    /// An empty queue for the next sender: most streams have one, whose queue runs empty at each batch.
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

/// What is in the writer, and free when it was handed to QUIC.
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

/// A result that cannot be delivered: the command stays done, and its caller does not hear it. Of other replies the
/// text is cut.
fn fit_reply(reply: Reply, bound: &StreamLimits) -> Reply {
    if let (Some(told), true) = (&reply.problem, reply.outcome() != Outcome::Result) {
        let rest = reply.encoded_len() - told.encoded_len();
        let most = (bound.max_reply_bytes as usize).saturating_sub(rest);
        return Reply { problem: Some(within(told.clone(), most)), ..reply };
    }
    let (size, most, setting) = (reply.encoded_len(), bound.max_reply_bytes, bound.setting);
    let text = format!("a reply of {size} bytes: the other side takes {most} (`{setting}`)");
    Reply {
        sequence: reply.sequence,
        outcome: Outcome::Unknown.into(),
        problem: Some(problem("reply-too-large", text)),
        epoch: reply.epoch,
        entity_version: reply.entity_version,
        kind: reply.kind,
        ..Reply::default()
    }
}
