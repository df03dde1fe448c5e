//! Runs of the model, and their results.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::model::Cluster;
use crate::scope::Scope;
use crate::step::StepCounts;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The number of distinct states.
    pub states: usize,
    /// The number of steps, including those to known states.
    pub steps: usize,
    /// The length of the longest path.
    pub depth: usize,
    /// Whether every state of the scope was examined, up to the maximum depth if there is one.
    pub whole: bool,
    /// Violated rules, each with the path to the violation.
    pub broken: Vec<(&'static str, Vec<String>)>,
    /// How often each kind of step occurred.
    pub seen: Arc<StepCounts>,
    /// How long the run took.
    pub took: Duration,
}

impl Outcome {
    /// Whether no rule was violated and every state was examined.
    pub fn holds(&self) -> bool {
        self.whole && self.broken.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.whole { "every state" } else { "not every state" };
        let Self { states, steps, depth, took, .. } = self;
        write!(f, "{whole}: {states} states, {steps} steps, depth {depth}, in {took:.1?}; seen:")?;
        for (name, count) in self.seen.all().filter(|(_, count)| *count > 0) {
            write!(f, " {count} {name},")?;
        }
        for (rule, path) in &self.broken {
            write!(f, "\n  broken: {rule}\n    {}", path.join("\n    "))?;
        }
        Ok(())
    }
}

/// Examines every state of a scope on two threads, unless the time limit is reached first.
pub fn every_state(scope: Scope, at_most: Duration) -> Outcome {
    let (model, begun) = (Cluster::new(scope), Instant::now());
    let checker = model.checker().threads(2).timeout(at_most);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    outcome(&checker, begun, begun.elapsed() < at_most)
}

/// Examines every state that is at most this many steps away, nearest first. So no path to a violation is shorter than
/// the reported one.
pub fn to_depth(scope: Scope, depth: usize) -> Outcome {
    let (model, begun) = (Cluster::new(scope), Instant::now());
    let checker = model.checker().target_max_depth(depth);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    outcome(&checker, begun, true)
}

/// Examines every state of a scope, and prints the result.
///
/// # Panics
/// If a rule is violated, or a kind of step never occurs that is named in `seen`.
#[allow(clippy::print_stdout, reason = "a run prints how many states it explored")]
pub fn holds_in_every_state(name: &str, scope: Scope, seen: &[&str]) {
    let outcome = every_state(scope, Duration::from_secs(7_200));
    println!("{name}: {outcome}");
    assert!(outcome.holds(), "{name}: {outcome}");
    for what in seen {
        assert!(outcome.seen.count(what) > 0, "{name}: no {what}");
    }
}

/// Whether the large mixes of faults are explored too: `MODEL=all`.
pub fn is_large() -> bool {
    std::env::var("MODEL").is_ok_and(|what| what == "all")
}

fn outcome(checker: &impl Checker<Cluster>, begun: Instant, in_time: bool) -> Outcome {
    let found = checker.discoveries();
    let broken: Vec<_> = found
        .into_iter()
        .map(|(name, path)| {
            let steps = path.into_actions();
            (name, steps.into_iter().map(|step| format!("{step:?}")).collect())
        })
        .collect();
    Outcome {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        whole: in_time && broken.is_empty(),
        broken,
        seen: checker.model().step_counts.clone(),
        took: begun.elapsed(),
    }
}
