//! Deletions in the simulated clusters: which commands delete, and the check that nothing of a deleted entity is left
//! (E17). The oracle's model knows the command, so it also sees whether the entity starts anew.

use ostraca_core::ids::Entity;
use ostraca_core::records::{Head, OWN_TIMERS, RecordKey};

use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// The method of commands that delete.
pub(crate) const METHOD: &str = "delete";

/// The entities that were deleted, and from which records remain to be removed.
pub(crate) fn pending(image: &Image) -> impl Iterator<Item = &Entity> {
    let is_pending = |(_, head): &(&Entity, &Head)| head.is_purged().unwrap_or_default();
    image.heads.iter().filter(is_pending).map(|(entity, _)| entity)
}

/// Checks that deleted entities have neither state nor timers, journal or dead letters.
pub(crate) fn check(image: &Image) -> Vec<Violation> {
    let is_left = |(entity, key): &&(Entity, RecordKey)| {
        let head = image.heads.get(entity);
        let is_gone = head.is_some_and(|it| it.deleted && it.is_purged() == Ok(false));
        let is_kept = match key {
            RecordKey::Timer { due, .. } => *due != OWN_TIMERS,
            RecordKey::Lane(_) | RecordKey::Outbox { .. } => true,
            _ => false,
        };
        is_gone && !is_kept
    };
    let violation = |(entity, key): &(Entity, RecordKey)| {
        ViolationKind::DeletionLeft.because(format!("{entity} was deleted, but has {key:?}"))
    };
    image.records.keys().filter(is_left).map(violation).collect()
}
