//! Messages come in batches, replies go out in batches: what a client's session and a node's stream of
//! forwarded messages have in common.
//!
//! The window is kept by not reading: while a stream has its messages or bytes in flight, it is left
//! alone and QUIC's flow control holds the sender. A message is in flight from its decoding until its
//! reply has been handed to QUIC, so whoever does not read its replies is not read either, and no queue
//! here is longer than the window.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::code::Code;
use crate::error::{Error, problem};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter, LINGER};
use crate::proto::{Envelope, Outcome, Problem, Reply};

/// Replies that go into one write.
const BATCH: usize = 512;

/// A message, and what it is answered with.
#[derive(Debug)]
pub struct Request {
    /// Checked against the limits of names and bodies. From a client, `principal` is empty, since its
    /// certificate says it; from a node, `session` is the entity's and `principal` is the sender.
    pub envelope: Envelope,
    /// When it was read: the time since is taken off `remaining_ms` (R22).
    pub received: Moment,
    /// The right to answer it.
    pub ticket: Ticket,
}

/// The right to answer one message, which keeps its place in the stream's window. Dropped without
/// an answer it says `unknown`, since no accepted message ends in silence.
#[derive(Debug)]
pub struct Ticket {
    lane: Arc<Lane>,
    tag: u64,
    sequence: u64,
    bytes: u32,
    answered: bool,
}

impl Ticket {
    /// The message's place in its session.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the answer can go nowhere: the connection that the message came through is closed.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.lane.outgoing.is_closed()
    }

    /// Answers the message; the reply's sequence is set here. Never waits.
    pub fn answer(mut self, reply: Reply) {
        self.send(reply);
    }

    /// Answers that this copy of the message was not run, and never will be.
    pub fn not_run(self, problem: Problem) {
        self.answer(Reply {
            outcome: Outcome::NotRun.into(),
            problem: Some(problem),
            ..Reply::default()
        });
    }

    fn send(&mut self, mut reply: Reply) {
        self.answered = true;
        reply.sequence = self.sequence;
        let (tag, bytes) = (self.tag, self.bytes);
        if self.lane.outgoing.send(Outgoing { tag, reply, bytes }).is_err() {
            self.lane.window.release(1, u64::from(bytes));
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
pub(crate) trait Traffic: Sync {
    /// What a reply is sent as.
    type Frame: Message;

    /// A frame's message, with the tag that its reply is sent under.
    fn decode(&self, frame: &Bytes) -> Result<(u64, Envelope), Refused>;

    /// A reply's frame.
    fn encode(&self, tag: u64, reply: Reply) -> Self::Frame;

    /// Takes messages in the order they were sent, and leaves the batch empty. While it waits, nothing
    /// more of the stream is read.
    fn deliver(&self, batch: &mut Vec<Request>) -> impl Future<Output = ()> + Send;
}

/// What is no message.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It can be told which one it was: it alone is refused.
    Message { tag: u64, sequence: u64, problem: Box<Problem> },
    /// It cannot.
    Stream,
}

/// How much of a stream may be in flight.
pub(crate) struct Bound {
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
    /// Bytes of a reply that the other side takes, and its setting.
    pub(crate) reply: u32,
    pub(crate) setting: &'static str,
}

#[derive(Debug)]
struct Outgoing {
    tag: u64,
    reply: Reply,
    /// Of the message.
    bytes: u32,
}

#[derive(Debug)]
struct Lane {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    window: Arc<Window>,
}

/// What of a stream is in flight.
#[derive(Debug)]
struct Window {
    messages: AtomicU32,
    bytes: AtomicU64,
    most_messages: u32,
    most_bytes: u64,
    freed: Notify,
}

impl Window {
    fn take(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn release(&self, messages: u32, bytes: u64) {
        self.messages.fetch_sub(messages, Ordering::Release);
        self.bytes.fetch_sub(bytes, Ordering::Release);
        self.freed.notify_one();
    }

    fn is_full(&self) -> bool {
        self.messages.load(Ordering::Acquire) >= self.most_messages
            || self.bytes.load(Ordering::Acquire) >= self.most_bytes
    }

    /// Only the stream's reader waits here, so the one permit that `Notify` keeps is enough.
    async fn room(&self) {
        while self.is_full() {
            self.freed.notified().await;
        }
    }
}

/// Serves a stream to its end.
pub(crate) async fn serve<T: Traffic>(
    traffic: &T,
    bound: &Bound,
    stopping: &CancellationToken,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let (outgoing, replies) = mpsc::unbounded_channel();
    let window = Arc::new(Window {
        messages: AtomicU32::new(0),
        bytes: AtomicU64::new(0),
        most_messages: bound.messages,
        most_bytes: bound.bytes,
        freed: Notify::new(),
    });
    let lane = Arc::new(Lane { outgoing, window: Arc::clone(&window) });
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

async fn read<T: Traffic>(
    traffic: &T,
    stopping: &CancellationToken,
    lane: Arc<Lane>,
    reader: &mut FrameReader,
) -> Result<(), Error> {
    let mut batch = Vec::new();
    loop {
        lane.window.room().await;
        let received = Moment::now();
        while !lane.window.is_full() {
            let Some(frame) = reader.buffered()? else { break };
            // At most the frames' limit, which is a u32.
            let bytes = frame.len() as u32;
            lane.window.take(u64::from(bytes));
            let ticket = |tag, sequence| {
                let lane = Arc::clone(&lane);
                Ticket { lane, tag, sequence, bytes, answered: false }
            };
            match traffic.decode(&frame) {
                Ok((tag, envelope)) => {
                    let ticket = ticket(tag, envelope.sequence);
                    batch.push(Request { envelope, received, ticket });
                }
                Err(Refused::Message { tag, sequence, problem }) => {
                    ticket(tag, sequence).not_run(*problem);
                }
                Err(Refused::Stream) => {
                    return Err(Error::violation(Code::BadFrame, "a frame that is no message"));
                }
            }
        }
        if !batch.is_empty() {
            traffic.deliver(&mut batch).await;
            batch.clear();
            continue;
        }
        tokio::select! {
            () = stopping.cancelled() => {
                reader.stop(Code::ShuttingDown);
                return Ok(());
            }
            more = reader.fill() => if !more? { return Ok(()) },
        }
    }
}

async fn write<T: Traffic>(
    traffic: &T,
    bound: &Bound,
    mut replies: mpsc::UnboundedReceiver<Outgoing>,
    window: &Window,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let mut batch = Vec::new();
    while replies.recv_many(&mut batch, BATCH).await > 0 {
        let (mut messages, mut bytes) = (0, 0);
        for Outgoing { tag, mut reply, bytes: size } in batch.drain(..) {
            messages += 1;
            bytes += u64::from(size);
            if reply.encoded_len() > bound.reply as usize {
                reply = too_large(&reply, bound);
            }
            writer.put(&traffic.encode(tag, reply));
            if writer.unwritten() >= BATCH_BYTES {
                writer.flush().await?;
            }
        }
        writer.flush().await?;
        window.release(messages, bytes);
    }
    writer.finish();
    // Whoever reads nothing more is not waited for.
    let _ = timeout(LINGER, writer.taken()).await;
    Ok(())
}

/// A final reply that cannot be delivered: the command stays done, and its caller does not hear the result.
fn too_large(reply: &Reply, bound: &Bound) -> Reply {
    let (size, most, setting) = (reply.encoded_len(), bound.reply, bound.setting);
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
