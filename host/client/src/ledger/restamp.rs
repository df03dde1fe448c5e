//! When a message may be stamped anew, after an entity refused its creation time (R17).
//!
//! Only if no copy of it is in doubt: a second stamp would let it run a second time. And only if every later message
//! to the same entity bears a stamp as high: an entity that drops a lane refuses by the highest stamp that ran in it,
//! which must cover every sequence below. A later one that is in doubt keeps its stamp, and waits at the entity for this
//! one: then this one takes the later one's stamp, and no higher one.

use std::time::{Duration, Instant};

use ostraca_wire::proto::{MessageKind, Problem};

use super::{Ledger, Mutation, State};

/// How long a message waits before it is looked at again whether it may be stamped anew.
const RESTAMP_RETRY: Duration = Duration::from_millis(20);

/// The detail of a refusal that says which creation time would pass.
const CREATED_MS: &str = "created_ms";

/// The creation time that a refusal says would pass.
pub(super) fn suggested_created_ms(problem: &Problem) -> Option<u64> {
    problem.details.get(CREATED_MS)?.parse().ok()
}

/// What may be done now with a message that needs another stamp.
enum Restamp {
    Done,
    Later,
    Never,
}

impl<W> Ledger<W> {
    /// The entity does not remember the session, and the message may be a copy of what ran before it was forgotten.
    pub(super) fn too_old(&mut self, sequence: u64, said: Problem, now: Instant) {
        let restamps = self.has_mutation(Mutation::RestampInDoubt);
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        let stamp = suggested_created_ms(&said).filter(|stamp| *stamp > call.message.created_ms);
        match stamp {
            // No copy will do better.
            _ if call.in_doubt && !restamps => self.complete_without_reply(sequence, said, now),
            None => self.complete_without_reply(sequence, said, now),
            Some(stamp) => {
                call.restamp = Some(stamp);
                self.schedule_retry(sequence, said, now);
            }
        }
    }

    /// Gives a message its new stamp, if it needs one; false: it does not go out now.
    pub(super) fn apply_restamp(&mut self, sequence: u64, now: Instant) -> bool {
        let Some(stamp) = self.calls.get(&sequence).and_then(|call| call.restamp) else {
            return true;
        };
        match self.restamp(sequence, stamp) {
            Restamp::Done => true,
            Restamp::Later => {
                let due = now + RESTAMP_RETRY;
                if let Some(call) = self.calls.get_mut(&sequence) {
                    call.state = State::Backoff(due);
                    self.retry_at.insert((due, sequence));
                }
                false
            }
            Restamp::Never => {
                let heard = self.calls.get_mut(&sequence).and_then(|call| call.last_problem.take());
                self.complete_without_reply(sequence, heard.unwrap_or_default(), now);
                false
            }
        }
    }

    fn restamp(&mut self, sequence: u64, asked: u64) -> Restamp {
        let Some(call) = self.calls.get(&sequence) else { return Restamp::Never };
        // A copy of one that was given up may still be on its way, with its old stamp.
        let careful = !self.has_mutation(Mutation::RestampInDoubt);
        if careful && (call.in_doubt || self.given_up.range(sequence + 1..).next().is_some()) {
            return Restamp::Never;
        }
        let of_entity = self.by_entity.get(&call.message.entity);
        let from: Vec<u64> =
            of_entity.map(|lane| lane.range(sequence..).copied().collect()).unwrap_or_default();
        let mut stamp = asked;
        for later in from.iter().filter_map(|later| self.calls.get(later)).filter(|_| careful) {
            // What a query bears is never looked at: it leaves no lane.
            let query = later.message.envelope.kind() == MessageKind::Query;
            if query || later.message.created_ms >= stamp {
                continue;
            }
            if later.in_doubt {
                // It waits for this one at the entity, so waiting for its end would be for ever. Its own stamp may do: if
                // not now, then where an entity is loaded that has not forgotten the session, or it is refused itself.
                stamp = later.message.created_ms;
            } else if later.state == State::InFlight {
                return Restamp::Later;
            }
        }
        for sequence in from {
            if let Some(call) = self.calls.get_mut(&sequence)
                && !(careful && (call.in_doubt || call.state == State::InFlight))
            {
                call.message.created_ms = call.message.created_ms.max(stamp);
                call.restamp = call.restamp.filter(|needed| *needed > stamp && stamp == asked);
            }
        }
        self.highest_restamp = self.highest_restamp.max(stamp);
        Restamp::Done
    }
}
