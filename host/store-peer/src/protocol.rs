//! What is said over a link: one byte of version, then a postcard-encoded [`Request`] or [`Reply`],
//! then a block of fields that later releases add.
//!
//! The version is the lowest whose speakers understand all of the message; the two nodes of a link have agreed how
//! high it may be. Variants are only ever added at the end: their numbers are on the wire. A call whose number is
//! unknown is answered [`Answer::Unsupported`]; an answer of a new kind goes only to who asked a call of its kind.

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

/// The version that every message of this release bears.
pub const VERSION: u8 = 2;

/// Kinds of calls that this release knows.
const CALLS: u32 = 14;

/// The most entities of one [`Request::Load`]: their records are all in memory at once.
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
    /// [`EntityStore::claims`](ostraca_store::EntityStore::claims).
    CurrentClaims(Vec<ShardPath>),
    /// [`EntityStore::commit`](ostraca_store::EntityStore::commit).
    Commit(Vec<Commit>),
    /// [`EntityStore::load`](ostraca_store::EntityStore::load), of at most [`MAX_LOADS`].
    Load(Vec<(ShardPath, Entity)>),
    /// [`EntityStore::scan`](ostraca_store::EntityStore::scan). The page may be smaller than asked for.
    Scan(Scan),
    /// A piece of a blob to be kept, in order; the last one keeps it.
    PutBlob {
        /// Names the blob on its link.
        upload: u64,
        /// Bytes of the whole.
        total: u64,
        /// Where the piece belongs.
        offset: u64,
        /// The piece.
        bytes: Bytes,
    },
    /// A piece of a blob.
    GetBlob {
        /// Which blob.
        digest: [u8; 32],
        /// From where.
        offset: u64,
        /// At most so many bytes.
        max_bytes: u64,
    },
    /// [`ClusterStore::get`](ostraca_store::ClusterStore::get).
    Get(String),
    /// [`ClusterStore::list`](ostraca_store::ClusterStore::list).
    List(String),
    /// [`ClusterStore::compare_and_set`](ostraca_store::ClusterStore::compare_and_set).
    CompareAndSet(CompareAndSet),
    /// The next changes that a watch sees. It is answered when there are some, or with none after a while.
    Watch {
        /// Names the watch on its link. A new number begins a watch.
        watch: u64,
        /// What to watch; counts only when the watch begins.
        prefix: String,
        /// After which revision; counts only when the watch begins.
        revision: u64,
        /// When to answer although nothing changed, in milliseconds.
        poll_timeout_ms: u64,
    },
    /// A watch is no longer wanted.
    CancelWatch(u64),
    /// Whether anybody is there; the store is not asked.
    Ping,
}

/// Who asks, for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster whose store it is to be.
    pub cluster: ClusterId,
    /// Random, made with the client.
    pub client: u64,
    /// Counts the links of this client: nothing is taken from older ones any more.
    pub link: u64,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The store's newest durable sequence (R5), read after the call was done.
    pub durable_sequence: u64,
    /// The answer.
    pub body: ResponseBody,
}

/// What is answered. Each belongs to the request of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// Nothing of the call was done: it cannot be read, or may not be asked here.
    Refused(String),
    /// The link can be used.
    Hello {
        /// Who the store is.
        identity: StoreIdentity,
        /// [`EntityStore::openings`](ostraca_store::EntityStore::openings).
        open_nonces: Vec<u64>,
    },
    /// One outcome a claim.
    Claim(Vec<ClaimOutcome>),
    /// One answer a shard.
    CurrentClaims(Result<Vec<Option<Claim>>, StoreError>),
    /// One outcome a turn.
    Commit(Vec<CommitOutcome>),
    /// One answer an entity.
    Load(Vec<Result<LoadedEntity, StoreError>>),
    /// A page.
    Scan(Result<Page, StoreError>),
    /// The digest of a blob that is kept; nothing while pieces of it are missing.
    PutBlob(Result<Option<[u8; 32]>, StoreError>),
    /// A piece and the size of the whole; nothing if there is no such blob.
    GetBlob(Result<Option<(Bytes, u64)>, StoreError>),
    /// A row.
    Get(Result<Option<StoredRow>, StoreError>),
    /// Rows, and the revision as of which they are listed.
    List(Result<(Vec<StoredRow>, u64), StoreError>),
    /// The row's new revision.
    CompareAndSet(Result<u64, CompareAndSetError>),
    /// Changes, in order; none: nothing happened.
    Watch(Vec<RowEvent>),
    /// The watch has ended.
    CancelWatch,
    /// A call that this node's release does not have; nothing was done.
    Unsupported {
        /// Its number.
        call: u32,
    },
    /// Somebody is there.
    Ping,
}

impl ResponseBody {
    /// To what it is an answer, in words.
    #[must_use]
    pub fn subject(&self) -> &'static str {
        match self {
            Self::Refused(_) => "a call that is refused",
            Self::Hello { .. } => "a hello",
            Self::Claim(_) => "claims",
            Self::CurrentClaims(_) => "which claims stand",
            Self::Commit(_) => "commits",
            Self::Load(_) => "loads",
            Self::Scan(_) => "a scan",
            Self::PutBlob(_) => "a component to keep",
            Self::GetBlob(_) => "which component is kept",
            Self::Get(_) => "which row stands",
            Self::List(_) => "a list of rows",
            Self::CompareAndSet(_) => "a row to write",
            Self::Watch(_) => "a watch",
            Self::CancelWatch => "a watch's end",
            Self::Unsupported { .. } => "an unknown call",
            Self::Ping => "a ping",
        }
    }
}

/// Why bytes are no message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are none.
    #[error("an empty store call")]
    Empty,
    /// Another release speaks another version.
    #[error(
        "a store call of version {0}, where versions {min} to {max} are spoken: use one release on all nodes",
        min = PEER_PROTOCOL_VERSIONS.start(),
        max = PEER_PROTOCOL_VERSIONS.end()
    )]
    UnsupportedVersion(u8),
    /// A later release has calls that this one does not know.
    #[error("a store call of the unknown kind {0}")]
    UnknownRequest(u32),
    /// They are rubbish.
    #[error("a store call that cannot be read: {0}")]
    Malformed(String),
    /// A question is larger than questions are.
    #[error("a store call of {bytes} bytes, where {limit} are taken (`max_question`)")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
}

/// What is said over a link.
pub trait WireMessage: Serialize + DeserializeOwned + Extensible {}

impl Extensible for Request {
    const NAME: &'static str = "Request";
}

impl WireMessage for Request {}

impl Extensible for Response {
    const NAME: &'static str = "Reply";
}

impl WireMessage for Response {}

/// A message in bytes.
///
/// # Errors
/// [`StoreError::Limit`] for what cannot be encoded; there is no such message.
pub fn encode<T: WireMessage>(message: &T) -> Result<Bytes, StoreError> {
    let bytes = codec::append_encoded(vec![VERSION], &(message, Extensions::<T>::default()));
    bytes
        .map(Bytes::from)
        .map_err(|error| StoreError::LimitExceeded(format!("not encoded: {error}")))
}

/// A message from bytes.
///
/// # Errors
/// [`Unreadable`] says why not.
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

/// A request from bytes, of which only those that carry data may have more than `max_question`: a list of short
/// names takes many times its bytes in memory.
///
/// # Errors
/// [`Unreadable`] says why not.
pub fn decode_request(bytes: &[u8], max_question: usize) -> Result<Request, DecodeError> {
    let carries_data = matches!(bytes.get(1), Some(&COMMIT | &PUT_BLOB));
    if bytes.len() > max_question && !carries_data {
        return Err(DecodeError::TooLarge { bytes: bytes.len(), limit: max_question });
    }
    decode(bytes).map_err(|error| match (error, bytes) {
        (DecodeError::Malformed(_), [_, body @ ..]) if kind(body).is_some_and(|it| it >= CALLS) => {
            DecodeError::UnknownRequest(kind(body).unwrap_or_default())
        }
        (error, _) => error,
    })
}

/// The number of the call that the bytes begin with.
fn kind(body: &[u8]) -> Option<u32> {
    codec::decode_prefix(body).ok().map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests;
