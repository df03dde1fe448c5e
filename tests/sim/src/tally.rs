//! How often each kind of fault and transition occurred. A run proves nothing about a kind that never occurred.

use std::collections::BTreeMap;

use ostraca_core::records::ClaimOutcome;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub BTreeMap<&'static str, u64>);

/// All kinds that must occur in a full set of seeds.
pub const KINDS: &[&str] = &[
    "fault: node crash",
    "fault: store crash",
    "fault: store power loss",
    "fault: sync failed",
    "fault: store connection reset",
    "fault: one commit refused for a limit",
    "fault: commit arrives late, from a dropped connection",
    "fault: owner paused",
    "fault: owner paused past its lease",
    "fault: renewals lost",
    "fault: message lost",
    "fault: connection broken",
    "fault: message duplicated",
    "fault: copy delayed long at another gateway",
    "fault: reply lost",
    "fault: guest failed",
    "fault: node clock drifts",
    "transition: claim granted",
    "transition: claim refused",
    "transition: claim failed",
    "transition: claimed again after an unknown outcome",
    "transition: shard lost",
    "transition: shard stopped gracefully",
    "transition: shard stopped while suspended",
    "transition: suspended",
    "transition: resumed",
    "transition: assigned again after a lapse",
    "transition: commit done",
    "transition: commit already",
    "transition: commit refused for its claim",
    "transition: commit refused for its version",
    "transition: commit refused for a limit",
    "transition: commit unknown",
    "transition: activation",
    "transition: first activation",
    "transition: start turn with effects",
    "transition: stop turn",
    "transition: eviction",
    "transition: idle passivation",
    "transition: passivation by the guest",
    "transition: redeployed",
    "transition: eviction refused, busy",
    "timer: fired",
    "timer: missed intervals",
    "timer: attempted again",
    "timer: refused by the guest",
    "timer: given up",
    "reply: final",
    "reply: application error",
    "reply: unknown",
    "reply: recorded outcome",
    "reply: no longer kept",
    "reply: query",
    "not run: mailbox-full",
    "not run: out-of-order",
    "not run: id-reused",
    "not run: deadline-exceeded",
    "not run: not-owner",
    "not run: rebalancing",
    "not run: store-unavailable",
    "not run: store-full",
    "not run: commit-refused",
    "not run: too-many-copies",
    "not run: too-old",
    "not run: created-in-future",
    "not run: superseded",
];

impl Tally {
    /// Counts one occurrence.
    pub fn count(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    /// Counts the outcome of a claim with this number.
    pub fn claim(&mut self, number: u64, outcome: &ClaimOutcome) {
        self.count(match outcome {
            ClaimOutcome::Granted if number > 1 => {
                "transition: claimed again after an unknown outcome"
            }
            ClaimOutcome::Granted => "transition: claim granted",
            ClaimOutcome::Refused { .. } => "transition: claim refused",
            _ => "transition: claim failed",
        });
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    /// Kinds that never occurred.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        KINDS.iter().filter(|kind| !self.0.contains_key(*kind)).copied().collect()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (kind, count) in &self.0 {
            writeln!(f, "{count:>9}  {kind}")?;
        }
        Ok(())
    }
}
