//! The order of messages: real time, and the order of each session.

use std::collections::BTreeMap;

use crate::{Operation, Violation, ViolationKind, name, version_of};

/// Checks real time: a command sent after a reply was received has a higher version than that reply, and a query has at
/// least that version.
pub(crate) fn real_time(operations: &[&Operation], found: &mut Vec<Violation>) {
    let mut by_end: Vec<_> = operations.iter().filter(|it| version_of(it).is_some()).collect();
    let mut by_start = by_end.clone();
    by_end.sort_by_key(|operation| operation.received);
    by_start.sort_by_key(|operation| operation.sent);
    let mut ended = by_end.into_iter().peekable();
    let mut latest: Option<(u64, &Operation)> = None;
    for operation in by_start {
        while let Some(earlier) = ended.next_if(|earlier| earlier.received < operation.sent) {
            let version = version_of(earlier).unwrap_or(0);
            if latest.is_none_or(|(highest, _)| version > highest) {
                latest = Some((version, earlier));
            }
        }
        let (Some(version), Some((highest, before))) = (version_of(operation), latest) else {
            continue;
        };
        let (late, broken) = match operation.command {
            true => (version <= highest, ViolationKind::StaleCommand),
            false => (version < highest, ViolationKind::StaleQuery),
        };
        if late {
            found.push(broken.because(format!(
                "{} has version {version}, but {} had version {highest} before it was sent",
                name(operation),
                name(before)
            )));
        }
    }
}

/// The commands of a session so far.
#[derive(Default)]
struct Session<'a> {
    /// The command with the highest version.
    latest: Option<(u64, &'a Operation)>,
    /// The command with the highest version among those that were never given up.
    firm: Option<(u64, &'a Operation)>,
    given_up: Vec<(u64, &'a Operation)>,
}

impl<'a> Session<'a> {
    fn add(&mut self, version: u64, operation: &'a Operation) {
        let raise = |slot: &mut Option<(u64, &'a Operation)>| {
            if slot.is_none_or(|(highest, _)| version > highest) {
                *slot = Some((version, operation));
            }
        };
        raise(&mut self.latest);
        match operation.given_up {
            None => raise(&mut self.firm),
            Some(_) => self.given_up.push((version, operation)),
        }
    }

    /// The lowest version that a query may read, and the command that made it. A command that was given up after the
    /// query was sent does not count: the query did not wait for its second sending.
    fn before(&self, query: &Operation) -> Option<(u64, &'a Operation)> {
        let held = |(_, it): &&(u64, &Operation)| it.given_up.is_none_or(|at| at < query.sent);
        let given_up = self.given_up.iter().filter(held).copied();
        self.firm.into_iter().chain(given_up).max_by_key(|(version, _)| *version)
    }
}

/// Checks each session: versions rise with the sequences of its commands, and a query reads at least the versions that
/// the commands before it made. A later command may run before a query, since a query whose answer was lost runs again.
pub(crate) fn sessions(operations: &[&Operation], found: &mut Vec<Violation>) {
    let mut sessions: BTreeMap<&str, Session<'_>> = BTreeMap::new();
    let mut ordered: Vec<&Operation> = operations.to_vec();
    ordered.sort_by_key(|operation| operation.sequence);
    for operation in ordered {
        let Some(version) = version_of(operation) else { continue };
        let session = sessions.entry(&operation.session).or_default();
        let before = match operation.command {
            true => session.latest,
            false => session.before(operation),
        };
        if let Some((highest, before)) = before {
            let (early, broken) = match operation.command {
                true => (version <= highest, ViolationKind::SessionOrder),
                false => (version < highest, ViolationKind::StaleSessionRead),
            };
            if early {
                let (name, before) = (name(operation), name(before));
                found.push(broken.because(format!(
                    "{name} has version {version}, but the earlier {before} has {highest}"
                )));
            }
        }
        if operation.command {
            session.add(version, operation);
        }
    }
}
