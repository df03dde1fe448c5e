//! The shard's wake-ups: when entities that are not in memory must be woken for their timers or tells (R14, R25).
//!
//! The store keeps one wake-up for each entity with timers or tells, ordered by time. This part holds the first ones:
//! all wake-ups before a *horizon*, and none after it, so that distant wake-ups do not crowd out near ones. Only while
//! a page is being read does it also hold later ones, since the page may have been read before they were written. A
//! page is read when few wake-ups are left, while the shard serves. A wake-up here may be too *early*, but not too
//! late: an entity that is woken for nothing is loaded, and its own timers correct the entry.
//!
//! A woken entity is *held* until none of its timers and tells is due, and takes one of `max-timer-entities` places. If
//! it cannot run now (no slot, no type, a failing store), it is *postponed* for a pause that doubles each time, and
//! leaves its place.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use crate::ids::Entity;
use crate::shard::{Action, Mutation};

/// A wake-up: its time in milliseconds since the Unix epoch (UTC), and the entity. Ordered as in the store.
type Wake = (u64, Entity);

/// Maximum number of pages of wake-ups in memory.
const PAGES: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Wakes {
    /// The wake-ups by time. No entity is in more than one of `by_time`, `held` and `postponed`.
    by_time: BTreeSet<Wake>,
    times: BTreeMap<Entity, u64>,
    /// The wake-ups that may be in the store but are not in memory.
    unread: Unread,
    /// The scan that is in flight.
    scan: Option<Scan>,
    last_scan: u64,
    /// When a failed scan is retried, on the node's clock.
    retry_at: Option<u64>,
    held: BTreeMap<Entity, Held>,
    /// The number of held entities that take a place.
    places: usize,
    postponed: BTreeMap<Entity, Held>,
    postponed_until: BTreeSet<(u64, Entity)>,
    /// Whether the last entity that was taken had been postponed: such entities alternate with those that are due.
    took_postponed: bool,
    /// When all wake-ups are read again, because a postponed entity was forgotten for lack of space.
    reread_at: Option<u64>,
}

/// The range of wake-ups that are not in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Unread {
    /// Every wake-up is in memory.
    #[default]
    Nothing,
    /// All wake-ups must be read, from the first one on.
    Everything,
    /// The wake-ups from this one on, which is the horizon.
    From(Wake),
}

impl Unread {
    fn contains(&self, wake: &Wake) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::From(horizon) => wake >= horizon,
        }
    }

    /// Adds a wake-up that was dropped from memory.
    fn add(&mut self, wake: Wake) {
        if !self.contains(&wake) {
            *self = Self::From(wake);
        }
    }
}

#[derive(Clone, Debug)]
struct Scan {
    number: u64,
    /// The first wake-up that was dropped for lack of space since the scan began.
    dropped: Option<Wake>,
}

/// An entity that was woken.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Until when it must neither run timers nor send tells, on the node's clock.
    until: u64,
    /// Length of the last pause in milliseconds.
    span: u64,
    /// Whether it takes a place.
    placed: bool,
}

impl Wakes {
    /// Forgets all wake-ups after a claim was granted, so that they are read from the store again. Pauses continue.
    pub(super) fn reset(&mut self) {
        self.by_time.clear();
        self.times.clear();
        (self.unread, self.scan, self.retry_at) = (Unread::Everything, None, None);
        self.reread_at = None;
    }

    /// Whether the first page since the claim has yet to be read.
    pub(super) fn is_unread(&self) -> bool {
        self.unread == Unread::Everything
    }

    /// Reads the next page if few wake-ups are left.
    pub(super) fn scan(&mut self, context: &mut Context) {
        if self.scan.is_some() {
            return;
        }
        if self.reread_at.is_some_and(|at| at <= context.mono()) {
            self.reread_at = None;
            self.unread = Unread::Everything;
            self.forget_beyond_horizon();
        }
        let page = context.settings.timer_page.max(2);
        let waits = self.retry_at.is_some_and(|at| at > context.mono());
        let from = match &self.unread {
            Unread::Nothing => return,
            _ if waits || self.by_time.len() > page / 2 => return,
            Unread::Everything => None,
            Unread::From(horizon) => Some(horizon.clone()),
        };
        self.last_scan += 1;
        let number = self.last_scan;
        self.scan = Some(Scan { number, dropped: None });
        self.retry_at = None;
        context.push(Action::ScanWakes { number, from, max_records: page });
    }

    /// Handles a page: its wake-ups, and whether more follow.
    pub(super) fn on_page(
        &mut self,
        context: &Context,
        number: u64,
        page: Result<(Vec<Wake>, bool), String>,
    ) {
        let Some(scan) = self.scan.take_if(|scan| scan.number == number) else { return };
        match page {
            Ok((wakes, more)) => {
                self.unread = match wakes.last() {
                    Some(last) if more => Unread::From(last.clone()),
                    // An empty page with more to come would be a fault of the store: it is read again.
                    None if more => self.unread.clone(),
                    _ => Unread::Nothing,
                };
                for (due, entity) in wakes {
                    // A time that was noted during the scan may be newer or older than the page: the earlier time is
                    // the safe one.
                    if self.times.get(&entity).is_none_or(|known| due < *known) {
                        self.insert(&entity, due);
                    }
                }
            }
            Err(_) => self.retry_at = Some(context.mono() + context.settings.timer_backoff),
        }
        if let Some(dropped) = scan.dropped {
            self.unread.add(dropped);
        }
        self.forget_beyond_horizon();
        self.trim(context);
    }

    /// Forgets the wake-ups beyond the horizon, which later scans find.
    fn forget_beyond_horizon(&mut self) {
        let beyond = match &self.unread {
            Unread::Nothing => return,
            Unread::Everything => std::mem::take(&mut self.by_time),
            Unread::From(horizon) => self.by_time.split_off(horizon),
        };
        for (_, entity) in beyond {
            self.times.remove(&entity);
        }
    }

    /// Records when an entity that has left memory must be woken, according to its durable state.
    pub(super) fn note(&mut self, context: &Context, entity: &Entity, first: Option<u64>) {
        self.remove(entity);
        let Some(due) = first else { return };
        // A later scan finds a wake-up beyond the horizon, but a scan in flight may have passed it already.
        if self.scan.is_some() || !self.unread.contains(&(due, entity.clone())) {
            self.insert(entity, due);
            self.trim(context);
        }
    }

    fn has_room(&self, context: &Context) -> bool {
        self.places < context.settings.max_timer_entities.max(1)
    }

    /// Takes the next entity to wake now. It is held from then on.
    pub(super) fn take_due(&mut self, context: &Context) -> Option<Entity> {
        if !self.has_room(context) {
            return None;
        }
        let early = if context.has_mutation(Mutation::FireEarly) { 50 } else { 0 };
        let utc = context.now.utc;
        let due = self.by_time.first().filter(|(due, _)| utc > 0 && *due <= utc + early);
        let ended = self.postponed_until.first().filter(|(until, _)| *until <= context.mono());
        let takes_postponed = ended.is_some() && (due.is_none() || !self.took_postponed);
        let (_, entity) = if takes_postponed { ended? } else { due? };
        let entity = entity.clone();
        self.took_postponed = takes_postponed;
        self.hold(&entity);
        self.place(&entity);
        Some(entity)
    }

    fn place(&mut self, entity: &Entity) {
        if let Some(held) = self.held.get_mut(entity) {
            self.places += usize::from(!std::mem::replace(&mut held.placed, true));
        }
    }

    /// Gives up the place of an entity that waits for something: another one may be woken.
    pub(super) fn leave_place(&mut self, entity: &Entity) {
        if let Some(held) = self.held.get_mut(entity) {
            self.places -= usize::from(std::mem::take(&mut held.placed));
        }
    }

    /// Holds an entity whose timers are due.
    pub(super) fn hold(&mut self, entity: &Entity) {
        if !self.held.contains_key(entity) {
            let span = self.postponed.get(entity).map_or(0, |held| held.span);
            self.remove(entity);
            self.held.insert(entity.clone(), Held { span, ..Held::default() });
        }
    }

    pub(super) fn is_held(&self, entity: &Entity) -> bool {
        !self.held.is_empty() && self.held.contains_key(entity)
    }

    /// Whether the shard has a wake-up of the entity in memory.
    pub(super) fn knows(&self, entity: &Entity) -> bool {
        self.times.contains_key(entity) || self.held.contains_key(entity)
    }

    /// Releases an entity none of whose timers and tells is due any more.
    pub(super) fn release(&mut self, entity: &Entity) {
        self.leave_place(entity);
        self.held.remove(entity);
    }

    /// Holds the entity, and keeps it from running timers and sending tells for a while.
    pub(super) fn postpone(&mut self, context: &Context, entity: &Entity) {
        self.hold(entity);
        self.leave_place(entity);
        let Some(held) = self.held.get_mut(entity) else { return };
        if held.until > context.mono() {
            return;
        }
        let (first, most) = (context.settings.timer_backoff, context.settings.timer_max_backoff);
        held.span = if held.span == 0 { first } else { (held.span * 2).min(most.max(first)) };
        held.until = context.mono().saturating_add(held.span.max(1));
    }

    /// Until when the entity must neither run timers nor send tells, if it is postponed.
    pub(super) fn postponed_until(&self, context: &Context, entity: &Entity) -> Option<u64> {
        if self.held.is_empty() {
            return None;
        }
        self.held.get(entity).map(|held| held.until).filter(|until| *until > context.mono())
    }

    /// Ends the pauses of these entities: they may run now. Returns those that are in memory.
    pub(super) fn end_pauses(
        &mut self,
        context: &Context,
        of: impl Fn(&Entity) -> bool,
    ) -> Vec<Entity> {
        let now = context.mono();
        let mut paused = Vec::new();
        for (entity, held) in &mut self.held {
            if of(entity) && held.until > now {
                held.until = now;
                paused.push(entity.clone());
            }
        }
        for (entity, held) in &mut self.postponed {
            if of(entity) && held.until > now {
                self.postponed_until.remove(&(held.until, entity.clone()));
                held.until = now;
                self.postponed_until.insert((now, entity.clone()));
            }
        }
        paused
    }

    /// Handles an entity that has left memory. Returns whether it waits here for the end of its pause.
    pub(super) fn on_left_memory(&mut self, context: &Context, entity: &Entity) -> bool {
        self.leave_place(entity);
        let Some(held) = self.held.remove(entity) else { return false };
        if held.until <= context.mono() {
            return false;
        }
        self.postponed.insert(entity.clone(), held);
        self.postponed_until.insert((held.until, entity.clone()));
        if self.postponed.len() > context.settings.timer_page.max(2) * PAGES
            && let Some((_, last)) = self.postponed_until.pop_last()
        {
            // It is found only when all wake-ups are read again, so that others get their turn.
            self.postponed.remove(&last);
            let later = context.mono().saturating_add(context.settings.timer_max_backoff);
            self.reread_at.get_or_insert(later);
        }
        true
    }

    /// When this part has something to do next, on the node's clock, as far as is known now.
    pub(super) fn next_wake(&self, context: &Context) -> Option<u64> {
        let (mono, room) = (context.mono(), self.has_room(context));
        let due = self.by_time.first().filter(|_| room && context.now.utc > 0);
        let due = due.map(|(due, _)| mono.saturating_add(due.saturating_sub(context.now.utc)));
        let postponed = self.postponed_until.first().filter(|_| room).map(|(until, _)| *until);
        let reread = self.reread_at.filter(|_| self.scan.is_none());
        let retry = self.retry_at.filter(|at| *at > mono);
        [due, postponed, retry, reread].into_iter().flatten().min()
    }

    fn insert(&mut self, entity: &Entity, due: u64) {
        if self.held.contains_key(entity) || self.postponed.contains_key(entity) {
            return;
        }
        if let Some(old) = self.times.insert(entity.clone(), due) {
            self.by_time.remove(&(old, entity.clone()));
        }
        self.by_time.insert((due, entity.clone()));
    }

    fn remove(&mut self, entity: &Entity) {
        if let Some(old) = self.times.remove(entity) {
            self.by_time.remove(&(old, entity.clone()));
        }
        if let Some(held) = self.postponed.remove(entity) {
            self.postponed_until.remove(&(held.until, entity.clone()));
        }
    }

    /// Drops the last wake-ups if there are too many: a scan finds them again.
    fn trim(&mut self, context: &Context) {
        let most = context.settings.timer_page.max(2) * PAGES;
        while self.by_time.len() > most {
            let Some(last) = self.by_time.pop_last() else { return };
            self.times.remove(&last.1);
            match &mut self.scan {
                // The scan's result decides what is unread.
                Some(scan) if scan.dropped.as_ref().is_none_or(|dropped| last < *dropped) => {
                    scan.dropped = Some(last);
                }
                Some(_) => {}
                None => self.unread.add(last),
            }
        }
    }
}

#[cfg(test)]
mod tests;
