//! Deletions in the simulated clusters: which commands delete, and the check that nothing of a deleted entity is left
//! (E17). The oracle's model knows the command, so it also sees whether the entity starts anew.

use std::collections::BTreeMap;

use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::records::{Head, OWN_TIMERS, RecordKey};
use ostraca_core::shard::SUBSCRIPTION_PAGES;

use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// The method of commands that delete.
pub(crate) const METHOD: &str = "delete";

/// When a turn lets its entity expire, in milliseconds of UTC.
pub(crate) fn expiry_by_turn(rng: &mut Rng, utc: u64) -> Option<Option<u64>> {
    match rng.range(0, 100) {
        0..10 => Some(Some(utc + rng.range(0, 600))),
        10..15 => Some(None),
        _ => None,
    }
}

/// The entities that are to be deleted, or that were deleted and from which records remain to be removed.
pub(crate) fn pending(image: &Image) -> impl Iterator<Item = &Entity> {
    let is_pending = |(_, head): &(&Entity, &Head)| {
        head.is_purged().unwrap_or_default() || head.expires_at.is_some() && !head.deleted
    };
    image.heads.iter().filter(is_pending).map(|(entity, _)| entity)
}

/// Checks that no entity was deleted by a turn without a message before it expired. `utc` has the time at which each
/// such turn ran on its node.
pub(crate) fn check_ends(
    image: &Image,
    utc: &BTreeMap<TurnId, u64>,
    has_message: impl Fn(&TurnId) -> bool,
) -> Vec<Violation> {
    let is_early = |(turn, expires_at): &&(TurnId, Option<u64>)| {
        let ran_at = utc.get(turn).copied().unwrap_or_default();
        !has_message(turn) && expires_at.is_none_or(|at| at > ran_at)
    };
    let violation = |end: &(TurnId, Option<u64>)| {
        ViolationKind::ExpiredEarly.because(format!("{end:?}, at {:?}", utc.get(&end.0)))
    };
    image.ends.iter().filter(is_early).map(violation).collect()
}

/// Checks that deleted entities have neither state nor timers or a journal. A tell that was sent before may become a
/// dead letter later.
pub(crate) fn check(image: &Image) -> Vec<Violation> {
    let is_left = |(entity, key): &&(Entity, RecordKey)| {
        let head = image.heads.get(entity);
        // A head is removed after everything else.
        let is_gone = head.is_none_or(|it| it.deleted && it.is_purged() == Ok(false));
        let is_kept = match key {
            RecordKey::Timer { due, .. } => *due != OWN_TIMERS && head.is_some(),
            RecordKey::Lane(_) | RecordKey::Outbox { .. } | RecordKey::DeadLetter { .. } => {
                head.is_some()
            }
            // An entity can have subscribers before its first turn.
            RecordKey::ChannelItem { channel, number } if &**channel == SUBSCRIPTION_PAGES => {
                let counts = head.and_then(|head| head.subscriptions().ok()).unwrap_or_default();
                *number <= counts.pages
            }
            _ => false,
        };
        is_gone && !is_kept
    };
    let violation = |(entity, key): &(Entity, RecordKey)| {
        ViolationKind::DeletionLeft.because(format!("{entity} was deleted, but has {key:?}"))
    };
    image.records.keys().filter(is_left).map(violation).collect()
}
