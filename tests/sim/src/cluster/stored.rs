//! The count of stored entities by a shard's owner, compared with the store (K38), and namespaces that are full.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_core::ids::ShardId;
use ostraca_core::names::DEFAULT_NAMESPACE;
use ostraca_core::quota::{Full, FullNamespaces};
use ostraca_core::shard::{Event, Phase, StoredEntities};

use super::storage::StoreCall;
use super::{Pid, World};
use crate::store::{Image, Request};
use crate::violation::ViolationKind;

/// What is stored, by type.
fn stored(image: &Image) -> BTreeMap<Arc<str>, StoredEntities> {
    let mut all: BTreeMap<Arc<str>, StoredEntities> = BTreeMap::new();
    for (entity, head) in image.heads.iter().filter(|(_, head)| !head.deleted) {
        let of_type = all.entry(entity.entity_type.clone()).or_default();
        of_type.entities += 1;
        of_type.state_bytes += head.state_bytes;
    }
    all
}

impl World {
    /// Lets every owner count, and compares what those have counted that await no answer to a commit.
    pub(super) fn check_counts(&mut self) {
        if !self.counts_stored {
            return;
        }
        let mut owners: Vec<(Pid, ShardId)> = Vec::new();
        for (pid, it) in self.processes.iter().enumerate().filter(|(_, it)| it.awake(self.now)) {
            let serving = it.shards.iter();
            let serving = serving.filter(|(_, it)| it.machine.phase() == Phase::Serving);
            owners.extend(serving.map(|(shard, _)| (pid, *shard)));
        }
        for (pid, shard) in owners {
            self.compare_count(pid, shard);
            self.handle_shard_event(pid, shard, Event::CountStored);
            self.tell_what_is_full(pid, shard);
        }
    }

    /// Until the last fault, the namespace has used up one of its quotas every other half second.
    fn tell_what_is_full(&mut self, pid: Pid, shard: ShardId) {
        let (full, kind) = match self.now / 500 % 4 {
            _ if !self.has_quotas || self.now >= self.healed => (Full::default(), None),
            1 => {
                let kind = "quota: an owner was told that no entity may be created";
                (Full { entities: Some(1), state_bytes: None }, Some(kind))
            }
            3 => {
                let kind = "quota: an owner was told that no state may grow";
                (Full { entities: None, state_bytes: Some(1) }, Some(kind))
            }
            _ => (Full::default(), None),
        };
        let Some(hosted) = self.processes[pid].shards.get_mut(&shard) else { return };
        if std::mem::replace(&mut hosted.full, full) == full {
            return;
        }
        if let Some(kind) = kind {
            self.tally.count(kind);
        }
        let full = (full != Full::default()).then(|| (DEFAULT_NAMESPACE.into(), full));
        let full = FullNamespaces::new(full.into_iter().collect());
        self.handle_shard_event(pid, shard, Event::NamespacesFull(full));
    }

    fn compare_count(&mut self, pid: Pid, shard: ShardId) {
        let Some(hosted) = self.processes[pid].shards.get(&shard) else { return };
        let image = self.stores[shard.0 as usize - 1].durable();
        let Some(counted) = hosted.machine.stored() else { return };
        let awaits = self.asked.values().any(|asked| {
            asked.pid == pid
                && matches!(&asked.call, StoreCall::Entity(of, _, _, Request::Commit(_)) if *of == shard)
        });
        if awaits || image.claim.as_ref() != Some(hosted.machine.claim()) {
            return;
        }
        let expected = stored(image);
        self.tally.count("stored entities: counted");
        if counted != expected {
            let why = format!("{shard}: the owner counts {counted:?}, stored are {expected:?}");
            self.violations.push(ViolationKind::WrongCount.because(why));
        }
    }
}
