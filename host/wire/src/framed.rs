//! Frames over QUIC streams. Reading and writing are cancel-safe, so both may be used in a `select!`.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio::time::{Instant, timeout_at};

use crate::close_code::CloseCode;
use crate::error::Error;
use crate::frame::{FrameBuffer, put_frame};

/// Maximum number of chunks that one read takes from QUIC; a chunk is the data of one packet.
const MAX_IO_SLICES: usize = 32;

/// Approximate number of bytes per write.
#[cfg(feature = "server")]
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// How long to wait for the last frames of a stream to arrive.
#[cfg(feature = "server")]
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// The receiving half of a stream, in frames.
pub struct FrameReader {
    stream: quinn::RecvStream,
    buffer: FrameBuffer,
    deadline: Duration,
    /// When the incomplete frame began.
    began: Option<Instant>,
}

impl FrameReader {
    /// Reads frames of at most `max_frame` bytes from `stream`. Each frame must be complete within `deadline` of its
    /// first byte.
    #[must_use]
    pub fn new(stream: quinn::RecvStream, max_frame: u32, deadline: Duration) -> Self {
        Self { stream, buffer: FrameBuffer::new(max_frame), deadline, began: None }
    }

    /// Waits for the next frame; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Violation`] if the peer violated the protocol, else how the stream or connection ended.
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

    /// The next frame if all of it has already arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Violation`] if its length exceeds the limit.
    pub fn next_buffered(&mut self) -> Result<Option<Bytes>, Error> {
        let frame = self.buffer.next_frame()?;
        if frame.is_some() {
            self.began = None;
        }
        Ok(frame)
    }

    /// Length of the incomplete frame, if its header has arrived. It is within the limit once
    /// [`FrameReader::next_buffered`] has been called.
    #[cfg(feature = "server")]
    pub(crate) fn unfinished(&self) -> Option<u32> {
        self.buffer.unfinished()
    }

    /// Waits for more bytes; returns `false` at the end of the stream. Call it only when
    /// [`FrameReader::next_buffered`] returns no more frames, so that memory use remains bounded.
    ///
    /// # Errors
    ///
    /// As [`FrameReader::next`].
    pub async fn fill(&mut self) -> Result<bool, Error> {
        let mut chunks = [const { Bytes::new() }; MAX_IO_SLICES];
        let read = if self.buffer.is_within_frame() {
            let until = *self.began.get_or_insert_with(Instant::now) + self.deadline;
            timeout_at(until, self.stream.read_chunks(&mut chunks)).await.map_err(|_| {
                let text = format!(
                    "frame not complete after {:?} (`network.frame-timeout`)",
                    self.deadline
                );
                Error::violation(CloseCode::FrameTimeout, text)
            })?
        } else {
            self.stream.read_chunks(&mut chunks).await
        };
        let Some(count) = read? else {
            if self.buffer.is_within_frame() {
                return Err(Error::violation(
                    CloseCode::TruncatedFrame,
                    "stream ended in the middle of a frame",
                ));
            }
            return Ok(false);
        };
        for chunk in chunks.iter().take(count) {
            self.buffer.push(chunk);
        }
        Ok(true)
    }

    /// Asks the peer to stop sending.
    pub fn stop(&mut self, code: CloseCode) {
        // An error means that the stream has already ended.
        let _ = self.stream.stop(code.into());
    }
}

/// The sending half of a stream, in frames.
pub struct FrameWriter {
    stream: quinn::SendStream,
    /// Queued frames that have not been handed to QUIC.
    buffer: BytesMut,
    /// The queued frames that are being handed over.
    pending: Bytes,
}

impl FrameWriter {
    /// Writes frames to `stream`.
    #[must_use]
    pub fn new(stream: quinn::SendStream) -> Self {
        Self { stream, buffer: BytesMut::new(), pending: Bytes::new() }
    }

    /// Queues a frame for the next write.
    pub fn put<M: Message>(&mut self, message: &M) {
        put_frame(&mut self.buffer, message);
    }

    /// Whether all queued frames have been handed to QUIC.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.pending.is_empty() && self.buffer.is_empty()
    }

    /// Number of queued bytes that have not been handed to QUIC.
    #[must_use]
    pub fn unwritten(&self) -> usize {
        self.pending.len() + self.buffer.len()
    }

    /// Waits until QUIC accepts data, and hands over as much as it accepts.
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

    /// Flushes everything to QUIC.
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

    /// Flushes everything to QUIC; fails if the peer reads nothing for `deadline`.
    #[cfg(feature = "server")]
    pub(crate) async fn flush_within(&mut self, deadline: Duration) -> Result<(), Error> {
        while !self.is_flushed() {
            tokio::time::timeout(deadline, self.write_some()).await.map_err(|_| {
                let text = format!("peer read no reply for {deadline:?} (`network.reply-timeout`)");
                Error::violation(CloseCode::ReplyTimeout, text)
            })??;
        }
        Ok(())
    }

    /// Ends the stream: nothing more will be sent.
    pub fn finish(&mut self) {
        // An error means that the stream has already ended.
        let _ = self.stream.finish();
    }

    /// Resets the stream; unsent data is discarded.
    pub fn reset(&mut self, code: CloseCode) {
        // An error means that the stream has already ended.
        let _ = self.stream.reset(code.into());
    }

    /// Waits until the peer has acknowledged all data (after [`FrameWriter::finish`]) or stopped the stream.
    pub async fn taken(&self) {
        self.unwanted().await;
    }

    /// Like [`FrameWriter::taken`], but without borrowing the writer. Before [`FrameWriter::finish`], this waits until
    /// the peer stops the stream.
    pub(crate) fn unwanted(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let stopped = self.stream.stopped();
        async move {
            // Either way there is nothing left to wait for.
            let _ = stopped.await;
        }
    }
}
