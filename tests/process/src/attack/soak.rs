//! Rounds of an attack, accumulated over runs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Report;

/// The rounds of one attack that counted in earlier runs, if they are kept. Each round has a line: the number of
/// commands in doubt, the milliseconds until every shard was served again, and the total number of commands.
pub(super) struct Soak {
    file: Option<PathBuf>,
    rounds: u64,
}

impl Soak {
    pub(super) fn of(name: &str) -> Result<Self> {
        Self::in_folder(std::env::var_os("SOAK").as_deref().map(Path::new), name)
    }

    fn in_folder(folder: Option<&Path>, name: &str) -> Result<Self> {
        let Some(folder) = folder else { return Ok(Self { file: None, rounds: 0 }) };
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let file = folder.join(name.replace([' ', '/'], "-"));
        let rounds = lines(&file)?.len() as u64;
        Ok(Self { file: Some(file), rounds })
    }

    /// How many rounds counted in earlier runs.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Saves the last round of a report.
    pub(super) fn keep(&self, report: &Report, commands: u64) -> Result<()> {
        let (Some(file), Some(doubtful), Some(served)) =
            (&self.file, report.in_doubt.last(), report.served.last())
        else {
            return Ok(());
        };
        let mut out = OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(out, "{doubtful} {} {commands}", served.as_millis())
            .with_context(|| format!("write {}", file.display()))
    }

    /// The totals of all runs.
    pub(super) fn sum(&self) -> Result<Option<String>> {
        let Some(file) = &self.file else { return Ok(None) };
        let rounds = lines(file)?;
        let column = |place: usize| rounds.iter().map(move |round| round[place]);
        let (commands, doubtful) = (column(2).sum::<u64>(), column(0).sum::<u64>());
        let slowest = column(1).max().unwrap_or(0);
        Ok(Some(format!(
            "{} rounds in all runs, {commands} commands, {doubtful} in doubt, served again after {slowest} ms at most",
            rounds.len()
        )))
    }
}

fn lines(file: &Path) -> Result<Vec<[u64; 3]>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("read {}", file.display()))?,
    };
    let number = |word: &str| word.parse().ok();
    let round = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map_while(number).collect();
        <[u64; 3]>::try_from(numbers).ok()
    };
    let rounds = text.lines().map(|line| {
        round(line)
            .with_context(|| format!("{} has a line that is not a round: {line}", file.display()))
    });
    rounds.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rounds_add_up_over_runs() {
        let folder = tempfile::tempdir().expect("a directory");
        let soak = || Soak::in_folder(Some(folder.path()), "cut from all").expect("a soak");
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
        let other = Soak::in_folder(Some(folder.path()), "another").expect("a soak");
        assert_eq!(other.rounds(), 0);
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let soak = Soak::in_folder(None, "any").expect("a soak");
        soak.keep(
            &Report { in_doubt: vec![1], served: vec![Duration::ZERO], ..Report::default() },
            1,
        )
        .expect("nothing");
        assert_eq!((soak.rounds(), soak.sum().expect("nothing")), (0, None));
    }
}
