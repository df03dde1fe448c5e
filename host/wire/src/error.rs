//! Errors of connections and streams, and the [`Problem`] that reports them on the wire.

use std::net::SocketAddr;

use crate::close_code::CloseCode;
use crate::frame::TooLarge;
use crate::identity::IdentityError;
use crate::proto::Problem;
use crate::tls::{self, Rejection};
use ostraca_codes::{Code, codes};
#[cfg(feature = "server")]
use prost::Message;

/// QUIC's own error code for a connection that the server refuses.
const CONNECTION_REFUSED: u64 = 0x2;

/// Why an endpoint, a connection or a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The UDP port is in use.
    #[error(
        "port {port} is in use (setting `{setting}` = \"{address}\"): stop the process that uses it, or choose another port"
    )]
    AddressInUse {
        /// The address to bind.
        address: SocketAddr,
        /// The port of that address.
        port: u16,
        /// The setting that holds the address.
        setting: &'static str,
    },
    /// The socket could not be created.
    #[error("cannot listen on {address} (setting `{setting}`): {source}")]
    Bind {
        /// The address to bind.
        address: SocketAddr,
        /// The setting that holds the address.
        setting: &'static str,
        /// The underlying I/O error.
        source: std::io::Error,
    },
    /// A certificate or key is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// One side rejected the other because of its certificate. A retry does not help.
    #[error("{message}: {help}")]
    CertificateRejected {
        /// Stable code: `no-certificate`, `unknown-ca`, `certificate-expired`, `not-a-node`, …
        code: Code,
        /// What happened.
        message: String,
        /// How to fix it.
        help: String,
    },
    /// The peer closed the connection, with a reason.
    #[error("connection closed by peer: {code}: {reason}")]
    Closed {
        /// The code that the peer sent.
        code: CloseCode,
        /// The reason as text.
        reason: String,
    },
    /// The peer reset the stream, or asked to stop sending on it.
    #[error("stream reset by peer: {0}")]
    Reset(CloseCode),
    /// This side ended the stream because the peer violated the protocol.
    #[error("{code}: {message}")]
    Violation {
        /// The code with which the stream is reset.
        code: CloseCode,
        /// What the peer did.
        message: String,
    },
    /// The connection is lost: the peer does not respond, or the network failed. Connecting again may succeed.
    #[error("connection lost: {0}")]
    ConnectionLost(String),
    /// The connection was lost before the request or message was handed to it: the peer never receives it.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The limit on unanswered requests or messages is reached. Nothing was sent.
    #[error("not sent: limit of {limit} {what} in flight reached (`{setting}`)")]
    Overloaded {
        /// What is limited: `calls`, `bytes of calls`, `messages` or `bytes of messages`.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The setting that holds the limit.
        setting: &'static str,
    },
    /// A request, response or message exceeds its limit. If it is a request or message, it was not sent. If it is a
    /// response, its request has been executed.
    #[error("{what} of {bytes} bytes exceeds the limit of {limit} (`{setting}`)")]
    TooLarge {
        /// What is too large: `a call`, `an answer` or `a message`.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
        /// The setting that holds the limit.
        setting: &'static str,
    },
}

impl Error {
    /// Whether trying again, over a new connection if necessary, may help.
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
                    CloseCode::Done
                        | CloseCode::ShuttingDown
                        | CloseCode::TooManyConnections
                        | CloseCode::TokenExpired
                        | CloseCode::NotReady
                )
            }
            _ => false,
        }
    }

    /// The stable code of the error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::AddressInUse { .. } => codes::ADDRESS_IN_USE,
            Self::Bind { .. } => codes::CANNOT_LISTEN,
            Self::Identity(_) => codes::INVALID_IDENTITY,
            Self::CertificateRejected { code, .. } => *code,
            Self::Closed { code, .. } | Self::Reset(code) | Self::Violation { code, .. } => {
                code.code()
            }
            Self::ConnectionLost(_) => codes::CONNECTION_LOST,
            Self::NotSent(_) => codes::NOT_SENT,
            Self::Overloaded { .. } => codes::OVERLOADED,
            Self::TooLarge { .. } => codes::FRAME_TOO_LARGE,
        }
    }

    /// The code with which a stream that ended with this error is reset.
    #[cfg(feature = "server")]
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

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        let Rejection { code, message, help } = rejection;
        Self::CertificateRejected { code, message, help: help.into() }
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
            E::ConnectionClosed(close) if u64::from(close.error_code) == CONNECTION_REFUSED => {
                Self::Closed {
                    code: CloseCode::TooManyConnections,
                    reason: "connection limit reached (`network.max-connections`)".into(),
                }
            }
            E::ConnectionClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                match tls::refused_by_peer(u64::from(close.error_code)) {
                    Some(rejection) => rejection.into(),
                    None => Self::ConnectionLost(format!("{}: {reason}", close.error_code)),
                }
            }
            E::TransportError(error) => {
                match tls::refused_by_us(u64::from(error.code), &error.reason) {
                    Some(rejection) => rejection.into(),
                    None => Self::ConnectionLost(error.to_string()),
                }
            }
            E::TimedOut => Self::ConnectionLost("timed out".into()),
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

/// Why bytes do not decode as a message of the protocol, without prost's own wording.
#[must_use]
pub fn decode_error_message(error: &prost::DecodeError) -> String {
    let text = error.to_string().replace("r#", "");
    let what = text.strip_prefix("failed to decode Protobuf message: ").unwrap_or(&text);
    let what = what.replace("recursion limit reached", "nested too deeply");
    format!("unreadable: {what}")
}

/// Cuts the problem to `most` bytes: if it is larger, drops help and details, and truncates the message.
#[cfg(feature = "server")]
pub(crate) fn within(mut problem: Problem, most: usize) -> Problem {
    if problem.encoded_len() <= most {
        return problem;
    }
    problem.help.clear();
    problem.details.clear();
    // Bytes of the rest, with the field header of the message.
    let rest = problem.encoded_len() - problem.message.len();
    let mut end = most.saturating_sub(rest).min(problem.message.len());
    while !problem.message.is_char_boundary(end) {
        end -= 1;
    }
    problem.message.truncate(end);
    problem
}

/// A problem that is not retryable, without help or details. The fields are public: set the others where known.
#[must_use]
pub fn problem(code: Code, message: impl Into<String>) -> Problem {
    Problem { code: code.into(), message: message.into(), ..Problem::default() }
}

#[cfg(test)]
mod tests {
    use ostraca_codes::{Class, Retry, SECTIONS};

    use super::*;

    #[test]
    fn closes_are_retried_as_the_table_says() {
        for code in CloseCode::ALL.iter().copied() {
            let retry = code.code().row().retry == Retry::Yes;
            let closed = Error::Closed { code, reason: String::new() };
            assert_eq!(closed.is_retryable(), retry, "{code}");
        }
        let rows = SECTIONS.iter().find(|section| section.class == Class::Closing);
        let names: Vec<_> = CloseCode::ALL.iter().map(|code| code.code()).collect();
        assert_eq!(rows.map(|section| section.codes), Some(&names[..]));
    }

    #[test]
    fn a_problem_is_cut_to_the_size_limit() {
        let mut long = problem(codes::OVERLOADED, "\u{e9}".repeat(1_000));
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
