//! The output gate: nothing is answered before it is durable (promise 2, R3).

use super::*;

impl Machine {
    #[expect(clippy::too_many_arguments, reason = "one turn's parts, used once each")]
    pub(super) fn commit(
        &mut self,
        now: Now,
        entity: &Entity,
        turn: TurnId,
        id: Option<MessageId>,
        answer: GuestReply,
        writes: Vec<(bytes::Bytes, Option<bytes::Bytes>)>,
        state_bytes: Option<u64>,
    ) {
        let keep_lanes = !self.has_mutation(Mutation::IgnoreLanes);
        let keep_watermark = !self.has_mutation(Mutation::WatermarkNotCommitted);
        let Some(state) = self.entities.get_mut(entity) else { return };
        let from = state.head.version;
        let version = from + 1;
        let mut writes: Vec<RecordWrite> = writes
            .into_iter()
            .map(|(key, value)| RecordWrite { key: RecordKey::State(key), value })
            .collect();
        let message = id.and_then(|id| state.entries.get(&id)).map(|entry| entry.message.clone());
        let (lanes, lanes_beside, lane_writes) = match message {
            Some(message) if keep_lanes => {
                let recorded = RecordedReply {
                    sequence: message.id.sequence,
                    digest: message.digest,
                    version,
                    reply: answer.clone(),
                    extensions: Extensions::default(),
                };
                state.lanes.record(&message, recorded, now.cluster_time, &self.settings)
            }
            _ => state.lanes.take_head_and_writes(None),
        };
        writes.extend(lane_writes);
        state.head = Head {
            version,
            revision: state.revision,
            turn,
            state_bytes: state_bytes.unwrap_or(state.head.state_bytes),
            spilled_lane_count: lanes_beside,
            watermark: if keep_watermark { state.lanes.watermark() } else { state.head.watermark },
            ..state.head.clone()
        };
        let head = Head { lanes, ..state.head.clone() };
        state.gate.push_back(GatedTurn {
            turn,
            message: id,
            reply: answer,
            version,
            queries: Vec::new(),
        });
        let commit = Commit {
            claim: self.claim.clone(),
            entity: entity.clone(),
            expected_version: from,
            head,
            writes,
            extensions: Extensions::default(),
        };
        if self.phase == Phase::Claiming || self.claim_pending {
            self.unsent_commits.push(commit);
        } else {
            self.outstanding += 1;
            self.actions.push_back(Action::Commit(Box::new(commit)));
        }
        if self.has_mutation(Mutation::ReplyBeforeCommit)
            && let Some(gated) = self.entities.get(entity).and_then(|state| state.gate.back())
            && let Some(id) = gated.message
        {
            let outcome = Outcome::Final { reply: gated.reply.clone(), version };
            self.finish(entity, &id, outcome, false);
        }
    }

    pub(super) fn on_committed(
        &mut self,
        now: Now,
        entity: &Entity,
        turn: TurnId,
        outcome: CommitOutcome,
    ) {
        if turn.epoch != self.ownership.epoch || turn.nonce != self.ownership.incarnation.nonce {
            // Of the machine before this one, for the same shard.
            return;
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        let Some(state) = self.entities.get_mut(entity) else { return };
        let Some(at) = state.gate.iter().position(|gated| gated.turn == turn) else { return };
        let Some(gated) = state.gate.remove(at) else { return };
        let started = state.start_turn.take_if(|start| *start == turn).is_some();
        let refusal = match outcome {
            CommitOutcome::Committed | CommitOutcome::AlreadyCommitted => {
                state.start_backoff = None;
                if let Some(id) = gated.message {
                    let outcome = Outcome::Final { reply: gated.reply, version: gated.version };
                    self.finish(entity, &id, outcome, false);
                }
                for (id, answer, version) in gated.queries {
                    self.finish_query(now, entity, &id, answer, version);
                }
                return self.advance(now, entity);
            }
            CommitOutcome::Unknown(why) => {
                let message = format!("whether the turn was made durable is not known: {why}");
                if self.has_mutation(Mutation::UnknownIsNotRun) {
                    Outcome::not_run_retryable(codes::COMMIT_REFUSED, message, 10)
                } else {
                    if self.phase == Phase::Serving {
                        self.phase = Phase::Claiming;
                    }
                    Outcome::Unknown { message }
                }
            }
            CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored }) => {
                Outcome::not_run_retryable(
                    codes::COMMIT_REFUSED,
                    format!(
                        "the turn did not build on the stored version {stored}; it is discarded"
                    ),
                    10,
                )
            }
            CommitOutcome::Refused(CommitRefusal::LimitReached(why)) if started => {
                return self.pause_start(now, entity, &why);
            }
            CommitOutcome::Refused(CommitRefusal::LimitReached(why)) => {
                Outcome::not_run_retryable(codes::STORE_FULL, why, 1_000)
            }
            // On whatever node it runs, and however often.
            CommitOutcome::Refused(CommitRefusal::TooLarge(why)) => {
                Outcome::not_run(codes::TURN_TOO_LARGE, why)
            }
            CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current: standing }) => {
                let message = format!("shard {} belongs to another node", self.ownership.shard);
                let hint = standing.as_deref().map(OwnerHint::from);
                if !matches!(self.phase, Phase::Lost | Phase::Claiming) {
                    self.lose_shard(standing, message.clone());
                }
                Outcome::not_run_retryable(codes::NOT_OWNER, message, 100).with_owner_hint(hint)
            }
        };
        // Queries that read it read what may never have been: they did not run.
        for (id, ..) in gated.queries {
            let outcome = Outcome::not_run_retryable(
                codes::COMMIT_REFUSED,
                "what the query read was not made durable",
                10,
            );
            self.finish(entity, &id, outcome, false);
        }
        if let Some(id) = gated.message {
            self.finish(entity, &id, refusal, false);
        }
        self.discard_uncommitted(entity);
        self.advance(now, entity);
    }

    /// The store refused a start turn for a limit, and would refuse the next one: what waits is told so, and what comes
    /// waits for a while.
    fn pause_start(&mut self, now: Now, entity: &Entity, why: &str) {
        let last = self.entities.get(entity).and_then(|state| state.start_backoff);
        let pause = StartBackoff::after(last, now.mono, self.settings.start_backoff);
        self.discard_uncommitted(entity);
        let retry_after = u32::try_from(pause.span).unwrap_or(u32::MAX);
        let text = format!("the entity's start was not made durable: {why}");
        self.give_up(entity, &Outcome::not_run_retryable(codes::STORE_FULL, text, retry_after));
        let state = self
            .entities
            .entry(entity.clone())
            .or_insert_with(|| ResidentEntity::new(now.mono, &self.queued_total));
        state.start_backoff = Some(pause);
        self.advance(now, entity);
    }

    /// Drops all that ran ahead of the store, and the commits that were not handed to it.
    pub(super) fn discard_uncommitted(&mut self, entity: &Entity) {
        self.drop_instance(entity);
        let outcome = Outcome::not_run_retryable(
            codes::COMMIT_REFUSED,
            "a turn before it was not made durable",
            10,
        );
        self.drop_unsent_commits(Some(entity), &outcome);
    }

    /// Ends turns whose commits were never handed to the store: they have had no effect.
    pub(super) fn drop_unsent_commits(&mut self, only: Option<&Entity>, outcome: &Outcome) {
        let held = std::mem::take(&mut self.unsent_commits);
        for commit in held {
            if only.is_some_and(|entity| *entity != commit.entity) {
                self.unsent_commits.push(commit);
                continue;
            }
            let Some(state) = self.entities.get_mut(&commit.entity) else { continue };
            let turn = commit.head.turn;
            let Some(at) = state.gate.iter().position(|gated| gated.turn == turn) else { continue };
            let Some(gated) = state.gate.remove(at) else { continue };
            for id in gated.message.into_iter().chain(gated.queries.into_iter().map(|(id, ..)| id))
            {
                self.finish(&commit.entity, &id, outcome.clone(), false);
            }
        }
    }
}
