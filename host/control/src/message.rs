//! The encoding of a control message: a version byte, the sender, the message, and a block for fields of later
//! releases.
//!
//! The version is the lowest one whose nodes understand the whole message. Rows decide and messages only save
//! time, so a message that is not understood is ignored: it is counted, and each kind is logged once.

use bytes::Bytes;
use ostraca_core::codec::{self, CodecError};
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::ids::NodeId;
use ostraca_core::node::ControlMessage;
use ostraca_core::rows::Member;
use ostraca_wire::peer::PEER_PROTOCOL_VERSIONS;
use serde::Serialize;

/// Version of every control message of this release.
const VERSION: u8 = 2;

/// The extension block of a control message. A node that knows the message's kind knows its fields.
#[derive(Debug)]
struct ControlMessageExtensions;

impl Extensible for ControlMessageExtensions {
    const NAME: &'static str = "ControlMessage";
}

/// Why a control message is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IgnoreReason {
    /// A later release has more kinds.
    #[error("unknown kind {0}")]
    UnknownKind(u32),
    /// This release does not support the message's version.
    #[error("version {0} is not supported; this release supports {start} to {end}", start = PEER_PROTOCOL_VERSIONS.start(), end = PEER_PROTOCOL_VERSIONS.end())]
    UnsupportedVersion(u8),
    /// The message is damaged, or has a required field that is unknown.
    #[error("{0}")]
    Malformed(String),
    /// The message names a sender other than the node in the connection's certificate.
    #[error("sender claims to be node {0}")]
    SenderMismatch(NodeId),
}

impl IgnoreReason {
    /// Key for logging each reason once: the unknown kind, otherwise a fixed number per reason.
    pub(super) fn key(&self) -> u64 {
        match self {
            Self::UnknownKind(kind) => u64::from(*kind),
            Self::UnsupportedVersion(version) => (1 << 32) + u64::from(*version),
            Self::Malformed(_) => 1 << 33,
            Self::SenderMismatch(_) => (1 << 33) + 1,
        }
    }
}

/// Decodes a message that the node `by` sent.
pub(crate) fn decode(by: &NodeId, body: &[u8]) -> Result<(Member, ControlMessage), IgnoreReason> {
    let unreadable = |error: CodecError| IgnoreReason::Malformed(error.to_string());
    let Some((&version, body)) = body.split_first() else {
        return Err(IgnoreReason::Malformed("it is empty".into()));
    };
    if !PEER_PROTOCOL_VERSIONS.contains(&u32::from(version)) {
        return Err(IgnoreReason::UnsupportedVersion(version));
    }
    let (from, rest) = codec::decode_prefix::<Member>(body).map_err(unreadable)?;
    if from.node != *by {
        return Err(IgnoreReason::SenderMismatch(from.node));
    }
    let (kind, _) = codec::decode_prefix::<u32>(rest).map_err(unreadable)?;
    if kind >= ControlMessage::KIND_COUNT {
        return Err(IgnoreReason::UnknownKind(kind));
    }
    let (message, _) =
        codec::decode::<(ControlMessage, Extensions<ControlMessageExtensions>)>(rest)
            .map_err(unreadable)?;
    Ok((from, message))
}

/// Encodes a control message.
pub(super) fn encode(from: &Member, message: &ControlMessage) -> Result<Bytes, CodecError> {
    encode_any(from, message)
}

fn encode_any(from: &Member, message: &impl Serialize) -> Result<Bytes, CodecError> {
    let message = (from, message, Extensions::<ControlMessageExtensions>::default());
    codec::append_encoded(vec![VERSION], &message).map(Bytes::from)
}

/// The version that the receiver must support.
pub(super) fn version(body: &[u8]) -> u32 {
    body.first().copied().unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
