//! The oracle: checks whether a history keeps Ostraca's promises.
//!
//! Every reply carries the entity's version, so a history is checked in O(n log n) without searching for an order. The
//! oracle checks simulated runs and recorded histories of real processes alike. It knows nothing about how the platform
//! works, only which messages were sent, when, and how they were answered.
//!
//! A version without an answered command is a *hole*. Only a command whose sender never learned its outcome may
//! fill it. Each such command fills at most one hole, and only where the session's order and real time allow it
//! (`holes.rs`). Values after a hole are compared as well: some choice of commands must explain every value that was
//! read (`values.rs`).

mod holes;
mod order;
mod values;
mod violation;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::holes::Candidate;
pub use self::violation::{Violation, ViolationKind};

/// The expected behaviour of an entity: a sequential model of its type. Models that compare equal behave alike from
/// then on.
pub trait Model: Clone + Ord {
    /// Runs a command. An error is the code of an application error, and must leave the model unchanged.
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String>;
    /// Answers a query.
    fn query(&self, method: &str, arguments: &Value) -> Result<Value, String>;
}

/// One message, as its sender saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// The entity that the message was sent to.
    pub entity: String,
    /// The sender's session.
    pub session: String,
    /// The message's number in the session.
    pub sequence: u64,
    /// Whether the message is a command.
    pub command: bool,
    /// The method.
    pub method: String,
    /// The arguments.
    pub arguments: Value,
    /// When the message was first sent, by the history's clock.
    pub sent: u64,
    /// When the sender received the outcome.
    pub received: u64,
    /// When the sender gave the message up and resent it under the same id, if it did. Messages that it sent between
    /// `sent` and this time did not wait for this one.
    #[serde(default)]
    pub given_up: Option<u64>,
    /// The outcome.
    pub outcome: Outcome,
}

/// How a message ended for its sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Recorded: a result, or an application error's code.
    Final {
        /// The entity's version after the command, or the version that the query read.
        version: u64,
        /// The answer.
        value: Result<Value, String>,
    },
    /// The message did not run.
    NotRun,
    /// The sender gave up without learning the outcome.
    Unknown,
}

/// The end of a history: what the store holds after the last recovery.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Versions of the stored heads. An entity that is missing here is not checked for lost commits.
    pub versions: BTreeMap<String, u64>,
    /// Versions made by start and stop turns.
    pub own_turns: BTreeMap<String, BTreeSet<u64>>,
    /// Those of the own turns that deleted the entity: it starts anew.
    pub deletions: BTreeMap<String, BTreeSet<u64>>,
}

/// The result of checking a history.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// All violations found.
    pub violations: Vec<Violation>,
    /// Entities whose values were not all compared, because too many choices of unknown commands explain them.
    pub not_compared: Vec<String>,
}

/// Checks a history, and returns all violations found.
pub fn check<M: Model>(
    new: impl Fn(&str) -> M,
    history: &[Operation],
    end: &End,
) -> Vec<Violation> {
    check_with_report(new, history, end).violations
}

/// Checks a history, and also reports what could not be checked.
pub fn check_with_report<M: Model>(
    new: impl Fn(&str) -> M,
    history: &[Operation],
    end: &End,
) -> CheckReport {
    let mut verdict = CheckReport::default();
    let history = merge_copies(history, &mut verdict.violations);
    let mut entities: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in &history {
        entities.entry(&operation.entity).or_default().push(operation);
    }
    for (entity, operations) in entities {
        let mut violations = Vec::new();
        order::real_time(&operations, &mut violations);
        order::sessions(&operations, &mut violations);
        let versions = Versions::of(entity, &operations, end, &mut violations);
        let holes: Vec<u64> =
            (1..=versions.last).filter(|version| versions.is_hole(*version)).collect();
        let candidates = holes::candidates(&operations);
        holes::explain(&holes, &candidates, &mut violations);
        if !values::compare(new(entity), &versions, &candidates, &mut violations) {
            verdict.not_compared.push(entity.to_owned());
        }
        verdict.violations.extend(violations.into_iter().map(|finding| finding.about(entity)));
    }
    verdict
}

fn name(operation: &Operation) -> String {
    format!(
        "{}({}) {}/{}",
        operation.method, operation.arguments, operation.session, operation.sequence
    )
}

fn version_of(operation: &Operation) -> Option<u64> {
    match operation.outcome {
        Outcome::Final { version, .. } => Some(version),
        _ => None,
    }
}

/// Merges all records of one command id into one, with the earliest times of sending and of a final outcome, and the
/// most informative outcome. All final outcomes of one id must be equal.
fn merge_copies(history: &[Operation], violations: &mut Vec<Violation>) -> Vec<Operation> {
    let mut indexes: BTreeMap<(&str, u64), usize> = BTreeMap::new();
    let mut records: Vec<Operation> = Vec::new();
    for operation in history {
        let first = operation.command.then(|| {
            *indexes.entry((&operation.session, operation.sequence)).or_insert(records.len())
        });
        let Some(record) = first.and_then(|place| records.get_mut(place)) else {
            records.push(operation.clone());
            continue;
        };
        record.sent = record.sent.min(operation.sent);
        match (&record.outcome, &operation.outcome) {
            (Outcome::Final { .. }, Outcome::Final { .. }) => {
                record.received = record.received.min(operation.received);
                if record.outcome != operation.outcome {
                    let (name, one, two) = (name(operation), &record.outcome, &operation.outcome);
                    violations.push(ViolationKind::ConflictingOutcomes.because(format!(
                        "{}: {name} was answered both {one:?} and {two:?}",
                        operation.entity
                    )));
                }
            }
            (Outcome::Unknown | Outcome::NotRun, Outcome::Final { .. })
            | (Outcome::NotRun, Outcome::Unknown) => {
                record.received = operation.received;
                record.outcome = operation.outcome.clone();
            }
            _ => {}
        }
    }
    records
}

/// An entity's answered operations, by version.
struct Versions<'a> {
    commands: BTreeMap<u64, &'a Operation>,
    queries: BTreeMap<u64, Vec<&'a Operation>>,
    own: BTreeSet<u64>,
    deletions: BTreeSet<u64>,
    last: u64,
}

impl<'a> Versions<'a> {
    /// Reports commands that share a version, and acknowledged versions above the stored one.
    fn of(
        entity: &str,
        operations: &[&'a Operation],
        end: &End,
        violations: &mut Vec<Violation>,
    ) -> Self {
        let own = end.own_turns.get(entity).cloned().unwrap_or_default();
        let mut commands: BTreeMap<u64, &Operation> = BTreeMap::new();
        let mut queries: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
        for operation in operations {
            let Some(version) = version_of(operation) else { continue };
            if !operation.command {
                queries.entry(version).or_default().push(operation);
            } else if let Some(other) = commands.insert(version, operation) {
                let (one, two) = (name(other), name(operation));
                violations.push(
                    ViolationKind::DuplicateVersion
                        .because(format!("{one} and {two} share version {version}")),
                );
            }
        }
        let highest = commands.keys().chain(queries.keys()).max().copied().unwrap_or(0);
        let stored = end.versions.get(entity).copied();
        if let Some(stored) = stored.filter(|stored| *stored < highest) {
            violations.push(ViolationKind::LostCommit.because(format!(
                "version {highest} was acknowledged, but the store has {stored}"
            )));
        }
        let last = stored.unwrap_or(highest).max(highest);
        let deletions = end.deletions.get(entity).cloned().unwrap_or_default();
        Self { commands, queries, own, deletions, last }
    }

    /// Whether a version belongs neither to an answered command nor to one of the entity's own turns.
    fn is_hole(&self, version: u64) -> bool {
        version > 0 && !self.commands.contains_key(&version) && !self.own.contains(&version)
    }
}

/// A counter: `add(by)` refuses to pass `limit`, `take(by)` refuses to pass zero, `get` reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    /// The current value.
    pub value: u64,
    /// The maximum value.
    pub limit: u64,
}

impl Model for Counter {
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String> {
        let by = arguments.as_u64().ok_or("arguments")?;
        self.value = match method {
            "add" => self.value.checked_add(by).filter(|sum| *sum <= self.limit).ok_or("limit")?,
            "take" => self.value.checked_sub(by).ok_or("insufficient")?,
            "delete" => 0,
            _ => return Err("unknown-method".into()),
        };
        Ok(self.value.into())
    }

    fn query(&self, _method: &str, _arguments: &Value) -> Result<Value, String> {
        Ok(self.value.into())
    }
}

#[cfg(test)]
mod tests;
