//! Versions that belong to no answered command: each needs a different unknown command that may have made it.
//!
//! The versions that such a command may have made are bounded from both sides. It ran after everything that was
//! acknowledged before it was sent, and after every command of its session that precedes it. It ran before every
//! command of its session that follows it: once the later command has run, the lane refuses the earlier one (R17). The
//! time at which its sender gave up is not a bound, since a copy may have run later.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Operation, Outcome, Violation, ViolationKind, version_of};

/// A command without a known outcome, and the versions that it may have made.
pub(crate) struct Candidate<'a> {
    pub(crate) operation: &'a Operation,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Candidate<'_> {
    pub(crate) fn may_be(&self, version: u64) -> bool {
        (self.first..=self.last).contains(&version)
    }
}

/// An entity's unknown commands, grouped by session and in the session's order.
pub(crate) fn candidates<'a>(operations: &[&'a Operation]) -> Vec<Candidate<'a>> {
    let acknowledged = Acknowledged::of(operations);
    let mut sessions: BTreeMap<&str, Vec<&'a Operation>> = BTreeMap::new();
    for operation in operations {
        sessions.entry(&operation.session).or_default().push(operation);
    }
    let mut candidates = Vec::new();
    for operations in sessions.values_mut() {
        operations.sort_by_key(|operation| operation.sequence);
        let begin = candidates.len();
        let mut above = 0;
        for operation in operations.iter() {
            // A query's answer may be that of a later copy, so it bounds nothing that follows it in the session.
            if !operation.command {
                continue;
            }
            if let Some(version) = version_of(operation) {
                above = above.max(version);
            } else if operation.outcome == Outcome::Unknown {
                let first = above.max(acknowledged.before(operation.sent)) + 1;
                candidates.push(Candidate { operation, first, last: u64::MAX });
            }
        }
        for candidate in &mut candidates[begin..] {
            let after =
                operations.partition_point(|it| it.sequence <= candidate.operation.sequence);
            let later = operations[after..].iter().filter(|it| it.command);
            let next = later.filter_map(|it| version_of(it)).min();
            candidate.last = next.map_or(u64::MAX, |next| next.saturating_sub(1));
        }
    }
    candidates
}

/// The highest version that was acknowledged at each point in time.
struct Acknowledged(Vec<(u64, u64)>);

impl Acknowledged {
    fn of(operations: &[&Operation]) -> Self {
        let mut times: Vec<(u64, u64)> =
            operations.iter().filter_map(|it| Some((it.received, version_of(it)?))).collect();
        times.sort_unstable();
        let mut highest = 0;
        for (_, version) in &mut times {
            highest = highest.max(*version);
            *version = highest;
        }
        Self(times)
    }

    fn before(&self, moment: u64) -> u64 {
        let count = self.0.partition_point(|(received, _)| *received < moment);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// Checks that every hole can have a different candidate. Assigning each hole, in order, to the candidate whose range
/// ends first is optimal, and preserves each session's order.
pub(crate) fn explain(holes: &[u64], candidates: &[Candidate<'_>], found: &mut Vec<Violation>) {
    let mut by_start: Vec<&Candidate<'_>> = candidates.iter().collect();
    by_start.sort_by_key(|candidate| candidate.first);
    let mut starting = by_start.into_iter().enumerate().peekable();
    let mut open: BTreeSet<(u64, usize)> = BTreeSet::new();
    for hole in holes {
        while let Some((place, candidate)) = starting.next_if(|(_, it)| it.first <= *hole) {
            open.insert((candidate.last, place));
        }
        while open.first().is_some_and(|(last, _)| last < hole) {
            open.pop_first();
        }
        if open.pop_first().is_none() {
            found.push(ViolationKind::Unexplained.because(format!(
                "version {hole} belongs to no answered command, and no remaining unknown command may have made it"
            )));
        }
    }
}
