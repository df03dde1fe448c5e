//! Certificates and keys as files that only their owner can read.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::IdentityError;

/// More than any chain of certificates: a wrong path (a device, a database) is not read to its end.
const LARGEST: u64 = 1 << 20;

pub(crate) fn read(path: &Path) -> Result<String, IdentityError> {
    let failed =
        |source| IdentityError::File { action: "read", path: path.display().to_string(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > LARGEST {
        return Err(failed(std::io::Error::other("it is too large for a certificate or key")));
    }
    Ok(text)
}

/// Writes beside and renames, so that no half-written key is ever found.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    let failed =
        |source| IdentityError::File { action: "write", path: path.display().to_string(), source };
    let beside = path.with_added_extension("new");
    let _ = fs::remove_file(&beside);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}
