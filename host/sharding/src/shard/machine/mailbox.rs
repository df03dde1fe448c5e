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
                    if let Some(before) = std::mem::replace(&mut entry.deadline, latest) {
                        state.deadlines.remove(&(before, id));
                    }
                    state.deadlines.extend(latest.map(|at| (at, id)));
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
                None => return self.reply(token, outcome),
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
        state.mailbox.push_back(id);
        if let Some(deadline) = deadline {
            state.deadlines.insert((deadline, id));
            self.wake_entity(&entity, deadline);
        }
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
        if let Some(outcome) = self.too_old(now, message) {
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

    pub(super) fn too_old(&self, now: Now, message: &Message) -> Option<Outcome> {
        let age = message.age.saturating_add(now.mono.saturating_sub(message.arrived));
        (age > self.settings.lane_life / 2).then(|| {
            Outcome::refused(
                codes::TOO_OLD,
                format!("the message is {age} ms old; its id is remembered for certain only half of `lane-life`"),
            )
        })
    }

    /// Lets those go on that waited for the shard's claim or the node's lease.
    pub(super) fn advance_stalled(&mut self, now: Now) {
        for entity in std::mem::take(&mut self.stalled) {
            self.advance(now, &entity);
        }
    }

    /// Takes every step that is possible now.
    pub(super) fn advance(&mut self, now: Now, entity: &Entity) {
        #[cfg(test)]
        {
            self.looks += 1;
        }
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
                        let at = if waits { pause.until } else { pause.forgotten_at() };
                        if now.mono < at {
                            return self.wake_entity(entity, at);
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
                    self.wake_entity(entity, now.mono + self.settings.activation_wait);
                    return;
                }
                Stage::Idle => {
                    if self.pauses() && self.phase != Phase::Stopping {
                        self.stalled.insert(entity.clone());
                        return;
                    }
                    if let Some(reason) = state.leaving {
                        self.begin_stop(now, entity, reason);
                        continue;
                    }
                    let full = state.gate.len() >= self.settings.gate;
                    if self.phase != Phase::Serving || !self.may_answer(now) {
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
                        self.now_idle(entity);
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

    pub(super) fn now_idle(&mut self, entity: &Entity) {
        self.actions.push_back(Action::Idle { entity: entity.clone() });
        if let (Some(state), Some(settings)) =
            (self.entities.get(entity), self.types.get(&entity.kind))
        {
            let at = state.last_used.saturating_add(settings.idle);
            self.wake_entity(entity, at);
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
                    self.wake_entity(entity, until);
                    let state = self.entities.get_mut(entity)?;
                    state.mailbox.park(id, until);
                    continue;
                }
                Verdict::Run => {
                    if let Some(outcome) = self.too_old(now, &message) {
                        outcome
                    } else if let Some(outcome) = self.no_room(now, entity, &message) {
                        outcome
                    } else {
                        return Some(id);
                    }
                }
            };
            self.refuse(entity, &id, outcome, false);
        }
    }

    pub(super) fn no_room(
        &mut self,
        now: Now,
        entity: &Entity,
        message: &Message,
    ) -> Option<Outcome> {
        if message.kind == Kind::Query {
            return None;
        }
        let Settings { lanes: most, lane_life, unsettled_bytes, .. } = self.settings;
        let state = self.entities.get_mut(entity)?;
        if !state.lanes.has_room(&message.id.session, most, now.cluster, lane_life) {
            return Some(Outcome::later(
                codes::TOO_MANY_SESSIONS,
                format!("{entity} remembers {most} sessions, as many as `lanes` allows"),
                1_000,
            ));
        }
        let session = &message.id.session;
        if !state.lanes.has_reply_room(session, unsettled_bytes, now.cluster, lane_life) {
            return Some(Outcome::later(
                codes::TOO_MANY_UNSETTLED,
                format!(
                    "{entity} keeps as many bytes of replies that their sessions have not settled as `unsettled-bytes` ({unsettled_bytes}) allows, or this session half of them"
                ),
                1_000,
            ));
        }
        None
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
        if let Some(deadline) = entry.deadline {
            state.deadlines.remove(&(deadline, *id));
        }
        if poison {
            state.lanes.refused(&entry.message, bound);
            state.unpark(id);
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
