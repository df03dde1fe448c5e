//! How the state of a pool is copied into the shards of another one (M1, K4, R23, R26).
//!
//! Both pools are in one store, and no node may use either while this runs. First, the claims of all old shards say that the
//! data was moved, which no epoch passes, and those of the new ones that data comes in. Then each head and record gets
//! the shard that its entity has in the new pool; nothing else of it changes. At the end, both pools are read again and
//! compared, type by type. Only then do the new shards get ordinary claims. The caller switches the types to the new pool
//! when it saves [`PoolCopyStage::Done`]; after that, what is left in the old shards is removed.
//!
//! Each stage can be repeated: a claim that is there is granted again, and an item that is there does not change. So a
//! copy that was interrupted anywhere continues from the stage that was saved last.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use ostraca_core::ids::{Entity, Epoch, ShardId, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, HeadFloor, Placement, Presence};
use ostraca_core::rows::Member;
use serde::{Deserialize, Serialize};

use crate::shard_move::{MovableShards, ShardMoveError};
use crate::transfer::{Item, ItemPage, Summary};
use crate::{StoreError, StoreIdentity};

/// Items of this many bytes are collected before they are written, since each page is divided among many shards.
const COLLECTED_BYTES: usize = 4 << 20;
/// Number of new shards that are written, and of shards that are claimed, at a time.
const AT_ONCE: usize = 64;
/// How often a page is read or written before the copy fails.
const TRIES: u32 = 4;
/// How often the items are copied before a difference ends the copy. A database that has crashed may lack the last items
/// of before.
const COPIES: u32 = 2;
/// The versions of the claims that a copy makes in the old and the new shards. A new shard that was claimed before leaves
/// by the first, and comes in by the second.
const VERSIONS: (u64, u64) = (1, 2);
/// How far the number of a claim is above the one before it: an owner that was paused claims again with the next number,
/// and its claim must not equal the new one.
const CLAIM_GAP: u64 = 1 << 32;

/// How far a copy is. It is saved with the pools, by whoever runs the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolCopyStage {
    /// Claims of both pools are replaced.
    Marking,
    /// Items are copied and compared.
    Copying {
        /// The number of old shards whose items were all written.
        shards: u32,
    },
    /// All items are there, and the new shards get ordinary claims.
    Finishing,
    /// The types are in the new pool; what is left in the old one is removed.
    Done,
}

/// What a copy does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCopyStep {
    /// The old pool is checked.
    Checking,
    /// The shards of both pools are given up by their owners.
    Releasing,
    /// Claims are replaced.
    Marking,
    /// Items are copied.
    Copying,
    /// The old pool is read again.
    ReadingOld,
    /// The new pool is read.
    ReadingNew,
    /// The new shards get ordinary claims.
    Finishing,
    /// What is left in the old shards is removed.
    Removing,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolCopyProgress {
    /// The step.
    pub step: PoolCopyStep,
    /// Number of shards that are done.
    pub shards: u32,
    /// Number of all shards of the step.
    pub all_shards: u32,
    /// Number of heads and records so far.
    pub items: u64,
    /// Their size in bytes, roughly.
    pub bytes: u64,
}

/// What a pool holds, by entity type.
pub type PoolSummary = BTreeMap<Arc<str>, Summary>;
/// The shard of an entity in the old pool and in the new one; `None` if its type is not known.
pub type Places<'a> = dyn Fn(&Entity) -> Option<(ShardId, ShardId)> + Send + Sync + 'a;
/// Saves a stage durably.
pub type SaveStage<'a> =
    dyn Fn(PoolCopyStage) -> BoxFuture<'a, Result<(), PoolCopyError>> + Send + Sync + 'a;
/// Is told how far the copy is.
pub type OnPoolCopy<'a> = dyn FnMut(PoolCopyProgress) + Send + 'a;

/// Why a pool was not copied. Until it is done, the same call continues it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolCopyError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The shard of an entity is not known.
    #[error(
        "the old pool has state of the type `{0}`, which is not bound to it: see `ostraca repair`"
    )]
    UnknownType(Arc<str>),
    /// An entity is not where its id belongs.
    #[error("{entity} is in shard {shard}, but does not belong there: see `ostraca repair`")]
    Misplaced {
        /// The entity.
        entity: Entity,
        /// Where it is.
        shard: ShardId,
    },
    /// The new pool is in use.
    #[error(
        "the new pool has state, for example of {0}: create another pool with `ostraca pool create`"
    )]
    TargetHasState(Entity),
    /// A shard is claimed by something else.
    #[error(
        "shard {0} was claimed meanwhile, by a node with an old view of the cluster: repeat the command"
    )]
    Claimed(ShardId),
    /// Live nodes own shards of the pools, which they should have given up: who, and how many.
    #[error(
        "{owners} of the pools' shards: they were not given up within {limit_ms} ms (`--release-timeout`)"
    )]
    Owned {
        /// The owners, in words.
        owners: String,
        /// How long the copy has waited.
        limit_ms: u64,
    },
    /// Another process continues the copy, or has changed the pools.
    #[error(
        "another process has changed the pools meanwhile, perhaps the same command: wait until it has ended, then \
         repeat the command"
    )]
    Overtaken,
    /// A shard's data is not in this store, or not complete.
    #[error("shard {0} is being moved, or was moved before: its state is elsewhere")]
    Elsewhere(ShardId),
    /// The new pool does not hold what the old one does.
    #[error(
        "the copied state of the type `{0}` differs from its source: nothing was switched; report this with the \
         logs, and repeat the command"
    )]
    Differs(Arc<str>),
}

/// A copy of one pool into another.
pub struct PoolCopy<'a> {
    /// The store with the state of both.
    pub store: &'a dyn MovableShards,
    /// The shards of the old pool.
    pub from: Vec<ShardPath>,
    /// The shards of the new pool.
    pub to: Vec<ShardPath>,
    /// Where entities belong.
    pub places: &'a Places<'a>,
    /// A node of the cluster, in whose name shards are claimed that nobody has claimed yet. Their epoch is 0, so every
    /// owner passes it.
    pub claimant: Member,
    /// A random number, the same whenever this copy is continued.
    pub attempt: u64,
}

impl fmt::Debug for PoolCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from.len(), self.to.len());
        f.debug_struct("PoolCopy").field("from", &from).field("to", &to).finish_non_exhaustive()
    }
}

/// What is known of shards beside their items.
#[derive(Clone, Debug, Default)]
struct ShardFacts {
    floor: Option<HeadFloor>,
    last_sequence: u64,
}

impl ShardFacts {
    fn add(&mut self, floor: Option<HeadFloor>, last_sequence: u64) {
        self.last_sequence = self.last_sequence.max(last_sequence);
        if let Some(floor) = floor {
            self.floor.get_or_insert_default().merge(&floor);
        }
    }
}

/// What the claims of shards say about their data.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// Whether some are those of this copy.
    is_own: bool,
    /// A shard whose data is not here for another reason.
    elsewhere: Option<ShardId>,
}

impl Marks {
    fn complete(self) -> Result<(), PoolCopyError> {
        self.elsewhere.map_or(Ok(()), |shard| Err(PoolCopyError::Elsewhere(shard)))
    }
}

/// Counts shards and items of a step.
struct Meter<'a, 'b> {
    now: PoolCopyProgress,
    on_progress: &'a mut OnPoolCopy<'b>,
}

impl<'a, 'b> Meter<'a, 'b> {
    fn new(step: PoolCopyStep, shards: usize, on_progress: &'a mut OnPoolCopy<'b>) -> Self {
        let all_shards = u32::try_from(shards).unwrap_or(u32::MAX);
        let now = PoolCopyProgress { step, shards: 0, all_shards, items: 0, bytes: 0 };
        Self { now, on_progress }
    }

    fn count(&mut self, item: &Item) {
        self.now.items += 1;
        self.now.bytes += item.bytes() as u64;
    }

    fn shard(&mut self) {
        self.now.shards += 1;
        self.show();
    }

    fn show(&mut self) {
        (self.on_progress)(self.now);
    }
}

impl PoolCopy<'_> {
    /// Checks that the pool can be copied, without changing anything: every entity is where it belongs, the new pool is
    /// empty, and no shard of either was moved, except by this copy. Returns what the old pool holds.
    ///
    /// # Errors
    /// [`PoolCopyError`] says what to do.
    pub async fn check(
        &self,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<PoolSummary, PoolCopyError> {
        for shard in &self.to {
            let mut cursor = None;
            loop {
                let page = self.page(shard, cursor).await?;
                if let Some((_, entity)) = page.items.iter().find_map(subject) {
                    return Err(PoolCopyError::TargetHasState(entity.clone()));
                }
                // The first page may have only the shard itself.
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
        }
        self.marks(&self.claims(&self.from).await?, &self.claims(&self.to).await?)?.complete()?;
        self.read_old(PoolCopyStep::Checking, on_progress).await
    }

    /// Gives the copy up, if none of its claims was made yet. Returns false if one was, or may have been; then it can
    /// only be continued. All claims get higher numbers, so those that another process would make for this copy are
    /// refused, provided that the caller has saved a stage before, and removes the copy afterwards.
    ///
    /// # Errors
    /// [`PoolCopyError`] if the store failed; the copy is then as before.
    pub async fn give_up(&self) -> Result<bool, PoolCopyError> {
        let (old, new) = (self.claims(&self.from).await?, self.claims(&self.to).await?);
        if self.marks(&old, &new)?.is_own {
            return Ok(false);
        }
        let all = old.into_iter().chain(new).filter(is_here);
        let raised = |claim: Claim| Claim { number: next_number(&claim), ..claim };
        match self.claim(all.map(raised).collect()).await {
            Err(PoolCopyError::Claimed(_)) => Ok(false),
            claimed => claimed.map(|()| true),
        }
    }

    /// What these claims of old and new shards say.
    fn marks(&self, old: &[Claim], new: &[Claim]) -> Result<Marks, PoolCopyError> {
        let mut marks = Marks::default();
        let old = old.iter().map(|claim| (claim, false));
        for (claim, is_new) in old.chain(new.iter().map(|claim| (claim, true))) {
            if claim.presence().map_err(damaged)? == Presence::Here {
                continue;
            }
            match *claim == self.gone(claim)? || (is_new && *claim == self.incoming(claim)?) {
                true => marks.is_own = true,
                false => _ = marks.elsewhere.get_or_insert(claim.shard.shard),
            }
        }
        Ok(marks)
    }

    /// Runs the copy from a stage on, until it is done. Returns what was copied; what an earlier run has finished is not
    /// read again.
    ///
    /// # Errors
    /// [`PoolCopyError`]; the same call continues the copy from the stage that was saved last.
    pub async fn run(
        &self,
        mut stage: PoolCopyStage,
        save: &SaveStage<'_>,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<PoolSummary, PoolCopyError> {
        let mut copied = PoolSummary::new();
        if stage == PoolCopyStage::Marking {
            let claims = (self.claims(&self.from).await?, self.claims(&self.to).await?);
            // It fails if another process has given the copy up before the claims were read. If one does so later, it
            // makes claims with higher numbers.
            save(stage).await?;
            self.mark(claims, on_progress).await?;
            stage = PoolCopyStage::Copying { shards: 0 };
            save(stage).await?;
        }
        if stage == PoolCopyStage::Finishing && !self.any_finished().await? {
            // The store may have lost what was compared, since nothing of it was in use yet.
            stage = PoolCopyStage::Copying { shards: 0 };
        }
        if let PoolCopyStage::Copying { shards } = stage {
            copied = self.copy(shards, save, on_progress).await?;
            stage = PoolCopyStage::Finishing;
            save(stage).await?;
        }
        if stage == PoolCopyStage::Finishing {
            self.finish(on_progress).await?;
            save(PoolCopyStage::Done).await?;
        }
        self.remove_old(on_progress).await?;
        Ok(copied)
    }

    /// Whether a new shard has an ordinary claim.
    async fn any_finished(&self) -> Result<bool, PoolCopyError> {
        Ok(self.claims(&self.to).await?.iter().any(is_here))
    }

    /// The data stays in its store, so the number of the copy takes the place of the other store's id. A copy of the
    /// whole store does not change it.
    fn placement(&self, version: u64) -> Placement {
        Placement { store_id: self.attempt.into(), version }
    }

    fn identity(&self) -> StoreIdentity {
        self.store.identity()
    }

    /// The current claims; a shard that nobody has claimed gets one that every owner passes.
    async fn claims(&self, shards: &[ShardPath]) -> Result<Vec<Claim>, PoolCopyError> {
        let mut claims = Vec::with_capacity(shards.len());
        for some in shards.chunks(1_000) {
            let found = self.store.current_claims(some.to_vec()).await?;
            let first = |shard: &ShardPath| Claim {
                cluster: self.identity().cluster,
                shard: shard.clone(),
                epoch: Epoch(0),
                owner: self.claimant.clone(),
                number: 0,
                extensions: Default::default(),
            };
            let found = some.iter().zip(found);
            claims.extend(found.map(|(shard, claim)| claim.unwrap_or_else(|| first(shard))));
        }
        Ok(claims)
    }

    /// Makes claims that do not change the owners.
    async fn claim(&self, claims: Vec<Claim>) -> Result<(), PoolCopyError> {
        for some in claims.chunks(AT_ONCE) {
            let outcomes = self.store.claim(some.to_vec()).await;
            for (claim, outcome) in some.iter().zip(outcomes) {
                match outcome {
                    ClaimOutcome::Granted => {}
                    ClaimOutcome::Refused { .. } => {
                        return Err(PoolCopyError::Claimed(claim.shard.shard));
                    }
                    ClaimOutcome::OtherCluster { store_cluster } => {
                        let text = format!("the store belongs to cluster {store_cluster}");
                        return Err(StoreError::Stopped(text).into());
                    }
                    ClaimOutcome::Failed(why) => return Err(StoreError::Unavailable(why).into()),
                }
            }
        }
        Ok(())
    }

    /// Lets all claims of the old shards say that they were moved, and those of the new ones that data comes in.
    async fn mark(
        &self,
        (old, new): (Vec<Claim>, Vec<Claim>),
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<(), PoolCopyError> {
        let all = self.from.len() + self.to.len();
        Meter::new(PoolCopyStep::Marking, all, on_progress).show();
        self.marks(&old, &new)?.complete()?;
        let here = |claims: &[Claim]| {
            let here = claims.iter().filter(|claim| is_here(claim));
            here.map(|claim| self.gone(claim)).collect::<Result<Vec<_>, _>>()
        };
        let (moved, leaving) = (here(&old)?, here(&new)?);
        self.claim(moved).await?;
        self.claim(leaving).await?;
        let incoming: Result<Vec<_>, _> = new.iter().map(|claim| self.incoming(claim)).collect();
        self.claim(incoming?).await
    }

    /// The claim that says that a shard's data was moved.
    fn gone(&self, claim: &Claim) -> Result<Claim, PoolCopyError> {
        claim.moved_to(self.placement(VERSIONS.0)).map_err(damaged)
    }

    /// The claim under which data comes into the shard of another one.
    fn incoming(&self, claim: &Claim) -> Result<Claim, PoolCopyError> {
        claim.incoming_from(self.placement(VERSIONS.1), self.attempt).map_err(damaged)
    }

    /// Copies all items from this old shard on, and compares the pools.
    async fn copy(
        &self,
        mut shards: u32,
        save: &SaveStage<'_>,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<PoolSummary, PoolCopyError> {
        let mut targets = BTreeMap::new();
        for claim in self.claims(&self.to).await? {
            match claim == self.incoming(&claim)? {
                true => targets.insert(claim.shard.shard, claim),
                false => return Err(PoolCopyError::Claimed(claim.shard.shard)),
            };
        }
        let mut differs = None;
        for _ in 0..COPIES {
            self.copy_shards(shards, &targets, save, on_progress).await?;
            let expected = self.read_old(PoolCopyStep::ReadingOld, on_progress).await?;
            let found = self.read_new(on_progress).await?;
            let types = || expected.keys().chain(found.keys());
            differs = types().find(|it| expected.get(*it) != found.get(*it)).cloned();
            if differs.is_none() {
                return Ok(found);
            }
            // What is there does not change, so this adds what is missing.
            shards = 0;
        }
        save(PoolCopyStage::Copying { shards: 0 }).await?;
        Err(PoolCopyError::Differs(differs.unwrap_or_default()))
    }

    async fn copy_shards(
        &self,
        first: u32,
        targets: &BTreeMap<ShardId, Claim>,
        save: &SaveStage<'_>,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<(), PoolCopyError> {
        let mut meter = Meter::new(PoolCopyStep::Copying, self.from.len(), on_progress);
        let mut saved = first;
        let mut collected: BTreeMap<ShardId, Vec<Item>> = BTreeMap::new();
        let mut bytes = 0;
        for (number, shard) in (0u32..).zip(&self.from) {
            if number < first {
                meter.shard();
                continue;
            }
            let mut cursor = None;
            loop {
                let page = self.page(shard, cursor).await?;
                for item in page.items {
                    let Some(item) = self.moved(item)? else { continue };
                    bytes += item.bytes();
                    meter.count(&item);
                    if let Some((to, _)) = subject(&item) {
                        collected.entry(to.shard).or_default().push(item);
                    }
                }
                if bytes >= COLLECTED_BYTES {
                    self.write(targets, &mut collected).await?;
                    bytes = 0;
                    if number > saved {
                        save(PoolCopyStage::Copying { shards: number }).await?;
                        saved = number;
                    }
                }
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
                meter.show();
            }
            meter.shard();
        }
        self.write(targets, &mut collected).await
    }

    /// Writes what was collected.
    async fn write(
        &self,
        targets: &BTreeMap<ShardId, Claim>,
        collected: &mut BTreeMap<ShardId, Vec<Item>>,
    ) -> Result<(), PoolCopyError> {
        let all = std::mem::take(collected).into_iter().map(|(shard, items)| async move {
            let Some(incoming) = targets.get(&shard) else {
                return Err(PoolCopyError::Elsewhere(shard));
            };
            for _ in 1..TRIES {
                match self.store.write_incoming(incoming.clone(), items.clone()).await {
                    Err(ShardMoveError::Store(error)) if error.is_retryable() => {}
                    result => return result.map_err(|error| of_shard(error, shard)),
                }
            }
            let last = self.store.write_incoming(incoming.clone(), items).await;
            last.map_err(|error| of_shard(error, shard))
        });
        stream::iter(all).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
    }

    /// Gives the new shards ordinary claims. Those that were made before are not equal to any of them, so a node that was
    /// paused commits nothing.
    async fn finish(&self, on_progress: &mut OnPoolCopy<'_>) -> Result<(), PoolCopyError> {
        let mut meter = Meter::new(PoolCopyStep::Finishing, self.to.len(), on_progress);
        let mut facts = ShardFacts::default();
        for shard in &self.from {
            if let Some((floor, last)) = self.facts(shard).await? {
                facts.add(floor, last);
            }
        }
        for incoming in self.claims(&self.to).await? {
            let shard = &incoming.shard;
            if incoming.presence().map_err(damaged)? != Presence::Here {
                if incoming != self.incoming(&incoming)? {
                    return Err(PoolCopyError::Claimed(shard.shard));
                }
                let mut facts = facts.clone();
                if let Some((floor, last)) = self.facts(shard).await? {
                    facts.add(floor, last);
                }
                let number = next_number(&incoming);
                let claim = Claim { number, extensions: Default::default(), ..incoming.clone() };
                let ShardFacts { floor, last_sequence } = facts;
                let finishing =
                    self.store.finish_incoming(incoming.clone(), claim, floor, last_sequence);
                finishing.await.map_err(|error| of_shard(error, shard.shard))?;
            }
            meter.shard();
        }
        Ok(())
    }

    /// The floor of a shard, and the highest sequence that it may have used.
    async fn facts(
        &self,
        shard: &ShardPath,
    ) -> Result<Option<(Option<HeadFloor>, u64)>, PoolCopyError> {
        let first = self.page(shard, None).await?.items.into_iter().next();
        Ok(match first {
            Some(Item::Shard { floor, last_sequence, .. }) => Some((floor, last_sequence)),
            _ => None,
        })
    }

    /// Removes what is left in the old shards. Their claims stay.
    async fn remove_old(&self, on_progress: &mut OnPoolCopy<'_>) -> Result<(), PoolCopyError> {
        let mut meter = Meter::new(PoolCopyStep::Removing, self.from.len(), on_progress);
        for claim in self.claims(&self.from).await? {
            let shard = claim.shard.shard;
            let removing = || self.store.remove_absent(claim.clone());
            while removing().await.map_err(|error| of_shard(error, shard))? {
                meter.show();
            }
            meter.shard();
        }
        Ok(())
    }

    /// Reads the old pool as the new one must be.
    async fn read_old(
        &self,
        step: PoolCopyStep,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<PoolSummary, PoolCopyError> {
        self.read(&self.from, step, &|item| self.moved(item), on_progress).await
    }

    async fn read_new(
        &self,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<PoolSummary, PoolCopyError> {
        let same = |item| Ok(Some(item));
        self.read(&self.to, PoolCopyStep::ReadingNew, &same, on_progress).await
    }

    async fn read(
        &self,
        shards: &[ShardPath],
        step: PoolCopyStep,
        change: &(dyn Fn(Item) -> Result<Option<Item>, PoolCopyError> + Sync),
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<PoolSummary, PoolCopyError> {
        let mut meter = Meter::new(step, shards.len(), on_progress);
        let mut found = PoolSummary::new();
        for shard in shards {
            let mut cursor = None;
            loop {
                let page = self.page(shard, cursor).await?;
                for item in page.items {
                    let Some(item) = change(item)? else { continue };
                    let Some((_, entity)) = subject(&item) else { continue };
                    found.entry(entity.entity_type.clone()).or_default().add(&item)?;
                    meter.count(&item);
                }
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
                meter.show();
            }
            meter.shard();
        }
        Ok(found)
    }

    async fn page(&self, shard: &ShardPath, cursor: Option<Bytes>) -> Result<ItemPage, StoreError> {
        for _ in 1..TRIES {
            match self.store.shard_page(shard.clone(), cursor.clone()).await {
                Err(error) if error.is_retryable() => {}
                result => return result,
            }
        }
        self.store.shard_page(shard.clone(), cursor).await
    }

    /// An item of the old pool as it is in the new one; `None` for what belongs to no entity.
    fn moved(&self, mut item: Item) -> Result<Option<Item>, PoolCopyError> {
        let Some((shard, entity)) = subject(&item) else { return Ok(None) };
        let unknown = || PoolCopyError::UnknownType(entity.entity_type.clone());
        let (old, new) = (self.places)(entity).ok_or_else(unknown)?;
        if old != shard.shard {
            let (entity, shard) = (entity.clone(), shard.shard);
            return Err(PoolCopyError::Misplaced { entity, shard });
        }
        let is_new = |path: &&ShardPath| path.shard == new;
        // The shards of a pool are numbered without gaps.
        let first = self.to.first().map_or(0, |path| path.shard.0);
        let at = usize::try_from(new.0.wrapping_sub(first)).unwrap_or(usize::MAX);
        let path = self.to.get(at).filter(is_new).ok_or(PoolCopyError::Elsewhere(new))?.clone();
        if let Item::Head { shard, .. } | Item::Record { shard, .. } = &mut item {
            *shard = path;
        }
        Ok(Some(item))
    }
}

/// The shard and the entity of a head or a record.
fn subject(item: &Item) -> Option<(&ShardPath, &Entity)> {
    match item {
        Item::Head { shard, entity, .. } | Item::Record { shard, entity, .. } => {
            Some((shard, entity))
        }
        Item::Shard { .. } | Item::Component(_) | Item::Row { .. } => None,
    }
}

fn is_here(claim: &Claim) -> bool {
    claim.presence() == Ok(Presence::Here)
}

fn next_number(claim: &Claim) -> u64 {
    claim.number.saturating_add(CLAIM_GAP)
}

fn damaged(error: ostraca_core::codec::CodecError) -> PoolCopyError {
    StoreError::Corrupt(format!("the claim of a shard: {error}")).into()
}

fn of_shard(error: ShardMoveError, shard: ShardId) -> PoolCopyError {
    match error {
        ShardMoveError::Store(error) => error.into(),
        ShardMoveError::Superseded(_) | ShardMoveError::Differs(_) => PoolCopyError::Claimed(shard),
    }
}
