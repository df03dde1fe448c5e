//! How a call ends, and the ids that outlive it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_wire::proto::{MessageKind, Problem};

/// The 16 bytes that a client chose for a session; written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A random id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A message's id as its sender knows it, written `<session>-<sequence>@<created>+<utc>`. Entities know a session under
/// a hash of its id and the sender's principal, so a message id means nothing to another principal. All copies of a
/// message have the same creation time, because of which an entity that has dropped the session in the meantime refuses
/// them (R17), and the same UTC, which is the time that the message's turn reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The session.
    pub session: SessionId,
    /// The sequence in the session, from 1.
    pub sequence: u64,
    /// The creation time, in milliseconds of cluster time, from 1.
    pub created_ms: u64,
    /// The same moment in milliseconds since the Unix epoch (UTC); 0 if unknown. Written only if it is known.
    pub utc_ms: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}@{}", self.session, self.sequence, self.created_ms)?;
        if self.utc_ms > 0 { write!(f, "+{}", self.utc_ms) } else { Ok(()) }
    }
}

/// The string is not a message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message id has the form SESSION-SEQUENCE@CREATED+UTC: 32 hexadecimal digits and three numbers from 1, the last of which may be omitted with its `+`"
)]
pub struct InvalidMessageId;

impl FromStr for MessageId {
    type Err = InvalidMessageId;

    fn from_str(text: &str) -> Result<Self, InvalidMessageId> {
        let (session, numbers) = text.split_once('-').ok_or(InvalidMessageId)?;
        let (sequence, times) = numbers.split_once('@').ok_or(InvalidMessageId)?;
        let (created, utc) = match times.split_once('+') {
            Some((created, utc)) => (created, Some(utc)),
            None => (times, None),
        };
        let digits = |s: &str, at_most: usize, allowed: fn(&u8) -> bool| {
            !s.is_empty() && s.len() <= at_most && s.as_bytes().iter().all(allowed)
        };
        if session.len() != 32
            || !digits(session, 32, u8::is_ascii_hexdigit)
            || !digits(sequence, 20, u8::is_ascii_digit)
            || !digits(created, 20, u8::is_ascii_digit)
            || utc.is_some_and(|utc| !digits(utc, 20, u8::is_ascii_digit))
        {
            return Err(InvalidMessageId);
        }
        let session = u128::from_str_radix(session, 16).map_err(|_| InvalidMessageId)?;
        let sequence = sequence.parse().map_err(|_| InvalidMessageId)?;
        let created = created.parse().map_err(|_| InvalidMessageId)?;
        let utc = utc.map(str::parse).transpose().map_err(|_| InvalidMessageId)?;
        if sequence == 0 || created == 0 || utc == Some(0) {
            return Err(InvalidMessageId);
        }
        let session = SessionId(session.to_be_bytes());
        Ok(Self { session, sequence, created_ms: created, utc_ms: utc.unwrap_or_default() })
    }
}

/// A method's result. Final: every copy of the message gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What the method returned.
    pub body: Bytes,
    /// Media type of the body.
    pub content_type: String,
    /// The entity's version after the turn, or the one that a query read.
    pub version: u64,
    /// The method's kind as its deployment declares it.
    pub kind: MessageKind,
    /// The message's id.
    pub id: MessageId,
}

/// The other ways in which a call ends (R16). The variant says what the caller may do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Final: the method refused. The message never runs again under this id.
    #[error("{code}: {message}")]
    Application {
        /// The message's id.
        id: MessageId,
        /// The guest's own code.
        code: Box<str>,
        /// Human-readable text.
        message: Box<str>,
        /// The entity's version: a refused command counts as a turn.
        version: u64,
    },
    /// Final: the message ran, but its reply is no longer kept (`reply-dropped`).
    #[error("{code}: {message}")]
    ReplyDropped {
        /// The message's id.
        id: MessageId,
        /// Stable code.
        code: Box<str>,
        /// Human-readable text.
        message: Box<str>,
        /// The entity's version after the turn.
        version: u64,
    },
    /// The message had no effect and never will: it may be sent again, under this id or a new one.
    #[error("not run: {code}: {message}")]
    NotRun {
        /// The message's id.
        id: MessageId,
        /// Stable code: `mailbox-full`, `unknown-method`, `deadline-exceeded`, `not-connected`, …
        code: Box<str>,
        /// Human-readable text.
        message: Box<str>,
        /// How to fix it; may be empty.
        help: Box<str>,
        /// Machine-readable details.
        details: Box<BTreeMap<String, String>>,
        /// Set if a retry may succeed after this time.
        retry_after: Option<Duration>,
    },
    /// A message sent as a query got no reply. A query has no effect, whether it ran or not, so it is safe to send it
    /// again.
    #[error("the query got no reply: {cause}: {message}")]
    Unanswered {
        /// The message's id.
        id: MessageId,
        /// Stable code that says why there was no reply.
        cause: Box<str>,
        /// Human-readable text.
        message: Box<str>,
    },
    /// The message may have run, or may still run: resend it only under the same id.
    #[error("it is unknown whether message {id} ran: {code}: {message}")]
    Unknown {
        /// The id under which the message may be resent.
        id: MessageId,
        /// Stable code of the last known cause: `deadline-exceeded`, `connection-lost`, `superseded`, …
        code: Box<str>,
        /// Human-readable text.
        message: Box<str>,
    },
}

impl CallError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Application { code, .. }
            | Self::ReplyDropped { code, .. }
            | Self::NotRun { code, .. }
            | Self::Unknown { code, .. } => code,
            Self::Unanswered { .. } => codes::QUERY_UNANSWERED.as_str(),
        }
    }

    /// The message's id.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Application { id, .. }
            | Self::ReplyDropped { id, .. }
            | Self::NotRun { id, .. }
            | Self::Unanswered { id, .. }
            | Self::Unknown { id, .. } => *id,
        }
    }

    pub(crate) fn not_run(id: MessageId, problem: Problem) -> Self {
        let retry_after = (problem.retryable || problem.retry_after_ms > 0)
            .then(|| Duration::from_millis(problem.retry_after_ms.into()));
        Self::NotRun {
            id,
            code: problem.code.into(),
            message: problem.message.into(),
            help: problem.help.into(),
            details: Box::new(problem.details),
            retry_after,
        }
    }

    pub(crate) fn unanswered(id: MessageId, problem: Problem) -> Self {
        Self::Unanswered { id, cause: problem.code.into(), message: problem.message.into() }
    }

    pub(crate) fn unknown(id: MessageId, problem: Problem) -> Self {
        Self::Unknown { id, code: problem.code.into(), message: problem.message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_round_trips_through_its_text() {
        for (utc_ms, text) in [(0, "-42@7"), (8, "-42@7+8")] {
            let session = SessionId([0xab; 16]);
            let id = MessageId { session, sequence: 42, created_ms: 7, utc_ms };
            assert_eq!(id.to_string(), format!("{}{text}", "ab".repeat(16)));
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "-", "ab-1@1", "00-0@1", "00-1@0", "00-1", "+0-1@1", "00-1@1+", "00-1@1+0"]
            .map(|bad| bad.replace("00", &"0".repeat(32)))
        {
            assert_eq!(bad.parse::<MessageId>(), Err(InvalidMessageId), "{bad:?}");
        }
    }
}
