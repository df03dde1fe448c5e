//! What a history can break, as a value: a test that switches a rule off names the breach that must follow.

use std::fmt;

/// A promise that a history broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// One id has two different final outcomes.
    ConflictingOutcomes,
    /// Two commands have one version.
    DuplicateVersion,
    /// A command has no higher version than what was acknowledged before it was sent.
    StaleCommand,
    /// A query read less than what was acknowledged before it was sent (R8).
    StaleQuery,
    /// Commands of a session ran in another order than they were sent in.
    SessionOrder,
    /// A query of a session read the state from before an earlier command.
    StaleSessionRead,
    /// The store has less than what was acknowledged.
    LostCommit,
    /// A version belongs to no command that was answered or is unknown.
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

/// One breach: of a history, or of something else that is judged.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation<B = ViolationKind> {
    /// What was broken.
    pub kind: B,
    /// How it shows, in a sentence.
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
