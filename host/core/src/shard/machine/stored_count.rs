//! How many entities the shard stores, and how large their state is (K38).
//!
//! The store is asked only once somebody wants to know: this part then reads all heads, page by page, and from then on
//! follows the commits. A page may be older or newer than the answers to commits that overtake it, so what commits have
//! said decides over what the page says.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::context::Context;
use super::{Action, Entity, Machine};
use crate::shard::entity::ResidentEntity;
use crate::shard::stored::{Amount, HeadPage, StoredEntities};

/// How far the heads have been read.
#[derive(Clone, Debug, Default)]
enum Progress {
    /// Nobody has asked since the last claim.
    #[default]
    Unasked,
    /// All entities up to and including `last` are counted.
    Reading {
        after: Option<Bytes>,
        last: Option<Entity>,
        /// Whether a page was asked for.
        in_flight: bool,
        /// Later entities that were committed while the page was in flight: their newest versions, and what they count for.
        committed: BTreeMap<Entity, (u64, Amount)>,
    },
    Complete,
}

/// The shard's stored entities by type.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredCount {
    by_type: BTreeMap<Arc<str>, Amount>,
    progress: Progress,
    /// The number of the last scan.
    last_scan: u64,
}

impl StoredCount {
    /// Forgets everything, because the outcome of a commit was unknown.
    pub(super) fn reset(&mut self) {
        self.by_type.clear();
        self.progress = Progress::Unasked;
    }

    /// Begins to count, or continues after a page that could not be read.
    fn ask(&mut self, context: &mut Context) {
        if matches!(self.progress, Progress::Unasked) {
            let committed = BTreeMap::new();
            self.progress =
                Progress::Reading { after: None, last: None, in_flight: false, committed };
        }
        self.read(context);
    }

    fn read(&mut self, context: &mut Context) {
        let Progress::Reading { after, in_flight: in_flight @ false, .. } = &mut self.progress
        else {
            return;
        };
        *in_flight = true;
        self.last_scan += 1;
        let (number, after) = (self.last_scan, after.clone());
        let max_records = context.settings.timer_page.max(1);
        context.push(Action::ScanHeads { number, after, max_records });
    }

    /// Follows a durable commit, which left the entity with `now` and changed what it counts for.
    pub(super) fn on_committed(
        &mut self,
        entity: &Entity,
        version: u64,
        change: Amount,
        now: Amount,
    ) {
        match &mut self.progress {
            Progress::Unasked => {}
            Progress::Reading { last, in_flight, committed, .. }
                if last.as_ref().is_none_or(|at| at < entity) =>
            {
                // A page that is asked for later contains it.
                if !*in_flight {
                    return;
                }
                let newest = committed.entry(entity.clone()).or_default();
                if newest.0 < version {
                    *newest = (version, now);
                }
            }
            Progress::Reading { .. } | Progress::Complete => self.add(entity, change),
        }
    }

    fn add(&mut self, entity: &Entity, amount: Amount) {
        if amount == Amount::default() {
            return;
        }
        match self.by_type.get_mut(&entity.entity_type) {
            Some(total) => *total += amount,
            None => drop(self.by_type.insert(entity.entity_type.clone(), amount)),
        }
    }

    /// Counts a page. `without_pending` says what an entity counts for without its commits that are in flight, if there
    /// are any: they are added with their answers.
    fn on_page(
        &mut self,
        (heads, next): HeadPage,
        without_pending: impl Fn(&Entity) -> Option<Amount>,
    ) {
        let Progress::Reading { after, last, committed, .. } = &mut self.progress else { return };
        let end = heads.last().map(|(entity, _)| entity.clone());
        let is_last = next.is_none();
        let mut found: BTreeMap<Entity, Amount> =
            heads.into_iter().map(|(entity, head)| (entity, Amount::of(&head))).collect();
        let is_covered = |entity: &Entity| is_last || Some(entity) <= end.as_ref();
        let committed = std::mem::take(committed).into_iter();
        for (entity, (_, amount)) in committed.filter(|(entity, _)| is_covered(entity)) {
            found.insert(entity, amount);
        }
        (*after, *last) = (next, end.or(last.take()));
        for (entity, amount) in found {
            let amount = without_pending(&entity).unwrap_or(amount);
            self.add(&entity, amount);
        }
        if is_last {
            self.progress = Progress::Complete;
        }
    }

    /// Forgets a page that could not be read: whoever asks next lets it be read again.
    fn on_failure(&mut self) {
        if let Progress::Reading { committed, .. } = &mut self.progress {
            committed.clear();
        }
    }

    /// Whether the number is that of the page in flight, which has now been answered.
    fn take_answer(&mut self, number: u64) -> bool {
        match &mut self.progress {
            Progress::Reading { in_flight, .. } => {
                number == self.last_scan && std::mem::take(in_flight)
            }
            _ => false,
        }
    }
}

impl ResidentEntity {
    /// What the entity counts for without its commits that are in flight, if there are any.
    fn stored_without_pending(&self) -> Option<Amount> {
        let mut amount = self.stored;
        self.gate.iter().for_each(|gated| amount -= gated.stored);
        (!self.gate.is_empty()).then_some(amount)
    }

    /// Notes what the next commit leaves in the store, and returns the change.
    pub(super) fn change_stored(&mut self) -> Amount {
        let now = Amount::of(&self.head);
        now - std::mem::replace(&mut self.stored, now)
    }
}

impl Machine {
    /// Counts the stored entities, if that was not done since the shard was claimed.
    pub(super) fn count_stored(&mut self) {
        if self.claim.is_serving() {
            self.stored.ask(&mut self.context);
        }
    }

    pub(super) fn on_heads(&mut self, number: u64, page: Result<HeadPage, String>) {
        if !self.stored.take_answer(number) {
            return;
        }
        let Ok(page) = page else { return self.stored.on_failure() };
        let residents = &self.residents;
        self.stored.on_page(page, |entity| residents.get(entity)?.stored_without_pending());
        if self.claim.is_serving() {
            self.stored.read(&mut self.context);
        }
    }

    /// The stored entities by type, if they have been counted since the shard was claimed: see
    /// [`Event::CountStored`](super::Event::CountStored).
    #[must_use]
    pub fn stored(&self) -> Option<BTreeMap<Arc<str>, StoredEntities>> {
        if !matches!(self.stored.progress, Progress::Complete) {
            return None;
        }
        let natural = |number: i64| u64::try_from(number).unwrap_or(0);
        let counted = self.stored.by_type.iter().map(|(entity_type, amount)| {
            let (entities, state_bytes) = (natural(amount.entities), natural(amount.bytes));
            (entity_type.clone(), StoredEntities { entities, state_bytes })
        });
        Some(counted.filter(|(_, stored)| *stored != StoredEntities::default()).collect())
    }
}
