//! Asks of running turns: how they are sent, how their answers reach the turns, and how cycles of asks are detected
//! (R15, R20).
//!
//! An ask is sent once the earlier turns of its entity are durable, since it may reveal their effects. It is sent again
//! under the same id until its outcome is known or its deadline has passed.
//!
//! A cycle within one chain of asks is detected at once, because each ask carries its chain. Asks from different roots
//! may also wait for each other, so an ask that arrives at a waiting entity sends a probe along that entity's asks. In
//! every cycle some ask arrives last, and its probe comes back. The target of the youngest ask in the cycle then
//! refuses it, so it cannot run later.

use ostraca_codes::Code;

use super::{
    Action, Entity, GuestReply, Machine, MessageId, Mutation, Outcome, TurnId, codes, final_outcome,
};
use crate::message::{Message, MessageKind};
use crate::shard::asks::{
    ASK_NOTE, AskNote, AskStep, AskingTurn, NewAsk, ProbeStep, chain_text, extend_probe,
    key_of_turn,
};
use crate::shard::entity::{ResidentEntity, Stage};
use crate::shard::lanes::LaneDecision;
use crate::shard::second_instance::SecondStage;

/// By how much the creation times of the asks of a firing, or of a request with an idempotency key, may differ between
/// attempts, in milliseconds. For a firing, more than the interval at which the store's node writes the cluster's UTC, by
/// which another node's reading may be behind. A request that is repeated has a time of its own.
const ATTEMPT_SKEW_MS: u64 = 10_000;

/// Final refusals by a target that may have run an earlier copy: its record is gone, or the target did not check it.
const DOUBTFUL: [Code; 3] = [codes::TOO_OLD, codes::SUPERSEDED, codes::DEADLINE_EXCEEDED];

impl Machine {
    pub(super) fn on_ask_started(
        &mut self,
        entity: &Entity,
        generation: u64,
        place: u32,
        new: NewAsk,
    ) {
        let keeps = self.context.has_mutation(Mutation::KeepWaitingTurns);
        let is_stopping = self.claim.is_stopping() && !keeps;
        let most = self.context.settings.max_ask_depth.max(1);
        let (mono, started) = (self.context.mono(), self.context.now.cluster_time);
        let Some(state) = self.residents.get(entity) else { return };
        let Some(turn) = self.asking_turn(entity, state, generation) else { return };
        if is_stopping {
            let outcome = self.claim.handing_off_outcome();
            return self.give_up(entity, &outcome);
        }
        if turn.chain.len() > most {
            let text = format!(
                "{} entities would wait for this ask; limit is {most} (`entities.max-ask-depth`)",
                turn.chain.len()
            );
            let outcome = Outcome::not_run(codes::ASK_TOO_DEEP, text);
            let entity = entity.clone();
            return self.context.push(Action::AnswerAsk {
                entity,
                generation,
                place,
                outcome: Box::new(outcome),
            });
        }
        let timeout = new.timeout;
        let ask = turn.ask(place, new, started);
        if let Some(asks) =
            self.residents.get_mut(entity).and_then(|state| state.asks_of(generation))
        {
            asks.start(place, ask, mono, timeout);
            self.advance(entity);
        }
    }

    /// The running turn of an instance; `None` if no turn that may ask or call is running.
    pub(super) fn asking_turn(
        &self,
        entity: &Entity,
        state: &ResidentEntity,
        generation: u64,
    ) -> Option<AskingTurn> {
        let new_ids = self.context.has_mutation(Mutation::NewAskIds);
        let second = state.second.as_ref().filter(|second| second.generation == generation);
        let running = match (&state.stage, second.map(|second| &second.stage)) {
            (_, Some(SecondStage::Running(turn, id))) => Some((turn, id)),
            (Stage::Running(turn, id), None) if state.generation == generation => Some((turn, id)),
            _ => None,
        };
        let mut asking = match (running, &state.stage) {
            (Some((turn, id)), _) => {
                let message = &state.entries.get(id)?.message;
                let waiting = message.asked_by.as_ref().map(|origin| origin.chain.clone());
                AskingTurn {
                    key: if new_ids { key_of_turn(turn) } else { AskingTurn::key_of_message(id) },
                    chain: waiting.unwrap_or_default(),
                    query_only: message.kind == MessageKind::Query,
                    created_ms: message.first_created_ms,
                    created_skew: match &message.asked_by {
                        Some(origin) => origin.created_skew,
                        None if message.is_keyed => ATTEMPT_SKEW_MS,
                        None => 0,
                    },
                    utc_ms: message.context.utc_ms,
                }
            }
            (None, Stage::Firing(turn, firing)) if state.generation == generation => {
                // While the cluster runs, cluster time and UTC advance alike, so a later attempt has the same creation
                // time, except for the difference between the nodes' readings. So a target that has dropped the lane
                // of an earlier attempt refuses this one.
                let now = self.context.now;
                let age = now.utc.saturating_sub(firing.due);
                AskingTurn {
                    key: if new_ids {
                        key_of_turn(turn)
                    } else {
                        AskingTurn::key_of_firing(firing)
                    },
                    chain: Vec::new(),
                    query_only: false,
                    created_ms: now.cluster_time.saturating_sub(age).max(1),
                    created_skew: ATTEMPT_SKEW_MS,
                    utc_ms: firing.due,
                }
            }
            _ => return None,
        };
        asking.chain.push(entity.clone());
        Some(asking)
    }

    /// Sends the asks that are due, and ends those whose deadlines have passed.
    pub(super) fn drive_asks(&mut self, entity: &Entity) {
        let Some(state) = self.residents.get(entity) else { return };
        let first = (!state.asks.is_empty()).then_some(state.generation);
        let second = state.second.as_ref().filter(|second| !second.asks.is_empty());
        let second = second.map(|second| second.generation);
        for generation in first.into_iter().chain(second) {
            self.drive_asks_of(entity, generation);
        }
    }

    fn drive_asks_of(&mut self, entity: &Entity, generation: u64) {
        let early = self.context.has_mutation(Mutation::AskBeforeCommit);
        let may_send = self.claim.may_commit() && self.lease.may_reply(&self.context);
        let mono = self.context.mono();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(turn) = state.turn_of(generation) else { return };
        let is_durable = state.gate.is_empty();
        let Some(asks) = state.asks_of(generation) else { return };
        while let Some((place, pending)) = asks.take_expired(mono) {
            // Even if no copy of this attempt is in doubt, a copy from an earlier attempt may have run.
            let mut message = format!("{} did not answer in time", pending.ask.target);
            if let Some(why) = pending.last_refusal {
                message = format!("{message}: {why}");
            }
            let (entity, outcome) = (entity.clone(), Outcome::Unknown { message });
            self.context.push(Action::AnswerAsk {
                entity,
                generation,
                place,
                outcome: Box::new(outcome),
            });
        }
        if !may_send {
            return self.schedule.stall(entity);
        }
        for (target, note) in asks.take_notes(mono) {
            let entity = entity.clone();
            self.context.push(Action::SendAskNote { entity, target, note: Box::new(note) });
        }
        if !is_durable && !early {
            return;
        }
        for (ask, remaining) in asks.send_due(mono) {
            let asker = entity.clone();
            self.context.push(Action::Ask { asker, turn, ask, remaining });
        }
    }

    pub(super) fn on_ask_answered(
        &mut self,
        asker: &Entity,
        turn: TurnId,
        id: &MessageId,
        outcome: Outcome,
    ) {
        let mono = self.context.mono();
        let Some(state) = self.residents.get_mut(asker) else { return };
        let Some(generation) = state.generation_of(turn) else { return };
        let Some(asks) = state.asks_of(generation) else { return };
        let Some(place) = asks.place_of(id) else { return };
        let Some(pending) = asks.get_mut(place) else { return };
        let outcome = match outcome {
            Outcome::Unknown { message } => {
                pending.in_doubt = true;
                pending.last_refusal = Some(message);
                asks.resend_later(place, mono, 0);
                return self.advance(asker);
            }
            Outcome::NotRun { retry_after: Some(wait), code, message, .. } => {
                pending.last_refusal = Some(format!("{message} ({code})"));
                asks.resend_later(place, mono, wait.into());
                return self.advance(asker);
            }
            // This copy did not run, but an earlier one may have, perhaps for an earlier attempt of this turn.
            Outcome::NotRun { code, message, .. }
                if pending.in_doubt || DOUBTFUL.iter().any(|it| code == it.as_str()) =>
            {
                Outcome::Unknown { message: format!("{message} ({code})") }
            }
            known => known,
        };
        asks.remove(place);
        let entity = asker.clone();
        self.context.push(Action::AnswerAsk {
            entity,
            generation,
            place,
            outcome: Box::new(outcome),
        });
        self.advance(asker);
    }

    pub(super) fn on_note_lost(&mut self, entity: &Entity, target: Entity, note: AskNote) {
        let mono = self.context.mono();
        if let Some(state) = self.residents.get_mut(entity) {
            // Only asks that wait have notes.
            if let Some(second) = &mut state.second {
                second.asks.resend_note(mono, target.clone(), note.clone());
            }
            state.asks.resend_note(mono, target, note);
            self.advance(entity);
        }
    }

    /// The refusal of an ask whose target already waits for it; `None` for any other message.
    pub(super) fn cycle_refusal(&self, message: &Message) -> Option<Outcome> {
        let chain = &message.asked_by.as_ref()?.chain;
        let state = self.residents.get(&message.target)?;
        let from = self.place_in_chain(state, message, chain)?;
        let mut cycle = chain.get(from..)?.to_vec();
        cycle.push(message.target.clone());
        Some(outcome_in_cycle(state, message, &cycle))
    }

    /// Where in the chain the target waits, if that is in the turn for which the message would wait.
    fn place_in_chain(
        &self,
        state: &ResidentEntity,
        message: &Message,
        chain: &[Entity],
    ) -> Option<usize> {
        // The target may have stopped waiting for the next entity of the chain. If it waits for others, probes tell.
        let next = |from: usize| chain.get(from + 1).unwrap_or(&message.target);
        let mut places = (0..chain.len()).filter(|place| chain[*place] == message.target);
        if self.generation_ahead_of(state, message) == Some(state.generation) {
            return places.find(|from| state.asks.wait_for(next(*from)));
        }
        // The chain names entities, but not their instances: it must begin like the chain of the query that the second
        // instance runs. If the first instance's turn fits as well, this may not be a cycle.
        let second = state.second.as_ref()?;
        let SecondStage::Running(_, query) = &second.stage else { return None };
        let first = match &state.stage {
            Stage::Running(_, id) => state.chain_of(id),
            _ => &[],
        };
        places.find(|from| {
            let (before, next) = (&chain[..*from], next(*from));
            let fits_first = before == first && state.asks.wait_for(next);
            before == state.chain_of(query) && second.asks.wait_for(next) && !fits_first
        })
    }

    /// Handles a note about asks. Returns `false` if the message is not a note.
    pub(super) fn take_note(&mut self, message: &Message) -> bool {
        if &*message.method != ASK_NOTE || message.sender.is_none() {
            return false;
        }
        let reply = GuestReply::Result(bytes::Bytes::new());
        self.context.reply(message.reply_token, Outcome::Final { reply, version: 0 });
        match AskNote::decode(&message.body) {
            Some(AskNote::Probe { number, path }) => {
                self.follow_probe(&message.target, number, path);
            }
            Some(AskNote::Cycle { id, chain }) => self.end_cycle(&message.target, &id, &chain),
            None => {}
        }
        true
    }

    /// Sends a probe along the target's own asks, if the message is an ask and its target waits.
    pub(super) fn probe_for(&mut self, message: &Message) {
        let Some(origin) = &message.asked_by else { return };
        let Some(state) = self.residents.get(&message.target) else { return };
        let waits = self.asks_ahead_of(state, message).is_some_and(|asks| !asks.is_empty());
        let Some(asker) = origin.chain.last().filter(|_| waits) else { return };
        let (id, asker, started) = (message.id, asker.clone(), origin.started);
        let step = AskStep { id, asker, started, is_queued: true };
        self.follow_probe(&message.target, message.reply_token.0, vec![step]);
    }

    fn follow_probe(&mut self, entity: &Entity, number: u64, mut path: Vec<AskStep>) {
        if self.context.has_mutation(Mutation::IgnoreCrossingAsks) {
            return;
        }
        let (Some(first), Some(last)) = (path.first().map(|step| step.id), path.last_mut()) else {
            return;
        };
        let Some(state) = self.residents.get(entity) else { return };
        last.is_queued = state.mailbox.contains(&last.id);
        let generation = match state.entries.get(&last.id).filter(|_| last.is_queued) {
            Some(queued) => self.generation_ahead_of(state, &queued.message),
            None if self.context.has_mutation(Mutation::ProbeQueuedAsksOnly) => None,
            // The turn that handles it is the one that the asker waits for.
            None => state.generation_running(&last.id),
        };
        let last = last.id;
        let Some(asks) =
            generation.and_then(|generation| self.residents.get_mut(entity)?.asks_of(generation))
        else {
            return;
        };
        for ask in asks.follow(number, first, last) {
            match extend_probe(number, &path, entity, &ask) {
                ProbeStep::PassOn(note) => {
                    let (entity, target) = (entity.clone(), ask.target.clone());
                    self.context.push(Action::SendAskNote { entity, target, note: Box::new(note) });
                }
                ProbeStep::Cycle { at, id, chain } if at == *entity => {
                    self.end_cycle(entity, &id, &chain);
                }
                ProbeStep::Cycle { at, id, chain } => {
                    let (entity, note) = (entity.clone(), AskNote::Cycle { id, chain });
                    self.context.push(Action::SendAskNote {
                        entity,
                        target: at,
                        note: Box::new(note),
                    });
                }
                ProbeStep::Drop => {}
            }
        }
    }

    /// Refuses an ask in this entity's mailbox that waits for itself.
    fn end_cycle(&mut self, entity: &Entity, id: &MessageId, chain: &[Entity]) {
        let Some(state) = self.residents.get(entity) else { return };
        // It may have started to run in the meantime; then it no longer waits for itself.
        let Some(entry) = state.entries.get(id).filter(|it| it.message.asked_by.is_some()) else {
            return;
        };
        // The note may be late: by now, the entity may be on another node, where it waits for nothing and has not been
        // loaded.
        let runs = matches!(state.stage, Stage::Running(..) | Stage::Firing(..));
        // The chain begins with the ask's sender and goes on with this entity, which must still wait for the next one,
        // or for itself.
        let next = chain.get(2).or(chain.get(1));
        let waits = self
            .asks_ahead_of(state, &entry.message)
            .is_some_and(|asks| next.is_some_and(|next| asks.wait_for(next)));
        if !runs || !waits || !state.mailbox.contains(id) {
            return;
        }
        let outcome = outcome_in_cycle(state, &entry.message, chain);
        self.finish(entity, id, outcome, false);
    }

    /// Whether the entity's turn waits for asks or calls.
    pub(super) fn waits_for_others(&self, state: &ResidentEntity) -> bool {
        let waits = !state.asks.is_empty() || !state.calls.is_empty();
        waits && !self.context.has_mutation(Mutation::KeepWaitingTurns)
    }
}

/// The outcome of an ask that would wait for itself at a waiting entity, whose lanes are therefore loaded.
fn outcome_in_cycle(state: &ResidentEntity, ask: &Message, chain: &[Entity]) -> Outcome {
    // An earlier attempt of the asking turn may have had a copy that ran.
    match state.lanes.check(ask, true, false, None) {
        LaneDecision::Replay(recorded) => final_outcome(recorded),
        LaneDecision::Superseded | LaneDecision::SessionForgotten => Outcome::not_run(
            codes::TOO_OLD,
            "it may have run before, and its record is no longer kept",
        ),
        _ => cycle_outcome(chain),
    }
}

fn cycle_outcome(chain: &[Entity]) -> Outcome {
    let text = format!("the asks would form a cycle: {}", chain_text(chain));
    Outcome::not_run(codes::ASK_CYCLE, text)
}
