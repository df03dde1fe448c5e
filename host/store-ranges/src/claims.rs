//! Claims, and the moves that they begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::ready;
use ostraca_core::ids::ShardPath;
use ostraca_core::records::{Claim, ClaimOutcome, Presence};
use ostraca_store::{MovableShards, ShardMove, ShardMoveError, StoreError, StoreFuture};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::Shared;

/// A move by this process.
pub(crate) struct RunningMove {
    claim: Claim,
    copied: Arc<AtomicU64>,
    ended: watch::Receiver<Option<Result<(), ShardMoveError>>>,
}

/// Makes a claim in the store that has the shard. The call is made at once unless the shard moves.
pub(crate) fn claim(shared: &Arc<Shared>, claim: Claim) -> StoreFuture<ClaimOutcome> {
    let failed = |error: StoreError| ready(ClaimOutcome::Failed(error.to_string())).boxed();
    let (place, version) = match shared.place(&claim.shard) {
        Ok(place) => place,
        Err(error) => return failed(error),
    };
    let from = match shared.store(place.store) {
        Ok(store) => store.clone(),
        Err(error) => return failed(error),
    };
    let Some(to) = place.moves_to else { return claim_in(shared, from, claim) };
    match shared.store(to) {
        Ok(to) => claim_moving(shared.clone(), from, to.clone(), version, claim).boxed(),
        Err(error) => failed(error),
    }
}

/// Makes a claim in a store, which should have the shard.
fn claim_in(
    shared: &Arc<Shared>,
    store: Arc<dyn MovableShards>,
    claim: Claim,
) -> StoreFuture<ClaimOutcome> {
    let shared = shared.clone();
    let claiming = store.claim(vec![claim.clone()]);
    async move {
        let lacking = || ClaimOutcome::Failed("a claim without an outcome".into());
        let outcome = claiming.await.pop().unwrap_or_else(lacking);
        match &outcome {
            ClaimOutcome::Granted => shared.note_claimed(&claim, store.identity().store_id),
            ClaimOutcome::Refused { current } if current.presence() != Ok(Presence::Here) => {
                return ClaimOutcome::Failed(shared.not_there(&claim.shard));
            }
            _ => {}
        }
        outcome
    }
    .boxed()
}

/// What a store has of a shard; `None` if it was never claimed there.
pub(crate) async fn presence(
    store: &dyn MovableShards,
    shard: &ShardPath,
) -> Result<Option<Presence>, StoreError> {
    let claim = store.current_claims(vec![shard.clone()]).await?.pop().flatten();
    let presence = claim.map(|claim| claim.presence()).transpose();
    presence.map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// Moves the shard if that is still to be done, and claims it in the store to which it moves.
async fn claim_moving(
    shared: Arc<Shared>,
    from: Arc<dyn MovableShards>,
    to: Arc<dyn MovableShards>,
    version: u64,
    claim: Claim,
) -> ClaimOutcome {
    let failed = |error: StoreError| ClaimOutcome::Failed(error.to_string());
    match presence(&*to, &claim.shard).await {
        Ok(Some(Presence::Here)) => return claim_in(&shared, to, claim).await,
        Ok(_) => {}
        Err(error) => return failed(error),
    }
    // A later claim of the same epoch does not follow a hand-off, so it begins no move.
    if claim.number > 1 {
        match presence(&*from, &claim.shard).await {
            Ok(Some(Presence::Here)) => return claim_in(&shared, from, claim).await,
            Ok(_) => {}
            Err(error) => return failed(error),
        }
    }
    let (copied, mut ended) = start(&shared, &from, &to, version, &claim);
    let result = match timeout(shared.claim_wait, ended.wait_for(Option::is_some)).await {
        Ok(Ok(result)) => result.clone(),
        Ok(Err(_)) => None,
        Err(_) => {
            let (copied, to) = (copied.load(Ordering::Relaxed), to.identity().store_id);
            let text = format!(
                "shard {} is being moved to store {to:032x}, {copied} heads and records so far",
                claim.shard
            );
            return ClaimOutcome::Failed(text);
        }
    };
    match result {
        Some(Ok(())) => claim_in(&shared, to, claim).await,
        Some(Err(ShardMoveError::Superseded(Some(current))))
            if current.presence() == Ok(Presence::Here) =>
        {
            ClaimOutcome::Refused { current }
        }
        Some(Err(ShardMoveError::Superseded(_))) => {
            ClaimOutcome::Failed(shared.not_there(&claim.shard))
        }
        Some(Err(error)) => ClaimOutcome::Failed(format!("the shard was not moved: {error}")),
        None => ClaimOutcome::Failed("the move of the shard ended without a result".into()),
    }
}

/// Starts a move, unless the one of this claim is running.
fn start(
    shared: &Arc<Shared>,
    from: &Arc<dyn MovableShards>,
    to: &Arc<dyn MovableShards>,
    version: u64,
    claim: &Claim,
) -> (Arc<AtomicU64>, watch::Receiver<Option<Result<(), ShardMoveError>>>) {
    let mut state = shared.lock();
    if let Some(running) = state.moves.get(&claim.shard)
        && running.claim == *claim
    {
        return (running.copied.clone(), running.ended.clone());
    }
    let copied = Arc::new(AtomicU64::new(0));
    let (end, ended) = watch::channel(None);
    let running = RunningMove { claim: claim.clone(), copied: copied.clone(), ended };
    let result = (copied.clone(), running.ended.clone());
    state.moves.insert(claim.shard.clone(), running);
    let (shared, from, to, claim) = (shared.clone(), from.clone(), to.clone(), claim.clone());
    let runtime = shared.runtime.clone();
    runtime.spawn(async move {
        let attempt = rand::random();
        let one = ShardMove { from: &*from, to: &*to, version, attempt };
        let moved = one.run(&claim, &|count| copied.store(count, Ordering::Relaxed)).await;
        if let Err(error) = &moved {
            tracing::warn!(%error, shard = %claim.shard, "a shard was not moved to its new store");
        }
        let mut state = shared.lock();
        if state.moves.get(&claim.shard).is_some_and(|running| running.claim == claim) {
            state.moves.remove(&claim.shard);
        }
        drop(state);
        end.send_replace(Some(moved));
    });
    result
}
