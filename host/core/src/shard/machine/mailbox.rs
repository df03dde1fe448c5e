//! Messages: joined to their copies (R18), judged by their lanes (R17), run, or refused.

use super::*;

impl Machine {
    pub(super) fn on_message(&mut self, now: Now, message: Arc<Message>) {
        let token = message.reply_token;
        if let Some(outcome) = self.admission_refusal(now, &message) {
            return self.reply(token, outcome);
        }
        let entity = message.target.clone();
        let id = message.id;
        let join = !self.has_mutation(Mutation::CopiesDontJoin)
            && !self.has_mutation(Mutation::IgnoreLanes);
        let compare = !self.has_mutation(Mutation::IgnoreDigest);
        let ordered = !self.has_mutation(Mutation::IgnoreOrder);
        let copies = self.settings.max_copies;
        let state = self
            .entities
            .entry(entity.clone())
            .or_insert_with(|| ResidentEntity::new(now.mono, &self.queued_total));
        if let Some(entry) = state.entries.get_mut(&id) {
            if join {
                let outcome = if entry.message.digest != message.digest && compare {
                    Outcome::not_run(codes::ID_REUSED, id_reused_text(&id))
                } else if entry.reply_tokens.len() >= copies {
                    Outcome::not_run_retryable(
                        codes::TOO_MANY_COPIES,
                        "as many copies wait as `copies` allows",
                        100,
                    )
                } else {
                    entry.reply_tokens.push(token);
                    let latest = entry.deadline.zip(message.deadline).map(|(a, b)| a.max(b));
                    // Never sooner than before: its entity is looked at in time.
                    entry.deadline = latest;
                    state.mailbox.set_deadline(&id, latest);
                    return;
                };
                return self.reply(token, outcome);
            }
            // The mutation: answer from what ran ahead, or run beside.
            if let LaneDecision::Replay(recorded) = state.lanes.check(&message, false, false) {
                return self.reply(token, final_outcome(recorded));
            }
            return self.reply(token, Outcome::not_run_retryable(codes::OVERLOADED, "mutation", 1));
        }
        let mailbox =
            self.types.get(&entity.entity_type).map_or(0, |settings| settings.mailbox_capacity);
        if state.queued_messages() >= mailbox {
            // Those that wait for another message give way to one that need not: it may be the one.
            let waits = matches!(state.lanes.check(&message, compare, ordered), LaneDecision::Wait);
            let gives_way = state.mailbox.last_parked().filter(|_| !waits);
            let outcome = Outcome::not_run_retryable(
                codes::MAILBOX_FULL,
                format!("{mailbox} messages wait for {entity}, as many as `mailbox` allows"),
                50,
            );
            match gives_way {
                Some(parked) => self.finish(&entity, &parked, outcome, false),
                None => {
                    self.reply(token, outcome);
                    return self.advance(now, &entity);
                }
            }
        }
        let state = self
            .entities
            .entry(entity.clone())
            .or_insert_with(|| ResidentEntity::new(now.mono, &self.queued_total));
        state.last_used = now.mono;
        let deadline = message.deadline;
        let entry = PendingMessage { message, reply_tokens: vec![token], deadline };
        state.entries.insert(id, entry);
        state.mailbox.push_back(id, deadline);
        self.advance(now, &entity);
    }

    pub(super) fn admission_refusal(&self, now: Now, message: &Message) -> Option<Outcome> {
        match self.phase {
            Phase::Lost => {
                let text = format!("shard {} belongs to another node", self.ownership.shard);
                let outcome = Outcome::not_run_retryable(codes::NOT_OWNER, text, 100);
                return Some(outcome.with_owner_hint(self.owner_hint.clone()));
            }
            Phase::Stopping | Phase::Stopped => return Some(self.handing_off_outcome()),
            Phase::Claiming if self.claim_at.is_some() => {
                let text = "the store does not answer; it is asked again";
                return Some(Outcome::not_run_retryable(codes::STORE_UNAVAILABLE, text, 1_000));
            }
            Phase::Claiming | Phase::Serving => {}
        }
        if !self.types.contains_key(&message.target.entity_type) {
            let text = format!("no type `{}` is deployed", message.target.entity_type);
            return Some(Outcome::not_run(codes::UNKNOWN_TYPE, text));
        }
        if let Some(outcome) = self.created_in_future(now, message) {
            return Some(outcome);
        }
        if message.deadline.is_some_and(|at| at <= now.mono)
            && !self.has_mutation(Mutation::IgnoreDeadline)
        {
            return Some(deadline_outcome());
        }
        None
    }

    pub(super) fn handing_off_outcome(&self) -> Outcome {
        let text = format!("shard {} is being handed over", self.ownership.shard);
        self.rebalancing_outcome(text)
    }

    pub(super) fn rebalancing_outcome(&self, text: impl Into<String>) -> Outcome {
        let ends = OwnerHint { epoch: self.ownership.epoch, owner: None };
        Outcome::not_run_retryable(codes::REBALANCING, text, 100).with_owner_hint(Some(ends))
    }

    /// Refuses what is stamped too far ahead: it would raise the watermark for everybody (R17).
    pub(super) fn created_in_future(&self, now: Now, message: &Message) -> Option<Outcome> {
        let ahead = message.created_ms.saturating_sub(now.cluster_time);
        let beyond =
            ahead.checked_sub(self.settings.max_clock_skew).filter(|beyond| *beyond > 0)?;
        let text = format!(
            "the message was stamped {ahead} ms ahead of the cluster's time; `max-clock-skew` allows {}",
            self.settings.max_clock_skew
        );
        let wait = u32::try_from(beyond).unwrap_or(u32::MAX).min(1_000);
        Some(
            Outcome::not_run_retryable(codes::CREATED_IN_FUTURE, text, wait)
                .with_suggested_created_ms(now.cluster_time),
        )
    }

    /// Lets those go on that waited for the shard's claim or the node's lease.
    pub(super) fn advance_stalled(&mut self, now: Now) {
        for entity in std::mem::take(&mut self.stalled) {
            self.advance(now, &entity);
        }
    }

    /// Takes every step that is possible now, and makes sure that the entity is looked at when time makes another one
    /// possible.
    pub(super) fn advance(&mut self, now: Now, entity: &Entity) {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        self.take_steps(now, entity);
        self.wake_for(entity);
    }

    fn take_steps(&mut self, now: Now, entity: &Entity) {
        loop {
            let Some(state) = self.entities.get(entity) else { return };
            if state.is_spent() {
                return self.drop_entity(entity);
            }
            match state.stage {
                Stage::AwaitingCommits => {
                    if !state.gate.is_empty() && !self.has_mutation(Mutation::LoadDuringCommit) {
                        return;
                    }
                    if let Some(state) = self.entities.get_mut(entity) {
                        state.stage = Stage::Unloaded;
                    }
                }
                Stage::Unloaded => {
                    if self.phase == Phase::Stopping {
                        // A turn that ran when the one before it was refused: nothing will load its entity here.
                        let outcome = self.handing_off_outcome();
                        return self.give_up(entity, &outcome);
                    }
                    if self.phase != Phase::Serving || self.is_paused() {
                        self.stalled.insert(entity.clone());
                        return;
                    }
                    if let Some(pause) = state.start_backoff {
                        let waits = !state.entries.is_empty();
                        if now.mono < pause.ends_at(waits) {
                            return;
                        }
                        if let Some(state) = self.entities.get_mut(entity) {
                            state.start_backoff =
                                waits.then_some(StartBackoff { retrying: true, ..pause });
                        }
                        if !waits {
                            continue;
                        }
                    }
                    self.last_generation += 1;
                    let generation = self.last_generation;
                    if let Some(state) = self.entities.get_mut(entity) {
                        state.stage = Stage::Loading;
                        state.generation = generation;
                    }
                    self.actions.push_back(Action::Load { entity: entity.clone(), generation });
                    return;
                }
                Stage::Loaded => {
                    if self.phase != Phase::Serving || self.is_paused() {
                        self.stalled.insert(entity.clone());
                        return;
                    }
                    if self.next_to_run(now, entity).is_none() {
                        match self.entities.get(entity) {
                            Some(state) if state.is_spent() => continue,
                            _ => return,
                        }
                    }
                    if let Some(state) = self.entities.get_mut(entity) {
                        state.stage = Stage::AwaitingSlot(now.mono);
                        let generation = state.generation;
                        self.actions
                            .push_back(Action::RequestSlot { entity: entity.clone(), generation });
                    }
                    return;
                }
                Stage::Idle => {
                    if self.is_paused() && self.phase != Phase::Stopping {
                        // The resumption looks at every entity.
                        return;
                    }
                    if let Some(reason) = state.pending_stop {
                        self.begin_stop(now, entity, reason);
                        continue;
                    }
                    let full = state.gate.len() >= self.settings.max_gated_turns;
                    let asked = state.mailbox.has_next() || state.passivates;
                    if asked && (self.phase != Phase::Serving || !self.may_reply(now)) {
                        self.stalled.insert(entity.clone());
                        return;
                    }
                    if full {
                        return;
                    }
                    let Some(id) = self.next_to_run(now, entity) else {
                        if let Some(state) = self.entities.get_mut(entity)
                            && std::mem::take(&mut state.passivates)
                        {
                            state.pending_stop = Some(StopReason::Passivated);
                            continue;
                        }
                        self.actions.push_back(Action::MarkIdle { entity: entity.clone() });
                        return;
                    };
                    self.run(entity, id);
                    return;
                }
                Stage::Loading
                | Stage::AwaitingSlot(_)
                | Stage::Starting(_)
                | Stage::Running(..)
                | Stage::Stopping(_) => return,
            }
        }
    }

    /// Answers or sets aside what need not run, and gives the first message that must; it stays in the mailbox.
    pub(super) fn next_to_run(&mut self, now: Now, entity: &Entity) -> Option<MessageId> {
        loop {
            let state = self.entities.get_mut(entity)?;
            let id = state.mailbox.front()?;
            let message = state.entries.get(&id)?.message.clone();
            let expired = state.entries.get(&id).is_some_and(|entry| entry.expired(now.mono));
            state.lanes.drop_settled_replies(&id.session, message.settled);
            let verdict = if self.has_mutation(Mutation::IgnoreLanes) {
                LaneDecision::Run
            } else {
                let compare = !self.has_mutation(Mutation::IgnoreDigest);
                let ordered = !self.has_mutation(Mutation::IgnoreOrder);
                self.entities.get(entity)?.lanes.check(&message, compare, ordered)
            };
            let outcome = match verdict {
                LaneDecision::Replay(recorded) => final_outcome(recorded),
                LaneDecision::IdReused => Outcome::not_run(codes::ID_REUSED, id_reused_text(&id)),
                LaneDecision::Superseded => Outcome::not_run(
                    codes::SUPERSEDED,
                    "a later message of its session has run, and this one is not remembered",
                ),
                LaneDecision::SessionForgotten => {
                    let watermark = self.entities.get(entity)?.lanes.watermark();
                    let text = format!(
                        "its session is no longer remembered, and it was created at {}, not after {watermark}: it may have run before",
                        message.created_ms
                    );
                    let stamp = now.cluster_time.max(watermark.saturating_add(1));
                    Outcome::not_run(codes::TOO_OLD, text).with_suggested_created_ms(stamp)
                }
                _ if expired && !self.has_mutation(Mutation::IgnoreDeadline) => {
                    self.finish_expired(entity, &id);
                    continue;
                }
                LaneDecision::OutOfOrder => Outcome::not_run_retryable(
                    codes::OUT_OF_ORDER,
                    "the message before this one was refused",
                    0,
                ),
                LaneDecision::Wait => {
                    let until = now.mono + self.settings.order_timeout;
                    let state = self.entities.get_mut(entity)?;
                    state.mailbox.park(id, message.after, until);
                    continue;
                }
                LaneDecision::Run => return Some(id),
            };
            self.finish(entity, &id, outcome, false);
        }
    }

    pub(super) fn run(&mut self, entity: &Entity, id: MessageId) {
        let turn = self.next_turn();
        let Some(state) = self.entities.get_mut(entity) else { return };
        let Some(entry) = state.entries.get(&id) else { return };
        let message = entry.message.clone();
        state.mailbox.remove(&id);
        state.stage = Stage::Running(turn, id);
        let action = Action::Run {
            generation: state.generation,
            turn,
            version: state.head.version,
            message,
        };
        self.actions.push_back(action);
    }

    /// A message that ran waits again, as the first.
    pub(super) fn put_back(&mut self, entity: &Entity, id: MessageId) {
        let Some(state) = self.entities.get_mut(entity) else { return };
        let deadline = state.entries.get(&id).and_then(|entry| entry.deadline);
        state.mailbox.push_front(id, deadline);
    }

    /// Ends a message that waits. `poison`: what follows it in its lane must not wait for it.
    pub(super) fn finish(
        &mut self,
        entity: &Entity,
        id: &MessageId,
        outcome: Outcome,
        poison: bool,
    ) {
        let bound = self.settings.max_lanes;
        let Some(state) = self.entities.get_mut(entity) else { return };
        let Some(entry) = state.entries.remove(id) else { return };
        state.mailbox.remove(id);
        if poison {
            state.lanes.record_refused(&entry.message, bound);
            state.mailbox.unpark(id);
        }
        for token in entry.reply_tokens {
            self.reply(token, outcome.clone());
        }
    }

    pub(super) fn finish_expired(&mut self, entity: &Entity, id: &MessageId) {
        self.finish(entity, id, deadline_outcome(), true);
    }

    /// Ends all messages of an entity that have not run, and drops what is in memory of it.
    pub(super) fn give_up(&mut self, entity: &Entity, outcome: &Outcome) {
        self.drop_instance(entity);
        let Some(state) = self.entities.get_mut(entity) else { return };
        let outstanding: BTreeSet<MessageId> = state
            .gate
            .iter()
            .flat_map(|gated| gated.message.iter().chain(gated.queries.iter().map(|(id, ..)| id)))
            .copied()
            .collect();
        state.mailbox.clear();
        state.start_backoff = None;
        let ended: Vec<_> =
            state.entries.keys().filter(|id| !outstanding.contains(id)).copied().collect();
        for id in ended {
            self.finish(entity, &id, outcome.clone(), false);
        }
        if self.entities.get(entity).is_some_and(ResidentEntity::is_spent) {
            self.drop_entity(entity);
        }
    }
}
