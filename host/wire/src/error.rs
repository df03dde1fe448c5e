//! What can go wrong on a connection, and the [`Problem`](crate::proto::Problem) that says it on the wire.

use std::net::SocketAddr;

use crate::close_code::CloseCode;
use crate::frame::TooLarge;
use crate::identity::IdentityError;
use crate::proto::Problem;
use prost::Message;

/// Why an endpoint, a connection or a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The UDP port is taken.
    #[error(
        "port {port} is in use (setting `{setting}` = \"{address}\"): stop the process that has it, or choose another port"
    )]
    AddressInUse {
        /// What was to be bound.
        address: SocketAddr,
        /// Its port.
        port: u16,
        /// The setting that named it.
        setting: &'static str,
    },
    /// The socket could not be made.
    #[error("cannot listen on {address} (setting `{setting}`): {source}")]
    Bind {
        /// What was to be bound.
        address: SocketAddr,
        /// The setting that named it.
        setting: &'static str,
        /// The system's word.
        source: std::io::Error,
    },
    /// A certificate or key is of no use.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The other side was refused, or refused this one, because of who it is. Trying again does not help.
    #[error("{message}: {help}")]
    CertificateRejected {
        /// Stable: `no-certificate`, `unknown-ca`, `certificate-expired`, `not-a-node`, …
        code: &'static str,
        /// What happened.
        message: String,
        /// What to do.
        help: String,
    },
    /// The other side closed the connection, with its reason.
    #[error("connection closed by the other side: {code}: {reason}")]
    Closed {
        /// Which.
        code: CloseCode,
        /// In words.
        reason: String,
    },
    /// The other side reset the stream, or asked to stop sending on it.
    #[error("stream reset by the other side: {0}")]
    Reset(CloseCode),
    /// This side gave the stream up.
    #[error("{code}: {message}")]
    Violation {
        /// With which code the stream is reset.
        code: CloseCode,
        /// What the other side did.
        message: String,
    },
    /// The connection is gone: nobody answers, or the network failed. It may come back.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// The connection was gone before this was handed to it: the other side never hears of it.
    #[error("not sent: {0}")]
    NotSent(String),
    /// As much is without an answer as may be. Nothing was sent.
    #[error("not sent: {limit} {what} wait for their answers already (`{setting}`)")]
    Overloaded {
        /// Of what: `calls`, `bytes of calls`, and the same of messages.
        what: &'static str,
        /// How many may wait.
        limit: u64,
        /// The setting that says so.
        setting: &'static str,
    },
    /// A call, its answer or a message is larger than what is taken. A call or message was not sent; an
    /// answer was made, and what it was made for is done.
    #[error("{what} of {bytes} bytes: {limit} are taken (`{setting}`)")]
    TooLarge {
        /// `a call`, `an answer`, `a message`.
        what: &'static str,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
        /// The setting that says so.
        setting: &'static str,
    },
}

impl Error {
    /// Whether connecting again may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::ConnectionLost(_)
            | Self::Reset(_)
            | Self::NotSent(_)
            | Self::Overloaded { .. } => true,
            Self::Closed { code, .. } => {
                matches!(
                    code,
                    CloseCode::Done | CloseCode::ShuttingDown | CloseCode::TooManyConnections
                )
            }
            _ => false,
        }
    }

    /// The stable code of the error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::AddressInUse { .. } => "address-in-use",
            Self::Bind { .. } => "cannot-listen",
            Self::Identity(_) => "invalid-identity",
            Self::CertificateRejected { code, .. } => code,
            Self::Closed { code, .. } | Self::Reset(code) | Self::Violation { code, .. } => {
                code.name()
            }
            Self::ConnectionLost(_) => "connection-lost",
            Self::NotSent(_) => "not-sent",
            Self::Overloaded { .. } => "overloaded",
            Self::TooLarge { .. } => "frame-too-large",
        }
    }

    /// With which code a stream is reset that ended like this.
    pub(crate) fn close_code(&self) -> CloseCode {
        match self {
            Self::Violation { code, .. } => *code,
            _ => CloseCode::Done,
        }
    }

    pub(crate) fn violation(code: CloseCode, text: impl Into<String>) -> Self {
        Self::Violation { code, message: text.into() }
    }
}

impl From<TooLarge> for Error {
    fn from(error: TooLarge) -> Self {
        Self::violation(CloseCode::FrameTooLarge, format!("{error} (`max_frame`)"))
    }
}

impl From<quinn::ConnectionError> for Error {
    fn from(error: quinn::ConnectionError) -> Self {
        use quinn::ConnectionError as E;
        match error {
            E::ApplicationClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                match CloseCode::from_number(close.error_code.into_inner()) {
                    Some(code) => Self::Closed { code, reason },
                    None => Self::ConnectionLost(format!(
                        "closed with code {}: {reason}",
                        close.error_code
                    )),
                }
            }
            E::ConnectionClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                crate::tls::refused_by_peer(u64::from(close.error_code))
                    .unwrap_or(Self::ConnectionLost(format!("{}: {reason}", close.error_code)))
            }
            E::TransportError(error) => {
                crate::tls::refused_by_us(u64::from(error.code), &error.reason)
                    .unwrap_or(Self::ConnectionLost(error.to_string()))
            }
            E::TimedOut => Self::ConnectionLost("no answer in time".into()),
            other => Self::ConnectionLost(other.to_string()),
        }
    }
}

impl From<quinn::ReadError> for Error {
    fn from(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::Reset(number) => reset(number),
            quinn::ReadError::ConnectionLost(error) => error.into(),
            other => Self::ConnectionLost(other.to_string()),
        }
    }
}

impl From<quinn::WriteError> for Error {
    fn from(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::Stopped(number) => reset(number),
            quinn::WriteError::ConnectionLost(error) => error.into(),
            other => Self::ConnectionLost(other.to_string()),
        }
    }
}

fn reset(number: quinn::VarInt) -> Error {
    match CloseCode::from_number(number.into_inner()) {
        Some(code) => Error::Reset(code),
        None => Error::ConnectionLost(format!("stream reset with code {number}")),
    }
}

/// Why bytes are no message of the protocol: without the words of the library that read them.
#[must_use]
pub fn decode_error_message(error: &prost::DecodeError) -> String {
    let text = error.to_string().replace("r#", "");
    let what = text.strip_prefix("failed to decode Protobuf message: ").unwrap_or(&text);
    let what = what.replace("recursion limit reached", "nested too deep");
    format!("unreadable: {what}")
}

/// The problem within so many bytes: its message is cut, and help and details left out, if it is larger.
pub(crate) fn within(mut problem: Problem, most: usize) -> Problem {
    if problem.encoded_len() <= most {
        return problem;
    }
    problem.help.clear();
    problem.details.clear();
    // Bytes of the rest, with the message's own head.
    let rest = problem.encoded_len() - problem.message.len();
    let mut end = most.saturating_sub(rest).min(problem.message.len());
    while !problem.message.is_char_boundary(end) {
        end -= 1;
    }
    problem.message.truncate(end);
    problem
}

/// A problem without help and details, not retryable; the fields are public, add what is known.
#[must_use]
pub fn problem(code: &str, message: impl Into<String>) -> Problem {
    Problem { code: code.into(), message: message.into(), ..Problem::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_cut_to_the_size_limit() {
        let mut long = problem("overloaded", "\u{e9}".repeat(1_000));
        long.retryable = true;
        long.details.insert("setting".into(), "x".into());
        assert_eq!(within(long.clone(), 10_000), long);
        for most in [200, 201, 500] {
            let cut = within(long.clone(), most);
            assert!(cut.encoded_len() <= most && cut.message.len() > most / 2, "{cut:?}");
            assert!(cut.retryable && cut.code == "overloaded");
        }
        assert_eq!(within(long, 0).message, "");
    }
}
