//! The oracle: checks whether a history keeps Ostraca's promises.
//!
//! Every reply carries the entity's version, so a history is checked in O(n log n) without searching for an
//! order. It checks simulated runs and the recorded histories of real processes alike. It knows nothing of
//! how the platform works: only which messages were sent, when, and how they were answered.
//!
//! A version without an answered command is a *hole*. Only a command whose sender never learned its outcome may
//! fill it. Each such command fills at most one hole, and only where the session's order and real time allow it
//! (`holes.rs`). Values are compared after a hole, too: some choice of commands must explain every value that was read
//! (`values.rs`).

mod holes;
mod order;
mod values;
mod violation;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::holes::Candidate;
pub use self::violation::{Violation, ViolationKind};

/// The expected behaviour of an entity: a sequential model of its type. Equal models behave alike from then on.
pub trait Model: Clone + Ord {
    /// Runs a command; an error is an application error's code and must leave the model unchanged.
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String>;
    /// Answers a query.
    fn query(&self, method: &str, arguments: &Value) -> Result<Value, String>;
}

/// One message, as its sender saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// The entity that it was sent to.
    pub entity: String,
    /// The sender's session.
    pub session: String,
    /// Its number in the session.
    pub sequence: u64,
    /// Whether it is a command.
    pub command: bool,
    /// The method.
    pub method: String,
    /// The arguments.
    pub arguments: Value,
    /// When it was first sent, on the clock of the history.
    pub sent: u64,
    /// When its outcome was received.
    pub received: u64,
    /// When its sender gave up, if it resent the message under the same id. Messages that it sent between the two did
    /// not wait for this one.
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
    /// It did not run.
    NotRun,
    /// Its sender gave up without knowing.
    Unknown,
}

/// The end of a history: what the store holds after the last recovery.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Versions of the stored heads; an entity that is not named is not checked.
    pub versions: BTreeMap<String, u64>,
    /// Versions made by start and stop turns.
    pub own_turns: BTreeMap<String, BTreeSet<u64>>,
}

/// The result of checking a history.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// All violations found.
    pub violations: Vec<Violation>,
    /// Entities whose values were not all compared: too many choices of unknown commands explain them.
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

/// Merges all records of one command id into one: sent and answered at their earliest times, with the most
/// informative outcome. Every final outcome of one id must be the same.
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
                        "{}: {name} was answered {one:?} and {two:?}",
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

/// The answers of an entity, by version.
struct Versions<'a> {
    commands: BTreeMap<u64, &'a Operation>,
    queries: BTreeMap<u64, Vec<&'a Operation>>,
    own: BTreeSet<u64>,
    last: u64,
}

impl<'a> Versions<'a> {
    /// Accepted commands have distinct versions, and none is above the stored version.
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
                "version {highest} was acknowledged, and the store has {stored}"
            )));
        }
        let last = stored.unwrap_or(highest).max(highest);
        Self { commands, queries, own, last }
    }

    /// Whether a version belongs to no answered command and to no turn of the entity's own.
    fn is_hole(&self, version: u64) -> bool {
        version > 0 && !self.commands.contains_key(&version) && !self.own.contains(&version)
    }
}

/// A counter: `add(by)` refuses to pass `limit`, `take(by)` refuses to pass zero, `get` reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    /// Its value.
    pub value: u64,
    /// The maximum of its value.
    pub limit: u64,
}

impl Model for Counter {
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String> {
        let by = arguments.as_u64().ok_or("arguments")?;
        self.value = match method {
            "add" => self.value.checked_add(by).filter(|sum| *sum <= self.limit).ok_or("limit")?,
            "take" => self.value.checked_sub(by).ok_or("insufficient")?,
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
