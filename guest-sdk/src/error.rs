//! Application errors: the entity's own, final refusals.

use std::borrow::Cow;
use std::fmt;

/// What a method may give back as the `Err` of its `Result`.
///
/// Most easily derived, on an enum that implements [`fmt::Display`]: a variant's code is its name in kebab case
/// (`InsufficientFunds` is `insufficient-funds`), or what `#[code("…")]` on it says; the message is what `Display`
/// shows. The derive also lets `?` turn the enum into an [`Error`].
pub trait ApplicationError {
    /// A stable code for programs: 1 to 128 bytes. Another length is a panic.
    fn code(&self) -> Cow<'_, str>;

    /// A sentence for people.
    fn message(&self) -> String;
}

/// An application error made on the spot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: Cow<'static, str>,
    message: String,
}

impl Error {
    /// An error with a stable code (1 to 128 bytes) and a sentence for people.
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
