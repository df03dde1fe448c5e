//! The client's one reading of cluster time, which all its sessions share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ostraca_wire::clock::since_boot;
use ostraca_wire::proto;

use crate::ledger::ClusterTime;

/// [`ClusterTime`] by this machine's clock.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock(Mutex<ClusterTime>);

impl ClusterClock {
    /// Milliseconds of cluster time, from 1.
    pub(crate) fn now(&self) -> u64 {
        self.lock().at(since_boot())
    }

    /// Somebody who knows says that it is so late, or later.
    pub(crate) fn advance_to(&self, cluster_ms: u64) {
        self.lock().advance_to(cluster_ms, since_boot());
    }

    /// A refused stamp says which time would pass (R17).
    pub(crate) fn observe_reply(&self, reply: &proto::Reply) {
        // Nearly no reply says it.
        if reply.problem.is_some() {
            self.lock().observe_reply(reply, since_boot());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClusterTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
