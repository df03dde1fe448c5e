//! How far the current revision of a type has been rolled out (R24).
//!
//! A rollout reaches the entities of the shards up to a number, and a share of the others. A command sets both. With a
//! rate, the cluster's manager raises the number of shards, until all are reached or an entity cannot be migrated.

use ostraca_core::codec::CodecError;
use ostraca_core::ids::ShardId;
use ostraca_core::shard::Rollout;
use serde::{Deserialize, Serialize};

use crate::rows::TypeRow;

/// Milliseconds of its rate by which a rollout advances at most at once. So one that stood still, because no manager
/// ran, does not catch up.
const MAX_STEP: u64 = 2_000;
/// Maximum length in bytes of the reason for which a rollout stopped.
const MAX_REASON: usize = 500;
const MINUTE: u64 = 60_000;

/// The rollout of a type's current revision, as the type's row stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRollout {
    /// The earlier revision that the other entities run.
    pub from: u64,
    /// Entities in shards up to this number run the current revision.
    pub shards: u32,
    /// In the other shards, so do this many entities out of 1,000.
    pub per_mille: u16,
    /// Number of shards that it reaches in a minute; 0 if only commands advance it.
    pub rate: u32,
    /// When a command last changed it, in milliseconds since 1970 by the cluster's UTC. Migrations that failed before do
    /// not stop it.
    pub since: u64,
    /// When it last advanced, in milliseconds since 1970 by the cluster's UTC.
    pub advanced_at: u64,
    /// Why it no longer advances by itself; empty if it does.
    pub stopped: String,
}

/// What became of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It reaches as many shards as before.
    Unchanged,
    /// It reaches more shards.
    Advanced,
    /// It reaches all shards.
    Complete,
}

impl StoredRollout {
    /// The part that the core needs, for a pool whose first shard is this one.
    #[must_use]
    pub fn reach(&self, first: ShardId) -> Rollout {
        let shards = first.0.saturating_sub(1).saturating_add(self.shards);
        Rollout { from: self.from, shards, per_mille: self.per_mille }
    }

    /// Whether it advances by itself.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.rate > 0 && self.stopped.is_empty()
    }

    /// Advances it to a time of the cluster's UTC in milliseconds, in a pool with this many shards.
    pub fn advance(&mut self, now: u64, total: u32) -> Progress {
        if !self.is_moving() {
            return Progress::Unchanged;
        }
        let rate = u64::from(self.rate);
        let due = now.saturating_sub(self.advanced_at).saturating_mul(rate) / MINUTE;
        let most = (rate * MAX_STEP / MINUTE).max(1);
        if due == 0 {
            return Progress::Unchanged;
        }
        let step = due.min(most);
        self.advanced_at =
            if due > most { now } else { self.advanced_at + (step * MINUTE).div_ceil(rate) };
        self.shards = self.shards.saturating_add(u32::try_from(step).unwrap_or(u32::MAX));
        if self.shards >= total { Progress::Complete } else { Progress::Advanced }
    }

    /// Stops it. The first reason remains.
    pub fn stop(&mut self, why: &str) {
        if self.stopped.is_empty() {
            let end = why.floor_char_boundary(MAX_REASON);
            self.stopped = if why.is_empty() { "unknown".into() } else { why[..end].into() };
        }
    }
}

impl TypeRow {
    /// The rollout of the current revision; `None` if all entities run it.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn rollout(&self) -> Result<Option<StoredRollout>, CodecError> {
        self.extensions.get(Self::ROLLOUT)
    }

    /// Sets the rollout.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_rollout(&mut self, rollout: Option<&StoredRollout>) -> Result<(), CodecError> {
        match rollout {
            Some(rollout) => self.extensions.set(Self::ROLLOUT, rollout),
            None => self.extensions.take::<StoredRollout>(Self::ROLLOUT).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(rate: u32) -> StoredRollout {
        StoredRollout {
            from: 8,
            shards: 3,
            per_mille: 300,
            rate,
            since: 10_000,
            advanced_at: 10_000,
            stopped: String::new(),
        }
    }

    #[test]
    fn r24_a_rollout_advances_at_its_rate() {
        // Six shards a minute: one every ten seconds.
        let mut slow = rollout(6);
        assert_eq!(slow.advance(19_999, 100), Progress::Unchanged);
        assert_eq!((slow.advance(20_000, 100), slow.shards), (Progress::Advanced, 4));
        assert_eq!(slow.advance(29_999, 100), Progress::Unchanged);
        // Steps at any times reach what the rate allows, and no more.
        let mut fast = rollout(700);
        let mut now = 10_000;
        for pause in [7, 90, 1_000, 333, 1_999, 1, 570, 1_500, 500].into_iter().cycle().take(90) {
            now += pause;
            fast.advance(now, 10_000);
        }
        assert_eq!(now, 70_000);
        assert!((695..=700).contains(&(fast.shards - 3)), "{fast:?}");
        assert_eq!(rollout(0).advance(u64::MAX, 1), Progress::Unchanged);
    }

    #[test]
    fn r24_a_rollout_that_stood_still_does_not_catch_up() {
        let mut it = rollout(600);
        assert_eq!((it.advance(3_600_000, 4_096), it.shards), (Progress::Advanced, 23));
        assert_eq!(it.advance(3_600_050, 4_096), Progress::Unchanged);
        let mut slow = rollout(6);
        assert_eq!((slow.advance(3_600_000, 4_096), slow.shards), (Progress::Advanced, 4));
    }

    #[test]
    fn r24_a_rollout_ends_with_the_last_shard() {
        let mut it = rollout(60);
        assert_eq!(it.advance(11_000, 5), Progress::Advanced);
        assert_eq!(it.advance(12_000, 5), Progress::Complete);
    }

    #[test]
    fn r24_a_stopped_rollout_does_not_advance() {
        let mut it = rollout(60);
        it.stop(&"é".repeat(1_000));
        assert_eq!(it.stopped.len(), MAX_REASON);
        it.stop("another");
        assert!(it.stopped.starts_with('é') && !it.is_moving());
        assert_eq!(it.advance(1_000_000, 5), Progress::Unchanged);
    }
}
