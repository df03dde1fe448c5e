//! What is remembered of a store outside of it, to notice that the store is another one, a copy that went
//! another way, or older than it was (R5).
//!
//! The process that has the store open keeps such a file, and so does every node that uses it over the
//! network: each notices what the other's disk cannot tell.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::StoreIdentity;

const FIRST_LINE: &str = "ostraca witness 1";

/// What is remembered of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Its id.
    pub store: u128,
    /// How often it had been opened.
    pub opened: u64,
    /// The nonce of that opening.
    pub nonce: u64,
    /// The highest sequence that it was seen to have.
    pub sequence: u64,
}

/// A store as it is found: what a [`Witness`] is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Its id.
    pub store: u128,
    /// How often it was opened.
    pub opened: u64,
    /// The nonces of its last openings, the newest last.
    pub openings: &'a [u64],
    /// Its newest durable sequence.
    pub sequence: u64,
}

impl Found<'_> {
    /// Whether the opening with that number had that nonce.
    #[must_use]
    pub fn was_opened(&self, number: u64, nonce: u64) -> bool {
        let Some(ago) = self.opened.checked_sub(number) else { return false };
        let at = usize::try_from(ago)
            .ok()
            .and_then(|ago| self.openings.len().checked_sub(ago.checked_add(1)?));
        at.and_then(|at| self.openings.get(at)) == Some(&nonce)
    }
}

/// How a store differs from what is remembered of it. The texts leave the store's and the witness's place to
/// whoever knows them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// It has another id.
    #[error("it is another store: {found:032x}, and not {remembered:032x}")]
    Other {
        /// The id that was found.
        found: u128,
        /// The one that is remembered.
        remembered: u128,
    },
    /// It lacks what it once had on stable storage.
    #[error("it went back: it is at sequence {stored}, and was at {seen}")]
    WentBack {
        /// The sequence that was found.
        stored: u64,
        /// The one that is remembered.
        seen: u64,
    },
    /// It was opened elsewhere since a copy of it was made.
    #[error(
        "it is a copy that went another way: its opening {opened} is not the one that was seen"
    )]
    Forked {
        /// The opening that is remembered.
        opened: u64,
    },
}

/// Why a witness was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is something else.
    #[error("it is no witness")]
    NoWitness,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Witness {
    /// What is to be remembered of a store.
    #[must_use]
    pub fn of(identity: &StoreIdentity) -> Self {
        let StoreIdentity { store, opened, nonce, sequence, .. } = *identity;
        Self { store, opened, nonce, sequence }
    }

    /// Compares a store as it is found with what is remembered.
    ///
    /// # Errors
    /// How they differ: such a store must not be used until somebody has decided so.
    pub fn check(&self, found: Found<'_>) -> Result<(), Difference> {
        if self.store != found.store {
            return Err(Difference::Other { found: found.store, remembered: self.store });
        }
        if self.opened > found.opened || found.sequence < self.sequence {
            return Err(Difference::WentBack { stored: found.sequence, seen: self.sequence });
        }
        if !found.was_opened(self.opened, self.nonce) {
            return Err(Difference::Forked { opened: self.opened });
        }
        Ok(())
    }

    /// The newer of two that are remembered of one store.
    #[must_use]
    pub fn newer(self, other: Self) -> Self {
        let (opened, nonce) = if other.opened > self.opened {
            (other.opened, other.nonce)
        } else {
            (self.opened, self.nonce)
        };
        Self { opened, nonce, sequence: self.sequence.max(other.sequence), ..self }
    }

    /// Writes it to a file, whole or not at all, durably. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let Self { store, opened, nonce, sequence } = self;
        let text = format!("{FIRST_LINE}\n{store:032x} {opened} {nonce} {sequence}\n");
        write_durably(path, text.as_bytes())
    }

    /// Reads it from a file; nothing if there is none. Blocks.
    ///
    /// # Errors
    /// [`ReadError`] says which.
    pub fn read(path: &Path) -> Result<Option<Self>, ReadError> {
        match fs::read_to_string(path) {
            Ok(text) => parse(&text).ok_or(ReadError::NoWitness).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(ReadError::NoWitness),
            Err(error) => Err(ReadError::Io(error)),
        }
    }
}

fn parse(text: &str) -> Option<Witness> {
    let line = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.strip_suffix('\n')?;
    let mut words = line.split(' ');
    let store = u128::from_str_radix(words.next()?, 16).ok()?;
    let mut number = || words.next()?.parse().ok();
    let found = Witness { store, opened: number()?, nonce: number()?, sequence: number()? };
    words.next().is_none().then_some(found)
}

/// Writes a file whole or not at all, durably. Blocks.
///
/// # Errors
/// What the system says.
pub fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Witness = Witness { store: 7, opened: 3, nonce: 30, sequence: 100 };

    fn found(opened: u64, openings: &[u64], sequence: u64) -> Result<(), Difference> {
        SEEN.check(Found { store: 7, opened, openings, sequence })
    }

    #[test]
    fn a_store_that_went_on_is_the_one_that_was_seen() {
        assert_eq!(found(3, &[30], 100), Ok(()));
        assert_eq!(found(3, &[10, 20, 30], 101), Ok(()));
        assert_eq!(found(5, &[30, 40, 50], 100), Ok(()));
    }

    #[test]
    fn another_store_a_fork_and_a_store_that_went_back_are_told() {
        let other = SEEN.check(Found { store: 8, opened: 3, openings: &[30], sequence: 100 });
        assert_eq!(other, Err(Difference::Other { found: 8, remembered: 7 }));
        let went_back = Err(Difference::WentBack { stored: 99, seen: 100 });
        assert_eq!(found(3, &[30], 99), went_back);
        assert!(matches!(found(2, &[20], 100), Err(Difference::WentBack { .. })));
        let forked = Err(Difference::Forked { opened: 3 });
        assert_eq!(found(3, &[31], 100), forked);
        assert_eq!(found(5, &[31, 40, 50], 200), forked);
        assert_eq!(found(5, &[40, 50], 200), forked, "an opening that nobody remembers");
        assert_eq!(found(u64::MAX, &[30], 200), forked);
    }
}
