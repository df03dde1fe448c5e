//! How a message ends or is retried: with a reply, or according to what is known when none will come.

use std::time::{Duration, Instant};

use ostraca_codes::{Code, codes};
use ostraca_wire::proto::{self, MessageKind, Outcome, Problem};
use ostraca_wire::reconnect::BackoffPolicy;

use super::{Ledger, Mutation, State};
use crate::call::{CallError, Reply};

/// The pauses before retries, unless a node asks for longer ones.
const RETRY: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(10), longest: Duration::from_secs(1) };

/// Codes after which another copy does not help: it can no longer be found out what ran. (`superseded` says that this
/// copy did not run, which is proof if it was the only one.)
const LOST_FOR_GOOD: [Code; 2] = [codes::SUPERSEDED, codes::REPLY_TOO_LARGE];
/// Codes with which a gateway that does not reach the owner replies.
const BOUNCES: [Code; 6] = [
    codes::NO_OWNER,
    codes::NOT_OWNER,
    codes::REBALANCING,
    codes::STORE_UNAVAILABLE,
    codes::UNKNOWN,
    codes::ABANDONED,
];
/// Codes that both gateways and owners use, so that they do not tell which of the two replied.
const AMBIGUOUS: [Code; 2] = [codes::OVERLOADED, codes::DEADLINE_EXCEEDED];
/// The id belongs to another message. This message has not run, whatever the outcome of the other one.
const OTHER_MESSAGE: Code = codes::ID_REUSED;
/// The key belongs to another request, perhaps to one that has not run: then a copy of this message that is still on its
/// way may run.
const OTHER_REQUEST: Code = codes::IDEMPOTENCY_KEY_REUSED;

impl<W> Ledger<W> {
    /// Handles a reply. If the message already has its outcome, the reply does not change it.
    pub fn on_reply(&mut self, reply: proto::Reply, now: Instant) {
        let sequence = self.sequence_of(&reply);
        let outcome = reply.outcome();
        self.note_speaker(&reply);
        if let Some(mut copies) = self.orphaned_copies.remove(&sequence) {
            self.release_window(copies.pop().unwrap_or(0));
            if !copies.is_empty() {
                self.orphaned_copies.insert(sequence, copies);
            }
            if is_final(outcome) {
                self.given_up.remove(&sequence);
            }
        }
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        if call.state == State::InFlight {
            let bytes = call.bytes;
            call.state = State::Ready;
            self.release_window(bytes);
        } else if !is_final(outcome) {
            // The reply is to a copy that no longer matters.
            return;
        }
        let id = self.id(sequence);
        let problem = reply.problem.unwrap_or_default();
        match outcome {
            Outcome::Result => {
                let answer = Reply {
                    id,
                    version: reply.entity_version,
                    kind: MessageKind::try_from(reply.kind).unwrap_or_default(),
                    content_type: reply.content_type,
                    body: reply.body,
                };
                self.complete(sequence, Ok(answer));
            }
            Outcome::ApplicationError => {
                let (code, message) = (problem.code.into(), problem.message.into());
                let version = reply.entity_version;
                self.complete(sequence, Err(CallError::Application { id, code, message, version }));
            }
            Outcome::ReplyDropped => {
                let (code, message) = (problem.code.into(), problem.message.into());
                let version = reply.entity_version;
                self.complete(
                    sequence,
                    Err(CallError::ReplyDropped { id, code, message, version }),
                );
            }
            _ if is_one_of(&problem.code, &LOST_FOR_GOOD) => {
                if outcome != Outcome::NotRun
                    && let Some(call) = self.calls.get_mut(&sequence)
                {
                    call.in_doubt = true;
                }
                self.complete_without_reply(sequence, problem, now);
            }
            Outcome::NotRun if problem.code == OTHER_REQUEST => {
                self.complete_without_reply(sequence, problem, now);
            }
            Outcome::NotRun if problem.code == OTHER_MESSAGE => {
                self.complete(sequence, Err(CallError::not_run(id, problem)));
            }
            Outcome::NotRun if problem.code == codes::TOO_OLD => {
                self.too_old(sequence, problem, now)
            }
            Outcome::NotRun => self.not_run(sequence, problem, now),
            Outcome::Unknown | Outcome::Unspecified => {
                if let Some(call) = self.calls.get_mut(&sequence) {
                    call.in_doubt = true;
                }
                self.schedule_retry(sequence, problem, now);
            }
        }
    }

    /// Tracks whether an entity or the gateway itself replied.
    fn note_speaker(&mut self, reply: &proto::Reply) {
        let code = reply.problem.as_ref().map_or("", |problem| &*problem.code);
        let by_entity = is_final(reply.outcome());
        if !by_entity && is_one_of(code, &BOUNCES) {
            if let Some(stuck) = &mut self.stall {
                stuck.rejected_by_gateway = true;
            }
        } else if by_entity || !is_one_of(code, &AMBIGUOUS) {
            self.stall = None;
            self.stalled_before = Duration::ZERO;
        }
    }

    /// The sequence of the message that a reply is for.
    fn sequence_of(&self, reply: &proto::Reply) -> u64 {
        if self.has_mutation(Mutation::MatchRepliesByOrder) {
            let mut in_flight = self.calls.iter().filter(|(_, call)| call.state == State::InFlight);
            return in_flight.next().map_or(reply.sequence, |(first, _)| *first);
        }
        reply.sequence
    }

    fn not_run(&mut self, sequence: u64, problem: Problem, now: Instant) {
        let proof = self.has_mutation(Mutation::NotRunClearsDoubt);
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        call.in_doubt &= !proof;
        if call.in_doubt || problem.retryable || problem.retry_after_ms > 0 {
            self.schedule_retry(sequence, problem, now);
        } else {
            let error = CallError::not_run(self.id(sequence), problem);
            self.complete(sequence, Err(error));
        }
    }

    /// Retries the message after a pause, or ends the call if its deadline comes first or the message is sent only once
    /// (K18).
    pub(super) fn schedule_retry(&mut self, sequence: u64, problem: Problem, now: Instant) {
        let noise = self.noise.draw();
        let resends_once = self.has_mutation(Mutation::ResendOnce);
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        if call.message.is_sent_once() && !resends_once {
            return self.complete_without_reply(sequence, problem, now);
        }
        let asked = Duration::from_millis(problem.retry_after_ms.into());
        let wait = RETRY.pause(call.attempts, noise).max(asked);
        call.attempts += 1;
        let due = now + wait;
        if due >= call.message.deadline {
            self.complete_without_reply(sequence, problem, now);
            return;
        }
        call.state = State::Backoff(due);
        call.last_problem = Some(problem);
        self.retry_at.insert((due, sequence));
    }

    /// Ends a call according to what is known about its copies: `not-run` if none of them can have run.
    pub(super) fn complete_without_reply(&mut self, sequence: u64, why: Problem, now: Instant) {
        let Some(call) = self.calls.get(&sequence) else { return };
        let sent = call.in_doubt || call.state == State::InFlight;
        if sent && call.message.envelope.kind() == MessageKind::Query {
            // A query changes nothing and is not recorded, so there is nothing to find out later.
            let error = CallError::unanswered(self.id(sequence), why);
            self.complete(sequence, Err(error));
        } else if sent {
            self.give_up(sequence, why, now);
        } else {
            let error = CallError::not_run(self.id(sequence), why);
            self.complete(sequence, Err(error));
        }
    }

    fn give_up(&mut self, sequence: u64, why: Problem, now: Instant) {
        let error = CallError::unknown(self.id(sequence), why);
        self.given_up.insert(sequence, now);
        self.complete(sequence, Err(error));
    }

    fn complete(&mut self, sequence: u64, outcome: Result<Reply, CallError>) {
        let Some(call) = self.calls.remove(&sequence) else { return };
        match call.state {
            State::Ready => {
                self.ready.remove(&sequence);
            }
            State::Backoff(due) => {
                self.retry_at.remove(&(due, sequence));
            }
            State::InFlight => {
                self.orphaned_copies.entry(sequence).or_default().push(call.bytes);
            }
        }
        self.deadlines.remove(&(call.message.deadline, sequence));
        if let Some(lane) = self.by_entity.get_mut(&call.message.entity) {
            lane.remove(&sequence);
            if lane.is_empty() {
                self.by_entity.remove(&call.message.entity);
            }
        }
        self.completed.push((call.waiter, outcome));
    }

    fn release_window(&mut self, bytes: u64) {
        self.messages_in_flight -= 1;
        self.bytes_in_flight -= bytes;
    }
}

fn is_one_of(name: &str, codes: &[Code]) -> bool {
    codes.iter().any(|code| *code == *name)
}

fn is_final(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Result | Outcome::ApplicationError | Outcome::ReplyDropped)
}
