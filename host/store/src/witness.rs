//! What is remembered about a store outside the store itself, to detect that it was replaced by another store, by a
//! fork, or by an older state of itself (R5).
//!
//! The process that has the store open keeps such a file, and so does every node that uses the store over the
//! network. Each detects what the other's disk cannot show.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::StoreIdentity;

const FIRST_LINE: &str = "ostraca witness 1";

/// What is remembered about a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The store's id.
    pub store_id: u128,
    /// How many times the store had been opened.
    pub open_count: u64,
    /// The nonce of its last opening.
    pub open_nonce: u64,
    /// The highest observed durable sequence.
    pub sequence: u64,
}

/// The state of a store as found, to compare with a [`Witness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedStore<'a> {
    /// The store's id.
    pub store_id: u128,
    /// How many times the store has been opened.
    pub open_count: u64,
    /// The nonces of its last openings, newest last.
    pub open_nonces: &'a [u64],
    /// Its newest durable sequence.
    pub sequence: u64,
}

impl ObservedStore<'_> {
    /// Whether opening `number` had this nonce; `false` if the store no longer remembers the nonce of that opening.
    #[must_use]
    pub fn opening_has_nonce(&self, number: u64, nonce: u64) -> bool {
        let Some(ago) = self.open_count.checked_sub(number) else { return false };
        let at = usize::try_from(ago)
            .ok()
            .and_then(|ago| self.open_nonces.len().checked_sub(ago.checked_add(1)?));
        at.and_then(|at| self.open_nonces.get(at)) == Some(&nonce)
    }
}

/// How a store differs from its witness. The messages leave out the paths of the store and the witness; callers add
/// them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WitnessMismatch {
    /// The store has another id.
    #[error("it is another store: found {found:032x}, expected {remembered:032x}")]
    DifferentStore {
        /// The id that was found.
        found: u128,
        /// The remembered id.
        remembered: u128,
    },
    /// The store lacks writes that it once had on stable storage.
    #[error(
        "it was rolled back: it is at sequence {found_sequence}, but was at {witnessed_sequence}"
    )]
    RolledBack {
        /// The sequence that was found.
        found_sequence: u64,
        /// The remembered sequence.
        witnessed_sequence: u64,
    },
    /// The store and a copy of it were opened separately.
    #[error("it has forked: its opening {open_count} is not the one that was seen")]
    Forked {
        /// The remembered opening, which the store does not have.
        open_count: u64,
    },
}

/// Why a witness could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not a witness.
    #[error("not a witness file")]
    InvalidFormat,
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Witness {
    /// The witness of a store with this identity.
    #[must_use]
    pub fn from_identity(identity: &StoreIdentity) -> Self {
        let StoreIdentity {
            store_id: store,
            open_count: opened,
            open_nonce: nonce,
            durable_sequence: sequence,
            ..
        } = *identity;
        Self { store_id: store, open_count: opened, open_nonce: nonce, sequence }
    }

    /// Compares a store, as found, with this witness.
    ///
    /// # Errors
    /// [`WitnessMismatch`] if they differ. The store must not be used until an operator has resolved the mismatch.
    pub fn check(&self, found: ObservedStore<'_>) -> Result<(), WitnessMismatch> {
        if self.store_id != found.store_id {
            return Err(WitnessMismatch::DifferentStore {
                found: found.store_id,
                remembered: self.store_id,
            });
        }
        if self.open_count > found.open_count || found.sequence < self.sequence {
            return Err(WitnessMismatch::RolledBack {
                found_sequence: found.sequence,
                witnessed_sequence: self.sequence,
            });
        }
        if !found.opening_has_nonce(self.open_count, self.open_nonce) {
            return Err(WitnessMismatch::Forked { open_count: self.open_count });
        }
        Ok(())
    }

    /// Merges two witnesses of one store: the newest opening and the highest sequence.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let (opened, nonce) = if other.open_count > self.open_count {
            (other.open_count, other.open_nonce)
        } else {
            (self.open_count, self.open_nonce)
        };
        Self {
            open_count: opened,
            open_nonce: nonce,
            sequence: self.sequence.max(other.sequence),
            ..self
        }
    }

    /// Writes the witness to a file, atomically and durably. Blocks.
    ///
    /// # Errors
    /// The error of the file operation.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let Self { store_id: store, open_count: opened, open_nonce: nonce, sequence } = self;
        let text = format!("{FIRST_LINE}\n{store:032x} {opened} {nonce} {sequence}\n");
        write_file_atomically(path, text.as_bytes())
    }

    /// Reads a witness from a file; `None` if the file does not exist. Blocks.
    ///
    /// # Errors
    /// [`ReadError`] if the file is not a witness or cannot be read.
    pub fn read(path: &Path) -> Result<Option<Self>, ReadError> {
        match fs::read_to_string(path) {
            Ok(text) => parse(&text).ok_or(ReadError::InvalidFormat).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(ReadError::InvalidFormat)
            }
            Err(error) => Err(ReadError::Io(error)),
        }
    }
}

fn parse(text: &str) -> Option<Witness> {
    let line = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.strip_suffix('\n')?;
    let mut parts = line.split(' ');
    let store = u128::from_str_radix(parts.next()?, 16).ok()?;
    let mut number = || parts.next()?.parse().ok();
    let found = Witness {
        store_id: store,
        open_count: number()?,
        open_nonce: number()?,
        sequence: number()?,
    };
    parts.next().is_none().then_some(found)
}

/// Writes a file atomically and durably. Blocks.
///
/// # Errors
/// The error of the file operation.
pub fn write_file_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
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

    const SEEN: Witness = Witness { store_id: 7, open_count: 3, open_nonce: 30, sequence: 100 };

    fn found(opened: u64, openings: &[u64], sequence: u64) -> Result<(), WitnessMismatch> {
        SEEN.check(ObservedStore {
            store_id: 7,
            open_count: opened,
            open_nonces: openings,
            sequence,
        })
    }

    #[test]
    fn a_store_that_advanced_is_accepted_as_the_same() {
        assert_eq!(found(3, &[30], 100), Ok(()));
        assert_eq!(found(3, &[10, 20, 30], 101), Ok(()));
        assert_eq!(found(5, &[30, 40, 50], 100), Ok(()));
    }

    #[test]
    fn another_store_a_fork_and_a_rollback_are_detected() {
        let other = SEEN.check(ObservedStore {
            store_id: 8,
            open_count: 3,
            open_nonces: &[30],
            sequence: 100,
        });
        assert_eq!(other, Err(WitnessMismatch::DifferentStore { found: 8, remembered: 7 }));
        let went_back =
            Err(WitnessMismatch::RolledBack { found_sequence: 99, witnessed_sequence: 100 });
        assert_eq!(found(3, &[30], 99), went_back);
        assert!(matches!(found(2, &[20], 100), Err(WitnessMismatch::RolledBack { .. })));
        let forked = Err(WitnessMismatch::Forked { open_count: 3 });
        assert_eq!(found(3, &[31], 100), forked);
        assert_eq!(found(5, &[31, 40, 50], 200), forked);
        assert_eq!(found(5, &[40, 50], 200), forked, "an opening that is no longer remembered");
        assert_eq!(found(u64::MAX, &[30], 200), forked);
    }
}
