//! Where entities' heads, lanes and state live.

use bytes::Bytes;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, LoadedEntity, RecordKey};
use serde::{Deserialize, Serialize};

use crate::keys::MAX_KEY_BYTES;
use crate::{StoreError, StoreFuture, StoreIdentity};

/// The largest value of a record, in bytes. Types have lower limits of their own.
pub const MAX_VALUE_BYTES: usize = 16 * 1024 * 1024;

/// The most bytes that a turn writes, as [`commit_bytes`] counts them; a frame between nodes takes more. Types have
/// lower limits of their own.
pub const MAX_COMMIT_BYTES: usize = 18 * 1024 * 1024;

/// The bytes of a commit: its keys, values and replies, and what each takes beside them. Never fewer than it has on
/// a link.
#[must_use]
pub fn commit_bytes(commit: &Commit) -> usize {
    let replies = commit.head.lanes.iter().map(|lane| {
        let replies = lane.replies.iter();
        128 + replies.map(|reply| 64 + reply.reply.len()).sum::<usize>()
    });
    let writes = commit.writes.iter().map(|write| {
        let key = if let RecordKey::State(key) = &write.key { key.len() } else { 16 };
        64 + key + write.value.as_ref().map_or(0, Bytes::len)
    });
    let names = [&commit.entity.entity_type, &commit.entity.id, &commit.claim.shard.namespace]
        .map(|name| name.len());
    let Claim { shard, node, .. } = &*commit.claim;
    let names = names.iter().sum::<usize>() + shard.pool.len() + node.0.len();
    512 + names + replies.sum::<usize>() + writes.sum::<usize>()
}

/// Whether a commit as a whole is within the limit that every backend has.
///
/// # Errors
/// The limit that it passes.
pub fn check_commit(commit: &Commit) -> Result<(), String> {
    let bytes = commit_bytes(commit);
    if bytes > MAX_COMMIT_BYTES {
        return Err(format!("a turn writes at most {MAX_COMMIT_BYTES} bytes, this one {bytes}"));
    }
    Ok(())
}

/// Whether a record is within the limits that every backend has.
///
/// # Errors
/// The limit that it passes.
pub fn check_record(key: &[u8], value_bytes: usize) -> Result<(), String> {
    if key.len() > MAX_KEY_BYTES {
        return Err(format!(
            "a record's key has at most {MAX_KEY_BYTES} bytes, this one {}",
            key.len()
        ));
    }
    if value_bytes > MAX_VALUE_BYTES {
        return Err(format!(
            "a record has at most {MAX_VALUE_BYTES} bytes, this one {value_bytes}"
        ));
    }
    Ok(())
}

/// The store of entities.
///
/// # Contract
///
/// **Claims (R1, R4, R5).** Of a shard one claim stands. `claim` must grant a claim if none stands or
/// if it [`supersedes`](Claim::supersedes) the one that does, and must refuse it otherwise, returning
/// the one that stands. A claim of another cluster must be refused by name. Once `claim` has returned
/// `Granted`, no commit under another claim of that shard may take effect, however late it arrives.
///
/// **Commits (R1, R3).** A commit must take effect only if the claim that stands equals its own exactly
/// and the stored head has version `from` (0: there is no head). One whose turn id and new version are
/// already the head's must be answered `Already`, whatever claim stands: it is durable. Effects are atomic:
/// the head and all writes, or none. One whose new version is not `from + 1` must be refused with `Limit`; one that
/// has a key or value beyond its limit ([`check_record`]), or is too large as a whole ([`check_commit`]), with
/// `TooLarge`, by every store alike.
/// The commits and claims of a shard are judged in the order of the calls, and within a call in its order, each
/// seeing those before it: so after a refused commit of an entity all later ones that build on it are refused
/// too. Between shards there is no order.
/// `Done` may be said only when the commit is on stable storage. Only a failed or unfinished write may be
/// answered `Unknown`, then for the whole batch; a store that knows that it wrote nothing says `Refused`.
///
/// **Reads (R2).** Whatever is handed out must be durable, must come after all commits of that entity or
/// shard that were queued before the call, and must show turns whole. A commit is queued when the call of
/// `commit` returns its future, before that is awaited. A load must give the lanes beside a head whose
/// `lanes_beside` is not 0, in the order of their sessions; a store need not look for any others.
///
/// **Sequences.** The store gives each accepted commit a sequence within its shard, rising with gaps,
/// kept in the head; it must not go back over a restart.
///
/// A call whose future is dropped may still take effect. No call may panic over what a caller sends.
pub trait EntityStore: Send + Sync + 'static {
    /// Who this store is, as of its opening; `sequence` is the newest durable one.
    fn identity(&self) -> StoreIdentity;

    /// The nonces of its last openings, the newest last (R5): as many as it remembers.
    fn open_nonces(&self) -> Vec<u64> {
        vec![self.identity().open_nonce]
    }

    /// Claims shards, one answer each, in order.
    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>>;

    /// The claims that stand, `None` for a shard that nobody ever claimed.
    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>>;

    /// Commits turns, one answer each, in order. They need not be of one shard.
    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>>;

    /// Loads heads and lanes, one answer each, in order.
    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>>;

    /// Reads a page of a shard's records of one kind.
    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>>;

    /// Keeps bytes under their BLAKE3 digest, durably; idempotent (R6). Any size up to the backend's limit.
    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>>;

    /// The bytes with that digest, checked against it.
    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>>;
}

/// What to scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// Whose records.
    pub shard: ShardPath,
    /// Of which kind.
    pub kind: ScanKind,
    /// Where the page before this one ended: its [`Page::next`].
    pub after: Option<Bytes>,
    /// At most so many records; at least 1 is returned if there is one.
    pub max_records: usize,
    /// Stop before the page holds more than so many bytes, but return at least one record.
    pub max_bytes: usize,
}

/// Kinds of records that are read by scanning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanKind {
    /// The heads of the shard, in the order of the entities' types and ids.
    Heads,
    /// One entity's state, in the order of its keys (bytewise).
    State(Entity),
}

/// One page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The records, in order.
    pub records: Vec<ScannedRecord>,
    /// Where the next page starts, opaque; `None` at the end.
    pub next_cursor: Option<Bytes>,
}

/// One record of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScannedRecord {
    /// An entity and its head.
    Head(Entity, Box<ostraca_core::records::Head>),
    /// A key of an entity's state, and its value.
    State(Bytes, Bytes),
}
