//! How far a move of a range is, and the removal of what it leaves.

use std::time::Duration;

use ostraca_core::ids::{ShardId, ShardPath};
use ostraca_core::records::{Claim, Presence};
use ostraca_store::{ShardMoveError, StoreError};
use tokio::time::Instant;

use crate::{Place, RangedStore, ShardMap};

/// How far the move in progress is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveProgress {
    /// Number of shards that are to be moved.
    pub shards: u32,
    /// Those of them that were moved.
    pub moved: u32,
    /// Whether nothing of them is left in the stores from which they were moved.
    pub is_clean: bool,
}

impl MoveProgress {
    /// Whether the map can be changed.
    #[must_use]
    pub fn is_complete(self) -> bool {
        self.shards == self.moved && self.is_clean
    }
}

impl RangedStore {
    /// Reads from the stores how far the move of a map is. Once all shards were moved, it removes what they have left
    /// behind, for about as long as given; call it again until the progress [is complete](MoveProgress::is_complete).
    ///
    /// `path` gives the path of each shard; `None` for one that no node will ever own again, which need not be moved.
    ///
    /// # Errors
    /// [`StoreError`] if a store does not answer, or is not configured here.
    pub async fn advance_move(
        &self,
        map: &ShardMap,
        path: impl Fn(ShardId) -> Option<ShardPath>,
        limit: Duration,
    ) -> Result<MoveProgress, StoreError> {
        let began = Instant::now();
        let Some(moving) = map.moving else { return Ok(MoveProgress::default()) };
        let leaves = |number: &u32| match map.place(ShardId(*number)) {
            Some(Place { store, moves_to: Some(_) }) => Some((store, path(ShardId(*number))?)),
            _ => None,
        };
        let leaving: Vec<_> =
            (moving.first..=moving.last).filter_map(|number| leaves(&number)).collect();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let paths = leaving.iter().map(|(_, path)| path.clone()).collect();
        let there = self.0.store(moving.to)?.current_claims(paths).await?;
        let is_here = |claim: &Option<Claim>| {
            claim.as_ref().is_some_and(|claim| claim.presence() == Ok(Presence::Here))
        };
        let moved = there.iter().filter(|claim| is_here(claim)).count();
        let mut progress =
            MoveProgress { shards: count(leaving.len()), moved: count(moved), is_clean: false };
        if progress.moved < progress.shards {
            return Ok(progress);
        }
        for (from, path) in leaving {
            let from = self.0.store(from)?;
            let left = from.current_claims(vec![path.clone()]).await?.pop().flatten();
            let Some(left) = left else { continue };
            if !matches!(left.presence(), Ok(Presence::MovedTo(_))) {
                // It was moved, but its former store does not say so: nothing must be removed there.
                return Err(StoreError::Corrupt(format!("shard {path} is in two stores")));
            }
            loop {
                match from.remove_absent(left.clone()).await {
                    Ok(false) => break,
                    Ok(true) if began.elapsed() < limit => {}
                    Ok(true) => return Ok(progress),
                    Err(ShardMoveError::Store(error)) => return Err(error),
                    Err(error) => return Err(StoreError::Unavailable(error.to_string())),
                }
            }
        }
        progress.is_clean = true;
        Ok(progress)
    }
}
