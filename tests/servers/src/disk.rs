//! A small disk that a test fills up.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// The file that takes the space.
const BALLAST: &str = "ballast";

/// A file system of its own, in memory. It is unmounted with the value.
#[derive(Debug)]
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Mounts an empty disk of this size.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let root = nix::unistd::geteuid().is_root();
        assert!(root, "tests mount a disk that they fill up: run them as root");
        let dir = tempfile::tempdir().expect("a directory");
        let size = format!("size={bytes},mode=0755");
        let mounting =
            mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some(&*size));
        mounting.expect("a mounted tmpfs");
        Self { dir }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Takes all space but for this many bytes, also if servers write meanwhile.
    pub fn fill(&self, left: u64) {
        let mut ballast = File::create(self.path().join(BALLAST)).expect("a file");
        let mut length = 0;
        for size in [1 << 20, 1 << 12] {
            let block = vec![0; size];
            loop {
                match ballast.write(&block) {
                    Ok(written) => length += written as u64,
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("cannot fill the disk: {error}"),
                }
            }
        }
        ballast.set_len(length.saturating_sub(left)).expect("truncated");
    }

    /// Frees the space that [`Self::fill`] has taken.
    pub fn free(&self) {
        std::fs::remove_file(self.path().join(BALLAST)).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A server may still use it.
        if let Err(error) = umount2(self.dir.path(), MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.dir.path().display());
        }
    }
}
