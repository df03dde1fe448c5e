//! How long shards are moving or have no live owner, according to this node's routes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ostraca_core::ids::ShardId;
use ostraca_stats::Stats;

use super::lock;

/// What the routes say about one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// It has never been served since the node started.
    NotYet,
    /// Its owner serves it.
    Yes,
    /// The manager has announced that it moves; its row does not say so yet.
    Announced(Instant),
    /// It moves, or its owner was marked dead, as the second field says.
    NotSince(Instant, bool),
}

/// Whether a shard has an owner that serves it, according to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteState {
    /// It has one.
    Served,
    /// It is being handed off.
    Moving,
    /// It has no live owner.
    Ownerless,
}

/// Measures the pauses of all shards.
#[derive(Debug)]
pub(crate) struct ShardPauses {
    shards: Mutex<Vec<Served>>,
    /// After this time, messages are sent again although an announced move has not begun.
    announced_for: Duration,
    stats: Arc<Stats>,
}

impl ShardPauses {
    pub(crate) fn new(shards: u32, announced_for: Duration, stats: Arc<Stats>) -> Self {
        let shards = Mutex::new(vec![Served::NotYet; shards as usize]);
        Self { shards, announced_for, stats }
    }

    /// Adds shards behind the others, up to this number.
    pub(crate) fn grow(&self, shards: u32) {
        let mut all = lock(&self.shards);
        let shards = all.len().max(shards as usize);
        all.resize(shards, Served::NotYet);
    }

    /// Records the state of a shard's route.
    pub(crate) fn set_route(&self, shard: ShardId, route: RouteState) {
        self.set_route_at(shard, route, Instant::now());
    }

    /// Records that a move of a shard was announced, from when on its messages wait.
    pub(crate) fn set_buffered(&self, shard: ShardId) {
        self.set_buffered_at(shard, Instant::now());
    }

    fn set_route_at(&self, shard: ShardId, route: RouteState, now: Instant) {
        self.change(shard, |state| {
            let began = match state {
                Served::NotSince(since, dead) => Some((since, dead)),
                Served::Announced(at) if now.duration_since(at) <= self.announced_for => {
                    Some((at, false))
                }
                _ => None,
            };
            match (route, state, began) {
                (RouteState::Served, _, Some((began, fail_over))) => {
                    let duration = now.saturating_duration_since(began);
                    self.stats.shard_pauses.record(shard.0, duration, fail_over);
                    Served::Yes
                }
                (RouteState::Served, ..) => Served::Yes,
                (_, Served::NotYet, _) => Served::NotYet,
                (route, _, began) => {
                    let (since, dead) = began.unwrap_or((now, false));
                    Served::NotSince(since, dead || route == RouteState::Ownerless)
                }
            }
        });
    }

    fn set_buffered_at(&self, shard: ShardId, now: Instant) {
        self.change(shard, |state| match state {
            Served::Yes => Served::Announced(now),
            other => other,
        });
    }

    fn change(&self, shard: ShardId, change: impl FnOnce(Served) -> Served) {
        let mut shards = lock(&self.shards);
        // Shards are numbered from 1.
        let index = (shard.0 as usize).checked_sub(1);
        if let Some(state) = index.and_then(|index| shards.get_mut(index)) {
            *state = change(*state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RouteState::{Moving, Ownerless};
    use super::*;

    #[test]
    fn a_pause_lasts_from_the_last_owner_to_the_next() {
        let stats = Arc::<Stats>::default();
        let pauses = ShardPauses::new(2, Duration::from_millis(100), stats.clone());
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        // The start of the node is not a pause.
        pauses.set_route_at(ShardId(2), Ownerless, at(0));
        pauses.set_route_at(ShardId(2), RouteState::Served, at(50));
        assert_eq!(stats.shard_pauses.durations.distribution().count, 0);
        pauses.set_route_at(ShardId(2), Ownerless, at(100));
        pauses.set_route_at(ShardId(2), Ownerless, at(300));
        pauses.set_route_at(ShardId(3), RouteState::Served, at(350));
        pauses.set_route_at(ShardId(2), RouteState::Served, at(400));
        pauses.set_route_at(ShardId(2), RouteState::Served, at(500));
        pauses.set_route_at(ShardId(0), RouteState::Served, at(500));
        let seen = stats.shard_pauses.durations.distribution();
        assert_eq!(seen.count, 1);
        assert!((seen.sum - 0.3).abs() < 1e-9, "{}", seen.sum);
        let latest = stats.shard_pauses.latest();
        assert!(
            matches!(&latest[..], [pause] if pause.shard == 2 && pause.fail_over),
            "{latest:?}"
        );
    }

    #[test]
    fn an_announced_move_counts_from_its_announcement() {
        let stats = Arc::<Stats>::default();
        let pauses = ShardPauses::new(1, Duration::from_millis(100), stats.clone());
        let (shard, start) = (ShardId(1), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let seen = || stats.shard_pauses.durations.distribution();
        pauses.set_buffered_at(shard, at(0));
        pauses.set_route_at(shard, RouteState::Served, at(10));
        assert_eq!(seen().count, 0, "it was never served before");
        pauses.set_buffered_at(shard, at(100));
        pauses.set_route_at(shard, Moving, at(120));
        pauses.set_buffered_at(shard, at(130));
        pauses.set_route_at(shard, RouteState::Served, at(140));
        assert!((seen().sum - 0.04).abs() < 1e-9, "{}", seen().sum);
        assert!(!stats.shard_pauses.latest()[0].fail_over);
        // The rows of the move were seen only when it had ended.
        pauses.set_buffered_at(shard, at(200));
        pauses.set_route_at(shard, RouteState::Served, at(250));
        assert_eq!(seen().count, 2);
        // It never began.
        pauses.set_buffered_at(shard, at(300));
        pauses.set_route_at(shard, RouteState::Served, at(9_000));
        assert_eq!(seen().count, 2);
    }
}
