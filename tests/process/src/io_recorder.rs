//! The recorder that is preloaded into a node (`preload/recorder.c`), and its log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::{artifacts, preload};

const MAGIC: u32 = 0x0573_aca5;
const HEAD: usize = 48;

/// The kinds of recorded calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A file was created by opening it.
    Create,
    /// Bytes were written.
    Write,
    /// `fdatasync`.
    DataSync,
    /// `fsync`.
    Sync,
    /// `sync_file_range`, which makes nothing durable.
    SyncRange,
    /// A file's length was set.
    Truncate,
    /// A file was renamed.
    Rename,
    /// A name was removed.
    Unlink,
    /// A directory was created.
    Mkdir,
}

/// One call, recorded when it returned.
#[derive(Clone, Debug)]
pub struct Record {
    /// The recorded system call.
    pub call: Call,
    /// When the call began, on the clock of [`now`](crate::history::now).
    pub start: u64,
    /// When the call returned.
    pub end: u64,
    /// The offset in the file, or the file's new length.
    pub offset: u64,
    /// Whether the call succeeded.
    pub succeeded: bool,
    /// The file.
    pub path: PathBuf,
    /// The written bytes, if they were recorded; for a rename, the new name.
    pub data: Vec<u8>,
}

impl Record {
    /// Whether the call made the file's bytes durable.
    #[must_use]
    pub fn is_sync_of(&self, file: &Path) -> bool {
        matches!(self.call, Call::DataSync | Call::Sync) && self.succeeded && self.path == file
    }
}

/// A recorder for one node's directory.
#[derive(Clone, Debug)]
pub struct IoRecorder {
    library: PathBuf,
    under: PathBuf,
    log: PathBuf,
    fail: PathBuf,
    data: bool,
    slow: Duration,
}

impl IoRecorder {
    /// Compiles the recorder. It records the calls on files below the directory `under`, into files in the directory
    /// `to`.
    ///
    /// # Errors
    /// The compiler's error.
    pub fn new(under: &Path, to: &Path, data: bool) -> Result<Self> {
        let library = preload::compile("recorder", to)?;
        let under = under.to_owned();
        let (log, fail, slow) = (to.join("recorded"), to.join("fail"), Duration::ZERO);
        Ok(Self { library, under, log, fail, data, slow })
    }

    /// Delays each sync by this time.
    #[must_use]
    pub fn slow(self, slow: Duration) -> Self {
        Self { slow, ..self }
    }

    /// Preloads the recorder into a command.
    pub fn on(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("OSTRACA_RECORD_UNDER", &self.under)
            .env("OSTRACA_RECORD_LOG", &self.log)
            .env("OSTRACA_RECORD_SLOW_MS", self.slow.as_millis().to_string())
            .env("OSTRACA_RECORD_FAIL", &self.fail);
        if self.data {
            command.env("OSTRACA_RECORD_DATA", "1");
        }
    }

    /// Makes every later sync fail, or stops doing so.
    ///
    /// # Errors
    /// If the trigger cannot be written.
    pub fn fail_syncs(&self, fail: bool) -> Result<()> {
        if fail {
            std::fs::write(&self.fail, "")?;
        } else {
            std::fs::remove_file(&self.fail)?;
        }
        Ok(())
    }

    /// The calls recorded so far, in the order in which they returned.
    ///
    /// # Errors
    /// If the log is malformed, or contains a call that the recorder could not parse.
    pub fn records(&self) -> Result<Vec<Record>> {
        let log = std::fs::read(&self.log)?;
        let mut rest = log.as_slice();
        let mut records = Vec::new();
        while !rest.is_empty() {
            let Some(head) = rest.first_chunk::<HEAD>() else {
                // The process was killed while writing its last record.
                break;
            };
            let word = |at: usize| {
                u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            ensure!(word(0) == MAGIC, "the recorder's log is torn");
            let (path_len, data_len) = (word(40) as usize, word(44) as usize);
            let Some(body) = rest.get(HEAD..HEAD + path_len + data_len) else { break };
            let (path, data) = body.split_at(path_len);
            let path = PathBuf::from(std::str::from_utf8(path)?);
            let call = match word(4) {
                1 => Call::Create,
                2 => Call::Write,
                3 => Call::DataSync,
                4 => Call::Sync,
                5 => Call::SyncRange,
                6 => Call::Truncate,
                7 => Call::Rename,
                8 => Call::Unlink,
                9 => Call::Mkdir,
                _ => bail!(
                    "{} was written by {}, which the recorder cannot parse",
                    path.display(),
                    String::from_utf8_lossy(data)
                ),
            };
            let succeeded = long(32) != u64::MAX;
            let (start, end, offset) = (long(8), long(16), long(24));
            records.push(Record { call, start, end, offset, succeeded, path, data: data.to_vec() });
            rest = &rest[HEAD + path_len + data_len..];
        }
        Ok(records)
    }
}

/// A directory for a recorder's files in the target directory, removed when it is dropped.
///
/// # Errors
/// If it cannot be created.
pub fn place() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir_in(artifacts::scratch("recorded")?)?)
}
