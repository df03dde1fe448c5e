//! One session's stream: messages come in batches, replies go out in batches.
//!
//! The window is kept by not reading: while a session has its messages or bytes in flight, its
//! stream is left alone and QUIC's flow control holds the sender. A message is in flight from its
//! decoding until its reply has been handed to QUIC, so a client that does not read its replies is
//! not read either, and no queue here is longer than the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::{Service, SessionInfo, Shared, check};
use crate::code::Code;
use crate::error::{Error, problem};
use crate::framed::{FrameReader, FrameWriter, LINGER};
use crate::proto::{Envelope, Outcome, Problem, Reply};

/// Replies that go into one write.
const BATCH: usize = 512;
/// Bytes that go into one write, about.
const BATCH_BYTES: usize = 256 << 10;

/// A message, and what it is answered with.
#[derive(Debug)]
pub struct Request {
    /// Checked against the limits of names and bodies; `principal` is empty, see [`SessionInfo`].
    pub envelope: Envelope,
    /// When it was read: what is held longer adds the time since to `age_ms` (R17).
    pub received: Instant,
    /// The right to answer it.
    pub ticket: Ticket,
}

/// The right to answer one message, which keeps its place in the session's window. Dropped without
/// an answer it says `unknown`, since no accepted message ends in silence.
#[derive(Debug)]
pub struct Ticket {
    lane: Arc<Lane>,
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
        if self.lane.outgoing.send((reply, self.bytes)).is_err() {
            self.lane.window.release(1, u64::from(self.bytes));
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

#[derive(Debug)]
struct Lane {
    outgoing: mpsc::UnboundedSender<(Reply, u32)>,
    window: Arc<Window>,
}

/// What of a session is in flight.
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

    /// Only the session's reader waits here, so the one permit that `Notify` keeps is enough.
    async fn room(&self) {
        while self.is_full() {
            self.freed.notified().await;
        }
    }
}

pub(super) async fn serve<S: Service>(
    shared: &Shared<S>,
    info: &Arc<SessionInfo>,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let (outgoing, replies) = mpsc::unbounded_channel();
    let window = Arc::new(Window {
        messages: AtomicU32::new(0),
        bytes: AtomicU64::new(0),
        most_messages: shared.limits.session_messages,
        most_bytes: shared.limits.session_bytes,
        freed: Notify::new(),
    });
    let lane = Arc::new(Lane { outgoing, window: Arc::clone(&window) });
    let most = match info.peer.limits.max_frame {
        0 => u32::MAX,
        announced => announced,
    };
    let mut reading = std::pin::pin!(read(shared, info, lane, reader));
    let mut writing = std::pin::pin!(write(replies, &window, writer, most));
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

async fn read<S: Service>(
    shared: &Shared<S>,
    info: &Arc<SessionInfo>,
    lane: Arc<Lane>,
    reader: &mut FrameReader,
) -> Result<(), Error> {
    let mut batch = Vec::new();
    loop {
        lane.window.room().await;
        let received = Instant::now();
        while !lane.window.is_full() {
            let Some(frame) = reader.buffered()? else { break };
            // At most `max_frame`, which is a u32.
            let bytes = frame.len() as u32;
            lane.window.take(u64::from(bytes));
            let ticket =
                |sequence| Ticket { lane: Arc::clone(&lane), sequence, bytes, answered: false };
            match check::decode(&frame, &info.id, &shared.limits) {
                Ok(envelope) => {
                    let ticket = ticket(envelope.sequence);
                    batch.push(Request { envelope, received, ticket });
                }
                Err(Some((sequence, problem))) => ticket(sequence).not_run(problem),
                Err(None) => {
                    return Err(Error::violation(Code::BadFrame, "a frame that is no message"));
                }
            }
        }
        if !batch.is_empty() {
            shared.service.messages(info, &mut batch).await;
            batch.clear();
            continue;
        }
        tokio::select! {
            () = shared.stopping.cancelled() => {
                reader.stop(Code::ShuttingDown);
                return Ok(());
            }
            more = reader.fill() => if !more? { return Ok(()) },
        }
    }
}

async fn write(
    mut replies: mpsc::UnboundedReceiver<(Reply, u32)>,
    window: &Window,
    writer: &mut FrameWriter,
    most: u32,
) -> Result<(), Error> {
    let mut batch = Vec::new();
    while replies.recv_many(&mut batch, BATCH).await > 0 {
        let (mut messages, mut bytes) = (0, 0);
        for (reply, size) in batch.drain(..) {
            messages += 1;
            bytes += u64::from(size);
            if reply.encoded_len() > most as usize {
                writer.put(&too_large(&reply, most));
            } else {
                writer.put(&reply);
            }
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
fn too_large(reply: &Reply, most: u32) -> Reply {
    let size = reply.encoded_len();
    let text = format!("a reply of {size} bytes: the client takes {most} (`max_frame`)");
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
