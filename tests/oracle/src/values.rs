//! Values: those of a sequential run by version.
//!
//! At a hole it is not known which command ran, so the run goes on for every choice, until an answer contradicts
//! some of them. What remains at the end explains all that was answered; if nothing remains, a value is wrong.

use std::collections::BTreeSet;

use crate::{Candidate, Model, Operation, Outcome, Versions, Violation, ViolationKind, name};

/// Maximum number of choices that are followed. Beyond it, commands may be used twice; if that exceeds it too,
/// nothing is compared.
const MOST: usize = 4_096;

/// A state that the entity may have, and which candidates cannot run any more.
type Choice<M> = (Vec<usize>, M);

struct Run<'a, M> {
    choices: BTreeSet<Choice<M>>,
    candidates: &'a [Candidate<'a>],
    /// Each candidate may run only once: else the choices are too many.
    once: bool,
    /// There are too many choices to follow.
    too_many: bool,
}

/// Whether the choices were few enough to follow. What comes behind a version that nothing explains is not compared.
pub(crate) fn compare<M: Model>(
    model: M,
    versions: &Versions<'_>,
    candidates: &[Candidate<'_>],
    found: &mut Vec<Violation>,
) -> bool {
    let mut run = Run {
        choices: BTreeSet::from([(Vec::new(), model)]),
        candidates,
        once: true,
        too_many: false,
    };
    for version in 0..=versions.last {
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

    /// Some candidate ran here. `false`: nothing more can be compared.
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
            // Without any choice, it is already reported that no command can have made this version.
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

    /// Every choice after one more candidate ran; more than [`MOST`] of them are not all.
    fn step(&self, version: u64) -> BTreeSet<Choice<M>> {
        let mut next = BTreeSet::new();
        for (used, model) in &self.choices {
            for (place, candidate) in self.candidates.iter().enumerate() {
                if !candidate.may_be(version) || used.contains(&place) {
                    continue;
                }
                let operation = candidate.operation;
                let mut model = model.clone();
                // A refusal takes a version too, and changes nothing.
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

    /// What cannot run any more once a candidate has: itself, and all of its session before it. Those that are out of
    /// their range are not kept, so that choices which do not differ from here on are one.
    fn used(&self, used: &[usize], place: usize, version: u64) -> Vec<usize> {
        let session = &self.candidates[place].operation.session;
        let before = self.candidates[..place].iter().rev();
        let own = before.take_while(|it| it.operation.session == *session).count();
        let all: BTreeSet<usize> = used.iter().copied().chain(place - own..=place).collect();
        all.into_iter().filter(|place| self.candidates[*place].last > version).collect()
    }
}
