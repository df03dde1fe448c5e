//! Divides the state of entities among several stores, by ranges of shards, and moves ranges (R26).
//!
//! A [`ShardMap`] says which store has which shards. Each call goes to the store of its shard. If the map says that a
//! shard moves, its data is moved when its next owner claims it: that is inside a hand-off, when nobody writes to it.
//! Until then, the shard is *misplaced*, and [`RangedStore::misplaced`] tells the node, so that it is handed off.
//!
//! A map may be old. Then the store that it names has a claim that says where the shard went: the call fails, and the
//! map must be read again ([`RangedStore::map_needed`]).
//!
//! Components, and the identity that others see, are those of the first store.

mod claims;
mod map;
mod progress;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{join_all, select_ok};
use ostraca_core::ids::{Entity, Epoch, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, LoadedEntity, Presence,
};
use ostraca_store::{
    EntityStore, MovableShards, Page, Scan, StoreError, StoreFuture, StoreIdentity,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::claims::RunningMove;

pub use map::{Place, RangeMove, ShardMap};
pub use progress::MoveProgress;

/// Several stores that together have the state of a pool's entities.
#[derive(Clone)]
pub struct RangedStore(Arc<Shared>);

struct Shared {
    /// The first store, which has the components.
    first: Arc<dyn MovableShards>,
    stores: BTreeMap<u128, Arc<dyn MovableShards>>,
    state: Mutex<State>,
    map_needed: Notify,
    runtime: Handle,
    /// How long a claim waits for a move. Then it fails, and its owner claims again.
    claim_wait: Duration,
}

struct State {
    map: ShardMap,
    /// Where this process has claimed shards, and in which epochs.
    claimed: HashMap<ShardPath, (u128, Epoch)>,
    moves: HashMap<ShardPath, RunningMove>,
}

impl std::fmt::Debug for RangedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangedStore").field("map", &self.map()).finish_non_exhaustive()
    }
}

impl RangedStore {
    /// How long a claim waits for the move of its shard before it fails, and its owner claims again.
    pub const CLAIM_WAIT: Duration = Duration::from_secs(1);

    /// Combines stores. Must be called within a tokio runtime, which then runs the moves. `claim_wait` is usually
    /// [`RangedStore::CLAIM_WAIT`].
    #[must_use]
    pub fn new(
        first: Arc<dyn MovableShards>,
        others: Vec<Arc<dyn MovableShards>>,
        map: ShardMap,
        claim_wait: Duration,
    ) -> Self {
        let all = others.into_iter().chain([first.clone()]);
        let stores = all.map(|store| (store.identity().store_id, store)).collect();
        Self(Arc::new(Shared {
            first,
            stores,
            state: Mutex::new(State { map, claimed: HashMap::new(), moves: HashMap::new() }),
            map_needed: Notify::new(),
            runtime: Handle::current(),
            claim_wait,
        }))
    }

    /// The map that is used now.
    #[must_use]
    pub fn map(&self) -> ShardMap {
        self.0.lock().map.clone()
    }

    /// Uses a map from now on, unless it is older than the one that is used.
    pub fn set_map(&self, map: ShardMap) {
        let mut state = self.0.lock();
        if map.version >= state.map.version {
            state.map = map;
        }
    }

    /// The shards that are to be moved and that this process has claimed where they were before, with their epochs. Some
    /// of them may have been given up since.
    #[must_use]
    pub fn misplaced(&self) -> Vec<(ShardPath, Epoch)> {
        let state = self.0.lock();
        let is_misplaced = |shard: &ShardPath, store: u128| {
            let place = state.map.place(shard.shard);
            place.is_some_and(|place| place.store == store && place.moves_to.is_some())
        };
        let claimed = state.claimed.iter();
        let misplaced = claimed.filter(|(shard, (store, _))| is_misplaced(shard, *store));
        let mut misplaced: Vec<_> =
            misplaced.map(|(shard, (_, epoch))| (shard.clone(), *epoch)).collect();
        misplaced.sort_unstable();
        misplaced
    }

    /// Whether a store has this id.
    #[must_use]
    pub fn knows(&self, id: u128) -> bool {
        self.0.stores.contains_key(&id)
    }

    /// The ids of the stores.
    pub fn ids(&self) -> impl Iterator<Item = u128> + '_ {
        self.0.stores.keys().copied()
    }

    /// Reads the claims of shards from all stores; the first answer counts, wherever the shards are.
    #[must_use]
    pub fn probe(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        let all = self.0.stores.values().map(|store| store.current_claims(shards.clone()));
        select_ok(all.collect::<Vec<_>>()).map(|answer| answer.map(|(claims, _)| claims)).boxed()
    }

    /// Waits until a store has shown that the map is old. Cancel safe.
    pub async fn map_needed(&self) {
        self.0.map_needed.notified().await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, id: u128) -> Result<&Arc<dyn MovableShards>, StoreError> {
        self.stores.get(&id).ok_or_else(|| {
            let text = format!("this node is not configured to reach store {id:032x}");
            StoreError::Unavailable(text)
        })
    }

    /// Where a shard is, and the version of the map that says so.
    fn place(&self, shard: &ShardPath) -> Result<(Place, u64), StoreError> {
        let state = self.lock();
        let place = state.map.place(shard.shard).ok_or_else(|| {
            let text = format!("no store is known to have the state of shard {shard}");
            StoreError::Unavailable(text)
        })?;
        Ok((place, state.map.version))
    }

    /// The id of the store in which this process has claimed a shard, if the map agrees, otherwise of the one that has it
    /// according to the map.
    fn likely_store(&self, shard: &ShardPath) -> Result<u128, StoreError> {
        let (place, _) = self.place(shard)?;
        let claimed = self.lock().claimed.get(shard).map(|(store, _)| *store);
        let id = claimed.filter(|store| place.names(*store)).unwrap_or(place.store);
        self.store(id).map(|_| id)
    }

    /// The store from which a shard can be read without asking where it is: this process has claimed it there, and it
    /// does not move. Another process may have claimed it since; then its data is still there.
    fn settled_store(&self, shard: &ShardPath) -> Option<&Arc<dyn MovableShards>> {
        let (place, _) = self.place(shard).ok().filter(|(place, _)| place.moves_to.is_none())?;
        let claimed = self.lock().claimed.get(shard).map(|(store, _)| *store);
        self.store(claimed.filter(|store| *store == place.store)?).ok()
    }

    /// A claim was granted. The answer may come late, when a later claim has been granted elsewhere.
    fn note_claimed(&self, claim: &Claim, store: u128) {
        let mut state = self.lock();
        let known = state.claimed.entry(claim.shard.clone()).or_insert((store, claim.epoch));
        if known.1 <= claim.epoch {
            *known = (store, claim.epoch);
        }
    }

    /// The text of a failure because a shard's data is not where the map says. The map is read again.
    fn not_there(&self, shard: &ShardPath) -> String {
        self.map_needed.notify_one();
        format!("shard {shard} is not in the store that the map of stores names: it is read again")
    }

    /// The store from which a shard can be read that moves, or that this process has not claimed.
    async fn readable(&self, shard: &ShardPath) -> Result<&Arc<dyn MovableShards>, StoreError> {
        let (place, _) = self.place(shard)?;
        for id in place.moves_to.into_iter().chain([place.store]) {
            let store = self.store(id)?;
            match claims::presence(&**store, shard).await? {
                Some(Presence::Here) => return Ok(store),
                // Nobody has claimed it yet.
                None if id == place.store => return Ok(store),
                _ => {}
            }
        }
        Err(StoreError::Unavailable(self.not_there(shard)))
    }
}

/// Calls each store with its part of a list, at once, and puts the results in the order of the list.
fn divided<T, R: Clone + Send + 'static>(
    shared: &Shared,
    list: Vec<T>,
    shard: impl Fn(&T) -> &ShardPath,
    failed: impl Fn(StoreError) -> R,
    call: impl Fn(&dyn MovableShards, Vec<T>) -> StoreFuture<Vec<R>>,
    lacking: R,
) -> StoreFuture<Vec<R>> {
    let mut results: Vec<Option<R>> = vec![None; list.len()];
    let mut parts: BTreeMap<u128, (Vec<usize>, Vec<T>)> = BTreeMap::new();
    for (place, one) in list.into_iter().enumerate() {
        match shared.likely_store(shard(&one)) {
            Ok(store) => {
                let part = parts.entry(store).or_default();
                part.0.push(place);
                part.1.push(one);
            }
            Err(error) => results[place] = Some(failed(error)),
        }
    }
    let calls = parts.into_iter().filter_map(|(id, (places, part))| {
        let calling = call(&**shared.stores.get(&id)?, part);
        Some(calling.map(move |results| (places, results)))
    });
    let calls: Vec<_> = calls.collect();
    async move {
        for (places, found) in join_all(calls).await {
            for (place, result) in places.into_iter().zip(found) {
                results[place] = Some(result);
            }
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| lacking.clone())).collect()
    }
    .boxed()
}

impl EntityStore for RangedStore {
    fn identity(&self) -> StoreIdentity {
        self.0.first.identity()
    }

    fn open_nonces(&self) -> Vec<u64> {
        self.0.first.open_nonces()
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        // Each call is made at once, so the claims of a shard are judged in their order.
        join_all(claims.into_iter().map(|claim| claims::claim(&self.0, claim)).collect::<Vec<_>>())
            .boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        let lacking = || StoreError::Corrupt("a shard without an answer".into());
        divided(
            &self.0,
            shards,
            |shard| shard,
            Err,
            |store, part| {
                let count = part.len();
                let reading = store.current_claims(part);
                let all = move |read: Result<Vec<_>, _>| match read {
                    Ok(claims) => claims.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error); count],
                };
                reading.map(all).boxed()
            },
            Err(lacking()),
        )
        .map(|claims| claims.into_iter().collect())
        .boxed()
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        divided(
            &self.0,
            turns,
            |turn| &turn.claim.shard,
            |error| CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string())),
            |store, part| store.commit(part),
            CommitOutcome::Unknown("a turn without an outcome".into()),
        )
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        if entities.iter().all(|(shard, _)| self.0.settled_store(shard).is_some()) {
            let lacking = || StoreError::Corrupt("an entity without an answer".into());
            return divided(
                &self.0,
                entities,
                |(shard, _)| shard,
                Err,
                |store, part| store.load(part),
                Err(lacking()),
            );
        }
        let loads = entities.into_iter().map(|(shard, entity)| {
            let shared = self.0.clone();
            async move {
                let store = match shared.settled_store(&shard) {
                    Some(store) => store,
                    None => shared.readable(&shard).await?,
                };
                let lacking = || Err(StoreError::Corrupt("an entity without an answer".into()));
                store.load(vec![(shard, entity)]).await.pop().unwrap_or_else(lacking)
            }
        });
        join_all(loads.collect::<Vec<_>>()).boxed()
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        if let Some(store) = self.0.settled_store(&scan.shard) {
            return store.scan(scan);
        }
        let shared = self.0.clone();
        async move { shared.readable(&scan.shard).await?.scan(scan).await }.boxed()
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.0.first.put_blob(bytes)
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.0.first.get_blob(digest)
    }
}
