//! Frames: a length of 4 bytes, big-endian, and a protobuf message of that length. Sans-IO.
//!
//! The length is checked against the limit as soon as its fourth byte arrives. Memory is allocated only for
//! bytes that have arrived, so an announced length costs no memory.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Length of a frame's header in bytes.
pub const HEADER: usize = 4;

/// Frames are cut from blocks of this size, so a message that is kept for long holds at most this much memory
/// beyond its own.
const BLOCK: usize = 8 << 10;

/// The announced length of a frame exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame of {announced} bytes is larger than the limit of {limit}")]
pub struct TooLarge {
    /// The announced length in bytes.
    pub announced: u32,
    /// The limit in bytes (`max_frame`).
    pub limit: u32,
}

/// Splits the bytes of a stream into whole frames.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: BytesMut,
    limit: u32,
}

impl FrameBuffer {
    /// An empty buffer that accepts frames of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { bytes: BytesMut::with_capacity(BLOCK), limit }
    }

    /// Appends the next bytes of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
    }

    /// The next whole frame, without its length.
    ///
    /// # Errors
    ///
    /// [`TooLarge`]: the stream cannot be read any further.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, TooLarge> {
        let Some(header) = self.bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*header);
        if announced > self.limit {
            return Err(TooLarge { announced, limit: self.limit });
        }
        let length = announced as usize;
        if self.bytes.len() - HEADER < length {
            return Ok(None);
        }
        self.bytes.advance(HEADER);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }

    /// Length of the incomplete frame, if its header has arrived.
    #[must_use]
    pub fn unfinished(&self) -> Option<u32> {
        self.bytes.first_chunk::<HEADER>().map(|header| u32::from_be_bytes(*header))
    }

    /// Whether a frame is incomplete.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// Appends `message` as a frame.
///
/// The limits of the callers keep messages far below 4 GiB. A longer message would be sent with the largest length,
/// which every receiver refuses.
pub fn put_frame<M: Message>(buffer: &mut BytesMut, message: &M) {
    let length = message.encoded_len();
    buffer.reserve(HEADER + length);
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut out = u32::try_from(body.len()).expect("small").to_be_bytes().to_vec();
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn frames_do_not_depend_on_how_the_bytes_are_split() {
        let bodies: Vec<Vec<u8>> =
            [0, 1, 3, 4, 5, 1_000, 20_000].iter().map(|n| vec![7_u8; *n]).collect();
        let stream: Vec<u8> = bodies.iter().flat_map(|b| frame(b)).collect();
        for step in [1, 2, 3, 5, 1_400, 100_000] {
            let mut buffer = FrameBuffer::new(20_000);
            let mut got = Vec::new();
            for chunk in stream.chunks(step) {
                buffer.push(chunk);
                while let Some(frame) = buffer.next_frame().expect("within the limit") {
                    got.push(frame.to_vec());
                }
            }
            assert_eq!(got, bodies, "in steps of {step}");
            assert!(!buffer.is_within_frame());
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_body() {
        let mut buffer = FrameBuffer::new(100);
        buffer.push(&[0xff, 0xff, 0xff]);
        assert_eq!(buffer.next_frame(), Ok(None));
        buffer.push(&[0xff]);
        assert_eq!(buffer.next_frame(), Err(TooLarge { announced: u32::MAX, limit: 100 }));
        assert!(buffer.bytes.capacity() <= BLOCK);
    }

    #[test]
    fn an_announced_length_allocates_no_memory_in_advance() {
        let mut buffer = FrameBuffer::new(u32::MAX);
        buffer.push(&[0x7f, 0xff, 0xff, 0xff, 1]);
        assert_eq!(buffer.next_frame(), Ok(None));
        assert!(buffer.bytes.capacity() <= BLOCK);
    }
}
