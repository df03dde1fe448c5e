//! Certificates and keys as files that only their owner can read.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::IdentityError;
use crate::private_file;

/// Maximum size of a file in bytes, larger than any certificate chain. Stops the reading of a wrong path (a device, a
/// database).
const LARGEST: u64 = 1 << 20;

/// Reads a certificate or key.
///
/// # Errors
///
/// [`IdentityError::File`], also if the file is too large to be a certificate or key.
pub fn read(path: &Path) -> Result<String, IdentityError> {
    let failed =
        |source| IdentityError::File { action: "read", path: path.display().to_string(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > LARGEST {
        return Err(failed(std::io::Error::other("file is too large for a certificate or key")));
    }
    Ok(text)
}

/// Writes a certificate or key, readable by its owner only.
///
/// # Errors
///
/// [`IdentityError::File`].
pub fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    private_file::write(path, text).map_err(|source| IdentityError::File {
        action: "write",
        path: path.display().to_string(),
        source,
    })
}

/// Keeps other processes out of a directory until the file is dropped, or the process ends.
///
/// # Errors
///
/// [`IdentityError::File`] if another process is in it, or the file `lock` cannot be created there.
pub fn lock(directory: &Path) -> Result<fs::File, IdentityError> {
    let path = directory.join("lock");
    let failed =
        |source| IdentityError::File { action: "lock", path: path.display().to_string(), source };
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(failed)?;
    file.try_lock().map_err(|error| {
        failed(match error {
            fs::TryLockError::WouldBlock => std::io::Error::other("another process uses it"),
            fs::TryLockError::Error(error) => error,
        })
    })?;
    Ok(file)
}

/// Renames a certificate or key.
///
/// # Errors
///
/// [`IdentityError::File`].
pub fn rename(from: &Path, to: &Path) -> Result<(), IdentityError> {
    fs::rename(from, to).map_err(|source| IdentityError::File {
        action: "rename",
        path: from.display().to_string(),
        source,
    })
}

/// Removes a certificate or key, if it exists.
///
/// # Errors
///
/// [`IdentityError::File`].
pub fn remove(path: &Path) -> Result<(), IdentityError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(IdentityError::File { action: "remove", path: path.display().to_string(), source })
        }
        _ => Ok(()),
    }
}
