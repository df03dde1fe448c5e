//! Files that only their owner can read, such as keys.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file atomically and durably, readable by its owner only. It writes a temporary file of a unique
/// name beside it and renames that, so a concurrent reader finds the former file, or none.
///
/// # Errors
/// The underlying I/O error.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_added_extension("new");
    // Left there by a crash.
    let _ = fs::remove_file(&beside);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
