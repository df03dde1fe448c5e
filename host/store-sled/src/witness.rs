//! The store's witness (R5), compared with a directory as it is found.

use std::path::Path;

use ostraca_store::witness::{Difference, Found, ReadError, Witness};

use crate::OpenError;
use crate::meta::Identity;

/// Compares a store as it was found with what is remembered, if anything is.
pub(crate) fn check(
    path: &Path,
    dir: &Path,
    found: &Identity,
    sequence: u64,
) -> Result<(), OpenError> {
    let remembered = match Witness::read(path) {
        Ok(Some(remembered)) => remembered,
        Ok(None) => return Ok(()),
        Err(ReadError::NoWitness) => return Err(OpenError::BadWitness(path.into())),
        Err(ReadError::Io(error)) => return Err(OpenError::io(path, error)),
    };
    let (dir, witness) = (dir.to_owned(), path.to_owned());
    let Identity { store, opened, ref nonces, .. } = *found;
    remembered.check(Found { store, opened, openings: nonces, sequence }).map_err(|it| match it {
        Difference::Other { .. } => OpenError::OtherStore { dir, witness },
        Difference::WentBack { stored, seen } => OpenError::WentBack { dir, witness, stored, seen },
        Difference::Forked { opened } => OpenError::Forked { dir, witness, opened },
    })
}
