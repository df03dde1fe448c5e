//! Rounds of a test, which may add up over runs: `ROUNDS=n` says how many must pass, and `SOAK=directory` keeps a line
//! for each that has passed, so that the next run does only those that are missing.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Reads a number from an environment variable.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The lines of earlier runs, if they are kept.
pub(crate) struct RoundLog {
    file: Option<PathBuf>,
}

impl RoundLog {
    /// That of the test with this name, in the directory `SOAK`.
    pub(crate) fn of(name: &str) -> Result<Self> {
        Self::in_folder(std::env::var_os("SOAK").as_deref().map(Path::new), name)
    }

    pub(crate) fn in_folder(folder: Option<&Path>, name: &str) -> Result<Self> {
        let Some(folder) = folder else { return Ok(Self { file: None }) };
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(Self { file: Some(folder.join(name.replace([' ', '/'], "-"))) })
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// One line for each round that has passed.
    pub(crate) fn lines(&self) -> Result<Vec<String>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        match fs::read_to_string(file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            text => {
                let text = text.with_context(|| format!("read {}", file.display()))?;
                Ok(text.lines().map(str::to_owned).collect())
            }
        }
    }

    pub(crate) fn append(&self, line: &str) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut out = OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(out, "{line}").with_context(|| format!("write {}", file.display()))
    }
}

/// The rounds of a test that are still to pass.
pub struct Rounds {
    name: String,
    log: RoundLog,
    earlier: u64,
    passed: u64,
    wanted: u64,
}

impl Rounds {
    /// Those of the test with this name; `default` is how many must pass, if `ROUNDS` does not say.
    ///
    /// # Errors
    /// If those of earlier runs cannot be read.
    pub fn of(name: &str, default: u64) -> Result<Self> {
        Self::with(RoundLog::of(name)?, name, number("ROUNDS").unwrap_or(default))
    }

    fn with(log: RoundLog, name: &str, wanted: u64) -> Result<Self> {
        let earlier = log.lines()?.len() as u64;
        Ok(Self { name: name.into(), log, earlier, passed: 0, wanted })
    }

    /// The next round of this run, from 1; `None` once enough have passed in all runs.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        (self.earlier + self.passed < self.wanted).then_some(self.passed + 1)
    }

    /// Records that a round has passed, with its figures in one line.
    ///
    /// # Errors
    /// If it cannot be written.
    #[allow(clippy::print_stdout, reason = "a test prints the figures of its rounds")]
    pub fn passed(&mut self, figures: &str) -> Result<()> {
        self.log.append(figures)?;
        self.passed += 1;
        println!(
            "{}, round {} of {}: {figures}",
            self.name,
            self.earlier + self.passed,
            self.wanted
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_does_only_the_rounds_that_are_missing() {
        let folder = tempfile::tempdir().expect("a directory");
        let rounds = |wanted| {
            let log = RoundLog::in_folder(Some(folder.path()), "a hot/b").expect("a log");
            Rounds::with(log, "a hot/b", wanted).expect("rounds")
        };
        let mut first = rounds(3);
        assert_eq!(first.next(), Some(1));
        first.passed("7 ms").expect("kept");
        assert_eq!(first.next(), Some(2));
        let mut second = rounds(3);
        assert_eq!(second.next(), Some(1), "numbers are those of a run");
        second.passed("8 ms").expect("kept");
        second.passed("9 ms").expect("kept");
        assert_eq!((second.next(), rounds(3).next(), rounds(4).next()), (None, None, Some(1)));
        let kept = std::fs::read_to_string(folder.path().join("a-hot-b")).expect("a file");
        assert_eq!(kept, "7 ms\n8 ms\n9 ms\n");
    }

    #[test]
    fn without_a_folder_every_run_does_all_rounds() {
        let mut rounds = Rounds::with(RoundLog { file: None }, "any", 1).expect("rounds");
        assert_eq!(rounds.next(), Some(1));
        rounds.passed("").expect("nothing");
        assert_eq!(rounds.next(), None);
        let again = Rounds::with(RoundLog { file: None }, "any", 1).expect("rounds");
        assert_eq!(again.next(), Some(1));
    }
}
