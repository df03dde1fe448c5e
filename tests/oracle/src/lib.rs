//! The oracle: does a history keep Ostraca's promises?
//!
//! Every reply carries the entity's version, so a history is checked in O(n log n) without searching for an
//! order. It judges simulated runs and the recorded histories of real processes alike. It knows nothing of
//! how the platform works: only what was asked, when, and what was answered.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an entity should do: a sequential reading of its type.
pub trait Model: Clone {
    /// Runs a command; an error is an application error's code and must leave the model unchanged.
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String>;
    /// Answers a query.
    fn query(&self, method: &str, arguments: &Value) -> Result<Value, String>;
}

/// One message, as its sender saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Whom it was for.
    pub entity: String,
    /// The sender's session.
    pub session: String,
    /// Its place in the session.
    pub sequence: u64,
    /// Whether it may change something.
    pub command: bool,
    /// What was called.
    pub method: String,
    /// With what.
    pub arguments: Value,
    /// When it was first sent, on the history's one clock.
    pub sent: u64,
    /// When its outcome came.
    pub received: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// How a message ended for its sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Recorded: a result, or an application error's code.
    Final {
        /// The entity's version after it, or that a query read.
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
    /// Versions that start and stop turns took.
    pub own_turns: BTreeMap<String, BTreeSet<u64>>,
}

/// Checks a history; gives every breach found, one sentence each.
pub fn check<M: Model>(new: impl Fn(&str) -> M, history: &[Operation], end: &End) -> Vec<String> {
    let mut breaches = Vec::new();
    one_outcome_an_id(history, &mut breaches);
    let mut entities: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        entities.entry(&operation.entity).or_default().push(operation);
    }
    for (entity, operations) in entities {
        let mut found = Vec::new();
        real_time_order(&operations, &mut found);
        session_order(&operations, &mut found);
        sequential_run(new(entity), entity, &operations, end, &mut found);
        breaches.extend(found.into_iter().map(|breach| format!("{entity}: {breach}")));
    }
    breaches
}

fn name(operation: &Operation) -> String {
    format!(
        "{}({}) {}/{}",
        operation.method, operation.arguments, operation.session, operation.sequence
    )
}

fn one_outcome_an_id(history: &[Operation], breaches: &mut Vec<String>) {
    let mut finals = BTreeMap::new();
    for operation in history.iter().filter(|operation| operation.command) {
        if let Outcome::Final { version, value } = &operation.outcome {
            let id = (&operation.session, operation.sequence);
            if let Some(before) = finals.insert(id, (version, value))
                && before != (version, value)
            {
                breaches.push(format!(
                    "{} was answered {before:?} and {:?}",
                    name(operation),
                    (version, value)
                ));
            }
        }
    }
}

/// A reply received before another message was sent has the lower version; for queries, not the higher.
fn real_time_order(operations: &[&Operation], breaches: &mut Vec<String>) {
    let version_of = |operation: &Operation| match operation.outcome {
        Outcome::Final { version, .. } => Some(version),
        _ => None,
    };
    let mut by_end: Vec<_> = operations.iter().filter(|o| version_of(o).is_some()).collect();
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
        // A copy of one command is answered with one version.
        let same = operation.session == before.session && operation.sequence == before.sequence;
        let late = if operation.command { version <= highest } else { version < highest };
        if late && !same {
            breaches.push(format!(
                "{} has version {version}, though {} had {highest} before it was sent",
                name(operation),
                name(before)
            ));
        }
    }
}

/// Sequences of a session rise with versions.
fn session_order(operations: &[&Operation], breaches: &mut Vec<String>) {
    let mut last: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut commands: Vec<_> = operations.iter().filter(|operation| operation.command).collect();
    commands.sort_by_key(|operation| operation.sequence);
    for operation in commands {
        let Outcome::Final { version, .. } = operation.outcome else { continue };
        if let Some((sequence, before)) =
            last.insert(&operation.session, (operation.sequence, version))
            && before >= version
            && sequence != operation.sequence
        {
            breaches.push(format!(
                "{} has version {version}, but sequence {sequence} had {before}",
                name(operation)
            ));
        }
    }
}

/// Accepted commands have distinct, consecutive versions, and values are those of a sequential run by version.
fn sequential_run<M: Model>(
    mut model: M,
    entity: &str,
    operations: &[&Operation],
    end: &End,
    breaches: &mut Vec<String>,
) {
    let none = BTreeSet::new();
    let own = end.own_turns.get(entity).unwrap_or(&none);
    let unknown = operations.iter().filter(|o| o.command && o.outcome == Outcome::Unknown).count();
    let mut commands: BTreeMap<u64, &Operation> = BTreeMap::new();
    let mut queries: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        let Outcome::Final { version, .. } = operation.outcome else { continue };
        if !operation.command {
            queries.entry(version).or_default().push(operation);
        } else if let Some(other) = commands.insert(version, operation)
            && (other.session != operation.session || other.sequence != operation.sequence)
        {
            breaches.push(format!(
                "{} and {} share version {version}",
                name(other),
                name(operation)
            ));
        }
    }
    let highest = commands.keys().chain(queries.keys()).max().copied().unwrap_or(0);
    let stored = end.versions.get(entity).copied();
    if let Some(stored) = stored
        && stored < highest
    {
        breaches.push(format!("version {highest} was acknowledged, and the store has {stored}"));
    }
    let last = stored.unwrap_or(highest).max(highest);
    let mut holes = 0;
    for version in 0..=last {
        if let Some(operation) = commands.get(&version) {
            let expected = model.command(&operation.method, &operation.arguments);
            if let Outcome::Final { value, .. } = &operation.outcome
                && holes == 0
                && *value != expected
            {
                breaches.push(format!(
                    "{} at {version} answered {value:?}, not {expected:?}",
                    name(operation)
                ));
            }
        } else if version > 0 && !own.contains(&version) {
            holes += 1;
        }
        for operation in queries.get(&version).into_iter().flatten() {
            let expected = model.query(&operation.method, &operation.arguments);
            if let Outcome::Final { value, .. } = &operation.outcome
                && holes == 0
                && *value != expected
            {
                breaches.push(format!(
                    "{} at {version} read {value:?}, not {expected:?}",
                    name(operation)
                ));
            }
        }
    }
    if holes > unknown {
        breaches.push(format!(
            "{holes} versions up to {last} belong to no answered command, and only {unknown} commands are unknown"
        ));
    }
}

/// A counter: `add(by)` refuses to pass `limit`, `take(by)` refuses to pass zero, `get` reads.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Its value.
    pub value: u64,
    /// What it may not pass.
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
