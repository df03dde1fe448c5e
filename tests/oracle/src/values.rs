//! Compares values with those of a sequential run in the order of versions.
//!
//! At a hole, it is not known which command ran, so the run continues with every choice until an answer contradicts
//! some of them. The choices that remain at the end explain all answers; if none remains, a value is wrong.

use std::collections::BTreeSet;

use crate::{Candidate, Model, Operation, Outcome, Versions, Violation, ViolationKind, name};

/// Maximum number of choices that are followed. Beyond it, a command may be used more than once, so that fewer choices
/// differ. If there are still too many, the rest is not compared.
const MOST: usize = 4_096;

/// The candidates that can no longer run, and a state that the entity may have.
type Choice<M> = (Vec<usize>, M);

struct Run<'a, M> {
    choices: BTreeSet<Choice<M>>,
    candidates: &'a [Candidate<'a>],
    /// Whether each candidate may run only once. Cleared if that leaves too many choices.
    once: bool,
    /// Whether there are too many choices to follow.
    too_many: bool,
}

/// Compares all values, and returns whether the choices were few enough to follow. Nothing after a version that no
/// choice explains is compared.
pub(crate) fn compare<M: Model>(
    model: M,
    versions: &Versions<'_>,
    candidates: &[Candidate<'_>],
    found: &mut Vec<Violation>,
) -> bool {
    let mut run = Run {
        choices: BTreeSet::from([(Vec::new(), model.clone())]),
        candidates,
        once: true,
        too_many: false,
    };
    for version in 0..=versions.last {
        if versions.deletions.contains(&version) {
            let choices = std::mem::take(&mut run.choices);
            run.choices = choices.into_iter().map(|(used, _)| (used, model.clone())).collect();
        }
        if let Some(command) = versions.commands.get(&version) {
            run.command(command, version, found);
        } else if versions.is_hole(version) && !run.hole(version, found) {
            return !run.too_many;
        }
        for query in versions.queries.get(&version).into_iter().flatten() {
            run.query(query, version, found);
        }
    }
    true
}

impl<M: Model> Run<'_, M> {
    fn command(&mut self, operation: &Operation, version: u64, found: &mut Vec<Violation>) {
        let Outcome::Final { value, .. } = &operation.outcome else { return };
        let (mut agreeing, mut others) = (BTreeSet::new(), BTreeSet::new());
        let mut expected = None;
        for (used, mut model) in std::mem::take(&mut self.choices) {
            let answer = model.command(&operation.method, &operation.arguments);
            let agrees = answer == *value;
            let into = if agrees { &mut agreeing } else { &mut others };
            into.insert((used, model));
            expected.get_or_insert(answer);
        }
        if let Some(expected) = expected.filter(|_| agreeing.is_empty()) {
            found.push(ViolationKind::CommandValue.because(format!(
                "{} at {version} answered {value:?}, not {expected:?}",
                name(operation)
            )));
        }
        self.choices = if agreeing.is_empty() { others } else { agreeing };
    }

    fn query(&mut self, operation: &Operation, version: u64, found: &mut Vec<Violation>) {
        let Outcome::Final { value, .. } = &operation.outcome else { return };
        let answers =
            |(_, model): &Choice<M>| model.query(&operation.method, &operation.arguments) == *value;
        if self.choices.iter().any(answers) {
            self.choices.retain(answers);
        } else if let Some((_, model)) = self.choices.first() {
            let expected = model.query(&operation.method, &operation.arguments);
            found.push(ViolationKind::QueryValue.because(format!(
                "{} at {version} read {value:?}, not {expected:?}",
                name(operation)
            )));
        }
    }

    /// Lets each possible candidate run at a hole. Returns `false` if nothing more can be compared.
    fn hole(&mut self, version: u64, found: &mut Vec<Violation>) -> bool {
        let mut next = self.step(version);
        if self.once && next.len() > MOST {
            self.once = false;
            let choices = std::mem::take(&mut self.choices);
            self.choices = choices.into_iter().map(|(_, model)| (Vec::new(), model)).collect();
            next = self.step(version);
        }
        if next.len() > MOST {
            self.too_many = true;
            return false;
        }
        if next.is_empty() {
            // If no candidate may have made this version, `holes::explain` has reported it already.
            if self.candidates.iter().any(|candidate| candidate.may_be(version)) {
                found.push(ViolationKind::Unexplained.because(format!(
                    "no choice of unknown commands explains version {version} and the values before it"
                )));
            }
            return false;
        }
        self.choices = next;
        true
    }

    /// Every choice after one more candidate has run. Incomplete if there are more than [`MOST`].
    fn step(&self, version: u64) -> BTreeSet<Choice<M>> {
        let mut next = BTreeSet::new();
        for (used, model) in &self.choices {
            for (place, candidate) in self.candidates.iter().enumerate() {
                if !candidate.may_be(version) || used.contains(&place) {
                    continue;
                }
                let operation = candidate.operation;
                let mut model = model.clone();
                // An application error takes a version too, and changes nothing.
                let _ = model.command(&operation.method, &operation.arguments);
                let used = if self.once { self.used(used, place, version) } else { Vec::new() };
                next.insert((used, model));
                if next.len() > MOST {
                    return next;
                }
            }
        }
        next
    }

    /// The candidates that can no longer run once one of them has: itself, and those before it in its session.
    /// Candidates whose range has ended are left out, so that choices that are the same from here on are merged.
    fn used(&self, used: &[usize], place: usize, version: u64) -> Vec<usize> {
        let session = &self.candidates[place].operation.session;
        let before = self.candidates[..place].iter().rev();
        let own = before.take_while(|it| it.operation.session == *session).count();
        let all: BTreeSet<usize> = used.iter().copied().chain(place - own..=place).collect();
        all.into_iter().filter(|place| self.candidates[*place].last > version).collect()
    }
}
