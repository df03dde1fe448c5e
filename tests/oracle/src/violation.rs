//! The violations that a history can contain, as values. A test that disables a rule names the violation that it
//! expects.

use std::fmt;

/// A promise that a history broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// One id has two different final outcomes.
    ConflictingOutcomes,
    /// Two commands have the same version.
    DuplicateVersion,
    /// A command's version is not higher than one that was acknowledged before it was sent.
    StaleCommand,
    /// A query read an older version than one that was acknowledged before it was sent (R8).
    StaleQuery,
    /// A session's commands ran in a different order from that in which they were sent.
    SessionOrder,
    /// A session's query read a state from before an earlier command of the session.
    StaleSessionRead,
    /// The store lacks an acknowledged version.
    LostCommit,
    /// A version belongs to no answered command, and no unknown command explains it.
    Unexplained,
    /// A command's answer is not that of a sequential run.
    CommandValue,
    /// A query's answer is not that of a sequential run.
    QueryValue,
}

impl ViolationKind {
    /// A violation of this kind.
    pub(crate) fn because(self, text: String) -> Violation {
        Violation { kind: self, text }
    }
}

/// One violation, in a history or in anything else that is checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation<B = ViolationKind> {
    /// The violated promise or rule.
    pub kind: B,
    /// A description of the violation.
    pub text: String,
}

impl Violation {
    pub(crate) fn about(mut self, entity: &str) -> Self {
        self.text = format!("{entity}: {}", self.text);
        self
    }
}

impl<B> fmt::Display for Violation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<B: fmt::Debug> fmt::Debug for Violation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}
