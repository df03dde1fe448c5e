//! Moves of shards between two stores that are in use: nothing is lost, and nobody writes to the store that was left
//! (R26).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::ready;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, HeadFloor, LoadedEntity, Placement,
    Presence,
};

use super::copied::{RICH, fill_shards};
use super::{Factory, claim, claim_of, done, load, shard, state, turn, version};
use crate::transfer::{Item, ItemKind, ItemPage};
use crate::{
    EntityStore, MovableShards, Page, Scan, ShardMove, ShardMoveError, StoreError, StoreFuture,
    StoreIdentity,
};

/// Checks that shards move between stores of the backend. `make` creates stores with different ids.
pub fn check_shard_moves<S: MovableShards>(factory: &Factory<S>) {
    a_moved_shard_is_the_same_and_goes_on(factory);
    the_source_refuses_every_epoch(factory);
    a_move_is_continued_after_each_of_its_calls(factory);
    an_attempt_that_was_replaced_writes_nothing(factory);
    a_shard_comes_back_as_it_was_last(factory);
    an_old_map_moves_nothing(factory);
    what_is_left_at_the_source_can_be_removed(factory);
    a_copy_that_differs_is_not_used(factory);
}

/// What one shard shows to those who read it.
#[derive(Debug, PartialEq)]
struct Shown {
    items: Vec<String>,
    rich: LoadedEntity,
    gone: Option<ostraca_core::records::Head>,
}

/// The heads and records of the shard.
fn items_of<S: MovableShards>(store: &S) -> Vec<Item> {
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let page = block_on(store.shard_page(shard(1), cursor)).unwrap();
        items.extend(page.items.into_iter().filter(|item| item.kind() != ItemKind::Shards));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return items;
        }
    }
}

fn shown<S: MovableShards>(store: &S) -> Shown {
    let items = items_of(store).iter().map(|item| format!("{item:?}")).collect();
    let (rich, gone) = (load(store, &shard(1), RICH), load(store, &shard(1), "gone").head);
    Shown { items, rich, gone }
}

/// Two stores, the first of them filled, and the claim of the shard's next owner.
fn filled<S: MovableShards>(factory: &Factory<S>) -> (S, S, Claim) {
    let (from, to) = (factory.make(), factory.make());
    assert_ne!(from.identity().store_id, to.identity().store_id);
    fill_shards(&from);
    (from, to, claim_of(shard(1), 2, 1))
}

fn run(
    from: &dyn MovableShards,
    to: &dyn MovableShards,
    claim: &Claim,
    (version, attempt): (u64, u64),
) -> Result<(), ShardMoveError> {
    block_on(ShardMove { from, to, version, attempt }.run(claim, &|_| ()))
}

fn current(store: &impl EntityStore) -> Option<Claim> {
    block_on(store.current_claims(vec![shard(1)])).unwrap().remove(0)
}

fn commit_one(store: &impl EntityStore, commit: Commit) -> CommitOutcome {
    super::commit(store, vec![commit]).remove(0)
}

fn a_moved_shard_is_the_same_and_goes_on<S: MovableShards>(factory: &Factory<S>) {
    let (from, to, next) = filled(factory);
    // The target numbers its own commits from the start.
    let other = claim_of(shard(9), 1, 1);
    assert_eq!(claim(&to, &other), ClaimOutcome::Granted);
    let before = shown(&from);
    assert!(before.items.len() > 10 && before.gone.is_some());
    assert_eq!(run(&from, &to, &next, (1, 1)), Ok(()));
    assert_eq!(shown(&to), before);
    assert_eq!(run(&from, &to, &next, (1, 2)), Ok(()), "it was moved already");
    assert_eq!(claim(&to, &next), ClaimOutcome::Granted);
    let next = Arc::new(next);
    done(&to, vec![turn(&next, RICH, 2, 7), turn(&next, "new", before_gone(&before), 8)]);
    let (was, is) = (before.rich.head.unwrap(), load(&to, &shard(1), RICH).head.unwrap());
    assert!(is.commit_sequence > was.commit_sequence, "sequences rise");
    if let Some(to) = factory.reopen(to) {
        assert_eq!(version(&to, &shard(1), RICH), 3);
    }
}

/// The version from which a new entity starts: that of the floor.
fn before_gone(shown: &Shown) -> u64 {
    shown.gone.as_ref().map_or(0, |head| head.version)
}

fn the_source_refuses_every_epoch<S: MovableShards>(factory: &Factory<S>) {
    let (from, to, next) = filled(factory);
    let former = Arc::new(claim_of(shard(1), 1, 1));
    assert_eq!(run(&from, &to, &next, (1, 1)), Ok(()));
    let moved = current(&from).unwrap();
    let placement = Placement { store_id: to.identity().store_id, version: 1 };
    assert_eq!(moved.presence(), Ok(Presence::MovedTo(placement)));
    for epoch in [1, 2, 3, 1 << 40] {
        let refused = ClaimOutcome::Refused { current: Box::new(moved.clone()) };
        assert_eq!(claim(&from, &claim_of(shard(1), epoch, 9)), refused);
    }
    let mismatch = CommitRefusal::ClaimMismatch { current: Some(Box::new(moved)) };
    let late = commit_one(&from, turn(&former, RICH, 2, 9));
    assert_eq!(late, CommitOutcome::Refused(mismatch.clone()));
    let late = commit_one(&from, turn(&Arc::new(next), RICH, 2, 9));
    assert_eq!(late, CommitOutcome::Refused(mismatch));
}

/// A store that fails from the call with this number on: before its calls take effect, or after that.
pub(super) struct Failing<S> {
    pub(super) store: Arc<S>,
    pub(super) calls: Arc<AtomicUsize>,
    pub(super) fails_at: usize,
    pub(super) is_late: bool,
    /// Items of this kind are lost on the way.
    pub(super) loses: Option<ItemKind>,
}

impl<S: MovableShards> Failing<S> {
    fn call<T, E>(
        &self,
        call: impl FnOnce(&S) -> StoreFuture<Result<T, E>>,
    ) -> StoreFuture<Result<T, E>>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let fault = || Err(StoreError::Unavailable("a fault".into()).into());
        let fails = self.calls.fetch_add(1, Ordering::Relaxed) >= self.fails_at;
        match (fails, self.is_late) {
            (false, _) => call(&self.store),
            (true, false) => ready(fault()).boxed(),
            (true, true) => call(&self.store).map(move |_| fault()).boxed(),
        }
    }
}

impl<S: MovableShards> EntityStore for Failing<S> {
    fn identity(&self) -> StoreIdentity {
        self.store.identity()
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        let call = self.call(|store| store.claim(claims).map(Ok::<_, StoreError>).boxed());
        let failed = |error: StoreError| vec![ClaimOutcome::Failed(error.to_string())];
        call.map(move |outcomes| outcomes.unwrap_or_else(failed)).boxed()
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.call(|store| store.current_claims(shards))
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.store.commit(turns)
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.store.load(entities)
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.call(|store| store.scan(scan))
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.call(|store| store.put_blob(bytes))
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.call(|store| store.get_blob(digest))
    }
}

impl<S: MovableShards> MovableShards for Failing<S> {
    fn shard_page(
        &self,
        shard: ShardPath,
        cursor: Option<Bytes>,
    ) -> StoreFuture<Result<ItemPage, StoreError>> {
        self.call(|store| store.shard_page(shard, cursor))
    }

    fn write_incoming(
        &self,
        incoming: Claim,
        mut items: Vec<Item>,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        items.retain(|item| Some(item.kind()) != self.loses);
        self.call(|store| store.write_incoming(incoming, items))
    }

    fn remove_absent(&self, claim: Claim) -> StoreFuture<Result<bool, ShardMoveError>> {
        self.call(|store| store.remove_absent(claim))
    }

    fn finish_incoming(
        &self,
        incoming: Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        self.call(|store| store.finish_incoming(incoming, claim, floor, last_sequence))
    }
}

fn a_move_is_continued_after_each_of_its_calls<S: MovableShards>(factory: &Factory<S>) {
    let (from, to, _) = filled(factory);
    let (mut from, mut to) = (Arc::new(from), Arc::new(to));
    let before = shown(&*from);
    let (mut epoch, mut version, mut failures) = (2, 1, 0);
    // Each time, the shard moves the other way, with a fault at the next of its calls.
    for fails_at in 0.. {
        let mut has_failed = false;
        for is_late in [false, true] {
            let calls = Arc::new(AtomicUsize::new(0));
            let failing = |store: &Arc<S>| Failing {
                store: store.clone(),
                calls: calls.clone(),
                fails_at,
                is_late,
                loses: None,
            };
            let first = claim_of(shard(1), epoch, 1);
            let failed = run(&failing(&from), &failing(&to), &first, (version, 1)).is_err();
            // Its successor knows nothing of it.
            let next = claim_of(shard(1), epoch + 1, 1);
            assert_eq!(run(&*from, &*to, &next, (version, 2)), Ok(()), "call {fails_at}");
            assert_eq!(shown(&*to), before, "after a fault at call {fails_at}");
            assert_eq!(claim(&*to, &next), ClaimOutcome::Granted);
            (epoch, version, failures) = (epoch + 2, version + 1, failures + usize::from(failed));
            has_failed |= failed;
            std::mem::swap(&mut from, &mut to);
        }
        if !has_failed {
            break;
        }
    }
    assert!(failures >= 14, "{failures} calls failed");
}

fn an_attempt_that_was_replaced_writes_nothing<S: MovableShards>(factory: &Factory<S>) {
    let (from, to, next) = filled(factory);
    let placement = Placement { store_id: from.identity().store_id, version: 1 };
    let first = next.incoming_from(placement, 1).unwrap();
    assert_eq!(claim(&to, &first), ClaimOutcome::Granted);
    let items = || items_of(&from);
    assert_eq!(block_on(to.write_incoming(first.clone(), items())), Ok(()));
    // Another attempt of the same owner in the same epoch.
    let second = next.incoming_from(placement, 2).unwrap();
    assert_eq!(claim(&to, &second), ClaimOutcome::Granted);
    let superseded = |result: Result<(), ShardMoveError>| {
        assert!(matches!(result, Err(ShardMoveError::Superseded(_))), "{result:?}");
    };
    superseded(block_on(to.write_incoming(first.clone(), items())));
    superseded(block_on(to.remove_absent(first.clone())).map(drop));
    superseded(block_on(to.finish_incoming(first, next.clone(), None, 9)));
    // What has the data, or is not coming in, is neither written nor removed by this way.
    let here = claim_of(shard(2), 4, 9);
    superseded(block_on(from.remove_absent(here.clone())).map(drop));
    superseded(block_on(from.write_incoming(here, items())));
    assert_eq!(run(&from, &to, &next, (1, 3)), Ok(()));
    superseded(block_on(to.remove_absent(second.clone())).map(drop));
    assert_eq!(claim(&to, &next), ClaimOutcome::Granted);
    assert_eq!(version(&to, &shard(1), RICH), 2);
}

fn a_shard_comes_back_as_it_was_last<S: MovableShards>(factory: &Factory<S>) {
    let (from, to, next) = filled(factory);
    assert_eq!(run(&from, &to, &next, (1, 1)), Ok(()));
    assert_eq!(claim(&to, &next), ClaimOutcome::Granted);
    let writer = Arc::new(next);
    done(&to, vec![Commit { writes: vec![super::unset("large")], ..turn(&writer, RICH, 2, 7) }]);
    let there = shown(&to);
    let back = claim_of(shard(1), 3, 1);
    assert_eq!(run(&to, &from, &back, (2, 1)), Ok(()));
    assert_eq!(shown(&from), there, "nothing of before is left");
    assert!(state(&from, &shard(1), RICH).iter().all(|(key, _)| key != "large"));
    assert_eq!(claim(&from, &back), ClaimOutcome::Granted);
    done(&from, vec![turn(&Arc::new(back), RICH, 3, 8)]);
}

fn an_old_map_moves_nothing<S: MovableShards>(factory: &Factory<S>) {
    let (first, second, next) = filled(factory);
    let third = factory.make();
    assert_eq!(run(&first, &second, &next, (1, 1)), Ok(()));
    let later = claim_of(shard(1), 3, 1);
    assert_eq!(run(&second, &third, &later, (2, 1)), Ok(()));
    let there = shown(&third);
    // A node that knows only the first move owns the shard, and believes that it was never finished.
    let confused = claim_of(shard(1), 4, 1);
    let moved = run(&first, &second, &confused, (1, 2));
    assert!(matches!(moved, Err(ShardMoveError::Superseded(_))), "{moved:?}");
    assert!(matches!(claim(&second, &confused), ClaimOutcome::Refused { .. }));
    assert_eq!(claim(&third, &confused), ClaimOutcome::Granted);
    assert_eq!(shown(&third), there);
}

fn what_is_left_at_the_source_can_be_removed<S: MovableShards>(factory: &Factory<S>) {
    let (from, to, next) = filled(factory);
    assert_eq!(run(&from, &to, &next, (1, 1)), Ok(()));
    let moved = current(&from).unwrap();
    while block_on(from.remove_absent(moved.clone())).unwrap() {}
    assert_eq!(items_of(&from), []);
    assert_eq!(current(&from), Some(moved), "the claim stays");
    assert!(version(&from, &shard(2), "small-1") == 1, "other shards stay");
    assert_eq!(version(&to, &shard(1), RICH), 2);
}

fn a_copy_that_differs_is_not_used<S: MovableShards>(factory: &Factory<S>) {
    for kind in [ItemKind::Heads, ItemKind::Records] {
        let (from, to, next) = filled(factory);
        let to = Arc::new(to);
        let (store, calls) = (to.clone(), Arc::new(AtomicUsize::new(0)));
        let (fails_at, is_late, loses) = (usize::MAX, false, Some(kind));
        let losing = Failing { store, calls, fails_at, is_late, loses };
        assert_eq!(run(&from, &losing, &next, (1, 1)), Err(ShardMoveError::Differs(kind)));
        assert!(matches!(claim(&*to, &next), ClaimOutcome::Refused { .. }), "it is incomplete");
        assert_eq!(run(&from, &*to, &next, (1, 2)), Ok(()));
    }
}
