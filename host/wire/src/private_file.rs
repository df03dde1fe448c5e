//! Files that only their owner can read, such as keys.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file atomically, readable by its owner only. Writes and syncs a temporary file next to it, and then renames
/// that file. So a reader never finds a partly written file, and the file survives a crash after this returns.
///
/// # Errors
/// The underlying I/O error.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_added_extension("new");
    // A crash may have left it.
    let _ = fs::remove_file(&beside);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
