//! Checks a store's directory, as found, against its witness (R5).

use std::path::Path;

use ostraca_store::witness::{ObservedStore, ReadError, Witness, WitnessMismatch};

use crate::OpenError;
use crate::meta::IdentityRecord;

/// Compares the store, as found, with its witness, if there is one.
pub(crate) fn check(
    path: &Path,
    dir: &Path,
    found: &IdentityRecord,
    sequence: u64,
) -> Result<(), OpenError> {
    let remembered = match Witness::read(path) {
        Ok(Some(remembered)) => remembered,
        Ok(None) => return Ok(()),
        Err(ReadError::InvalidFormat) => return Err(OpenError::InvalidWitness(path.into())),
        Err(ReadError::Io(error)) => return Err(OpenError::io(path, error)),
    };
    let (dir, witness) = (dir.to_owned(), path.to_owned());
    let IdentityRecord { store_id: store, open_count: opened, open_nonces: ref nonces, .. } =
        *found;
    remembered
        .check(ObservedStore { store_id: store, open_count: opened, open_nonces: nonces, sequence })
        .map_err(|it| match it {
            WitnessMismatch::DifferentStore { .. } => OpenError::OtherStore { dir, witness },
            WitnessMismatch::RolledBack { found_sequence: stored, witnessed_sequence: seen } => {
                OpenError::RolledBack {
                    dir,
                    witness,
                    found_sequence: stored,
                    witnessed_sequence: seen,
                }
            }
            WitnessMismatch::Forked { open_count: opened } => {
                OpenError::Forked { dir, witness, open_count: opened }
            }
        })
}
