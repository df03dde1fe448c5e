//! Bodies of responses, which count for something until they have been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// How many bytes are handed over at once: what a slow reader leaves in the connection's buffers.
const PART: usize = 16 << 10;

/// The bytes of a response, with what they count for.
pub(crate) struct SentBytes<H> {
    left: Bytes,
    held: Option<H>,
}

impl<H> SentBytes<H> {
    pub(crate) fn new(bytes: Bytes, held: H) -> Self {
        Self { left: bytes, held: Some(held) }
    }
}

impl<H: Unpin> Body for SentBytes<H> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left.is_empty() {
            self.held = None;
            return Poll::Ready(None);
        }
        let size = self.left.len().min(PART);
        let part = self.left.split_to(size);
        if self.left.is_empty() {
            self.held = None;
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

/// Any body, with a guard that is dropped with it.
pub(crate) struct Guarded<B, G> {
    pub(crate) body: B,
    pub(crate) _guard: G,
}

impl<B: Body + Unpin, G: Unpin> Body for Guarded<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::executor::block_on;
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn a_result_counts_until_its_last_part_is_taken() {
        let held = Arc::new(());
        let bytes = Bytes::from(vec![7; 2 * PART + 1]);
        let mut body = SentBytes::new(bytes.clone(), Arc::clone(&held));
        let mut sent = Vec::new();
        for left in [2, 2, 1] {
            let frame = block_on(body.frame()).expect("a part").expect("bytes");
            sent.extend_from_slice(&frame.into_data().expect("data"));
            assert_eq!(Arc::strong_count(&held), left);
        }
        assert!(body.is_end_stream() && block_on(body.frame()).is_none());
        assert_eq!(sent, bytes);
    }
}
