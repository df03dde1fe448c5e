//! What a node remembers of its store, in a file outside of it, to notice that the store is another one,
//! a copy that went another way, or older than it was (R5).

use std::fs;
use std::io;
use std::path::Path;

use ostraca_store::StoreIdentity;

use crate::OpenError;
use crate::dir::write_durably;
use crate::meta::Identity;

const FIRST_LINE: &str = "ostraca witness 1";

/// Writes what is to be remembered, durably.
pub(crate) fn write(path: &Path, identity: &StoreIdentity) -> io::Result<()> {
    let StoreIdentity { store, opened, nonce, sequence, .. } = identity;
    let text = format!("{FIRST_LINE}\n{store:032x} {opened} {nonce} {sequence}\n");
    write_durably(path, text.as_bytes())
}

/// Compares a store as it was found with what is remembered, if anything is.
pub(crate) fn check(
    path: &Path,
    dir: &Path,
    found: &Identity,
    sequence: u64,
) -> Result<(), OpenError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
        Err(error) => return Err(OpenError::io(path, error)),
    };
    let (store, opened, nonce, seen) =
        parse(&text).ok_or_else(|| OpenError::BadWitness(path.into()))?;
    let (dir, witness) = (dir.to_owned(), path.to_owned());
    if store != found.store {
        return Err(OpenError::OtherStore { dir, witness });
    }
    if opened > found.opened || sequence < seen {
        return Err(OpenError::WentBack { dir, witness, stored: sequence, seen });
    }
    if !found.was_opened(opened, nonce) {
        return Err(OpenError::Forked { dir, witness, opened });
    }
    Ok(())
}

fn parse(text: &str) -> Option<(u128, u64, u64, u64)> {
    let line = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.strip_suffix('\n')?;
    let mut words = line.split(' ');
    let store = u128::from_str_radix(words.next()?, 16).ok()?;
    let mut number = || words.next()?.parse().ok();
    let found = (store, number()?, number()?, number()?);
    words.next().is_none().then_some(found)
}
