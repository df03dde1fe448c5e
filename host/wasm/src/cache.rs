//! Keeps compiled components on disk, so that a restart does not compile them again.
//!
//! A file holds native code and is mapped as is, so a file that this node did not write could be used to attack it.
//! Each file therefore has a digest next to it, keyed with 32 random bytes that are generated when the directory is
//! first used. A file that is truncated, stale or from elsewhere does not match its digest: it is never trusted, and
//! the component is compiled again. File names contain the digest of the component and the compatibility hash of the
//! engine, so an engine of another version or configuration does not find them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::Error;
use crate::codegen::compatibility;
use crate::digest::ComponentDigest;

pub(crate) struct Cache {
    dir: PathBuf,
    key: [u8; 32],
    limit: u64,
}

impl Cache {
    /// Opens the directory, creating it with private permissions if needed, and removes what interrupted writes left
    /// behind.
    pub(crate) fn open(dir: &Path, limit: u64) -> Result<Cache, Error> {
        let failed = |source| Error::Cache { path: dir.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "tmp") {
                fs::remove_file(path).map_err(failed)?;
            }
        }
        let key = key(&dir.join("key")).map_err(failed)?;
        Ok(Cache { dir: dir.to_owned(), key, limit })
    }

    /// Loads the component if the directory holds a complete copy that was compiled for exactly this engine.
    pub(crate) fn load(&self, engine: &Engine, digest: &ComponentDigest) -> Option<Component> {
        let path = self.path(engine, digest);
        let stored = fs::read(path.with_extension("digest")).ok()?;
        let code = fs::read(&path).ok()?;
        if stored != self.sum(&path, &code).as_bytes() {
            tracing::warn!(path = %path.display(), "cached component does not match its digest: compiling it again");
            return None;
        }
        // SAFETY: this node wrote the file for an engine of this configuration. Its keyed digest, computed from its
        // name and content with a key that only this directory holds, was verified just now, and the directory is
        // private.
        #[allow(unsafe_code, reason = "wasmtime can map compiled code in no other way")]
        let loaded = unsafe { Component::deserialize_file(engine, &path) };
        loaded
            .inspect_err(|error| tracing::warn!(path = %path.display(), "cannot load a cached component: {error:#}"))
            .ok()
    }

    /// Stores a compiled component. A failure is only logged: the next start then compiles the component again.
    pub(crate) fn store(&self, engine: &Engine, digest: &ComponentDigest, code: &[u8]) {
        let path = self.path(engine, digest);
        let sum = self.sum(&path, code);
        // The digest is written last: a file without one counts as absent.
        let written =
            write(&path, code).and_then(|()| write(&path.with_extension("digest"), sum.as_bytes()));
        if let Err(error) = written.and_then(|()| self.shrink(&path)) {
            tracing::warn!(path = %path.display(), "cannot cache a compiled component: {error}");
        }
    }

    fn path(&self, engine: &Engine, digest: &ComponentDigest) -> PathBuf {
        self.dir.join(format!("{digest}-{}.cwasm", compatibility(engine)))
    }

    fn sum(&self, path: &Path, code: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.update(&[0]);
        hasher.update(code);
        hasher.finalize()
    }

    /// Removes the oldest files until the rest fits the limit, but never the one just written.
    fn shrink(&self, newest: &Path) -> std::io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "cwasm") {
                let about = entry.metadata()?;
                files.push((
                    about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    about.len(),
                    entry.path(),
                ));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if bytes <= self.limit {
                break;
            }
            if path != newest {
                fs::remove_file(path.with_extension("digest"))?;
                fs::remove_file(path)?;
                bytes -= len;
            }
        }
        Ok(())
    }
}

/// Reads the directory's key; creates it on first use.
fn key(path: &Path) -> std::io::Result<[u8; 32]> {
    if let Ok(bytes) = fs::read(path)
        && let Ok(key) = <[u8; 32]>::try_from(bytes)
    {
        return Ok(key);
    }
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    write(path, &key)?;
    Ok(key)
}

/// Writes a private file atomically: it appears whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // A unique name, since two threads may have compiled the same component.
    let mut file = tempfile::Builder::new()
        .suffix(".tmp")
        .tempfile_in(path.parent().unwrap_or_else(|| Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
