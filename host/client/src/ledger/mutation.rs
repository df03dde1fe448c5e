//! Rules that tests switch off, to see the simulator's oracle fail.

use super::Ledger;

/// A rule of the books that a test can switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A connection that breaks leaves nothing in doubt (R16).
    ForgetDoubt,
    /// That a copy did not run ends a message of which another may have run (R16).
    NotRunClearsDoubt,
    /// A reply is taken for that to the first message in flight, not for that to its own (R17).
    MatchRepliesByOrder,
    /// `settled` covers messages whose reply was not read (R17).
    SettleUnreadReplies,
    /// `after` is never said (R17).
    OmitAfter,
    /// A message is stamped anew although copies of it, or of those behind it, may have run (R17).
    RestampInDoubt,
}

impl<W> Ledger<W> {
    /// The same without these rules.
    #[must_use]
    pub fn with_mutations(mut self, rules: Vec<Mutation>) -> Self {
        self.mutations = rules;
        self
    }

    pub(super) fn has_mutation(&self, rule: Mutation) -> bool {
        self.mutations.contains(&rule)
    }
}
