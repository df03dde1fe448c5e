//! Messages: joined to their copies (R18), judged by their lanes (R17), run, or refused.

use super::*;

impl Machine {
    pub(super) fn on_message(&mut self, now: Now, message: Arc<Message>) {
        let token = message.token;
        if let Some(outcome) = self.refusal_at_door(now, &message) {
            return self.reply(token, outcome);
        }
        let entity = message.target.clone();
        let id = message.id;
        let join = !self.off(Mutation::CopiesDontJoin) && !self.off(Mutation::NoLanes);
        let compare = !self.off(Mutation::NoDigest);
        let ordered = !self.off(Mutation::NoOrder);
        let copies = self.settings.copies;
        let state = self
            .entities
            .entry(entity.clone())
            .or_insert_with(|| State::new(now.mono, &self.waiting));
        if let Some(entry) = state.entries.get_mut(&id) {
            if join {
                let outcome = if entry.message.digest != message.digest && compare {
                    Outcome::refused(codes::ID_REUSED, reused(&id))
                } else if entry.tokens.len() >= copies {
                    Outcome::later(
                        codes::TOO_MANY_COPIES,
                        "as many copies wait as `copies` allows",
                        100,
                    )
                } else {
                    entry.tokens.push(token);
                    let latest = entry.deadline.zip(message.deadline).map(|(a, b)| a.max(b));
                    // Never sooner than before: its entity is looked at in time.
                    entry.deadline = latest;
                    state.mailbox.set_deadline(&id, latest);
                    return;
                };
                return self.reply(token, outcome);
            }
            // The mutation: answer from what ran ahead, or run beside.
            if let Verdict::Answer(recorded) = state.lanes.judge(&message, false, false) {
                return self.reply(token, final_of(recorded));
            }
            return self.reply(token, Outcome::later(codes::OVERLOADED, "mutation", 1));
        }
        let mailbox = self.types.get(&entity.kind).map_or(0, |settings| settings.mailbox);
        if state.waiting() >= mailbox {
            // Those that wait for another message give way to one that need not: it may be the one.
            let waits = matches!(state.lanes.judge(&message, compare, ordered), Verdict::Wait);
            let gives_way = state.mailbox.last_parked().filter(|_| !waits);
            let outcome = Outcome::later(
                codes::MAILBOX_FULL,
                format!("{mailbox} messages wait for {entity}, as many as `mailbox` allows"),
                50,
            );
            match gives_way {
                Some(parked) => self.refuse(&entity, &parked, outcome, false),
                None => {
                    self.reply(token, outcome);
                    return self.advance(now, &entity);
                }
            }
        }
        let state = self
            .entities
            .entry(entity.clone())
            .or_insert_with(|| State::new(now.mono, &self.waiting));
        state.last_used = now.mono;
        let deadline = message.deadline;
        let entry = Entry { message, tokens: vec![token], deadline };
        state.entries.insert(id, entry);
        state.mailbox.push_back(id, deadline);
        self.advance(now, &entity);
    }

    pub(super) fn refusal_at_door(&self, now: Now, message: &Message) -> Option<Outcome> {
        match self.phase {
            Phase::Lost => {
                let text = format!("shard {} belongs to another node", self.owner.shard);
                let outcome = Outcome::later(codes::NOT_OWNER, text, 100);
                return Some(outcome.with_hint(self.standing.clone()));
            }
            Phase::Stopping | Phase::Stopped => return Some(self.handed_over()),
            Phase::Claiming if self.claim_at.is_some() => {
                let text = "the store does not answer; it is asked again";
                return Some(Outcome::later(codes::STORE_UNAVAILABLE, text, 1_000));
            }
            Phase::Claiming | Phase::Serving => {}
        }
        if !self.types.contains_key(&message.target.kind) {
            let text = format!("no type `{}` is deployed", message.target.kind);
            return Some(Outcome::refused(codes::UNKNOWN_TYPE, text));
        }
        if let Some(outcome) = self.stamped_ahead(now, message) {
            return Some(outcome);
        }
        if message.deadline.is_some_and(|at| at <= now.mono) && !self.off(Mutation::IgnoreDeadline)
        {
            return Some(deadline_outcome());
        }
        None
    }

    pub(super) fn handed_over(&self) -> Outcome {
        let text = format!("shard {} is being handed over", self.owner.shard);
        self.rebalancing(text)
    }

    pub(super) fn rebalancing(&self, text: impl Into<String>) -> Outcome {
        let ends = Hint { epoch: self.owner.epoch, owner: None };
        Outcome::later(codes::REBALANCING, text, 100).with_hint(Some(ends))
    }

    /// Refuses what is stamped too far ahead: it would raise the watermark for everybody (R17).
    pub(super) fn stamped_ahead(&self, now: Now, message: &Message) -> Option<Outcome> {
        let ahead = message.created.saturating_sub(now.cluster);
        let beyond = ahead.checked_sub(self.settings.stamp_ahead).filter(|beyond| *beyond > 0)?;
        let text = format!(
            "the message was stamped {ahead} ms ahead of the cluster's time; `stamp-ahead` allows {}",
            self.settings.stamp_ahead
        );
        let wait = u32::try_from(beyond).unwrap_or(u32::MAX).min(1_000);
        Some(Outcome::later(codes::STAMPED_AHEAD, text, wait).with_stamp(now.cluster))
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
            self.looks += 1;
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
                Stage::Closing => {
                    if !state.gate.is_empty() && !self.off(Mutation::LoadBehindCommit) {
                        return;
                    }
                    if let Some(state) = self.entities.get_mut(entity) {
                        state.stage = Stage::Asleep;
                    }
                }
                Stage::Asleep => {
                    if self.phase == Phase::Stopping {
                        // A turn that ran when the one before it was refused: nothing will load its entity here.
                        let outcome = self.handed_over();
                        return self.give_up(entity, &outcome);
                    }
                    if self.phase != Phase::Serving || self.pauses() {
                        self.stalled.insert(entity.clone());
                        return;
                    }
                    if let Some(pause) = state.start_pause {
                        let waits = !state.entries.is_empty();
                        if now.mono < pause.ends_at(waits) {
                            return;
                        }
                        if let Some(state) = self.entities.get_mut(entity) {
                            state.start_pause = waits.then_some(StartPause { over: true, ..pause });
                        }
                        if !waits {
                            continue;
                        }
                    }
                    self.generations += 1;
                    let generation = self.generations;
                    if let Some(state) = self.entities.get_mut(entity) {
                        state.stage = Stage::Loading;
                        state.generation = generation;
                    }
                    self.actions.push_back(Action::Load { entity: entity.clone(), generation });
                    return;
                }
                Stage::Loaded => {
                    if self.phase != Phase::Serving || self.pauses() {
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
                        state.stage = Stage::Waiting(now.mono);
                        let generation = state.generation;
                        self.actions
                            .push_back(Action::WantSlot { entity: entity.clone(), generation });
                    }
                    return;
                }
                Stage::Idle => {
                    if self.pauses() && self.phase != Phase::Stopping {
                        // The resumption looks at every entity.
                        return;
                    }
                    if let Some(reason) = state.leaving {
                        self.begin_stop(now, entity, reason);
                        continue;
                    }
                    let full = state.gate.len() >= self.settings.gate;
                    let asked = state.mailbox.has_next() || state.passivates;
                    if asked && (self.phase != Phase::Serving || !self.may_answer(now)) {
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
                            state.leaving = Some(StopReason::Passivated);
                            continue;
                        }
                        self.actions.push_back(Action::Idle { entity: entity.clone() });
                        return;
                    };
                    self.run(entity, id);
                    return;
                }
                Stage::Loading
                | Stage::Waiting(_)
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
            state.lanes.settle(&id.session, message.settled);
            let verdict = if self.off(Mutation::NoLanes) {
                Verdict::Run
            } else {
                let compare = !self.off(Mutation::NoDigest);
                let ordered = !self.off(Mutation::NoOrder);
                self.entities.get(entity)?.lanes.judge(&message, compare, ordered)
            };
            let outcome = match verdict {
                Verdict::Answer(recorded) => final_of(recorded),
                Verdict::Reused => Outcome::refused(codes::ID_REUSED, reused(&id)),
                Verdict::Superseded => Outcome::refused(
                    codes::SUPERSEDED,
                    "a later message of its session has run, and this one is not remembered",
                ),
                Verdict::Forgotten => {
                    let watermark = self.entities.get(entity)?.lanes.watermark();
                    let text = format!(
                        "its session is no longer remembered, and it was created at {}, not after {watermark}: it may have run before",
                        message.created
                    );
                    let stamp = now.cluster.max(watermark.saturating_add(1));
                    Outcome::refused(codes::TOO_OLD, text).with_stamp(stamp)
                }
                _ if expired && !self.off(Mutation::IgnoreDeadline) => {
                    self.refuse_deadline(entity, &id);
                    continue;
                }
                Verdict::OutOfOrder => Outcome::later(
                    codes::OUT_OF_ORDER,
                    "the message before this one was refused",
                    0,
                ),
                Verdict::Wait => {
                    let until = now.mono + self.settings.order_wait;
                    let state = self.entities.get_mut(entity)?;
                    state.mailbox.park(id, message.after, until);
                    continue;
                }
                Verdict::Run => return Some(id),
            };
            self.refuse(entity, &id, outcome, false);
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
    pub(super) fn refuse(
        &mut self,
        entity: &Entity,
        id: &MessageId,
        outcome: Outcome,
        poison: bool,
    ) {
        let bound = self.settings.lanes;
        let Some(state) = self.entities.get_mut(entity) else { return };
        let Some(entry) = state.entries.remove(id) else { return };
        state.mailbox.remove(id);
        if poison {
            state.lanes.refused(&entry.message, bound);
            state.mailbox.unpark(id);
        }
        for token in entry.tokens {
            self.reply(token, outcome.clone());
        }
    }

    pub(super) fn refuse_deadline(&mut self, entity: &Entity, id: &MessageId) {
        self.refuse(entity, id, deadline_outcome(), true);
    }

    /// Ends all messages of an entity that have not run, and drops what is in memory of it.
    pub(super) fn give_up(&mut self, entity: &Entity, outcome: &Outcome) {
        self.close(entity);
        let Some(state) = self.entities.get_mut(entity) else { return };
        let outstanding: BTreeSet<MessageId> = state
            .gate
            .iter()
            .flat_map(|gated| gated.message.iter().chain(gated.queries.iter().map(|(id, ..)| id)))
            .copied()
            .collect();
        state.mailbox.clear();
        state.start_pause = None;
        let ended: Vec<_> =
            state.entries.keys().filter(|id| !outstanding.contains(id)).copied().collect();
        for id in ended {
            self.refuse(entity, &id, outcome.clone(), false);
        }
        if self.entities.get(entity).is_some_and(State::is_spent) {
            self.drop_entity(entity);
        }
    }
}
