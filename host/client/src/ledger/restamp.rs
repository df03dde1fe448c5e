//! When a message may be restamped, after an entity refused its creation time (R17).
//!
//! First, no copy of it may be in doubt: a second creation time would let it run a second time. Second, every later
//! message to the same entity must have a creation time at least as high. After an entity has dropped a lane, what it
//! refuses depends on the highest creation time that ran in the lane, which must cover every lower sequence. A later
//! message that is in doubt keeps its creation time, and waits at the entity for this message. In that case, this
//! message takes the creation time of the later one, and no higher one.

use std::time::{Duration, Instant};

use ostraca_wire::proto::problem::Hint;
use ostraca_wire::proto::{MessageKind, Problem};

use super::{Ledger, Mutation, State};

/// How long a message waits before the next check of whether it may be restamped.
const RESTAMP_RETRY: Duration = Duration::from_millis(20);

/// The acceptable creation time that a refusal names.
pub(super) fn suggested_created_ms(problem: &Problem) -> Option<u64> {
    match problem.hint {
        Some(Hint::CreatedMs(created)) => Some(created),
        _ => None,
    }
}

/// What can be done now with a message that needs another creation time.
enum Restamp {
    Done,
    Later,
    Never,
}

impl<W> Ledger<W> {
    /// Handles `too-old`: the entity does not remember the session, and the message may be a copy of one that ran
    /// before the session was dropped.
    pub(super) fn too_old(&mut self, sequence: u64, problem: Problem, now: Instant) {
        let restamps = self.has_mutation(Mutation::RestampInDoubt);
        let Some(call) = self.calls.get_mut(&sequence) else { return };
        let stamp = suggested_created_ms(&problem).filter(|stamp| *stamp > call.message.created_ms);
        match stamp {
            // Another copy does not help.
            _ if call.in_doubt && !restamps => self.complete_without_reply(sequence, problem, now),
            None => self.complete_without_reply(sequence, problem, now),
            Some(stamp) => {
                call.restamp = Some(stamp);
                self.schedule_retry(sequence, problem, now);
            }
        }
    }

    /// Restamps a message if necessary. Returns `false` if the message must not be sent now.
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
                let last_problem =
                    self.calls.get_mut(&sequence).and_then(|call| call.last_problem.take());
                self.complete_without_reply(sequence, last_problem.unwrap_or_default(), now);
                false
            }
        }
    }

    fn restamp(&mut self, sequence: u64, asked: u64) -> Restamp {
        let Some(call) = self.calls.get(&sequence) else { return Restamp::Never };
        // A copy of a given-up message may still be in transit, with its old creation time.
        let careful = !self.has_mutation(Mutation::RestampInDoubt);
        if careful && (call.in_doubt || self.given_up.range(sequence + 1..).next().is_some()) {
            return Restamp::Never;
        }
        let of_entity = self.by_entity.get(&call.message.entity);
        let from: Vec<u64> =
            of_entity.map(|lane| lane.range(sequence..).copied().collect()).unwrap_or_default();
        let mut stamp = asked;
        for later in from.iter().filter_map(|later| self.calls.get(later)).filter(|_| careful) {
            // The creation time of a query does not matter: a query leaves no lane.
            let query = later.message.envelope.kind() == MessageKind::Query;
            if query || later.message.created_ms >= stamp {
                continue;
            }
            if later.in_doubt {
                // The later message waits at the entity for this one, so waiting for it here would never end. Its
                // creation time may be accepted: if not now, then on a host where the entity still remembers the
                // session. Otherwise, the later message is itself refused.
                stamp = later.message.created_ms;
            } else if later.state == State::InFlight {
                return Restamp::Later;
            }
        }
        for sequence in from {
            if let Some(call) = self.calls.get_mut(&sequence)
                && !(careful && (call.in_doubt || call.state == State::InFlight))
            {
                let message = &mut call.message;
                let first = message.created_ms;
                message.created_ms = first.max(stamp);
                if stamp > first && message.envelope.first_created_ms == 0 {
                    message.envelope.first_created_ms = first;
                }
                call.restamp = call.restamp.filter(|needed| *needed > stamp && stamp == asked);
            }
        }
        self.highest_restamp = self.highest_restamp.max(stamp);
        Restamp::Done
    }
}
