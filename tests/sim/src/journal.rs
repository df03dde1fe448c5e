//! Journals in the simulated clusters: what guests append, and the check that no event is lost, doubled or overwritten
//! (E18).
//!
//! Each event holds the number that its guest expected, so the check also sees whether guests get the right extent.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::Entity;
use ostraca_core::records::{JournalEvent, JournalExtent, JournalSnapshot, RecordKey};
use ostraca_core::shard::{EVENT_CHARGE, JournalChange};

use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// Bytes of all events before the one with this number. All events have the same size.
const fn start(number: u64) -> u64 {
    (number - 1) * (8 + EVENT_CHARGE)
}

fn data(number: u64) -> Bytes {
    Bytes::from(number.to_le_bytes().to_vec())
}

/// The changes that a turn makes to its entity's journal: it appends up to three events, and sometimes removes the
/// oldest ones or saves a snapshot.
pub(crate) fn by_turn(rng: &mut Rng, extent: &JournalExtent) -> JournalChange {
    let next = extent.next + rng.range(0, 4);
    let from = extent.first + rng.range(0, next - extent.first + 1);
    JournalChange {
        events: (extent.next..next).map(data).collect(),
        keep_from: rng.chance(20).then(|| (from, start(from))),
        snapshot: rng.chance(20).then(|| (next - 1, data(next - 1))),
    }
}

/// A change to a journal by a turn that took effect.
#[derive(Clone, Debug)]
pub struct JournalWrite {
    entity: Entity,
    /// The number of deletions before the write.
    generation: u64,
    number: u64,
    value: Option<Bytes>,
}

impl JournalWrite {
    /// The change that a write makes. `None` if it does not affect a journal.
    pub(crate) fn of(
        entity: &Entity,
        key: &RecordKey,
        value: Option<&Bytes>,
        generation: u64,
    ) -> Option<Self> {
        let RecordKey::Journal { number } = key else { return None };
        let (entity, value) = (entity.clone(), value.cloned());
        Some(Self { entity, generation, number: *number, value })
    }
}

/// Checks the journals of one store. Returns the violations, and the number of events.
pub(crate) fn check(image: &Image) -> (Vec<Violation>, u64) {
    let mut found = Vec::new();
    // With the generation in which the journal began.
    let mut extents = BTreeMap::<&Entity, (u64, JournalExtent)>::new();
    let mut events = 0;
    for JournalWrite { entity, generation, number, value } in &image.journal_writes {
        let (began, extent) = extents.entry(entity).or_default();
        let is_purge = *began < *generation && value.is_none();
        if *began < *generation && extent.first == extent.next && !is_purge {
            // The events before the deletion are gone.
            (*began, *extent) = (*generation, JournalExtent::default());
        }
        let right = match value {
            None if is_purge && *number == RecordKey::SNAPSHOT => true,
            Some(value) if *number == RecordKey::SNAPSHOT => {
                let snapshot = codec::decode::<JournalSnapshot>(value);
                snapshot
                    .is_ok_and(|it| it.through == extent.next - 1 && it.data == data(it.through))
            }
            Some(value) => {
                let event = codec::decode::<JournalEvent>(value);
                let right =
                    event.is_ok_and(|it| it.start == start(*number) && it.data == data(*number));
                let follows = *number == extent.next;
                extent.next = number + 1;
                events += 1;
                follows && right
            }
            None => {
                let follows = *number == extent.first && *number < extent.next;
                extent.first = number + 1;
                follows
            }
        };
        if !right {
            let what = if value.is_some() { "written" } else { "deleted" };
            let why = format!("{entity}: record {number} of the journal was {what} out of order");
            found.push(ViolationKind::JournalWrong.because(why));
        }
    }
    // The journal of a deleted entity is removed page by page.
    let is_deleted = |entity: &Entity| image.heads.get(entity).is_none_or(|head| head.deleted);
    for (entity, (began, extent)) in extents.into_iter().filter(|(entity, _)| !is_deleted(entity)) {
        let generation = image.heads.get(entity).and_then(|head| head.generation().ok());
        let is_purged = extent.first == extent.next && generation > Some(began);
        let extent = if is_purged { JournalExtent::default() } else { extent };
        let head = image.heads.get(entity).and_then(|head| head.journal().ok()).unwrap_or_default();
        let range = (entity.clone(), RecordKey::Journal { number: 1 })
            ..=(entity.clone(), RecordKey::Journal { number: u64::MAX });
        let stored: Vec<_> = image.records.range(range).map(|((_, key), _)| key.clone()).collect();
        let counted: Vec<_> =
            (head.first..head.next).map(|number| RecordKey::Journal { number }).collect();
        if stored != counted || (extent.first, extent.next) != (head.first, head.next) {
            let why = format!("{entity}: the head counts {head:?}, but {stored:?} is stored");
            found.push(ViolationKind::JournalWrong.because(why));
        }
    }
    (found, events)
}
