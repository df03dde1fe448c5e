//! The recovery of remembered entities: a new owner starts them without a message, beside serving (R14, K31, K34).
//!
//! The store keeps a mark for each remembered entity. After each granted claim this part reads the marks page by page,
//! and starts the entities, a few at a time and at a limited rate. An instance that is dropped although its entity is
//! remembered is started again in the same way. Recovery gets only slots that nothing else wants, and evicts nothing;
//! an entity that finds no slot keeps its mark, and is tried again.

mod pending;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::Context;
use super::{Action, Entity, Machine, Mutation};
use crate::shard::StopReason;
use crate::shard::entity::Stage;
use pending::PendingStarts;

/// Maximum number of pages of entities in memory. Beyond that, all marks are read again later.
const PAGES: usize = 4;
/// The pause before all marks are read again, and before an entity is tried again for which nothing else sets a time,
/// in milliseconds.
const REREAD_MS: u64 = 30_000;
const RETRY_MS: u64 = 1_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    /// Where the next page of marks begins; `None` if all have been read.
    unread: Option<Option<Entity>>,
    /// The number of the scan that is in flight.
    scan: Option<u64>,
    last_scan: u64,
    /// When a failed scan is repeated, on the node's clock.
    retry_at: Option<u64>,
    pending: PendingStarts,
    /// The entities that are being started.
    starting: BTreeSet<Entity>,
    /// When the next entity may be started, on the node's clock, in microseconds.
    next_start: u64,
    /// When all marks are read again, because an entity was dropped from `pending` for lack of space.
    reread_at: Option<u64>,
    /// Until when nothing is started, on the node's clock, because the store failed.
    paused_until: u64,
    /// Entities that asked for passivation here: only a message, a timer or the next owner starts them.
    asleep: BTreeSet<Entity>,
    /// Types that were passed over, because they are not deployed, or only an older revision is.
    passed_over: BTreeSet<Arc<str>>,
}

impl Recovery {
    /// Reads all marks again: the claim was granted, or a type was deployed that had been passed over.
    pub(super) fn reset(&mut self) {
        (self.unread, self.scan, self.retry_at) = (Some(None), None, None);
        self.pending.clear();
        self.reread_at = None;
    }

    /// Whether the entity waits to be started.
    pub(super) fn awaits(&self, entity: &Entity) -> bool {
        self.starting.contains(entity) || self.pending.contains(entity)
    }

    /// Reads the next page if few entities are left.
    fn scan(&mut self, context: &mut Context) {
        if self.reread_at.is_some_and(|at| at <= context.mono()) && self.unread.is_none() {
            (self.reread_at, self.unread) = (None, Some(None));
        }
        let page = context.settings.timer_page.max(2);
        let waits = self.retry_at.is_some_and(|at| at > context.mono());
        let Some(from) = self.unread.clone() else { return };
        // Those that wait for a pause do not count: they must not keep others from being read.
        let due = self.pending.count_due(context.mono(), page);
        if self.scan.is_some() || waits || due > page / 2 {
            return;
        }
        self.last_scan += 1;
        (self.scan, self.retry_at) = (Some(self.last_scan), None);
        context.push(Action::ScanRemembered { number: self.last_scan, from, max_records: page });
    }

    fn on_page(
        &mut self,
        context: &Context,
        number: u64,
        page: Result<(Vec<Entity>, bool), String>,
    ) {
        if self.scan.take_if(|scan| *scan == number).is_none() {
            return;
        }
        match page {
            Ok((entities, more)) => {
                // The page begins with the last entity of the previous page. If that one was started already, it is
                // skipped.
                let last = entities.last().filter(|_| more && entities.len() > 1).cloned();
                self.unread = last.map(Some);
                for entity in entities {
                    self.add(context, 0, entity);
                }
            }
            Err(_) => self.retry_at = Some(context.mono() + RETRY_MS),
        }
    }

    /// Adds an entity, which is not started before `at`, or before its earlier time if it waits already. If there are
    /// too many, the one that would be started last is dropped.
    fn add(&mut self, context: &Context, at: u64, entity: Entity) {
        self.pending.add(at, entity);
        if self.pending.len() > PAGES * context.settings.timer_page.max(2) {
            self.pending.drop_last();
            self.reread_at.get_or_insert(context.mono() + REREAD_MS);
        }
    }

    /// Handles an entity that asked for passivation.
    fn on_passivated(&mut self, context: &Context, entity: &Entity) {
        if self.asleep.len() < PAGES * context.settings.timer_page.max(2) {
            self.asleep.insert(entity.clone());
        }
    }

    /// Handles an entity whose instance was started.
    pub(super) fn on_started(&mut self, entity: &Entity) {
        if !self.asleep.is_empty() {
            self.asleep.remove(entity);
        }
    }

    /// Passes over a type until its next deployment.
    pub(super) fn pass_over(&mut self, entity: &Entity) {
        if !self.passed_over.contains(&entity.entity_type) {
            self.passed_over.insert(entity.entity_type.clone());
        }
    }

    /// Handles a type's deployment: its entities may be startable now.
    pub(super) fn on_deployed(&mut self, entity_type: &str) {
        if self.passed_over.remove(entity_type) {
            self.reset();
        }
        self.pending.end_pauses(entity_type);
    }

    /// Starts nothing for a while, because the store failed.
    pub(super) fn pause(&mut self, context: &Context) {
        self.paused_until = context.mono() + RETRY_MS;
    }

    /// Takes the next entity to start now.
    fn take_due(&mut self, context: &Context) -> Option<Entity> {
        let settings = &context.settings;
        let now = context.mono();
        let full = self.starting.len() >= settings.recovery_starts.max(1);
        if full || self.next_start > now.saturating_mul(1_000) || self.paused_until > now {
            return None;
        }
        if self.pending.first_time().is_none_or(|at| at > now) {
            return None;
        }
        let entity = self.pending.pop_first()?;
        if let Some(pause) = 1_000_000_u64.checked_div(settings.recovery_rate.into()) {
            self.next_start = self.next_start.max(now.saturating_mul(1_000)) + pause;
        }
        Some(entity)
    }

    /// When there is something to do next, on the node's clock.
    fn next_wake(&self, context: &Context) -> Option<u64> {
        let now = context.mono();
        let full = self.starting.len() >= context.settings.recovery_starts.max(1);
        let start = self.pending.first_time().filter(|_| !full);
        let start =
            start.map(|at| at.max(self.next_start.div_ceil(1_000)).max(self.paused_until).max(now));
        // What has passed waits for something other than time.
        let later = |at: &u64| *at > now;
        let rereads = self.reread_at.filter(|_| self.unread.is_none());
        start.into_iter().chain(self.retry_at.into_iter().chain(rereads).filter(later)).min()
    }
}

impl Machine {
    pub(super) fn on_remembered(&mut self, number: u64, page: Result<(Vec<Entity>, bool), String>) {
        self.recovery.on_page(&self.context, number, page);
    }

    /// Reads marks and starts entities, as far as the limits allow.
    pub(super) fn recover_entities(&mut self) {
        if !self.claim.is_serving()
            || self.lease.is_paused(&self.context)
            || self.context.has_mutation(Mutation::ForgetRemembered)
        {
            return;
        }
        self.recovery.scan(&mut self.context);
        while let Some(entity) = self.recovery.take_due(&self.context) {
            if self.recovery.asleep.contains(&entity) {
                continue;
            }
            // Its deployment reads the marks again.
            if self.types.of(&entity).is_none() || self.supervision.is_stopped(&entity) {
                self.recovery.pass_over(&entity);
                continue;
            }
            if let Some(state) = self.residents.get(&entity) {
                // A migration ends without an instance. If a message caused it, that message may be gone by then.
                if state.stage.has_instance() && !matches!(state.stage, Stage::Migrating(..)) {
                    continue;
                }
                let pause = state.start_backoff.as_ref().filter(|pause| !pause.retrying);
                if let Some(until) = pause.map(|pause| pause.until)
                    && until > self.context.mono()
                {
                    self.recovery.add(&self.context, until, entity);
                    continue;
                }
            }
            self.residents.get_or_create(&self.context, &entity).must_start = true;
            self.recovery.starting.insert(entity.clone());
            self.advance(&entity);
        }
        self.recovery.scan(&mut self.context);
    }

    /// When recovery must continue, on the node's clock.
    pub(super) fn next_recovery(&self) -> Option<u64> {
        if !self.claim.is_serving() || self.lease.is_paused(&self.context) {
            return None;
        }
        self.recovery.next_wake(&self.context)
    }

    /// Releases the place of an entity that is no longer being started.
    pub(super) fn settle_recovery(&mut self, entity: &Entity) {
        if !self.recovery.starting.is_empty()
            && self.residents.get(entity).is_none_or(|state| !state.must_start)
        {
            self.recovery.starting.remove(entity);
        }
    }

    /// Gives up the start of a remembered entity for now: it is tried again after a pause.
    pub(super) fn retry_start(&mut self, entity: &Entity) {
        self.start_again_at(entity, self.context.mono() + RETRY_MS);
    }

    /// Starts a remembered entity again at `at`, unless something else starts it before.
    pub(super) fn start_again_at(&mut self, entity: &Entity, at: u64) {
        self.recovery.starting.remove(entity);
        if self.claim.is_serving() {
            self.recovery.add(&self.context, at, entity.clone());
        }
    }

    /// Starts a remembered entity again whose instance is being dropped, unless it has asked for that.
    pub(super) fn restart_remembered(&mut self, entity: &Entity) {
        let Some(state) = self.residents.get(entity) else { return };
        let remembered = state.head.remembered || state.is_marked;
        if remembered && state.pending_stop == Some(StopReason::Passivated) {
            return self.recovery.on_passivated(&self.context, entity);
        }
        let ran = matches!(state.stage, Stage::Idle | Stage::Running(..) | Stage::Firing(..))
            || matches!(state.stage, Stage::Stopping(_));
        // A command has removed the mark, and its commit does not take effect.
        let stays_marked = state.is_marked && !state.head.remembered;
        if remembered && (ran || stays_marked) {
            self.start_again_at(entity, self.context.mono());
        }
    }
}
