//! Opens sled databases: turns sled's panics into errors, and waits for a lock that is about to be released.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// sled holds its lock for a moment after a database is closed, until sled's last thread has ended.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Why a sled database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// The database is open elsewhere, and still was after five seconds.
    #[error("{0}")]
    InUse(io::Error),
    /// A file operation failed.
    #[error("{0}")]
    Io(io::Error),
    /// The database's data cannot be read.
    #[error("{0}")]
    Corrupt(String),
}

/// Opens a database. Blocks; waits up to five seconds for a held lock.
///
/// # Errors
/// [`DatabaseOpenError`] if the database is in use, cannot be accessed, or is corrupt.
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
            Err(_) => {
                return Err(DatabaseOpenError::Corrupt("sled panicked during recovery".into()));
            }
        }
    }
}
