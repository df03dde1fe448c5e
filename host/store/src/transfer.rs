//! The contents of a store as items that every store can hold, and how they are copied from one store to another.
//!
//! A copy is made while no process has the source open. It goes page by page; the target remembers the cursor behind
//! the last one together with the items, so an interrupted copy continues there. At the end, both stores are read again
//! and compared by counts and digests. Then the source is marked as moved: no process opens it from then on, whatever
//! epoch it has (R26). Only after that can the target be opened.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::BoxFuture;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, Head, HeadFloor, RecordKey};
use serde::{Deserialize, Serialize};

use crate::{StoreError, StoreIdentity};

/// Size of a page in bytes at which no further item joins it. One item may be larger.
pub const PAGE_BYTES: usize = 1 << 20;
/// Maximum number of items in a page.
pub const PAGE_ITEMS: usize = 1000;

/// A part of a store's contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A shard that was claimed.
    Shard {
        /// Its current claim.
        claim: Claim,
        /// Its floor, if a head was removed from it.
        floor: Option<HeadFloor>,
        /// No commit of the shard has a higher sequence.
        last_sequence: u64,
    },
    /// The head of an entity, with its commit sequence.
    Head {
        /// The entity's shard.
        shard: ShardPath,
        /// The entity.
        entity: Entity,
        /// The head.
        head: Box<Head>,
    },
    /// Another record of an entity.
    Record {
        /// The entity's shard.
        shard: ShardPath,
        /// The entity.
        entity: Entity,
        /// The record's key.
        key: RecordKey,
        /// The record's value.
        value: Bytes,
    },
    /// A component; its BLAKE3 digest is its key.
    Component(Bytes),
    /// A row of the cluster. Its revision is not copied: the target assigns another.
    Row {
        /// The row's key.
        key: String,
        /// The row's value.
        value: Bytes,
    },
}

/// The kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// [`Item::Shard`].
    Shards,
    /// [`Item::Head`].
    Heads,
    /// [`Item::Record`].
    Records,
    /// [`Item::Component`].
    Components,
    /// [`Item::Row`].
    Rows,
}

impl ItemKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Shards, Self::Heads, Self::Records, Self::Components, Self::Rows];

    /// What people call the items.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shards => "shards",
            Self::Heads => "entities",
            Self::Records => "records",
            Self::Components => "components",
            Self::Rows => "rows",
        }
    }
}

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Item {
    /// The kind of the item.
    #[must_use]
    pub fn kind(&self) -> ItemKind {
        match self {
            Self::Shard { .. } => ItemKind::Shards,
            Self::Head { .. } => ItemKind::Heads,
            Self::Record { .. } => ItemKind::Records,
            Self::Component(_) => ItemKind::Components,
            Self::Row { .. } => ItemKind::Rows,
        }
    }

    /// The size of the item's values in bytes, roughly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Shard { .. } => 128,
            Self::Head { head, .. } => {
                let lanes = head.lanes.iter().flat_map(|lane| &lane.replies);
                256 + lanes.map(|reply| 64 + reply.reply.len()).sum::<usize>()
            }
            Self::Record { value, .. } | Self::Row { value, .. } => 64 + value.len(),
            Self::Component(bytes) => bytes.len(),
        }
    }

    /// The BLAKE3 digest of what every store must hold of the item.
    fn digest(&self) -> Result<blake3::Hash, StoreError> {
        let encoded = match self {
            Self::Shard { claim, floor, .. } => codec::encode(&(0u8, claim, floor)),
            Self::Head { shard, entity, head } => codec::encode(&(1u8, shard, entity, head)),
            Self::Record { shard, entity, key, value } => {
                codec::encode(&(2u8, shard, entity, key, value))
            }
            Self::Component(bytes) => return Ok(blake3::hash(bytes)),
            Self::Row { key, value } => codec::encode(&(4u8, key, value)),
        };
        let failed = |error| StoreError::LimitExceeded(format!("cannot encode an item: {error}"));
        encoded.map(|bytes| blake3::hash(&bytes)).map_err(failed)
    }
}

/// A page of a store's contents.
#[derive(Clone, Debug, Default)]
pub struct ItemPage {
    /// The items.
    pub items: Vec<Item>,
    /// An opaque cursor for the next page; `None` at the end.
    pub next_cursor: Option<Bytes>,
}

/// A store whose contents can be read while no process has it open.
pub trait StoreContents: Send {
    /// The store's identity; nothing is counted as an opening.
    fn identity(&self) -> StoreIdentity;

    /// Reads a page of [`PAGE_BYTES`] and [`PAGE_ITEMS`] behind a cursor of the same store; `None`: the first one. Each
    /// item is in exactly one page.
    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>>;
}

/// The store that is copied from.
pub trait CopySource: StoreContents {
    /// Where the store was moved to, if it was, as [`Destination`] shows it.
    fn moved_to(&self) -> Option<String>;

    /// Marks the store as moved, if nothing has changed in it since it was opened. It is idempotent.
    fn mark_moved(&mut self, to: &Destination) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Where a store was moved to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The store's id.
    pub store_id: u128,
    /// Where it is, in words.
    pub place: String,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (store {:032x})", self.place, self.store_id)
    }
}

/// The state of a copy, as its target remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyState {
    /// The id of the source.
    pub source_id: u128,
    /// The sequence of the source.
    pub source_sequence: u64,
    /// When the copy began, in seconds since 1970, by the clock of this machine: what is made of it is the same when the
    /// copy is continued.
    pub began_unix_s: u64,
    /// The source's cursor behind the last page that was written.
    pub cursor: Option<Bytes>,
    /// Whether all pages were written.
    pub is_complete: bool,
}

impl CopyState {
    /// The state of a new copy.
    #[must_use]
    pub fn new(source: &StoreIdentity) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            source_id: source.store_id,
            source_sequence: source.durable_sequence,
            began_unix_s: now.map_or(0, |now| now.as_secs()),
            cursor: None,
            is_complete: false,
        }
    }

    /// The state behind a page.
    #[must_use]
    pub fn after(&self, page: &ItemPage) -> Self {
        let is_complete = page.next_cursor.is_none();
        Self { cursor: page.next_cursor.clone(), is_complete, ..self.clone() }
    }
}

/// The store that is copied to. It cannot be opened until the copy is finished.
pub trait CopyTarget: StoreContents {
    /// How far the copy is.
    fn state(&self) -> CopyState;

    /// Writes items and the new state durably, all or nothing.
    fn write(
        &mut self,
        items: Vec<Item>,
        state: CopyState,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Lets processes open the store.
    fn finish(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Where the store is, in words.
    fn place(&self) -> String;
}

/// Number, size and digest of the items of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of items.
    pub count: u64,
    /// Size of their values in bytes, roughly.
    pub bytes: u64,
    /// The sum of the items' digests, so that their order does not matter.
    digest: [u64; 4],
}

impl Tally {
    fn add(&mut self, item: &Item) -> Result<(), StoreError> {
        self.count += 1;
        self.bytes += item.bytes() as u64;
        let digest = item.digest()?;
        for (sum, part) in self.digest.iter_mut().zip(digest.as_bytes().chunks_exact(8)) {
            let part = part.try_into().map_or(0, u64::from_le_bytes);
            *sum = sum.wrapping_add(part);
        }
        Ok(())
    }
}

/// What a store holds, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary([Tally; 5]);

impl Summary {
    /// The items of one kind.
    #[must_use]
    pub fn of(&self, kind: ItemKind) -> Tally {
        self.0[kind as usize]
    }

    /// Counts an item.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if the item cannot be encoded.
    pub fn add(&mut self, item: &Item) -> Result<(), StoreError> {
        self.0[item.kind() as usize].add(item)
    }

    /// Number of all items, and their size in bytes.
    #[must_use]
    pub fn total(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(count, bytes), it| (count + it.count, bytes + it.bytes))
    }
}

/// Changes an item on its way.
pub type Rewrite<'a> = dyn Fn(Item) -> Result<Item, StoreError> + Sync + 'a;
/// Gets the step, and the number and bytes of its items so far.
pub type Progress<'a> = dyn FnMut(CopyStep, u64, u64) + Send + 'a;

/// What a copy is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// Items are written.
    Copying,
    /// The source is read again.
    ReadingSource,
    /// The target is read.
    ReadingTarget,
}

/// Why a copy failed. The source can still be used, unless it was marked as moved already.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A store failed. The same call continues the copy.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source has changed since the copy began.
    #[error(
        "the source was used since the copy began: remove the unfinished copy at {place}, stop all nodes, and copy again"
    )]
    SourceChanged {
        /// Where the target is.
        place: String,
    },
    /// The target holds a copy of another store.
    #[error(
        "{place} holds an unfinished copy of another store: choose another place, or remove it"
    )]
    OtherSource {
        /// Where the target is.
        place: String,
    },
    /// The source was moved to another store before.
    #[error("the source was moved to {to}: copy from there")]
    Moved {
        /// Where it was moved to.
        to: String,
    },
    /// The target does not hold what the source does.
    #[error("the copy at {place} differs from its source in {kind}: remove it, and copy again")]
    Differs {
        /// Where the target is.
        place: String,
        /// What differs.
        kind: ItemKind,
    },
}

/// Copies all items, after `rewrite` has changed them; compares the stores, marks the source as moved, and finishes the
/// target. Continues an interrupted copy.
///
/// # Errors
/// [`CopyError`] says what to do.
pub async fn copy(
    source: &mut dyn CopySource,
    target: &mut dyn CopyTarget,
    rewrite: &Rewrite<'_>,
    progress: &mut Progress<'_>,
) -> Result<Summary, CopyError> {
    let (from, place) = (source.identity(), target.place());
    let to = Destination { store_id: target.identity().store_id, place: place.clone() };
    if let Some(moved) = source.moved_to().filter(|moved| *moved != to.to_string()) {
        return Err(CopyError::Moved { to: moved });
    }
    let state = target.state();
    if state.source_id != from.store_id {
        return Err(CopyError::OtherSource { place });
    }
    if state.source_sequence != from.durable_sequence {
        return Err(CopyError::SourceChanged { place });
    }
    copy_pages(source, target, rewrite, progress).await?;
    let expected = summarize(source, CopyStep::ReadingSource, rewrite, progress).await?;
    let found = summarize(target, CopyStep::ReadingTarget, &Ok, progress).await?;
    if let Some(kind) = ItemKind::ALL.into_iter().find(|kind| expected.of(*kind) != found.of(*kind))
    {
        return Err(CopyError::Differs { place, kind });
    }
    source.mark_moved(&to).await?;
    target.finish().await?;
    Ok(found)
}

async fn copy_pages(
    source: &mut dyn CopySource,
    target: &mut dyn CopyTarget,
    rewrite: &Rewrite<'_>,
    progress: &mut Progress<'_>,
) -> Result<(), StoreError> {
    let (mut count, mut bytes) = (0, 0);
    let mut state = target.state();
    while !state.is_complete {
        let page = source.page(state.cursor.clone()).await?;
        state = state.after(&page);
        let items = page.items.into_iter().map(rewrite).collect::<Result<Vec<_>, _>>()?;
        count += items.len() as u64;
        bytes += items.iter().map(|item| item.bytes() as u64).sum::<u64>();
        target.write(items, state.clone()).await?;
        progress(CopyStep::Copying, count, bytes);
    }
    Ok(())
}

async fn summarize<S: StoreContents + ?Sized>(
    store: &mut S,
    step: CopyStep,
    rewrite: &Rewrite<'_>,
    progress: &mut Progress<'_>,
) -> Result<Summary, StoreError> {
    let (mut summary, mut cursor) = (Summary::default(), None);
    loop {
        let page = store.page(cursor).await?;
        for item in page.items {
            summary.add(&rewrite(item)?)?;
        }
        let (count, bytes) = summary.total();
        progress(step, count, bytes);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(summary);
        }
    }
}
