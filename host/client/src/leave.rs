//! When a client leaves a gateway that is there, and cannot reach its cluster.
//!
//! Such a gateway keeps its connections: messages wait at it, or come back as bounces. A session whose messages only
//! bounced for a while asks for another gateway; one that hears nothing does so only if no other session of the
//! client hears anything either, since a turn may be slow. Clients differ in their patience, and each leave that did
//! not help doubles it, so that a cluster in trouble is not made to shake hands all the time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Patience is doubled at most so often.
const DOUBLINGS: u32 = 4;

/// What a session's messages meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Since when none of them was answered by an entity.
    pub since: Instant,
    /// They came back from the gateway; else nothing was heard.
    pub bounced: bool,
}

/// One for a client: its sessions report to it, and the keeper of its connection is told.
#[derive(Debug)]
pub(crate) struct Patience {
    bound: Duration,
    state: Mutex<State>,
    /// Somebody lost patience.
    pub(crate) lost: Notify,
}

#[derive(Debug)]
struct State {
    /// This client's share of the bound: not all leave at once.
    share: f64,
    leaves: u32,
    /// When this connection began, or any session last heard of an entity.
    progress: Instant,
    /// When patience was lost last.
    lost_at: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(bound: Duration) -> Self {
        let state = State { share: share(), leaves: 0, progress: Instant::now(), lost_at: None };
        Self { bound, state: Mutex::new(state), lost: Notify::new() }
    }

    /// An entity answered.
    pub(crate) fn progress(&self) {
        let mut state = self.lock();
        state.leaves = 0;
        state.progress = Instant::now();
    }

    /// A session lost patience: the keeper of the connection is told, and all wait anew, and longer.
    pub(crate) fn lose(&self) {
        let mut state = self.lock();
        state.share = share();
        state.leaves = (state.leaves + 1).min(DOUBLINGS);
        state.progress = Instant::now();
        state.lost_at = Some(state.progress);
        drop(state);
        self.lost.notify_one();
    }

    /// When a session that is stuck like this loses patience.
    pub(crate) fn ends(&self, stuck: Stuck) -> Instant {
        let state = self.lock();
        let since = match stuck.bounced {
            true => stuck.since.max(state.lost_at.unwrap_or(stuck.since)),
            false => stuck.since.max(state.progress),
        };
        since + self.bound.mul_f64(state.share) * 2_u32.pow(state.leaves)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share() -> f64 {
    0.75 + rand::random::<f64>() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_leave_that_did_not_help_doubles_the_patience() {
        let bound = Duration::from_secs(8);
        let patience = Patience::new(bound);
        let waits = |patience: &Patience| {
            let since = Instant::now();
            patience.ends(Stuck { since, bounced: true }) - since
        };
        assert!((bound * 3 / 4..=bound * 5 / 4).contains(&waits(&patience)));
        for _ in 0..9 {
            patience.lose();
        }
        assert!((bound * 12..=bound * 20).contains(&waits(&patience)));
        patience.progress();
        assert!(waits(&patience) <= bound * 5 / 4);
    }

    #[test]
    fn a_session_that_hears_nothing_waits_while_others_are_answered() {
        let patience = Patience::new(Duration::from_secs(8));
        let since = Instant::now().checked_sub(Duration::from_secs(3_000)).expect("a time");
        patience.progress();
        assert!(patience.ends(Stuck { since, bounced: false }) > Instant::now());
        assert!(patience.ends(Stuck { since, bounced: true }) < Instant::now());
    }
}
