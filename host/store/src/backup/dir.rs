//! The directory of backups.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use super::{Manifest, Section};
use crate::StoreError;
use crate::witness::write_file_atomically;

/// Why a backup could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The directory holds something else.
    #[error("the directory {0} is not empty, and holds no backups: choose another one")]
    OtherDirectory(PathBuf),
    /// The directory holds no backup.
    #[error("there is no backup in {0}: check the path")]
    NoBackup(PathBuf),
    /// The directory holds no backup of this name.
    #[error("there is no backup {name} in {dir}; there are: {known}")]
    Unknown {
        /// The directory.
        dir: PathBuf,
        /// The name that was asked for.
        name: String,
        /// The names of the backups that there are.
        known: String,
    },
    /// A file is damaged, or missing.
    #[error("the backup is damaged: {0}; use another one")]
    Damaged(String),
    /// A file operation failed.
    #[error("file operation on {path} failed: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl BackupError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}

impl From<StoreError> for BackupError {
    fn from(error: StoreError) -> Self {
        Self::Damaged(error.to_string())
    }
}

pub(super) fn chunks_dir(dir: &Path) -> PathBuf {
    dir.join("chunks")
}

pub(super) fn manifests_dir(dir: &Path) -> PathBuf {
    dir.join("backups")
}

/// Reads a chunk, and checks it against its digest. Blocks.
pub(super) fn read_chunk(dir: &Path, digest: &[u8; 32]) -> Result<Vec<u8>, BackupError> {
    let path = chunks_dir(dir).join(blake3::Hash::from(*digest).to_hex().as_str());
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BackupError::Damaged(format!("{} is missing", path.display())));
        }
        Err(error) => return Err(BackupError::io(&path, error)),
    };
    match blake3::hash(&bytes).as_bytes() == digest {
        true => Ok(bytes),
        false => Err(BackupError::Damaged(format!("{} does not have its digest", path.display()))),
    }
}

/// The names of the backups in a directory, oldest first. Blocks.
///
/// # Errors
/// [`BackupError::NoBackup`] if it holds none; [`BackupError::Io`].
pub fn list_backups(dir: &Path) -> Result<Vec<String>, BackupError> {
    let manifests = manifests_dir(dir);
    let entries = match fs::read_dir(&manifests) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BackupError::NoBackup(dir.into()));
        }
        Err(error) => return Err(BackupError::io(&manifests, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| BackupError::io(&manifests, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Unfinished files have another ending.
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            names.push(name);
        }
    }
    names.sort_unstable();
    if names.is_empty() { Err(BackupError::NoBackup(dir.into())) } else { Ok(names) }
}

/// Writes a backup.
#[derive(Debug)]
pub struct BackupWriter {
    dir: PathBuf,
    chunks: Vec<(Section, [u8; 32])>,
    /// Bytes of all chunks, and of those that were not there yet.
    bytes: (u64, u64),
}

impl BackupWriter {
    /// Begins a backup in a missing or empty directory, or one that holds backups. Blocks.
    ///
    /// # Errors
    /// [`BackupError`] says what to do.
    pub fn new(dir: &Path) -> Result<Self, BackupError> {
        let holds_other = match fs::read_dir(dir) {
            Ok(mut entries) => entries.next().is_some() && !manifests_dir(dir).is_dir(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(BackupError::io(dir, error)),
        };
        if holds_other {
            return Err(BackupError::OtherDirectory(dir.into()));
        }
        for folder in [manifests_dir(dir), chunks_dir(dir)] {
            fs::create_dir_all(&folder).map_err(|error| BackupError::io(&folder, error))?;
        }
        Ok(Self { dir: dir.into(), chunks: Vec::new(), bytes: (0, 0) })
    }

    /// Writes a chunk, unless it is there already. Blocks.
    ///
    /// # Errors
    /// [`BackupError::Io`].
    pub fn add(&mut self, section: Section, bytes: &[u8]) -> Result<(), BackupError> {
        let digest = blake3::hash(bytes);
        let path = chunks_dir(&self.dir).join(digest.to_hex().as_str());
        self.bytes.0 += bytes.len() as u64;
        if fs::read(&path).ok().is_none_or(|there| there != bytes) {
            write_file_atomically(&path, bytes).map_err(|error| BackupError::io(&path, error))?;
            self.bytes.1 += bytes.len() as u64;
        }
        self.chunks.push((section, *digest.as_bytes()));
        Ok(())
    }

    /// Number of chunks so far, their size in bytes, and the size of those that were not there before.
    #[must_use]
    pub fn written(&self) -> (usize, u64, u64) {
        (self.chunks.len(), self.bytes.0, self.bytes.1)
    }

    /// Reads all chunks back, then writes the manifest, of which `chunks` are filled in. Returns its name. Blocks.
    ///
    /// # Errors
    /// [`BackupError`] says what to do.
    pub fn finish(self, manifest: Manifest) -> Result<String, BackupError> {
        let Self { dir, chunks, .. } = self;
        for digest in chunks.iter().map(|(_, digest)| digest).collect::<HashSet<_>>() {
            read_chunk(&dir, digest)?;
        }
        for folder in [chunks_dir(&dir), manifests_dir(&dir), dir.clone()] {
            let synced = File::open(&folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| BackupError::io(&folder, error))?;
        }
        let name = name_of(manifest.taken_unix_s, manifest.sequence);
        let path = manifests_dir(&dir).join(&name);
        let text = Manifest { chunks, ..manifest }.to_text();
        write_file_atomically(&path, text.as_bytes())
            .map_err(|error| BackupError::io(&path, error))?;
        Ok(name)
    }
}

/// The name of a backup: the UTC time of its cut and its sequence, so that names sort by time.
fn name_of(unix_s: u64, sequence: u64) -> String {
    let at = i64::try_from(unix_s).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hours, minutes, seconds) = at.to_hms();
    format!("{year:04}{month:02}{day:02}T{hours:02}{minutes:02}{seconds:02}Z-{sequence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_named_by_its_utc_time() {
        assert_eq!(name_of(0, 7), "19700101T000000Z-7");
        assert_eq!(name_of(951_782_399, 1), "20000228T235959Z-1");
        assert_eq!(name_of(951_782_400, 1), "20000229T000000Z-1");
        assert_eq!(name_of(951_868_800, 1), "20000301T000000Z-1");
        assert_eq!(name_of(1_795_783_445, 12), "20261127T124405Z-12");
    }
}
