//! What a history can break, as a value: a test that switches a rule off names the breach that must follow.

use std::fmt;

/// A promise that a history broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Broken {
    /// One id has two different final outcomes.
    TwoAnswers,
    /// Two commands have one version.
    SharedVersion,
    /// A command has no higher version than what was acknowledged before it was sent.
    StaleCommand,
    /// A query read less than what was acknowledged before it was sent (R8).
    StaleQuery,
    /// Commands of a session ran in another order than they were sent in.
    SessionOrder,
    /// A query of a session read the state from before an earlier command.
    QueryOvertook,
    /// The store has less than what was acknowledged.
    Lost,
    /// A version belongs to no command that was answered or is unknown.
    Unexplained,
    /// A command's answer is not that of a sequential run.
    CommandValue,
    /// A query's answer is not that of a sequential run.
    QueryValue,
}

impl Broken {
    /// A finding of this kind.
    pub(crate) fn because(self, text: String) -> Finding {
        Finding { broken: self, text }
    }
}

/// One breach: of a history, or of something else that is judged.
#[derive(Clone, PartialEq, Eq)]
pub struct Finding<B = Broken> {
    /// What was broken.
    pub broken: B,
    /// How it shows, in a sentence.
    pub text: String,
}

impl Finding {
    pub(crate) fn about(mut self, entity: &str) -> Self {
        self.text = format!("{entity}: {}", self.text);
        self
    }
}

impl<B> fmt::Display for Finding<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<B: fmt::Debug> fmt::Debug for Finding<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.broken, self.text)
    }
}
