//! The errors of asks.

use std::borrow::Cow;
use std::fmt;

use crate::error::ApplicationError;

/// Why an ask has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// The target refused the message with an application error. This is final.
    Refused {
        /// The code that the target's author chose.
        code: String,
        /// A message for people.
        message: String,
    },
    /// The target refused the message, and no copy that this attempt of the turn has sent will run. If an earlier attempt
    /// of the turn was abandoned, a copy from that attempt may have run or may still run.
    NotRun {
        /// A stable code: see `docs/errors.md`.
        code: String,
        /// What happened.
        message: String,
    },
    /// The message may have run, for example because no answer arrived in time.
    Unknown {
        /// What happened.
        message: String,
    },
    /// The message ran, but its result does not decode as the type that the caller expects.
    InvalidAnswer {
        /// Why it does not decode.
        message: String,
    },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, message } | Self::NotRun { code, message } => {
                write!(f, "{message} ({code})")
            }
            Self::Unknown { message } | Self::InvalidAnswer { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for AskError {}

/// A method may return an [`AskError`] as its own error: its caller gets the code of the refusal, or `ask-not-run`,
/// `ask-unknown` or `ask-invalid-answer`.
impl ApplicationError for AskError {
    fn code(&self) -> Cow<'_, str> {
        match self {
            Self::Refused { code, .. } => code.into(),
            Self::NotRun { .. } => "ask-not-run".into(),
            Self::Unknown { .. } => "ask-unknown".into(),
            Self::InvalidAnswer { .. } => "ask-invalid-answer".into(),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }
}
