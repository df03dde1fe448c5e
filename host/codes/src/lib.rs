//! Every error code of Ostraca, in one table: what happened, what to do, whether a retry may succeed.
//!
//! A [`Code`] exists only as a row of the table, in a file of `sections/`. Functions that create an error take a
//! `Code`, so no program reports a code without a row. `docs/errors.md` has the same rows: `tests/page.rs` compares
//! them, and writes the page's tables with `BLESS=1`.
//!
//! Confusing at first: a code that arrives from another process is a string, since that process may run another
//! release, and since applications choose their own codes. Compare it with a `Code`, or look it up with
//! [`Code::named`].
//!
//! Codes are stable, because programs depend on them. Messages may change.

mod sections;

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

pub use sections::{SECTIONS, codes};

/// A stable error code. It derefs to its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(&'static Row);

/// A row of the table: everything about one code.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    name: &'static str,
    /// The section of `docs/errors.md`.
    pub class: Class,
    /// What the code says about a message.
    pub outcome: Outcome,
    /// Whether a retry may succeed; for a problem in `ostraca status`, whether it resolves on its own.
    pub retry: Retry,
    /// The exit code of a command that sends no message. `None` if it is the same as for other errors of its kind.
    pub exit: Option<u8>,
    /// What happened, as Markdown.
    pub happened: &'static str,
    /// What to do, as Markdown.
    pub help: &'static str,
}

/// Where an error comes from. Each class is a section of `docs/errors.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A node refused a message before it reached an entity.
    Gateway,
    /// A shard's owner or a router refused a message.
    Shard,
    /// The guest failed, or the host failed while it ran.
    Guest,
    /// The application refused a message.
    Entity,
    /// The client library failed, or a node as a client of another one.
    Client,
    /// A component, its manifest or an admin request was refused.
    Deploying,
    /// No node could be connected to.
    Connecting,
    /// A connection was closed, or a stream reset.
    Closing,
    /// A node could not start, or a store could not be opened.
    Starting,
    /// A problem that a running node reports.
    Status,
    /// An `ostraca` command failed.
    CommandLine,
}

/// What a code says about the copy of a message that was answered with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message ran, or was refused permanently: no copy of it will run later.
    Final,
    /// The copy had no effect, and never will.
    NotRun,
    /// The copy may have run, or may still run.
    Unknown,
    /// One of these two; the error says which.
    NotRunOrUnknown,
    /// The code does not concern messages.
    NoMessage,
}

/// Whether a retry may succeed later, without any other change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It may succeed.
    Yes,
    /// It may succeed, under this condition.
    YesIf(&'static str),
    /// It fails in the same way until the cause is fixed.
    No,
}

/// The codes of one class, in the order of the page.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The class of all these codes.
    pub class: Class,
    /// The codes.
    pub codes: &'static [Code],
}

impl Code {
    /// The code with this name, if there is one. Compares with every name: not for hot paths.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        SECTIONS.iter().flat_map(|section| section.codes).copied().find(|code| code == name)
    }

    /// The name: lower case with dashes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0.name
    }

    /// The code's row in the table.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        self.0
    }

    /// Whether the table allows the code in a refusal of a message that did not run, where `retry` says whether the
    /// message may be sent again. Functions that create such refusals use this to check themselves against the table.
    #[must_use]
    pub fn refuses(self, retry: bool) -> bool {
        matches!(self.0.outcome, Outcome::NotRun | Outcome::NotRunOrUnknown)
            && (self.0.retry == Retry::Yes) == retry
    }
}

impl Class {
    /// The title of the class's section.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Gateway => "Refused by the gateway",
            Self::Shard => "Refused by the shard",
            Self::Guest => "The guest failed",
            Self::Entity => "The entity refused",
            Self::Client => "Errors of the client",
            Self::Deploying => "Deploying and building",
            Self::Connecting => "Connecting",
            Self::Closing => "Closed connections and reset streams",
            Self::Starting => "Starting a node",
            Self::Status => "What `ostraca status` reports",
            Self::CommandLine => "Errors of the command line",
        }
    }
}

impl Deref for Code {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

macro_rules! compares_with {
    ($($text:ty),*) => {
        $(
            impl PartialEq<$text> for Code {
                fn eq(&self, other: &$text) -> bool {
                    *self.as_str() == **other
                }
            }

            impl PartialEq<Code> for $text {
                fn eq(&self, other: &Code) -> bool {
                    **self == *other.as_str()
                }
            }
        )*
    };
}

compares_with!(&str, String, Box<str>, Cow<'_, str>);

impl PartialEq<str> for Code {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<Code> for str {
    fn eq(&self, other: &Code) -> bool {
        self == other.as_str()
    }
}

macro_rules! converts_to {
    ($($text:ty),*) => {
        $(
            impl From<Code> for $text {
                fn from(code: Code) -> Self {
                    code.as_str().into()
                }
            }
        )*
    };
}

converts_to!(&'static str, String, Box<str>, Cow<'static, str>);
