//! Entities whose last turn failed through a fault of their own, as their owner remembers them: `status` counts them,
//! and `inspect` shows the failure.
//!
//! They are kept in memory only: a new owner learns of a failure at the entity's next message. An entity is removed
//! by its next successful turn, together with its shard, or when its type is deployed again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ostraca_codes::{Code, codes};
use ostraca_core::ids::{Entity, ShardId};

/// Maximum number of remembered entities: enough to show what is wrong.
const KEPT: usize = 4_096;
/// Maximum number of bytes kept of a failure's message.
const TEXT: usize = 1_024;
/// Consecutive failures before an entity counts as a problem of the cluster: one bad message is its sender's
/// fault.
const IN_A_ROW: u64 = 3;

/// An entity's last failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The stable code, as a string because another node may have reported it.
    pub code: String,
    /// The failure's message, cut to 1,024 bytes.
    pub message: String,
    /// Milliseconds since 1970, according to the wall clock of the node where the turn failed.
    pub wall_ms: u64,
    /// Failed turns since the last successful one.
    pub consecutive_failures: u64,
}

/// The failing entities of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingType {
    /// The type's name.
    pub entity_type: String,
    /// Entities whose last turn failed.
    pub entities: u64,
    /// How many of those are not expected to recover by themselves.
    pub stuck: u64,
    /// Number of entities per code.
    pub codes: BTreeMap<String, u64>,
    /// A stuck entity if there is one, otherwise any failing entity.
    pub example: String,
}

/// All failing entities of a node.
#[derive(Debug, Default)]
pub struct FailingEntities {
    known: Mutex<BTreeMap<ShardId, BTreeMap<Entity, LastFailure>>>,
    /// Number of remembered entities: while it is 0, a successful turn takes no lock.
    count: AtomicUsize,
}

impl FailingEntities {
    /// Records a failed turn.
    pub fn record_failure(
        &self,
        shard: ShardId,
        entity: &Entity,
        code: Code,
        message: &str,
        wall_ms: u64,
    ) {
        let mut known = self.known();
        let of_shard = known.entry(shard).or_default();
        let before = of_shard.get(entity).map(|last| last.consecutive_failures);
        if before.is_none() && self.count.load(Ordering::Relaxed) >= KEPT {
            return;
        }
        let message = message[..message.floor_char_boundary(TEXT)].to_owned();
        let in_a_row = before.unwrap_or(0) + 1;
        let last =
            LastFailure { code: code.into(), message, wall_ms, consecutive_failures: in_a_row };
        if of_shard.insert(entity.clone(), last).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a successful turn.
    pub fn record_success(&self, shard: ShardId, entity: &Entity) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut known = self.known();
        if let Some(of_shard) = known.get_mut(&shard)
            && of_shard.remove(entity).is_some()
        {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets the entities of a shard that has left this node.
    pub fn remove_shard(&self, shard: ShardId) {
        let gone = self.known().remove(&shard).map_or(0, |entities| entities.len());
        self.count.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Forgets the entities of a type that was deployed again: it is not known yet whether they still fail.
    pub fn deployed(&self, kind: &str) {
        let mut gone = 0;
        for of_shard in self.known().values_mut() {
            let before = of_shard.len();
            of_shard.retain(|entity, _| *entity.entity_type != *kind);
            gone += before - of_shard.len();
        }
        self.count.fetch_sub(gone, Ordering::Relaxed);
    }

    /// An entity's last failure, if its last turn failed.
    #[must_use]
    pub fn last_failure(&self, shard: ShardId, entity: &Entity) -> Option<LastFailure> {
        self.known().get(&shard)?.get(entity).cloned()
    }

    /// The number of remembered entities, and whether the limit may have excluded others.
    #[must_use]
    pub fn count(&self) -> (u64, bool) {
        let count = self.count.load(Ordering::Relaxed);
        (count as u64, count >= KEPT)
    }

    /// The failing entities, grouped by type.
    #[must_use]
    pub fn by_type(&self) -> Vec<FailingType> {
        let known = self.known();
        let mut types: BTreeMap<&str, (FailingType, bool)> = BTreeMap::new();
        for (entity, last) in known.values().flatten() {
            // State that does not decode fails every turn of the entity.
            let stuck =
                last.code == codes::STATE_DOES_NOT_DECODE || last.consecutive_failures >= IN_A_ROW;
            let (of_type, shown) = types.entry(&entity.entity_type).or_insert_with(|| {
                let kind = entity.entity_type.to_string();
                let (codes, example) = (BTreeMap::new(), String::new());
                (FailingType { entity_type: kind, entities: 0, stuck: 0, codes, example }, false)
            });
            of_type.entities += 1;
            of_type.stuck += u64::from(stuck);
            *of_type.codes.entry(last.code.clone()).or_default() += 1;
            if of_type.example.is_empty() || (stuck && !*shown) {
                of_type.example = entity.to_string();
                *shown = stuck;
            }
        }
        types.into_values().map(|(of_type, _)| of_type).collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ShardId, BTreeMap<Entity, LastFailure>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(id: &str) -> Entity {
        Entity::new("counter", id)
    }

    #[test]
    fn an_entity_counts_as_failing_until_a_turn_succeeds() {
        let failing = FailingEntities::default();
        let shard = ShardId(7);
        failing.record_success(shard, &entity("a"));
        for _ in 0..2 {
            failing.record_failure(shard, &entity("a"), codes::PANICKED, "oh no", 5);
        }
        failing.record_failure(
            shard,
            &entity("b"),
            codes::STATE_DOES_NOT_DECODE,
            &"é".repeat(TEXT),
            6,
        );
        let of_type = failing.by_type().pop().expect("a type");
        assert_eq!((of_type.entities, of_type.stuck), (2, 1));
        assert_eq!(of_type.example, entity("b").to_string());
        assert_eq!(
            failing.last_failure(shard, &entity("a")).expect("it failed").consecutive_failures,
            2
        );
        assert!(
            failing.last_failure(shard, &entity("b")).expect("it failed").message.len() <= TEXT
        );
        failing.record_failure(shard, &entity("a"), codes::PANICKED, "oh no", 7);
        assert_eq!(failing.by_type()[0].stuck, 2);
        failing.record_success(shard, &entity("a"));
        assert_eq!(
            (failing.last_failure(shard, &entity("a")), failing.count()),
            (None, (1, false))
        );
    }

    #[test]
    fn failures_are_cleared_with_their_shard_or_by_a_deploy() {
        let failing = FailingEntities::default();
        for shard in 1..=2 {
            failing.record_failure(ShardId(shard), &entity("a"), codes::TRAP, "", 1);
            failing.record_failure(ShardId(shard), &Entity::new("other", "a"), codes::TRAP, "", 1);
        }
        failing.remove_shard(ShardId(1));
        assert_eq!(failing.count(), (2, false));
        failing.deployed("counter");
        assert_eq!(failing.count(), (1, false));
        assert_eq!(failing.by_type()[0].entity_type, "other");
    }

    #[test]
    fn the_number_of_remembered_failures_is_bounded() {
        let failing = FailingEntities::default();
        for number in 0..KEPT + 10 {
            failing.record_failure(ShardId(1), &entity(&number.to_string()), codes::TRAP, "", 1);
        }
        assert_eq!(failing.count(), (KEPT as u64, true));
        failing.record_failure(ShardId(1), &entity("0"), codes::TRAP, "", 1);
        assert_eq!(
            failing.last_failure(ShardId(1), &entity("0")).expect("known").consecutive_failures,
            2
        );
        failing.remove_shard(ShardId(1));
        assert_eq!(failing.count(), (0, false));
    }
}
