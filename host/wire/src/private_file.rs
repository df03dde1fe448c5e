//! Files that only their owner can read: keys, and what holds them.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file whole, for good and for its owner only. Whoever reads it meanwhile finds the one before, or none:
/// it is written beside, under a name of its own, and renamed.
///
/// # Errors
/// The system's word.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_added_extension("new");
    // What a crash left there.
    let _ = fs::remove_file(&beside);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}
