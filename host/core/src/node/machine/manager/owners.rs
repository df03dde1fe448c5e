//! Each shard's owner as an index into the list of hosts, cached between plans.
//!
//! A plan names the owner of every shard. Finding an owner among the hosts takes a search by name, so it is
//! repeated only for chunks that changed, or for all of them if the hosts changed.

use super::{BTreeMap, BTreeSet, ManagedChunk, Member, shard_at};

#[derive(Clone, Debug, Default)]
pub(super) struct OwnerIndex {
    hosts: Vec<Member>,
    /// The owner of shard `n` is at index `n - 1`; `None` if it is not one of the hosts.
    indices: Vec<Option<usize>>,
    /// Chunks that changed since the last plan.
    changed: BTreeSet<u32>,
}

impl OwnerIndex {
    /// Records that a chunk's rows, observed or desired, have changed.
    pub(super) fn chunk_changed(&mut self, chunk: u32) {
        self.changed.insert(chunk);
    }

    /// The index of each shard's owner among the hosts.
    pub(super) fn refresh(
        &mut self,
        hosts: &[Member],
        chunks: &[ManagedChunk],
        shards: u32,
    ) -> &[Option<usize>] {
        if self.hosts != hosts || self.indices.len() != shards as usize {
            self.hosts = hosts.to_vec();
            self.indices = vec![None; shards as usize];
            self.changed = (0..).take(chunks.len()).collect();
        }
        let by_member = by_member(&self.hosts);
        for number in std::mem::take(&mut self.changed) {
            let Some(chunk) = chunks.get(number as usize) else { continue };
            for (place, row) in chunk.desired_assignments() {
                let index = (shard_at(number, place).0 as usize).checked_sub(1);
                if let Some(known) = index.and_then(|index| self.indices.get_mut(index)) {
                    *known = row.owner.as_ref().and_then(|owner| by_member.get(owner)).copied();
                }
            }
        }
        &self.indices
    }
}

/// The cache is derived from rows and hosts, and does not change decisions.
#[cfg(any(test, feature = "testing"))]
impl std::hash::Hash for OwnerIndex {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// Each member's index in a list.
pub(super) fn by_member(members: &[Member]) -> BTreeMap<&Member, usize> {
    members.iter().enumerate().map(|(at, member)| (member, at)).collect()
}
