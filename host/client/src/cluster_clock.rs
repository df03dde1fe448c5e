//! The client's reading of cluster time, shared by all its sessions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ostraca_wire::clock::since_boot;
use ostraca_wire::proto;

use crate::ledger::ClusterTime;

/// [`ClusterTime`] on this machine's clock.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock(Mutex<ClusterTime>);

impl ClusterClock {
    /// Milliseconds of cluster time, from 1.
    pub(crate) fn now(&self) -> u64 {
        self.lock().at(since_boot())
    }

    /// Advances the clock to a cluster time that a node reported, unless it is already later.
    pub(crate) fn advance_to(&self, cluster_ms: u64) {
        self.lock().advance_to(cluster_ms, since_boot());
    }

    /// Adopts the acceptable creation time in a refusal (R17).
    pub(crate) fn observe_reply(&self, reply: &proto::Reply) {
        // Most replies have none: avoid taking the lock.
        if reply.problem.is_some() {
            self.lock().observe_reply(reply, since_boot());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClusterTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
