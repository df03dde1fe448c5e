//! The order of messages: real time, and the order of each session.

use std::collections::BTreeMap;

use crate::{Broken, Finding, Operation, name, version_of};

/// A reply received before another message was sent has the lower version; for queries, not the higher.
pub(crate) fn real_time(operations: &[&Operation], found: &mut Vec<Finding>) {
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
            true => (version <= highest, Broken::StaleCommand),
            false => (version < highest, Broken::StaleQuery),
        };
        if late {
            found.push(broken.because(format!(
                "{} has version {version}, though {} had {highest} before it was sent",
                name(operation),
                name(before)
            )));
        }
    }
}

/// Versions rise with the sequences of a session: a command has a higher version than all that precedes it, a query
/// none below that of a command that precedes it. Two queries without a command between them have no order.
pub(crate) fn sessions(operations: &[&Operation], found: &mut Vec<Finding>) {
    #[derive(Default)]
    struct Session<'a> {
        /// The highest version among its commands so far, and among its queries.
        command: Option<(u64, &'a Operation)>,
        query: Option<(u64, &'a Operation)>,
    }
    let mut sessions: BTreeMap<&str, Session<'_>> = BTreeMap::new();
    let mut ordered: Vec<&Operation> = operations.to_vec();
    ordered.sort_by_key(|operation| operation.sequence);
    for operation in ordered {
        let Some(version) = version_of(operation) else { continue };
        let session = sessions.entry(&operation.session).or_default();
        let mut breach = |broken: Broken, (other, before): (u64, &Operation)| {
            let (name, before) = (name(operation), name(before));
            found.push(
                broken.because(format!("{name} has version {version}, but {before} had {other}")),
            );
        };
        if operation.command {
            if let Some(before) = session.command.filter(|(before, _)| *before >= version) {
                breach(Broken::SessionOrder, before);
            }
            if let Some(before) = session.query.filter(|(before, _)| *before >= version) {
                breach(Broken::QueryOvertook, before);
            }
        } else if let Some(before) = session.command.filter(|(before, _)| *before > version) {
            breach(Broken::QueryOvertook, before);
        }
        let highest = if operation.command { &mut session.command } else { &mut session.query };
        if highest.is_none_or(|(highest, _)| version > highest) {
            *highest = Some((version, operation));
        }
    }
}
