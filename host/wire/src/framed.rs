//! Frames over QUIC streams. Reading and writing are cancel-safe: both may stand in a `select!`.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio::time::{Instant, timeout, timeout_at};

use crate::close_code::CloseCode;
use crate::error::Error;
use crate::frame::{FrameBuffer, put_frame};

/// Chunks taken from QUIC at a time; a chunk is what one packet carried.
const MAX_IO_SLICES: usize = 32;

/// Bytes that go into one write, about.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// How long the last frames of a stream may take to arrive.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// The receiving half of a stream, in frames.
pub struct FrameReader {
    stream: quinn::RecvStream,
    buffer: FrameBuffer,
    deadline: Duration,
    /// When the frame that is not whole yet began.
    began: Option<Instant>,
}

impl FrameReader {
    /// Reads `stream` in frames of at most `max_frame` bytes, each of which must be whole `deadline`
    /// after its first byte.
    #[must_use]
    pub fn new(stream: quinn::RecvStream, max_frame: u32, deadline: Duration) -> Self {
        Self { stream, buffer: FrameBuffer::new(max_frame), deadline, began: None }
    }

    /// The next frame, waiting for it; `None` at the stream's end.
    ///
    /// # Errors
    ///
    /// [`Error::Violation`] by what the other side sent, else how the stream or connection ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(frame) = self.next_buffered()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The next frame if it has come already.
    ///
    /// # Errors
    ///
    /// [`Error::Violation`] if its length is beyond the limit.
    pub fn next_buffered(&mut self) -> Result<Option<Bytes>, Error> {
        let frame = self.buffer.next_frame()?;
        if frame.is_some() {
            self.began = None;
        }
        Ok(frame)
    }

    /// Bytes of the frame that is not whole yet, if its length has come; it is within the limit once
    /// [`FrameReader::buffered`] was called.
    pub(crate) fn unfinished(&self) -> Option<u32> {
        self.buffer.unfinished()
    }

    /// Waits for more bytes; `false` at the stream's end. Call it only when
    /// [`FrameReader::buffered`] has no more frames, so that memory stays bounded.
    ///
    /// # Errors
    ///
    /// As [`FrameReader::next`].
    pub async fn fill(&mut self) -> Result<bool, Error> {
        let mut chunks = [const { Bytes::new() }; MAX_IO_SLICES];
        let read = if self.buffer.is_within_frame() {
            let until = *self.began.get_or_insert_with(Instant::now) + self.deadline;
            timeout_at(until, self.stream.read_chunks(&mut chunks)).await.map_err(|_| {
                let text =
                    format!("a frame was not whole after {:?} (`frame_deadline`)", self.deadline);
                Error::violation(CloseCode::FrameTimeout, text)
            })?
        } else {
            self.stream.read_chunks(&mut chunks).await
        };
        let Some(count) = read? else {
            if self.buffer.is_within_frame() {
                return Err(Error::violation(
                    CloseCode::TruncatedFrame,
                    "the stream ended within a frame",
                ));
            }
            return Ok(false);
        };
        for chunk in chunks.iter().take(count) {
            self.buffer.push(chunk);
        }
        Ok(true)
    }

    /// Tells the other side not to send any more.
    pub fn stop(&mut self, code: CloseCode) {
        // An error says that the stream has ended already.
        let _ = self.stream.stop(code.into());
    }
}

/// The sending half of a stream, in frames.
pub struct FrameWriter {
    stream: quinn::SendStream,
    /// Frames put and not handed to QUIC.
    buffer: BytesMut,
    /// The part of them that is being handed over.
    pending: Bytes,
}

impl FrameWriter {
    /// Writes `stream` in frames.
    #[must_use]
    pub fn new(stream: quinn::SendStream) -> Self {
        Self { stream, buffer: BytesMut::new(), pending: Bytes::new() }
    }

    /// Adds a frame to what the next write carries.
    pub fn put<M: Message>(&mut self, message: &M) {
        put_frame(&mut self.buffer, message);
    }

    /// Whether all that was put has been handed to QUIC.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.pending.is_empty() && self.buffer.is_empty()
    }

    /// Bytes put and not handed to QUIC.
    #[must_use]
    pub fn unwritten(&self) -> usize {
        self.pending.len() + self.buffer.len()
    }

    /// Hands over as much as QUIC takes now, waiting until it takes something.
    ///
    /// # Errors
    ///
    /// How the stream or connection ended.
    pub async fn write_some(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            self.pending = self.buffer.split().freeze();
        }
        if !self.pending.is_empty() {
            self.stream.write_chunks(std::slice::from_mut(&mut self.pending)).await?;
        }
        Ok(())
    }

    /// Hands over all.
    ///
    /// # Errors
    ///
    /// As [`FrameWriter::write_some`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        while !self.is_flushed() {
            self.write_some().await?;
        }
        Ok(())
    }

    /// Hands over all, unless the other side takes nothing of it for `deadline`.
    pub(crate) async fn flush_within(&mut self, deadline: Duration) -> Result<(), Error> {
        while !self.is_flushed() {
            timeout(deadline, self.write_some()).await.map_err(|_| {
                let text = format!("no reply was taken for {deadline:?} (`reply_deadline`)");
                Error::violation(CloseCode::ReplyTimeout, text)
            })??;
        }
        Ok(())
    }

    /// Nothing more will be sent.
    pub fn finish(&mut self) {
        // An error says that the stream has ended already.
        let _ = self.stream.finish();
    }

    /// Gives the stream up; what was not sent yet is not.
    pub fn reset(&mut self, code: CloseCode) {
        // An error says that the stream has ended already.
        let _ = self.stream.reset(code.into());
    }

    /// Waits until the other side has everything (after [`FrameWriter::finish`]), or wants no more.
    pub async fn taken(&self) {
        self.unwanted().await;
    }

    /// The same, apart from the writer. Before [`FrameWriter::finish`]: until nobody listens any more.
    pub(crate) fn unwanted(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let stopped = self.stream.stopped();
        async move {
            // Either way there is nothing left to wait for.
            let _ = stopped.await;
        }
    }
}
