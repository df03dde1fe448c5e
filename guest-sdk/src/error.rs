//! Application errors: the entity's own, final refusals of a message.

use std::borrow::Cow;
use std::fmt;

/// An error that a method may return as the `Err` of its `Result`.
///
/// Usually derived for an enum that implements [`fmt::Display`]. A variant's code is its name in kebab case
/// (`InsufficientFunds` becomes `insufficient-funds`), or the code in its attribute `#[code("…")]`. The message is
/// the output of `Display`. The derive also lets `?` convert the enum into an [`Error`].
pub trait ApplicationError {
    /// A stable code for programs: 1 to 128 bytes, without control characters or direction marks. Replying with a
    /// code of another length panics.
    fn code(&self) -> Cow<'_, str>;

    /// A message for people.
    fn message(&self) -> String;
}

/// An application error without a dedicated type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: Cow<'static, str>,
    message: String,
}

impl Error {
    /// Creates an error with a stable code (1 to 128 bytes) and a message for people.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

impl ApplicationError for Error {
    fn code(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.code)
    }

    fn message(&self) -> String {
        self.message.clone()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
