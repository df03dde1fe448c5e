//! How a shard's data moves from one store to another while both are in use (R26).
//!
//! Three steps, each of which can be repeated. The target gets a claim that says that data is coming in; the source gets
//! one that says where the data went, which no epoch passes, so nothing in the source changes any more; then everything
//! is copied, compared, and the target's claim becomes an ordinary one. Whoever moves a shard must own it, since these
//! claims have its epoch: one that was replaced meanwhile is refused, and its successor begins the copy again.

use bytes::Bytes;
use ostraca_core::codec::CodecError;
use ostraca_core::ids::ShardPath;
use ostraca_core::records::{Claim, ClaimOutcome, HeadFloor, Placement, Presence};

use crate::transfer::{Item, ItemKind, ItemPage, Summary};
use crate::{EntityStore, StoreError, StoreFuture};

/// How often a page is read or written before the move fails. A removal is never repeated within a move: if the first
/// one came late, it would remove what was copied since.
const TRIES: u32 = 4;

/// A store from which and to which single shards can be moved.
///
/// # Contract
///
/// The calls that write must have no effect unless the shard's current claim equals the given one, however late they
/// arrive, and must be durable no later than the end of [`finish_incoming`](Self::finish_incoming).
pub trait MovableShards: EntityStore {
    /// Reads a page of a shard's contents behind a cursor; `None`: the first one, which begins with the shard itself if
    /// it was ever claimed.
    fn shard_page(
        &self,
        shard: ShardPath,
        cursor: Option<Bytes>,
    ) -> StoreFuture<Result<ItemPage, StoreError>>;

    /// Writes heads and records of the shard that comes in under the claim. Those that are there already must not
    /// change.
    fn write_incoming(
        &self,
        incoming: Claim,
        items: Vec<Item>,
    ) -> StoreFuture<Result<(), ShardMoveError>>;

    /// Removes a part of the data of a shard that is not here, according to the claim. Returns whether something is
    /// left.
    fn remove_absent(&self, claim: Claim) -> StoreFuture<Result<bool, ShardMoveError>>;

    /// Replaces the claim under which a shard came in by an ordinary one, and sets the shard's floor. Later commits get
    /// sequences above `last_sequence`.
    fn finish_incoming(
        &self,
        incoming: Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> StoreFuture<Result<(), ShardMoveError>>;
}

/// Why a shard was not moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardMoveError {
    /// Another claim is current: another node owns the shard, or the map of the stores is newer.
    #[error("another claim of the shard is current")]
    Superseded(Option<Box<Claim>>),
    /// A store failed: the move can be tried again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The copy differs from its source.
    #[error("the copied {0} differ from their source")]
    Differs(ItemKind),
}

impl From<CodecError> for ShardMoveError {
    fn from(error: CodecError) -> Self {
        Self::Store(StoreError::Corrupt(format!("the claim of a shard: {error}")))
    }
}

/// A move of one shard by its owner.
pub struct ShardMove<'a> {
    /// The store that has the data.
    pub from: &'a dyn MovableShards,
    /// The store that gets it.
    pub to: &'a dyn MovableShards,
    /// The version of the map that orders the move.
    pub version: u64,
    /// A random number.
    pub attempt: u64,
}

impl std::fmt::Debug for ShardMove<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to) = (self.from.identity().store_id, self.to.identity().store_id);
        f.debug_struct("ShardMove").field("from", &from).field("to", &to).finish_non_exhaustive()
    }
}

impl ShardMove<'_> {
    /// Moves the shard of the claim, unless it was moved before. Then the claim can be made in the target. `progress`
    /// gets the number of items that were copied.
    ///
    /// # Errors
    /// [`ShardMoveError`]; the move can be continued by another call, of whoever owns the shard then.
    pub async fn run(
        &self,
        claim: &Claim,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), ShardMoveError> {
        let placement = |store: &dyn MovableShards| Placement {
            store_id: store.identity().store_id,
            version: self.version,
        };
        let incoming = claim.incoming_from(placement(self.from), self.attempt)?;
        if let Err(current) = granted(self.to, incoming.clone()).await? {
            return match current.presence()? {
                Presence::Here => Ok(()),
                _ => Err(ShardMoveError::Superseded(Some(current))),
            };
        }
        let gone = Presence::MovedTo(placement(self.to));
        if let Err(current) = granted(self.from, claim.moved_to(placement(self.to))?).await?
            && current.presence()? != gone
        {
            return Err(ShardMoveError::Superseded(Some(current)));
        }
        while self.to.remove_absent(incoming.clone()).await? {}
        let (expected, floor, last_sequence) = self.copy(&incoming, progress).await?;
        let found = self.summary(&incoming.shard).await?;
        for kind in [ItemKind::Heads, ItemKind::Records] {
            if expected.of(kind) != found.of(kind) {
                return Err(ShardMoveError::Differs(kind));
            }
        }
        self.to.finish_incoming(incoming, claim.clone(), floor, last_sequence).await
    }

    /// Copies heads and records; returns what they are, and what else there is to know of the shard.
    async fn copy(
        &self,
        incoming: &Claim,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(Summary, Option<HeadFloor>, u64), ShardMoveError> {
        let (mut summary, mut of_shard, mut cursor) = (Summary::default(), (None, 0), None);
        loop {
            let page = read(self.from, &incoming.shard, cursor).await?;
            let mut items = Vec::with_capacity(page.items.len());
            for item in page.items {
                summary.add(&item)?;
                match item {
                    Item::Shard { floor, last_sequence, .. } => of_shard = (floor, last_sequence),
                    item => items.push(item),
                }
            }
            if !items.is_empty() {
                self.write(incoming, items).await?;
            }
            progress(summary.total().0);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok((summary, of_shard.0, of_shard.1));
            }
        }
    }

    /// Writes a page. What an earlier try has written does not change, so it does no harm if that comes late.
    async fn write(&self, incoming: &Claim, items: Vec<Item>) -> Result<(), ShardMoveError> {
        for _ in 1..TRIES {
            match self.to.write_incoming(incoming.clone(), items.clone()).await {
                Err(ShardMoveError::Store(error)) if error.is_retryable() => {}
                result => return result,
            }
        }
        self.to.write_incoming(incoming.clone(), items).await
    }

    /// What the target has of the shard.
    async fn summary(&self, shard: &ShardPath) -> Result<Summary, ShardMoveError> {
        let (mut summary, mut cursor) = (Summary::default(), None);
        loop {
            let page = read(self.to, shard, cursor).await?;
            for item in &page.items {
                summary.add(item)?;
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(summary);
            }
        }
    }
}

/// Reads a page.
async fn read(
    store: &dyn MovableShards,
    shard: &ShardPath,
    cursor: Option<Bytes>,
) -> Result<ItemPage, StoreError> {
    for _ in 1..TRIES {
        match store.shard_page(shard.clone(), cursor.clone()).await {
            Err(error) if error.is_retryable() => {}
            result => return result,
        }
    }
    store.shard_page(shard.clone(), cursor).await
}

/// Makes a claim; returns the current one if it was refused.
async fn granted(
    store: &dyn MovableShards,
    claim: Claim,
) -> Result<Result<(), Box<Claim>>, ShardMoveError> {
    let outcome = store.claim(vec![claim]).await.pop();
    match outcome {
        Some(ClaimOutcome::Granted) => Ok(Ok(())),
        Some(ClaimOutcome::Refused { current }) => Ok(Err(current)),
        Some(ClaimOutcome::OtherCluster { store_cluster }) => {
            let text = format!("the store belongs to cluster {store_cluster}");
            Err(StoreError::Stopped(text).into())
        }
        Some(ClaimOutcome::Failed(why)) => Err(StoreError::Unavailable(why).into()),
        None => Err(StoreError::Corrupt("a claim without an outcome".into()).into()),
    }
}
