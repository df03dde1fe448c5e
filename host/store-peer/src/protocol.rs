//! The messages on a link: a version byte, then a postcard-encoded [`Request`] or [`Response`], then a block for fields
//! that later releases add.
//!
//! The version is the lowest whose implementations understand the whole message; it never exceeds the version that
//! the two nodes of the link negotiated. Variants are only added at the end, because their numbers are part of the
//! encoding. A call with an unknown number gets [`ResponseBody::Unsupported`]. A new kind of response is sent only in
//! response to the call that was added with it.

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::ids::{ClusterId, Entity, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, LoadedEntity};
use ostraca_store::{
    CompareAndSet, CompareAndSetError, Page, RowEvent, Scan, StoreError, StoreIdentity, StoredRow,
};
use ostraca_wire::peer::PEER_PROTOCOL_VERSIONS;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of every message of this release.
pub const VERSION: u8 = 2;

/// Number of kinds of calls in this release.
const CALLS: u32 = 14;

/// Maximum number of entities in one [`Request::Load`]: all their records are in memory at the same time.
pub const MAX_LOADS: usize = 1024;

/// The number of [`Request::Commit`] on the wire.
const COMMIT: u8 = 3;
/// The number of [`Request::PutBlob`] on the wire.
const PUT_BLOB: u8 = 6;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first call of a link.
    Hello(Hello),
    /// [`EntityStore::claim`](ostraca_store::EntityStore::claim).
    Claim(Vec<Claim>),
    /// [`EntityStore::current_claims`](ostraca_store::EntityStore::current_claims).
    CurrentClaims(Vec<ShardPath>),
    /// [`EntityStore::commit`](ostraca_store::EntityStore::commit).
    Commit(Vec<Commit>),
    /// [`EntityStore::load`](ostraca_store::EntityStore::load) of at most [`MAX_LOADS`] entities.
    Load(Vec<(ShardPath, Entity)>),
    /// [`EntityStore::scan`](ostraca_store::EntityStore::scan). The page may be smaller than requested.
    Scan(Scan),
    /// One fragment of a blob, in order; the last one stores the blob.
    PutBlob {
        /// Identifies the blob on its link.
        upload: u64,
        /// Size of the blob in bytes.
        total: u64,
        /// Offset of the fragment in bytes.
        offset: u64,
        /// The fragment.
        bytes: Bytes,
    },
    /// Reads a fragment of a blob.
    GetBlob {
        /// The blob's digest.
        digest: [u8; 32],
        /// Offset of the fragment in bytes.
        offset: u64,
        /// Maximum size of the fragment in bytes.
        max_bytes: u64,
    },
    /// [`ClusterStore::get`](ostraca_store::ClusterStore::get).
    Get(String),
    /// [`ClusterStore::list`](ostraca_store::ClusterStore::list).
    List(String),
    /// [`ClusterStore::compare_and_set`](ostraca_store::ClusterStore::compare_and_set).
    CompareAndSet(CompareAndSet),
    /// Polls for the next changes of a watch. The response is sent when there are changes, or without changes after a
    /// timeout.
    Watch {
        /// Identifies the watch on its link. A new number starts a watch.
        watch: u64,
        /// The watched prefix; used only when the watch starts.
        prefix: String,
        /// The revision after which to start; used only when the watch starts.
        revision: u64,
        /// Milliseconds after which to respond even if nothing has changed.
        poll_timeout_ms: u64,
    },
    /// Ends a watch.
    CancelWatch(u64),
    /// Tests whether the node responds, without using the store.
    Ping,
}

/// Identifies the client and the store that it expects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster that the store must belong to.
    pub cluster: ClusterId,
    /// Random, chosen when the client is created.
    pub client: u64,
    /// The number of this link, counted by the client: after this hello, nothing from the client's older links is
    /// accepted.
    pub link: u64,
}

/// The response to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The store's newest durable sequence (R5), read after the call was executed.
    pub durable_sequence: u64,
    /// The response itself.
    pub body: ResponseBody,
}

/// The kinds of responses. Each answers the request of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// No part of the call was executed: it cannot be decoded, or is not allowed here.
    Refused(String),
    /// Accepts the link.
    Hello {
        /// The store's identity.
        identity: StoreIdentity,
        /// [`EntityStore::open_nonces`](ostraca_store::EntityStore::open_nonces).
        open_nonces: Vec<u64>,
    },
    /// One outcome per claim.
    Claim(Vec<ClaimOutcome>),
    /// One result per shard.
    CurrentClaims(Result<Vec<Option<Claim>>, StoreError>),
    /// One outcome per turn.
    Commit(Vec<CommitOutcome>),
    /// One result per entity.
    Load(Vec<Result<LoadedEntity, StoreError>>),
    /// A page.
    Scan(Result<Page, StoreError>),
    /// The digest of the stored blob; `None` while fragments are missing.
    PutBlob(Result<Option<[u8; 32]>, StoreError>),
    /// A fragment and the blob's size; `None` if there is no such blob.
    GetBlob(Result<Option<(Bytes, u64)>, StoreError>),
    /// A row.
    Get(Result<Option<StoredRow>, StoreError>),
    /// Rows, and the revision at which they were listed.
    List(Result<(Vec<StoredRow>, u64), StoreError>),
    /// The row's new revision.
    CompareAndSet(Result<u64, CompareAndSetError>),
    /// Changes, in order; empty if nothing changed.
    Watch(Vec<RowEvent>),
    /// The watch has ended.
    CancelWatch,
    /// This node's release does not support the call; nothing was executed.
    Unsupported {
        /// The call's number.
        call: u32,
    },
    /// The node responds.
    Ping,
}

impl ResponseBody {
    /// The kind of request that this responds to, for error messages.
    #[must_use]
    pub fn subject(&self) -> &'static str {
        match self {
            Self::Refused(_) => "a refusal",
            Self::Hello { .. } => "a hello",
            Self::Claim(_) => "claims",
            Self::CurrentClaims(_) => "current claims",
            Self::Commit(_) => "commits",
            Self::Load(_) => "loads",
            Self::Scan(_) => "a scan",
            Self::PutBlob(_) => "put blob",
            Self::GetBlob(_) => "get blob",
            Self::Get(_) => "get row",
            Self::List(_) => "a list of rows",
            Self::CompareAndSet(_) => "compare and set",
            Self::Watch(_) => "a watch",
            Self::CancelWatch => "cancel watch",
            Self::Unsupported { .. } => "an unknown call",
            Self::Ping => "a ping",
        }
    }
}

/// Why bytes do not decode as a message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes.
    #[error("an empty store call")]
    Empty,
    /// The other node uses another version.
    #[error(
        "store call has version {0}, but only versions {min} to {max} are supported: run the same release on all nodes",
        min = PEER_PROTOCOL_VERSIONS.start(),
        max = PEER_PROTOCOL_VERSIONS.end()
    )]
    UnsupportedVersion(u8),
    /// The call was added by a later release.
    #[error("unknown store call {0}")]
    UnknownRequest(u32),
    /// The bytes are malformed.
    #[error("malformed store call: {0}")]
    Malformed(String),
    /// A request that carries no data is too large.
    #[error("store call of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// The call's size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// A message on a link.
pub trait WireMessage: Serialize + DeserializeOwned + Extensible {}

impl Extensible for Request {
    const NAME: &'static str = "Request";
}

impl WireMessage for Request {}

impl Extensible for Response {
    const NAME: &'static str = "Response";
}

impl WireMessage for Response {}

/// Encodes a message.
///
/// # Errors
/// [`StoreError::LimitExceeded`] if the message cannot be encoded, which never happens.
pub fn encode<T: WireMessage>(message: &T) -> Result<Bytes, StoreError> {
    let bytes = codec::append_encoded(vec![VERSION], &(message, Extensions::<T>::default()));
    bytes
        .map(Bytes::from)
        .map_err(|error| StoreError::LimitExceeded(format!("cannot encode: {error}")))
}

/// Decodes a message.
///
/// # Errors
/// [`DecodeError`] if the bytes are invalid.
pub fn decode<T: WireMessage>(bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        None => Err(DecodeError::Empty),
        Some((&version, body)) if PEER_PROTOCOL_VERSIONS.contains(&u32::from(version)) => {
            let decoded = codec::decode::<(T, Extensions<T>)>(body);
            let message = decoded.map(|(message, _)| message);
            message.map_err(|error| DecodeError::Malformed(error.to_string()))
        }
        Some((&version, _)) => Err(DecodeError::UnsupportedVersion(version)),
    }
}

/// Decodes a request. Only requests that carry data may be larger than `max_request`, since a list of short names
/// needs many times its encoded size in memory.
///
/// # Errors
/// [`DecodeError`] if the bytes are invalid.
pub fn decode_request(bytes: &[u8], max_request: usize) -> Result<Request, DecodeError> {
    let carries_data = matches!(bytes.get(1), Some(&COMMIT | &PUT_BLOB));
    if bytes.len() > max_request && !carries_data {
        return Err(DecodeError::TooLarge { bytes: bytes.len(), limit: max_request });
    }
    decode(bytes).map_err(|error| match (error, bytes) {
        (DecodeError::Malformed(_), [_, body @ ..]) if kind(body).is_some_and(|it| it >= CALLS) => {
            DecodeError::UnknownRequest(kind(body).unwrap_or_default())
        }
        (error, _) => error,
    })
}

/// The number of the call, which comes first in `body`.
fn kind(body: &[u8]) -> Option<u32> {
    codec::decode_prefix(body).ok().map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests;
