//! Timers of the shard's entities: waking the entities, firing, and handling the results (R25).
//!
//! A firing is a turn, committed and fenced like that of a message. It is based on the timers as all turns before it
//! left them, so a timer that a turn cancelled or replaced does not fire after that turn. If the commit is refused, the
//! timers are read again, and the firing happens again.

use std::sync::Arc;

use super::gate::Effects;
use super::{Action, Entity, GuestReply, Machine, Mutation, Phase, TurnId};
use crate::records::Timer;
use crate::shard::entity::{ResidentEntity, Stage};
use crate::shard::timers::{Firing, Timers};
use crate::shard::{StopReason, TurnOutput, TurnRecords, TurnResult, delayed_tell_name};

/// How long the machine relies on its conversion of UTC to the node's clock, in milliseconds.
const MAX_WAIT_MS: u64 = 60_000;
/// How long an entity's timers wait before they are examined again while the node does not know UTC, in milliseconds.
const UNKNOWN_UTC_MS: u64 = 1_000;

impl Machine {
    pub(super) fn on_wakes(
        &mut self,
        number: u64,
        page: Result<(Vec<(u64, Entity)>, bool), String>,
    ) {
        self.wakes.on_page(&self.context, number, page);
        if self.context.has_mutation(Mutation::ReadTimersFirst) {
            self.advance_stalled();
        }
    }

    /// Reads wake-ups and wakes entities, as far as the limits allow.
    pub(super) fn wake_entities(&mut self) {
        if !self.claim.is_serving() || self.lease.is_paused(&self.context) {
            return;
        }
        self.wakes.scan(&mut self.context);
        self.wake_due_entities();
        // Few wake-ups may be left now.
        self.wakes.scan(&mut self.context);
    }

    fn wake_due_entities(&mut self) {
        while let Some(entity) = self.wakes.take_due(&self.context) {
            if self.types.of(&entity).is_none() || self.supervision.is_stopped(&entity) {
                self.wakes.postpone(&self.context, &entity);
                if self.residents.get(&entity).is_none() {
                    self.wakes.on_left_memory(&self.context, &entity);
                }
                continue;
            }
            let state = self.residents.get_or_create(&self.context, &entity);
            state.must_read |= !state.is_read;
            self.advance(&entity);
        }
    }

    /// When the machine must handle wake-ups next, on the node's clock.
    pub(super) fn next_timer_wake(&self) -> Option<u64> {
        if !self.claim.is_serving() || self.lease.is_paused(&self.context) {
            return None;
        }
        let latest = self.context.mono().saturating_add(MAX_WAIT_MS);
        self.wakes.next_wake(&self.context).map(|at| at.min(latest))
    }

    /// The firing that an entity can make now.
    pub(super) fn due_firing(&self, entity: &Entity, state: &ResidentEntity) -> Option<Firing> {
        self.due_timer(entity, state, |_| true)
    }

    /// Whether a timer of the entity is due, it has expired, or its head must be examined.
    pub(super) fn is_due(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        self.due_firing(entity, state).is_some()
            || self.is_expired(entity, state)
            || self.may_sweep(entity, state)
    }

    /// When the entity's first timer fires, it expires, or its head must be examined.
    fn first_due(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        let end = self.expiry(entity, state).or_else(|| state.sweep_at());
        state.timers.first().into_iter().chain(end).min()
    }

    /// The delayed tell that an entity can send now.
    pub(super) fn due_tell(&self, entity: &Entity, state: &ResidentEntity) -> Option<Firing> {
        self.due_timer(entity, state, |timer| delayed_tell_name(&timer.name).is_some())
    }

    fn due_timer(
        &self,
        entity: &Entity,
        state: &ResidentEntity,
        wanted: impl Fn(&Timer) -> bool,
    ) -> Option<Firing> {
        let utc = self.context.now.utc;
        let may_fire = state.is_read && utc > 0 && !state.is_purged;
        let first = state.timers.first().filter(|_| may_fire)?;
        let early = if self.context.has_mutation(Mutation::FireEarly) { 50 } else { 0 };
        if first > utc + early
            || self.wakes.postponed_until(&self.context, entity).is_some()
            || self.supervision.is_stopped(entity)
        {
            return None;
        }
        state.timers.due(utc + early, wanted).map(|firing| Firing { utc_ms: utc, ..firing })
    }

    /// Whether the entity's timers need it in memory now.
    pub(super) fn timers_need(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        if !matches!(self.claim.phase(), Phase::Claiming | Phase::Serving) {
            return false;
        }
        if state.must_read {
            return self.wakes.postponed_until(&self.context, entity).is_none();
        }
        self.is_due(entity, state)
    }

    /// When the entity must be examined for its timers, on the node's clock.
    pub(super) fn timers_due(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        if !matches!(state.stage, Stage::Idle | Stage::Loaded | Stage::Unloaded)
            || !state.is_read
            || state.is_purged
            || self.lease.is_paused(&self.context)
        {
            return None;
        }
        let first = self.first_due(entity, state)?;
        let mono = self.context.mono();
        if self.context.now.utc == 0 {
            return Some(mono.saturating_add(UNKNOWN_UTC_MS));
        }
        let wait = first.saturating_sub(self.context.now.utc).min(MAX_WAIT_MS);
        let paused = self.wakes.postponed_until(&self.context, entity).unwrap_or(0);
        // A firing that is already due waits for something else, and an event reports when that ends.
        let at = (mono + wait).max(paused);
        (at > mono).then_some(at)
    }

    /// Releases a held entity if none of its timers or tells is due.
    pub(super) fn settle_wake(&mut self, entity: &Entity) {
        if !self.wakes.is_held(entity) {
            return;
        }
        let Some(state) = self.residents.get(entity) else { return };
        // Without a message, a commit belongs to timers or outbox, and its refusal lengthens the pause.
        let is_busy = matches!(state.stage, Stage::Firing(..))
            || state.gate.iter().any(|gated| gated.message.is_none());
        if state.is_read
            && !state.must_read
            && !state.is_purged
            && !is_busy
            && !self.tells_need(entity, state)
            && self.wakes.postponed_until(&self.context, entity).is_none()
            && !self.is_due(entity, state)
        {
            self.wakes.release(entity);
        }
    }

    /// Handles an entity that has left memory: it is woken when its first timer fires or its next tell can be sent.
    pub(super) fn on_left_memory(&mut self, entity: &Entity, state: &ResidentEntity) {
        let was_held = self.wakes.is_held(entity);
        if self.wakes.on_left_memory(&self.context, entity) {
            return;
        }
        if state.is_read && !state.must_read {
            let (mono, utc) = (self.context.mono(), self.context.now.utc);
            // Answers to tells in flight will not find the entity, and those of tells that are not deleted yet are
            // forgotten, so the tells are sent again.
            let sends_again = state.outbox.has_in_flight() || state.outbox.has_done();
            let again = sends_again.then_some(self.context.settings.tell_backoff);
            let sends = state.outbox.wait(mono, utc).into_iter().chain(again).min();
            let sends = sends.map(|wait| utc.saturating_add(wait));
            let purge = state.is_purged.then_some(0);
            let first = self.first_due(entity, state);
            let next = first.into_iter().chain(sends).chain(purge).min();
            if next.is_some() || self.wakes.knows(entity) {
                self.wakes.note(&self.context, entity, next);
            }
        } else if was_held || state.must_read {
            // Its timers are unknown, so it is woken to read them.
            self.wakes.note(&self.context, entity, Some(0));
        }
    }

    /// Discards timers and tells that ran ahead of commits that will not take effect: they must be read again.
    pub(super) fn doubt_timers(&mut self, entity: &Entity) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        if !state.is_read
            || state.head.deleted
            || state.expires
            || state.timers.depend_on_commits()
            || state.outbox.depends_on_commits()
        {
            state.must_read |= state.is_read;
            (state.is_read, state.is_purged) = (false, false);
            state.timers = Timers::default();
        }
    }

    /// Handles an entity that cannot run now. If that keeps its timers from firing, they wait for a while.
    pub(super) fn postpone_timers(&mut self, entity: &Entity) {
        let Some(state) = self.residents.get(entity) else { return };
        if state.must_read
            || state.is_purged
            || self.wakes.is_held(entity)
            || self.is_due(entity, state)
            || state.sweep_has_come(self.context.now.utc)
        {
            self.wakes.postpone(&self.context, entity);
        }
    }

    /// Starts the firing's turn.
    pub(super) fn fire(&mut self, entity: &Entity, firing: Firing) {
        self.wakes.hold(entity);
        let refused =
            self.residents.get_mut(entity).and_then(|state| state.refused_firing.take()).filter(
                |(refused, _)| {
                    (&refused.name, refused.generation, refused.due)
                        == (&firing.name, firing.generation, firing.due)
                },
            );
        if let Some((_, why)) = refused {
            return self.fail_firing(entity, &firing, &why);
        }
        if firing.sends_tell() {
            return self.send_delayed_tell(entity, firing);
        }
        let turn = self.claim.next_turn();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let firing = Arc::new(firing);
        state.stage = Stage::Firing(turn, firing.clone());
        let action = Action::Fire {
            entity: entity.clone(),
            generation: state.generation,
            turn,
            version: state.head.version,
            records: Some(Box::new(TurnRecords {
                timers: state.timers.after(&firing),
                ..state.all_records()
            })),
            firing,
        };
        self.context.push(action);
    }

    pub(super) fn on_fired(
        &mut self,
        entity: &Entity,
        turn: TurnId,
        firing: &Arc<Firing>,
        output: TurnOutput,
    ) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        state.last_used = self.context.now.mono;
        state.stage = Stage::Idle;
        state.fired_last = true;
        state.passivate_after = output.passivate_after.unwrap_or(state.passivate_after);
        if output.passivate || state.passivates {
            state.pending_stop = state.pending_stop.or(Some(StopReason::Passivated));
        }
        match output.result.clone() {
            TurnResult::Replied(GuestReply::Error { code, message }) => {
                self.fail_firing(entity, firing, &format!("{code}: {message}"));
            }
            TurnResult::Replied(reply) => {
                self.commit_turn(entity, turn, None, Some(firing.clone()), (reply, output));
            }
            TurnResult::Failed { code, message, retry_after: None } => {
                self.on_guest_failure(entity, &code, &message);
                self.drop_instance(entity);
                self.fail_firing(entity, firing, &format!("{code}: {message}"));
            }
            // Not the guest's fault: the attempt does not count.
            TurnResult::Failed { .. } => {
                self.wakes.postpone(&self.context, entity);
                self.drop_instance(entity);
            }
            TurnResult::Refused { .. } => self.wakes.postpone(&self.context, entity),
        }
    }

    /// Puts a delayed tell into the outbox, in a turn that does not call the guest. The tell then has its number.
    fn send_delayed_tell(&mut self, entity: &Entity, firing: Firing) {
        let tell = match firing.new_tell() {
            Ok(tell) => tell,
            Err(error) => return self.fail_firing(entity, &firing, &error.to_string()),
        };
        let keeps_timer = self.context.has_mutation(Mutation::KeepFiredTimer);
        let now = self.context.now.cluster_time;
        let turn = self.claim.next_turn();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let version = state.head.version + 1;
        let fired = Some(&firing).filter(|_| !keeps_timer);
        let mut records = state.timers.apply(fired, Vec::new(), version);
        records.extend(state.outbox.apply(vec![tell], version, now));
        let firing = Some(Arc::new(firing));
        self.commit(entity, turn, Effects { firing, ..Effects::of_records(records) });
    }

    /// Records a failed attempt, in a turn that does not call the guest.
    fn fail_firing(&mut self, entity: &Entity, firing: &Firing, why: &str) {
        let turn = self.claim.next_turn();
        let Some(state) = self.residents.get_mut(entity) else { return };
        if !state.timers.matches(firing) {
            return;
        }
        let why = shortened(why);
        let utc = self.context.now.utc.max(firing.utc_ms);
        let (writes, gave_up) = state.timers.fail(firing, &why, utc, &self.context.settings);
        if gave_up {
            self.context.push(Action::TimerGaveUp {
                entity: entity.clone(),
                name: firing.name.clone(),
                attempts: firing.attempt,
                why,
            });
        }
        let firing = Some(Arc::new(firing.clone()));
        self.commit(entity, turn, Effects { firing, ..Effects::of_records(writes) });
    }
}

/// At most the first 1,024 bytes of a text, cut at a character boundary.
pub(super) fn shortened(text: &str) -> Arc<str> {
    text[..text.floor_char_boundary(1_024)].into()
}
