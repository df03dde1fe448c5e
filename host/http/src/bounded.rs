//! A QUIC connection for `h3` that refuses long frames. `h3` collects each frame to its end before it looks at it, but for
//! the frames of bodies, and a frame may say that it has any length. It also takes an empty frame of a body for the
//! body's end, so nothing of the body may follow one.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h3::error::Code;
use h3::quic::{
    self, ConnectionErrorIncoming, RecvStream, SendStream, StreamErrorIncoming, StreamId,
};
use h3::stream::WriteBuf;

/// Types of frames whose length does not matter: `DATA`, and what begins a stream of WebTransport.
const DATA: u64 = 0x0;
const WEBTRANSPORT: u64 = 0x41;
/// The type of the stream that has the frames of the connection itself.
const CONTROL: u64 = 0x0;

type Inner = h3_quinn::Connection;
type InnerBidi = h3_quinn::BidiStream<Bytes>;
type InnerSend = h3_quinn::SendStream<Bytes>;
type Opened<T> = Poll<Result<T, StreamErrorIncoming>>;

/// The connection, and how long a frame may be.
pub(crate) struct Bounded {
    inner: Inner,
    opening: Opening,
    most: u64,
}

impl Bounded {
    pub(crate) fn new(connection: quinn::Connection, most: u64) -> Self {
        let inner = Inner::new(connection);
        let opening = Opening { inner: quic::Connection::<Bytes>::opener(&inner), most };
        Self { inner, opening, most }
    }
}

impl quic::Connection<Bytes> for Bounded {
    type RecvStream = Frames<h3_quinn::RecvStream>;
    type OpenStreams = Opening;

    fn poll_accept_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        let inner = quic::Connection::<Bytes>::poll_accept_recv(&mut self.inner, context);
        inner.map_ok(|inner| Frames { inner, place: Place::new(self.most, At::StreamType) })
    }

    fn poll_accept_bidi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let inner = quic::Connection::<Bytes>::poll_accept_bidi(&mut self.inner, context);
        inner.map_ok(|inner| Frames { inner, place: Place::new(self.most, At::FrameType) })
    }

    fn opener(&self) -> Opening {
        self.opening.clone()
    }
}

impl quic::OpenStreams<Bytes> for Bounded {
    type BidiStream = Frames<InnerBidi>;
    type SendStream = InnerSend;

    fn poll_open_bidi(&mut self, context: &mut Context<'_>) -> Opened<Self::BidiStream> {
        self.opening.poll_open_bidi(context)
    }

    fn poll_open_send(&mut self, context: &mut Context<'_>) -> Opened<InnerSend> {
        self.opening.poll_open_send(context)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opening.close(code, reason);
    }
}

/// Opens streams of the connection.
#[derive(Clone)]
pub(crate) struct Opening {
    inner: h3_quinn::OpenStreams,
    most: u64,
}

impl quic::OpenStreams<Bytes> for Opening {
    type BidiStream = Frames<InnerBidi>;
    type SendStream = InnerSend;

    fn poll_open_bidi(&mut self, context: &mut Context<'_>) -> Opened<Self::BidiStream> {
        let inner = quic::OpenStreams::<Bytes>::poll_open_bidi(&mut self.inner, context);
        inner.map_ok(|inner| Frames { inner, place: Place::new(self.most, At::FrameType) })
    }

    fn poll_open_send(&mut self, context: &mut Context<'_>) -> Opened<InnerSend> {
        quic::OpenStreams::<Bytes>::poll_open_send(&mut self.inner, context)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<Bytes>::close(&mut self.inner, code, reason);
    }
}

/// A stream whose received frames are bounded.
pub(crate) struct Frames<S> {
    inner: S,
    place: Place,
}

impl<S: RecvStream<Buf = Bytes>> RecvStream for Frames<S> {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let received = ready!(self.inner.poll_data(context))?;
        if !received.as_ref().is_none_or(|bytes| self.place.accepts(bytes)) {
            let error_code = Code::H3_EXCESSIVE_LOAD.value();
            self.inner.stop_sending(error_code);
            return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code }));
        }
        Poll::Ready(Ok(received))
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.inner.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.inner.recv_id()
    }
}

impl SendStream<Bytes> for Frames<InnerBidi> {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.inner.poll_ready(context)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.inner.send_data(data)
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.inner.poll_finish(context)
    }

    fn reset(&mut self, reset_code: u64) {
        self.inner.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.inner.send_id()
    }
}

impl quic::BidiStream<Bytes> for Frames<InnerBidi> {
    type SendStream = InnerSend;
    type RecvStream = Frames<h3_quinn::RecvStream>;

    fn split(self) -> (InnerSend, Self::RecvStream) {
        let (sender, inner) = self.inner.split();
        (sender, Frames { inner, place: self.place })
    }
}

/// What the next byte of a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    StreamType,
    FrameType,
    FrameLength(u64),
    /// So many bytes of a frame are left.
    Payload(u64),
    /// Bytes that are no frames: so many may follow.
    Other(u64),
}

/// How far a stream has been received.
#[derive(Debug)]
struct Place {
    most: u64,
    at: At,
    /// The bytes of an integer so far.
    integer: Vec<u8>,
    /// An empty frame has ended the body.
    body_ended: bool,
}

impl Place {
    fn new(most: u64, at: At) -> Self {
        Self { most, at, integer: Vec::new(), body_ended: false }
    }

    /// Whether these bytes may follow.
    fn accepts(&mut self, mut bytes: &[u8]) -> bool {
        while let [first, rest @ ..] = bytes {
            let number = match self.at {
                At::Payload(left) | At::Other(left) => {
                    let part = left.min(bytes.len() as u64);
                    bytes = bytes.get(part as usize..).unwrap_or_default();
                    let left = left - part;
                    match self.at {
                        At::Other(_) if left == 0 && !bytes.is_empty() => return false,
                        At::Other(_) => self.at = At::Other(left),
                        _ if left == 0 => self.at = At::FrameType,
                        _ => self.at = At::Payload(left),
                    }
                    continue;
                }
                _ => {
                    bytes = rest;
                    self.integer.push(*first);
                    let Some(number) = whole(&self.integer) else { continue };
                    self.integer.clear();
                    number
                }
            };
            self.at = match self.at {
                At::StreamType if number == CONTROL => At::FrameType,
                At::StreamType => At::Other(self.most),
                At::FrameType if number == WEBTRANSPORT => At::Other(u64::MAX),
                At::FrameType => At::FrameLength(number),
                At::FrameLength(kind) if kind != DATA && number > self.most => return false,
                At::FrameLength(DATA) if number > 0 && self.body_ended => return false,
                At::FrameLength(DATA) if number == 0 => {
                    self.body_ended = true;
                    At::FrameType
                }
                _ if number == 0 => At::FrameType,
                _ => At::Payload(number),
            };
        }
        true
    }
}

/// The integer that these bytes are, once they are complete (RFC 9000, section 16).
fn whole(bytes: &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    if bytes.len() < 1 << (first >> 6) {
        return None;
    }
    let rest = bytes.iter().skip(1);
    Some(rest.fold(u64::from(first & 0x3f), |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a stream is accepted, whatever the parts in which it arrives.
    fn accepts(at: At, bytes: &[u8]) -> bool {
        let whole = Place::new(100, at).accepts(bytes);
        let mut place = Place::new(100, at);
        let parts = bytes.iter().all(|byte| place.accepts(&[*byte]));
        assert_eq!(whole, parts, "{bytes:?}");
        whole
    }

    #[test]
    fn frames_are_bounded_and_a_body_ends_once() {
        let (request, stream) = (At::FrameType, At::StreamType);
        let headers = |length: u8| [&[0x01, 0x40, length][..], &[7; 120]].concat();
        assert!(accepts(request, &headers(100)));
        assert!(!accepts(request, &headers(101)));
        // A body of 2^40 bytes, and then headers: their place is known.
        assert!(accepts(request, &[&[0x00, 0xc0, 0, 1, 0, 0, 0, 0, 0][..], &[1; 500]].concat()));
        let body = [&[0x00, 0x03, 1, 2, 3][..], &[0x00, 0x00]].concat();
        assert!(accepts(request, &[&body[..], &headers(100)].concat()));
        assert!(!accepts(request, &[&body[..], &headers(101)].concat()));
        // Nothing of a body follows an empty frame of it.
        assert!(accepts(request, &[0x00, 0x01, 1, 0x00, 0x00, 0x00, 0x00, 0x01, 0x01, 7]));
        assert!(!accepts(request, &[0x00, 0x01, 1, 0x00, 0x00, 0x00, 0x01, 1]));
        // An unknown frame with the largest length.
        assert!(!accepts(request, &[0x21, 0xff, 255, 255, 255, 255, 255, 255, 255]));
        assert!(accepts(request, &[&[0x40, 0x41, 0][..], &[0xff; 5_000]].concat()));
        // The control stream has frames, others have bytes.
        assert!(accepts(stream, &[0x00, 0x04, 0x02, 6, 0]));
        assert!(!accepts(stream, &[0x00, 0x04, 0x40, 101]));
        assert!(accepts(stream, &[&[0x02][..], &[0; 100]].concat()));
        assert!(!accepts(stream, &[&[0x02][..], &[0; 101]].concat()));
        assert!(!accepts(stream, &[&[0x40, 0x54][..], &[0; 101]].concat()));
    }
}
