//! The errors of HTTP calls.

use std::borrow::Cow;
use std::fmt;

use crate::error::ApplicationError;

/// Why an HTTP call has no response. A response with an error status, such as 500, is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpError {
    /// This attempt of the turn did not send the request. If an earlier attempt was abandoned, it may have sent it.
    NotSent {
        /// The name of the `error-code` in `wasi:http/types`, such as `connection-refused`, or `invalid-request`.
        code: String,
        /// What happened.
        message: String,
    },
    /// The server may have handled the request, for example because no response arrived in time.
    Unknown {
        /// The name of the `error-code` in `wasi:http/types`, such as `HTTP-response-timeout`.
        code: String,
        /// What happened.
        message: String,
    },
    /// The response's body does not decode as the type that the caller expects.
    InvalidBody {
        /// Why it does not decode.
        message: String,
    },
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent { code, message } | Self::Unknown { code, message } => {
                write!(f, "{message} ({code})")
            }
            Self::InvalidBody { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for HttpError {}

/// A method may return an [`HttpError`] as its own error: its caller gets the code `http-not-sent`, `http-unknown` or
/// `http-invalid-body`.
impl ApplicationError for HttpError {
    fn code(&self) -> Cow<'_, str> {
        match self {
            Self::NotSent { .. } => "http-not-sent".into(),
            Self::Unknown { .. } => "http-unknown".into(),
            Self::InvalidBody { .. } => "http-invalid-body".into(),
        }
    }

    fn message(&self) -> String {
        self.to_string()
    }
}
