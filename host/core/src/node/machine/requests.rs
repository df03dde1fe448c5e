//! Pending requests to the `ClusterStore`, their ids, and random numbers.

use std::collections::BTreeMap;

use crate::ids::{Epoch, NodeId, ShardId};
use crate::rows::{ArbiterRow, AssignmentsRow, ManagerRow, NodeRow, NumbersRow};

/// The purpose of a pending write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WritePurpose {
    /// Registers this row, by a write sent at this time.
    Register(NodeRow, u64),
    /// Renews the lease with this row, by a write sent at this time.
    Renew(NodeRow, u64),
    /// Writes this incarnation's row as left.
    Leave,
    /// Names the holder of the leadership.
    SetManager(ManagerRow),
    /// Takes the arbiter's lease.
    TakeArbiterLease(ArbiterRow),
    /// Writes a chunk of assignments.
    Assignments(u32),
    /// Marks a node's incarnation dead.
    MarkDead(NodeId),
    /// Sets or clears a node's drain mark.
    Drain(NodeId),
    /// Takes or releases a number in the pool with this name, or removes hosts that have ended.
    Numbers(String, NumbersRow),
    /// Takes, renews or releases leases of shards.
    ShardLeases(LeaseWrite),
}

/// A write of shard leases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseWrite {
    pub(super) chunk: u32,
    pub(super) row: AssignmentsRow,
    pub(super) sent_at: u64,
    /// How long the leases last, from when the write was sent.
    pub(super) lease: u64,
    /// The shards whose leases it takes or renews.
    pub(super) shards: Vec<(ShardId, Epoch)>,
    /// Whether it changes owners.
    pub(super) changes_owners: bool,
}

/// Pending writes by request id, and the counters behind ids and random numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    pending_writes: BTreeMap<u64, WritePurpose>,
    last_id: u64,
    random_counter: u64,
}

impl Requests {
    /// An id for a request that is not a write.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Records a write and returns its request id.
    pub(super) fn begin_write(&mut self, purpose: WritePurpose) -> u64 {
        let id = self.next_id();
        self.pending_writes.insert(id, purpose);
        id
    }

    /// Removes an answered write and returns its purpose; `None` if it is no longer pending.
    pub(super) fn finish_write(&mut self, id: u64) -> Option<WritePurpose> {
        self.pending_writes.remove(&id)
    }

    /// Whether a write with a matching purpose is pending.
    pub(super) fn any_write(&self, is_such: impl Fn(&WritePurpose) -> bool) -> bool {
        self.pending_writes.values().any(is_such)
    }

    /// Whether the manager's row is being written.
    pub(super) fn writes_manager_row(&self) -> bool {
        self.any_write(|purpose| matches!(purpose, WritePurpose::SetManager(_)))
    }

    /// Whether the registered incarnation is writing the node's own row.
    pub(super) fn writes_own_row(&self) -> bool {
        self.any_write(|purpose| matches!(purpose, WritePurpose::Renew(..) | WritePurpose::Leave))
    }

    /// Ignores the answers to all pending writes except those that `keep` selects.
    pub(super) fn retain_writes(&mut self, keep: impl Fn(&WritePurpose) -> bool) {
        self.pending_writes.retain(|_, purpose| keep(purpose));
    }

    /// A pseudorandom number, reproducible from the seed.
    pub(super) fn draw(&mut self, seed: u64) -> u64 {
        self.random_counter += 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(&self.random_counter.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

#[cfg(any(test, feature = "testing"))]
mod testing {
    use std::hash::{Hash, Hasher};

    use super::{Requests, WritePurpose};
    use crate::ids::NodeId;
    use crate::node::Canonicalizer;

    impl Requests {
        pub(in super::super) fn canonicalize(
            &mut self,
            me: &NodeId,
            to: &dyn Canonicalizer,
            reads_claims: bool,
        ) {
            for purpose in self.pending_writes.values_mut() {
                if let WritePurpose::Register(row, sent) | WritePurpose::Renew(row, sent) = purpose
                {
                    row.renewals = to.map_renewals(me, row.renewals);
                    *sent = to.map_time(*sent);
                }
                if let WritePurpose::ShardLeases(write) = purpose {
                    write.sent_at = to.map_time(write.sent_at);
                    to.canonicalize_leases(write.chunk, &mut write.row);
                }
            }
            if self.pending_writes.is_empty() && !reads_claims {
                self.last_id = 0;
            }
            // Nonces distinguish incarnations with the same counter; those of one node never share a counter.
            self.random_counter = 0;
        }
    }

    /// Excludes random numbers.
    impl Hash for Requests {
        fn hash<H: Hasher>(&self, state: &mut H) {
            (&self.pending_writes, self.last_id).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once_and_only_if_it_is_awaited() {
        let mut requests = Requests::default();
        let drain = requests.begin_write(WritePurpose::Drain("b".into()));
        let dead = requests.begin_write(WritePurpose::MarkDead("b".into()));
        let leave = requests.begin_write(WritePurpose::Leave);
        assert!(drain < dead && dead < leave && leave < requests.next_id());
        assert!(requests.writes_own_row() && !requests.writes_manager_row());
        requests.retain_writes(|purpose| matches!(purpose, WritePurpose::Drain(_)));
        assert_eq!((requests.finish_write(dead), requests.finish_write(leave)), (None, None));
        assert_eq!(requests.finish_write(drain), Some(WritePurpose::Drain("b".into())));
        assert_eq!(requests.finish_write(drain), None);
    }

    #[test]
    fn draws_differ_and_repeat_with_the_seed() {
        let three = |seed| {
            let mut requests = Requests::default();
            [0; 3].map(|_| requests.draw(seed))
        };
        let [a, b, c] = three(1);
        assert!(a != b && b != c && a != c);
        assert_eq!(three(1), [a, b, c]);
        assert_ne!(three(2), [a, b, c]);
    }
}
