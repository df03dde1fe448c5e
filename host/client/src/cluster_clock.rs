//! The client's reading of cluster time and of the cluster's UTC, shared by all its sessions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ostraca_wire::clock::since_boot;
use ostraca_wire::proto;

use crate::ledger::ClusterTime;

/// Both times, advanced by a clock of this machine that counts suspension.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    cluster: ClusterTime,
    /// The cluster's UTC, which advances in the same way.
    utc: ClusterTime,
}

impl ClusterClock {
    /// Milliseconds of cluster time, from 1.
    pub(crate) fn now(&self) -> u64 {
        self.lock().cluster.at(since_boot())
    }

    /// Milliseconds since the Unix epoch (UTC); 0 if no node has reported it.
    pub(crate) fn utc_ms(&self) -> u64 {
        self.lock().utc.known_at(since_boot()).unwrap_or_default()
    }

    /// Advances the clock to the times that a node reported, unless it is already later.
    pub(crate) fn advance_to(&self, hello: &proto::Hello) {
        let (mut times, local) = (self.lock(), since_boot());
        times.cluster.advance_to(hello.cluster_time_ms, local);
        times.utc.advance_to(hello.utc_ms, local);
    }

    /// Adopts the acceptable creation time that a refusal names (R17).
    pub(crate) fn observe_reply(&self, reply: &proto::Reply) {
        // Most replies have no problem: avoid taking the lock.
        if reply.problem.is_some() {
            self.lock().cluster.observe_reply(reply, since_boot());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
