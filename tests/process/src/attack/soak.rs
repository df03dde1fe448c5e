//! Rounds of an attack, accumulated over runs.

use anyhow::{Context, Result};

use super::Report;
use crate::rounds::RoundLog;

/// The rounds of one attack that counted in earlier runs, if they are kept. Each round has a line: the number of
/// commands in doubt, the milliseconds until every shard was served again, and the total number of commands.
pub(super) struct Soak {
    log: RoundLog,
    rounds: u64,
}

impl Soak {
    pub(super) fn of(name: &str) -> Result<Self> {
        Self::with(RoundLog::of(name)?)
    }

    fn with(log: RoundLog) -> Result<Self> {
        let rounds = rounds(&log)?.len() as u64;
        Ok(Self { log, rounds })
    }

    /// How many rounds counted in earlier runs.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Saves the last round of a report.
    pub(super) fn keep(&self, report: &Report, commands: u64) -> Result<()> {
        let (Some(doubtful), Some(served)) = (report.in_doubt.last(), report.served.last()) else {
            return Ok(());
        };
        self.log.append(&format!("{doubtful} {} {commands}", served.as_millis()))
    }

    /// The totals of all runs.
    pub(super) fn sum(&self) -> Result<Option<String>> {
        if !self.log.is_kept() {
            return Ok(None);
        }
        let rounds = rounds(&self.log)?;
        let column = |place: usize| rounds.iter().map(move |round| round[place]);
        let (commands, doubtful) = (column(2).sum::<u64>(), column(0).sum::<u64>());
        let slowest = column(1).max().unwrap_or(0);
        Ok(Some(format!(
            "{} rounds in all runs, {commands} commands, {doubtful} in doubt, served again after {slowest} ms at most",
            rounds.len()
        )))
    }
}

fn rounds(log: &RoundLog) -> Result<Vec<[u64; 3]>> {
    log.lines()?.iter().map(|line| round(line)).collect()
}

fn round(line: &str) -> Result<[u64; 3]> {
    let numbers: Vec<u64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
    let round = <[u64; 3]>::try_from(numbers).ok();
    round.with_context(|| format!("a line of an earlier run is not a round: {line}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rounds_add_up_over_runs() {
        let folder = tempfile::tempdir().expect("a directory");
        let named = |name| RoundLog::in_folder(Some(folder.path()), name).and_then(Soak::with);
        let soak = || named("cut from all").expect("a soak");
        assert_eq!(soak().rounds(), 0);
        let round = |doubtful, served| Report {
            in_doubt: vec![1, doubtful],
            served: vec![Duration::ZERO, Duration::from_millis(served)],
            ..Report::default()
        };
        soak().keep(&round(40, 3_500), 1_000).expect("kept");
        soak().keep(&round(50, 700), 2_000).expect("kept");
        assert_eq!(soak().rounds(), 2);
        let sum = soak().sum().expect("read").expect("a sum");
        assert_eq!(
            sum,
            "2 rounds in all runs, 3000 commands, 90 in doubt, served again after 3500 ms at most"
        );
        assert_eq!(named("another").expect("a soak").rounds(), 0);
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let soak = RoundLog::in_folder(None, "any").and_then(Soak::with).expect("a soak");
        soak.keep(
            &Report { in_doubt: vec![1], served: vec![Duration::ZERO], ..Report::default() },
            1,
        )
        .expect("nothing");
        assert_eq!((soak.rounds(), soak.sum().expect("nothing")), (0, None));
    }
}
