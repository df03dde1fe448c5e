//! A store whose calls take a while, and fail now and then: before they take effect, or after it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::ready;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, HeadFloor, LoadedEntity};
use ostraca_store::transfer::{Item, ItemPage};
use ostraca_store::{
    EntityStore, MemoryStore, MovableShards, Page, Scan, ShardMoveError, StoreError, StoreFuture,
    StoreIdentity,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The time of a seed, in milliseconds: it passes when every task waits.
#[derive(Clone, Default)]
pub(super) struct Time(Arc<Mutex<Sleepers>>);

#[derive(Default)]
struct Sleepers {
    now: u64,
    count: u64,
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
}

impl Time {
    async fn sleep(&self, ms: u64) {
        let (to, woken) = oneshot::channel();
        {
            let mut sleepers = self.0.lock().expect("time");
            sleepers.count += 1;
            let at = (sleepers.now + ms, sleepers.count);
            sleepers.waiting.insert(at, to);
        }
        // It is dropped only at the end.
        let _ = woken.await;
    }

    /// Lets the time pass.
    pub(super) async fn pass(self) {
        loop {
            // Everything that was woken goes on until it waits again.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            let mut sleepers = self.0.lock().expect("time");
            if let Some(((at, _), to)) = sleepers.waiting.pop_first() {
                sleepers.now = at;
                // The sleeper may have been dropped.
                let _ = to.send(());
            }
        }
    }
}

/// The random numbers of a seed, and its time.
#[derive(Clone)]
pub(super) struct Dice {
    random: Arc<Mutex<StdRng>>,
    pub(super) time: Time,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))), time: Time::default() }
    }

    pub(super) fn below(&self, end: u64) -> u64 {
        self.random.lock().expect("dice").random_range(0..end.max(1))
    }

    /// Whether something of this probability, in percent, happens.
    pub(super) fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Waits a few milliseconds of the seed's time, seldom a second, times a factor.
    pub(super) async fn pause(&self, factor: u64) {
        let ms = match self.chance(1) {
            true => 100 + self.below(1_500),
            false => 1 + self.below(10),
        };
        self.time.sleep(ms * factor).await;
    }
}

pub(super) struct Shaky {
    pub(super) store: MemoryStore,
    pub(super) dice: Dice,
    /// Whether every call fails before it takes effect.
    pub(super) is_down: bool,
}

impl Shaky {
    /// Runs a call after a pause; returns `None` if it failed, before or after its effect.
    fn shaken<T: Send + 'static>(
        &self,
        call: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<Option<T>> {
        if self.is_down {
            return ready(None).boxed();
        }
        let (store, dice) = (self.store.clone(), self.dice.clone());
        async move {
            dice.pause(1).await;
            if dice.chance(2) {
                return None;
            }
            let result = call(&store).await;
            dice.pause(1).await;
            (!dice.chance(2)).then_some(result)
        }
        .boxed()
    }

    fn fallible<T, E>(
        &self,
        call: impl FnOnce(&MemoryStore) -> StoreFuture<Result<T, E>> + Send + 'static,
    ) -> StoreFuture<Result<T, E>>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let fault = || Err(StoreError::Unavailable("a fault".into()).into());
        self.shaken(call).map(move |result| result.unwrap_or_else(fault)).boxed()
    }
}

impl EntityStore for Shaky {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(&self.store)
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let count = claims.len();
        let failed = move || vec![ClaimOutcome::Failed("a fault".into()); count];
        let claiming = self.shaken(move |store| store.claim(claims));
        claiming.map(move |outcomes| outcomes.unwrap_or_else(failed)).boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.fallible(move |store| store.current_claims(shards))
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        let count = turns.len();
        let unknown = move || vec![CommitOutcome::Unknown("a fault".into()); count];
        let committing = self.shaken(move |store| store.commit(turns));
        committing.map(move |outcomes| outcomes.unwrap_or_else(unknown)).boxed()
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        let count = entities.len();
        let failed = move || vec![Err(StoreError::Unavailable("a fault".into())); count];
        let loading = self.shaken(move |store| store.load(entities));
        loading.map(move |loaded| loaded.unwrap_or_else(failed)).boxed()
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.fallible(move |store| store.scan(scan))
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.fallible(move |store| store.put_blob(bytes))
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.fallible(move |store| store.get_blob(digest))
    }
}

impl MovableShards for Shaky {
    fn shard_page(
        &self,
        shard: ShardPath,
        cursor: Option<Bytes>,
    ) -> StoreFuture<Result<ItemPage, StoreError>> {
        self.fallible(move |store| store.shard_page(shard, cursor))
    }

    fn write_incoming(
        &self,
        incoming: Claim,
        items: Vec<Item>,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        self.fallible(move |store| store.write_incoming(incoming, items))
    }

    fn remove_absent(&self, claim: Claim) -> StoreFuture<Result<bool, ShardMoveError>> {
        self.fallible(move |store| store.remove_absent(claim))
    }

    fn finish_incoming(
        &self,
        incoming: Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        self.fallible(move |store| store.finish_incoming(incoming, claim, floor, last_sequence))
    }
}
