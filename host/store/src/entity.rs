//! The store of entities' heads, lanes and state.

use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::codec::{self, CodecError};
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    ChannelItem, Claim, ClaimOutcome, Commit, CommitOutcome, Head, HeadFloor, JournalEvent,
    JournalSnapshot, LoadedEntity, RecordKey, Tell,
};
use serde::{Deserialize, Serialize};

use crate::keys::MAX_KEY_BYTES;
use crate::record::RecordKind;
use crate::{StoreError, StoreFuture, StoreIdentity, keys};

/// The largest value of a record, in bytes. Entity types have their own, lower limits.
pub const MAX_VALUE_BYTES: usize = 16 * 1024 * 1024;

/// The largest commit, in bytes as [`commit_bytes`] counts them; a frame between nodes can hold more. Entity types
/// have their own, lower limits.
pub const MAX_COMMIT_BYTES: usize = 18 * 1024 * 1024;

/// The size of a commit in bytes: its keys, values and replies, plus a fixed overhead for each. It is an upper bound
/// on the encoded size on a link.
#[must_use]
pub fn commit_bytes(commit: &Commit) -> usize {
    let replies = commit.head.lanes.iter().map(|lane| {
        let replies = lane.replies.iter();
        128 + replies.map(|reply| 64 + reply.reply.len()).sum::<usize>()
    });
    let writes = commit.writes.iter().map(|write| {
        let key = match &write.key {
            RecordKey::State(key) => key.len(),
            RecordKey::Lane(_) => 16,
            RecordKey::Timer { name, .. } => 16 + name.len(),
            RecordKey::Outbox { target, .. } => 16 + target.entity_type.len() + target.id.len(),
            RecordKey::DeadLetter { .. } | RecordKey::Journal { .. } => 16,
            RecordKey::Remembered => 0,
            RecordKey::ChannelItem { channel, .. } => 16 + channel.len(),
        };
        64 + key + write.value.as_ref().map_or(0, Bytes::len)
    });
    let names = [&commit.entity.entity_type, &commit.entity.id, &commit.claim.shard.namespace]
        .map(|name| name.len());
    let Claim { shard, owner, .. } = &*commit.claim;
    let names = names.iter().sum::<usize>() + shard.pool.len() + owner.node.0.len();
    512 + names + replies.sum::<usize>() + writes.sum::<usize>()
}

/// Checks a commit against the total size limit that all backends share.
///
/// # Errors
/// A message that states the exceeded limit and the actual size.
pub fn check_commit(commit: &Commit) -> Result<(), String> {
    let bytes = commit_bytes(commit);
    if bytes > MAX_COMMIT_BYTES {
        return Err(format!("turn writes {bytes} bytes, limit is {MAX_COMMIT_BYTES}"));
    }
    Ok(())
}

/// The shard's new floor, if the commit of this head removes the stored one (E17).
///
/// # Errors
/// A message that names the damaged field.
pub fn removed_into(floor: Option<&HeadFloor>, head: &Head) -> Result<Option<HeadFloor>, String> {
    let raised = || {
        if !head.is_removed()? {
            return Ok(None);
        }
        let mut floor = floor.cloned().unwrap_or_default();
        floor.raise(head)?;
        Ok(Some(floor))
    };
    raised().map_err(|error: CodecError| format!("cannot remove a head: {error}"))
}

/// The error of a floor that cannot be decoded.
#[must_use]
pub fn corrupt_floor(error: CodecError) -> StoreError {
    StoreError::Corrupt(format!("the floor of a shard: {error}"))
}

/// Checks a record's key and value against the limits that all backends share.
///
/// # Errors
/// A message that states the exceeded limit and the actual size.
pub fn check_record(key: &[u8], value_bytes: usize) -> Result<(), String> {
    if key.len() > MAX_KEY_BYTES {
        return Err(format!("record key is {} bytes, limit is {MAX_KEY_BYTES}", key.len()));
    }
    if value_bytes > MAX_VALUE_BYTES {
        return Err(format!("record value is {value_bytes} bytes, limit is {MAX_VALUE_BYTES}"));
    }
    Ok(())
}

/// The store of entities.
///
/// # Contract
///
/// **Claims (R1, R4, R5).** Each shard has at most one current claim. `claim` must grant a claim if the shard has
/// none, or if the new claim [`supersedes`](Claim::supersedes) the current one. Otherwise it must refuse the claim
/// and return the current one. A claim of another cluster must be refused as `OtherCluster`. Once `claim` has
/// returned `Granted`, no commit under another claim of that shard may take effect, however late it arrives.
///
/// **Commits (R1, R3).** A commit must take effect only if the shard's current claim equals the commit's claim
/// exactly and the stored head has version `expected_version`. Without a stored head, the version of the shard's floor
/// counts instead, or 0 if the shard has none. A commit whose turn id and new
/// version are already the head's must be answered `AlreadyCommitted`, whatever the current claim is: it is durable.
/// Effects are atomic: the head and all writes, or none. A commit whose new version is not `expected_version + 1`
/// must be refused with `LimitReached`. A commit that has a key or value beyond its limit ([`check_record`]), or is too
/// large as a whole ([`check_commit`]), must be refused with `TooLarge` by every store.
/// A commit whose head [`is_removed`](Head::is_removed) must remove the stored head and raise the shard's [`HeadFloor`]
/// to it, in the same write (E17). The floor is kept across claims and never falls.
/// The commits and claims of a shard are evaluated in the order of the calls and, within a call, in the order given.
/// Each sees those before it, so after a refused commit of an entity, all later ones that build on it are refused too.
/// No order is required between shards.
/// A store may answer `Committed` only when the commit is on stable storage. It may answer `Unknown` only for a
/// failed or unfinished write, and then for the whole batch. A store that knows that it wrote nothing answers
/// `Refused`.
///
/// **Reads (R2).** Whatever a read returns must be durable, must reflect all commits of that entity or shard that were
/// queued before the call, and must never show part of a turn. A commit is queued when the call of `commit` returns its
/// future, before the future is awaited. A load must return, for each of these that the head counts: the spilled lanes,
/// ordered by session; the timers, ordered by name; the tells of the outbox, ordered by target and number; and the dead
/// letters, ordered by number. For an entity without a head, it must return the head that the shard's floor makes, if
/// the shard has one. A scan returns stored heads only. A store need not look for records that the head does not count.
///
/// **Sequences.** The store assigns each accepted commit a sequence within its shard and keeps it in the head.
/// Sequences rise, with gaps, and must not decrease after a restart.
///
/// A call whose future is dropped may still take effect. No call may panic because of its input.
pub trait EntityStore: Send + Sync + 'static {
    /// The store's identity as of its opening, with the newest `durable_sequence`.
    fn identity(&self) -> StoreIdentity;

    /// The nonces of the last openings that the store remembers, newest last (R5).
    fn open_nonces(&self) -> Vec<u64> {
        vec![self.identity().open_nonce]
    }

    /// Claims shards. Returns one outcome per claim, in order.
    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>>;

    /// The current claims, in order; `None` for a shard that was never claimed.
    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>>;

    /// Commits turns, which may be of different shards. Returns one outcome per turn, in order.
    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>>;

    /// Loads heads and the records that they count. Returns one result per entity, in order.
    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>>;

    /// Reads a page of a shard's records of one kind.
    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>>;

    /// Stores bytes durably under their BLAKE3 digest; idempotent (R6). Any size up to the backend's limit.
    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>>;

    /// The bytes with this digest, verified against it; `None` if there are none.
    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>>;
}

/// A request for one page of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// The shard to scan.
    pub shard: ShardPath,
    /// The kind of records to read.
    pub kind: ScanKind,
    /// The end of the previous page: its [`Page::next_cursor`]. `None` starts at the beginning.
    pub after: Option<Bytes>,
    /// Maximum number of records in the page, which nevertheless holds at least one if there is one.
    pub max_records: usize,
    /// Maximum size of the page in bytes; it nevertheless holds at least one record if there is one.
    pub max_bytes: usize,
}

/// The kinds of records that can be scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanKind {
    /// The heads of the shard, ordered by entity type and id.
    Heads,
    /// One entity's state, ordered by key (bytewise).
    State(Entity),
    /// The wake-ups of the shard's entities, ordered by time, type and id.
    Wakes {
        /// The first wake-up to read: its time in milliseconds since the Unix epoch (UTC), and its entity. `None` reads
        /// from the first.
        from: Option<(u64, Entity)>,
    },
    /// The shard's dead letters, ordered by the type and id of the sender, then by number.
    DeadLetters {
        /// The first sender whose dead letters are read. `None` reads from the first.
        from: Option<Entity>,
    },
    /// One entity's journal: its snapshot, then its events, ordered by number.
    Journal {
        /// The entity.
        entity: Entity,
        /// The first number to read; [`RecordKey::SNAPSHOT`] reads from the snapshot on.
        from: u64,
    },
    /// The shard's remembered entities, ordered by type and id.
    Remembered {
        /// The first entity to read. `None` reads from the first.
        from: Option<Entity>,
    },
    /// The kept items of one of an entity's channels, ordered by number.
    Channel {
        /// The entity.
        entity: Entity,
        /// The channel.
        channel: Arc<str>,
        /// The first number to read.
        from: u64,
    },
}

/// One page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The records, in order.
    pub records: Vec<ScannedRecord>,
    /// An opaque cursor for the next page; `None` at the end.
    pub next_cursor: Option<Bytes>,
}

/// One record of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScannedRecord {
    /// An entity and its head.
    Head(Entity, Box<ostraca_core::records::Head>),
    /// A key of an entity's state, and its value.
    State(Bytes, Bytes),
    /// An entity's wake-up: when its first timer fires, in milliseconds since the Unix epoch (UTC), or 0 while its
    /// outbox is not empty.
    Wake(u64, Entity),
    /// The sender of a dead letter, its number, and the tell.
    DeadLetter(Entity, u64, Box<Tell>),
    /// An event of a journal, and its number.
    Event(u64, JournalEvent),
    /// The snapshot of a journal.
    Snapshot(JournalSnapshot),
    /// A remembered entity.
    Remembered(Entity),
    /// A kept item of a channel, and its number.
    ChannelItem(u64, ChannelItem),
}

impl ScannedRecord {
    /// A kept item of a channel, decoded from the number in its key and its value.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the value is not an item.
    pub fn of_channel(number: u64, value: &[u8]) -> Result<Self, StoreError> {
        let corrupt = |error| StoreError::Corrupt(format!("cannot decode an item: {error}"));
        codec::decode(value).map(|item| Self::ChannelItem(number, item)).map_err(corrupt)
    }

    /// A record of a journal, decoded from the number in its key and its value.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the value is not an event's or a snapshot's.
    pub fn of_journal(number: u64, value: &[u8]) -> Result<Self, StoreError> {
        let corrupt = |error| StoreError::Corrupt(format!("cannot decode a journal: {error}"));
        match number {
            RecordKey::SNAPSHOT => codec::decode(value).map(Self::Snapshot).map_err(corrupt),
            _ => codec::decode(value).map(|event| Self::Event(number, event)).map_err(corrupt),
        }
    }
}

impl Scan {
    /// The prefix of the keys to read, and the key at which the page begins, without that prefix; `None`: at the first.
    #[must_use]
    pub fn range(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let (prefix, first) = match &self.kind {
            ScanKind::Heads => (keys::kind_prefix(&self.shard, RecordKind::Head), None),
            ScanKind::State(entity) => {
                (keys::entity_prefix(&self.shard, RecordKind::State, entity), None)
            }
            ScanKind::Wakes { from } => {
                let first = from.as_ref().map(|(due, entity)| keys::wake_key(*due, entity));
                (keys::kind_prefix(&self.shard, RecordKind::Timer), first)
            }
            ScanKind::DeadLetters { from } => {
                let first = from.as_ref().map(keys::entity_key);
                (keys::kind_prefix(&self.shard, RecordKind::DeadLetter), first)
            }
            ScanKind::Journal { entity, from } => {
                let prefix = keys::entity_prefix(&self.shard, RecordKind::Journal, entity);
                (prefix, Some(from.to_be_bytes().to_vec()))
            }
            ScanKind::Remembered { from } => {
                let first = from.as_ref().map(keys::entity_key);
                (keys::kind_prefix(&self.shard, RecordKind::Remembered), first)
            }
            ScanKind::Channel { entity, channel, from } => {
                let prefix = keys::channel_prefix(&self.shard, entity, channel);
                (prefix, Some(from.to_be_bytes().to_vec()))
            }
        };
        // The first possible key after `after` in bytewise order.
        let next = self.after.as_ref().map(|after| [&after[..], &[0]].concat());
        (prefix, next.or(first))
    }
}
