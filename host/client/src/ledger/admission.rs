//! What a session accepts from its callers: ids, creation times, and limits on calls without an outcome.

use ostraca_codes::codes;
use ostraca_wire::problem;
use ostraca_wire::proto::Problem;

use crate::call::{MessageId, SessionId};

/// Maximum number of a session's messages without an outcome; beyond it, messages are refused with `session-full`.
const MAX_PENDING: usize = 65_536;
/// Maximum total size of their bodies in bytes.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// Why a message was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionError {
    /// The id that the message would have had.
    pub id: MessageId,
    /// Why it was refused.
    pub problem: Box<Problem>,
}

/// Admits a session's messages: each new one gets the next sequence, and a creation time that never decreases
/// (R17).
#[derive(Debug)]
pub struct CallAdmission {
    session: SessionId,
    next: u64,
    /// The highest creation time so far.
    latest: u64,
    pending: usize,
    pending_bytes: usize,
    ended: bool,
}

impl CallAdmission {
    /// Admission for a session whose next message has the sequence `next`.
    #[must_use]
    pub fn new(session: SessionId, next: u64) -> Self {
        Self { session, next: next.max(1), latest: 0, pending: 0, pending_bytes: 0, ended: false }
    }

    /// The sequence that the next message gets.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Admits a message with a body of `size` bytes: a new one at this cluster time, or the one with the id `resend`,
    /// which is sent again.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn admit(
        &mut self,
        resend: Option<MessageId>,
        cluster_ms: u64,
        size: usize,
    ) -> Result<MessageId, AdmissionError> {
        let fresh = || MessageId {
            session: self.session,
            sequence: self.next,
            created_ms: cluster_ms.max(self.latest),
            utc_ms: 0,
        };
        let id = resend.unwrap_or_else(fresh);
        if let Some(why) = self.refusal(id, size) {
            return Err(AdmissionError { id, problem: Box::new(why) });
        }
        self.next = self.next.max(id.sequence.saturating_add(1));
        self.latest = self.latest.max(id.created_ms);
        self.pending += 1;
        self.pending_bytes += size;
        Ok(id)
    }

    fn refusal(&self, id: MessageId, size: usize) -> Option<Problem> {
        if id.session != self.session {
            Some(problem(codes::SESSION_MISMATCH, "the id belongs to another session"))
        } else if id.sequence == 0 || id.created_ms == 0 {
            Some(problem(
                codes::INVALID_MESSAGE,
                "an id needs a sequence and a creation time, both from 1",
            ))
        } else if self.ended {
            Some(problem(codes::CLIENT_CLOSED, "the client was closed"))
        } else if self.pending >= MAX_PENDING || self.pending_bytes + size > MAX_PENDING_BYTES {
            let text = format!(
                "session has {} unresolved messages of {} bytes, limits are {MAX_PENDING} and {MAX_PENDING_BYTES}",
                self.pending, self.pending_bytes
            );
            let mut full = problem(codes::SESSION_FULL, text);
            full.retryable = true;
            Some(full)
        } else {
            None
        }
    }

    /// Records that the ledger restamped a message: later messages must not have a lower creation time.
    pub fn stamped(&mut self, latest: u64) {
        self.latest = self.latest.max(latest);
    }

    /// Records that this many messages, with this many bytes, have their outcome.
    pub fn release(&mut self, messages: usize, bytes: usize) {
        self.pending -= messages;
        self.pending_bytes -= bytes;
    }

    /// Refuses everything from now on.
    pub fn close(&mut self) {
        self.ended = true;
    }
}
