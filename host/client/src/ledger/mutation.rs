//! Rules that tests disable to see the simulator's oracle fail.

use super::Ledger;

/// A rule of the ledger that a test can disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A lost connection leaves nothing in doubt (R16).
    ForgetDoubt,
    /// A `not-run` ends a message although another copy may have run (R16).
    NotRunClearsDoubt,
    /// A reply is matched to the first message in flight, not to its own (R17).
    MatchRepliesByOrder,
    /// `settled` covers messages whose reply was not read (R17).
    SettleUnreadReplies,
    /// `after` is never set (R17).
    OmitAfter,
    /// A message that is sent only once is sent again like any other (K18).
    ResendOnce,
    /// A message is restamped although copies of it, or of those behind it, may have run (R17).
    RestampInDoubt,
}

impl<W> Ledger<W> {
    /// Returns the ledger with these rules disabled.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_mutations(mut self, rules: Vec<Mutation>) -> Self {
        self.mutations = rules;
        self
    }

    #[cfg(feature = "testing")]
    pub(super) fn has_mutation(&self, rule: Mutation) -> bool {
        self.mutations.contains(&rule)
    }

    /// In builds without the feature `testing`, no rule is disabled.
    #[cfg(not(feature = "testing"))]
    pub(super) const fn has_mutation(&self, _: Mutation) -> bool {
        false
    }
}
