//! A store's directory: its lock, its format, and what R6 requires before sled may open its files.
//!
//! ```text
//! format       one line: "ostraca store, format 2"; written last, so a store with this file is complete;
//!              "ostraca store, moved to …" once it was copied to another place, and must not be opened here any more
//! lock         locked by the process that has the store open; contains the id of that process
//! sled/        sled's own files
//! components/  blobs, each in a file named by its BLAKE3 digest
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use ostraca_store::witness::write_file_atomically;

use crate::OpenError;

/// The newest format that this release reads, and the format that it writes.
pub(crate) const FORMAT: u32 = 2;
/// The oldest format that this release reads. Format 1 was never released.
const OLDEST_FORMAT: u32 = 2;

const FORMAT_LINE: &str = "ostraca store, format ";
const MOVED_LINE: &str = "ostraca store, moved to ";

/// A store's directory, locked by this process until it is dropped.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) path: PathBuf,
    lock: File,
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A process that is just being started has a copy of the open file, which would hold the lock until it runs.
        let _ = self.lock.unlock();
    }
}

impl Dir {
    /// Locks a directory in which a store may be created, and creates its subdirectories. The directory must be
    /// missing, or empty except for a lock file.
    pub(crate) fn lock_empty(path: &Path) -> Result<Self, OpenError> {
        fs::create_dir_all(path).map_err(|error| OpenError::io(path, error))?;
        if entries(path)?.iter().any(|entry| entry.file_name().is_none_or(|name| name != "lock")) {
            return Err(OpenError::NotEmpty(path.into()));
        }
        let dir = Self::lock(path)?;
        for folder in [dir.sled(), dir.components()] {
            fs::create_dir(&folder).map_err(|error| OpenError::io(&folder, error))?;
        }
        Ok(dir)
    }

    /// Locks the directory of a complete store.
    pub(crate) fn lock_existing(path: &Path) -> Result<Self, OpenError> {
        match Self::lock_for_copy(path)? {
            (dir, None) => Ok(dir),
            (_, Some(to)) => Err(OpenError::Moved { dir: path.into(), to }),
        }
    }

    /// Locks the directory of a complete store. Also returns where it was moved to, if it was.
    pub(crate) fn lock_for_copy(path: &Path) -> Result<(Self, Option<String>), OpenError> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::Missing(path.into()));
            }
            Err(error) => return Err(OpenError::io(path, error)),
            Ok(_) => {}
        }
        if entries(path)?.is_empty() {
            return Err(OpenError::Empty(path.into()));
        }
        let format_path = path.join("format");
        let format = match fs::read_to_string(&format_path) {
            Ok(format) => format,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(OpenError::io(&format_path, error));
            }
            Err(_) => return Err(OpenError::NotAStore(path.into())),
        };
        if let Some(to) = format.strip_prefix(MOVED_LINE) {
            return Ok((Self::lock(path)?, Some(to.trim_end().into())));
        }
        let format = format.strip_prefix(FORMAT_LINE).and_then(|format| format.trim().parse().ok());
        match format {
            None | Some(0) => return Err(OpenError::NotAStore(path.into())),
            Some(format) if format > FORMAT => {
                return Err(OpenError::NewerFormat { dir: path.into(), format, ours: FORMAT });
            }
            Some(format) if format < OLDEST_FORMAT => {
                return Err(OpenError::OlderFormat {
                    dir: path.into(),
                    format,
                    ours: OLDEST_FORMAT,
                });
            }
            Some(_) => {}
        }
        Ok((Self::lock(path)?, None))
    }

    /// Locks the directory of a store whose creation or copy was not finished; `None` if there is none.
    pub(crate) fn lock_unfinished(path: &Path) -> Result<Option<Self>, OpenError> {
        let is_unfinished = path.join("sled").is_dir() && !path.join("format").exists();
        is_unfinished.then(|| Self::lock(path)).transpose()
    }

    /// Marks the store as moved, durably: nobody opens it from then on (R26).
    pub(crate) fn mark_moved(&self, to: &str) -> io::Result<()> {
        write_file_atomically(&self.path.join("format"), format!("{MOVED_LINE}{to}\n").as_bytes())
    }

    /// Marks the store as complete, durably.
    pub(crate) fn finish(&self) -> Result<(), OpenError> {
        let format = format!("{FORMAT_LINE}{FORMAT}\n");
        let path = self.path.join("format");
        write_file_atomically(&path, format.as_bytes())
            .map_err(|error| OpenError::io(&path, error))?;
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => {
                sync_dir(parent).map_err(|error| OpenError::io(parent, error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn sled(&self) -> PathBuf {
        self.path.join("sled")
    }

    pub(crate) fn components(&self) -> PathBuf {
        self.path.join("components")
    }

    /// Makes sure that recovery reads what is on disk (R6): after a failed sync, the page cache holds pages that are
    /// marked clean but were never written. Also removes unfinished snapshots.
    pub(crate) fn forget_cached_pages(&self) -> Result<(), OpenError> {
        let sled = self.sled();
        for path in entries(&sled)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let is = |name: &Option<String>, end| {
                name.as_ref().is_some_and(|name| name.starts_with("snap.") && name.ends_with(end))
            };
            let done = if is(&name, ".generating") {
                fs::remove_file(&path)
            } else if path.is_file() {
                forget_cached(&path)
            } else {
                Ok(())
            };
            done.map_err(|error| OpenError::io(&path, error))?;
        }
        sync_dir(&sled).map_err(|error| OpenError::io(&sled, error))
    }

    /// Syncs what sled leaves unsynced when it opens. Returns a separate descriptor for its data file, which
    /// reports every later write error.
    pub(crate) fn sync_and_open_data(&self) -> Result<File, OpenError> {
        let sled = self.sled();
        for name in ["conf", "db"] {
            let path = sled.join(name);
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(|error| OpenError::io(&path, error))?;
        }
        for dir in [&sled, &self.path] {
            sync_dir(dir).map_err(|error| OpenError::io(dir, error))?;
        }
        let path = sled.join("db");
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| OpenError::io(&path, error))
    }

    fn lock(path: &Path) -> Result<Self, OpenError> {
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(|error| OpenError::io(path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let holder = match lock.read_to_string(&mut holder) {
                    Ok(_) if !holder.trim().is_empty() => format!("process {}", holder.trim()),
                    _ => "another process".into(),
                };
                return Err(OpenError::InUse { dir: path.into(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(OpenError::io(path, error)),
        }
        let holder = format!("{}\n", std::process::id());
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(holder.as_bytes()))
            .map_err(|error| OpenError::io(path, error))?;
        Ok(Self { path: path.into(), lock })
    }
}

pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn forget_cached(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).map_err(io::Error::from)
}

fn entries(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let entries = fs::read_dir(path).map_err(|error| OpenError::io(path, error))?;
    entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(|error| OpenError::io(path, error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_lock_file_holds_no_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = Dir::lock(dir.path()).expect("locked");
        // As in a process between its fork and the program that it runs.
        let copy = held.lock.try_clone().expect("a copy");
        drop(held);
        Dir::lock(dir.path()).expect("locked again");
        drop(copy);
    }
}
