//! The store's disk operations, behind a trait so that tests can make them fail.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

pub(crate) trait Disk: fmt::Debug + Send + Sync + 'static {
    /// Makes everything written to `file` durable.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Free bytes that this process may use on the disk that holds `path`.
    fn free(&self, path: &Path) -> io::Result<u64>;
}

#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        let stat = nix::sys::statvfs::statvfs(path)?;
        Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }
}
