//! Opening sled's files: what sled panics over is told, and a lock that is about to go is waited for.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// A closed database of sled's keeps its lock for a moment, until its last thread has ended.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Why a database of sled's was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// Somebody has it open, and still had after five seconds.
    #[error("{0}")]
    InUse(io::Error),
    /// A file operation failed.
    #[error("{0}")]
    Io(io::Error),
    /// It cannot be read.
    #[error("{0}")]
    Corrupt(String),
}

/// Opens a database. Blocks.
///
/// # Errors
/// [`FilesError`].
pub fn open_database(config: &sled::Config) -> Result<sled::Db, DatabaseOpenError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(sled::Error::Io(error))) => {
                if !error.to_string().contains("could not acquire lock") {
                    return Err(DatabaseOpenError::Io(error));
                }
                if attempt == LOCK_ATTEMPTS {
                    return Err(DatabaseOpenError::InUse(error));
                }
                thread::sleep(LOCK_PAUSE);
            }
            Ok(Err(error)) => return Err(DatabaseOpenError::Corrupt(error.to_string())),
            Err(_) => return Err(DatabaseOpenError::Corrupt("its recovery failed".into())),
        }
    }
}
