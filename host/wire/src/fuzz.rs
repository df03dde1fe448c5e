//! Entry points for the fuzz targets (`tests/fuzz`): they decode frames without a stream.

use bytes::Bytes;

use crate::limits::Limits;
use crate::proto::Envelope;
use crate::validate;

/// The message in a client's frame, if it is valid.
#[must_use]
pub fn client_message(frame: &Bytes, session: &[u8; 16], limits: &Limits) -> Option<Envelope> {
    validate::decode_client_message(frame, session, limits).ok()
}

/// The message in a peer's frame, with its tag, if it is valid.
#[must_use]
pub fn peer_message(frame: &Bytes, max_message: u32) -> Option<(u64, Envelope)> {
    validate::decode_forwarded_message(frame, max_message).ok()
}
