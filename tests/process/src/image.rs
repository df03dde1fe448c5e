//! What a disk may hold after a power failure: files rebuilt from recorded writes and syncs.
//!
//! Only `fsync` and `fdatasync` count; `sync_file_range` does not. A write that was not followed by a completed sync
//! may be present, missing, or torn at sectors of 512 bytes, regardless of the writes before and after it. Changes of
//! names (creations, renames, removals) are journalled by the file system in order: an unsynced tail of that journal
//! may be missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rand::Rng;
use rand::rngs::StdRng;

use crate::io_recorder::{Call, Record};

/// The unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;

/// What happens to unsynced writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of them survive, as after `kill -9`.
    Kept,
    /// None of them survives.
    Dropped,
    /// Some sectors of each survive.
    Torn,
    /// Some of them survive, possibly later ones without earlier ones.
    Reordered,
}

impl Fate {
    /// All fates.
    pub const ALL: [Self; 4] = [Self::Kept, Self::Dropped, Self::Torn, Self::Reordered];
}

#[derive(Clone, Debug)]
struct Change<'a> {
    end: u64,
    offset: u64,
    /// The new bytes; `None` sets the length.
    data: Option<&'a [u8]>,
}

#[derive(Clone, Debug, Default)]
struct Inode<'a> {
    durable: Vec<u8>,
    unsynced: Vec<Change<'a>>,
}

#[derive(Clone, Debug)]
enum Naming {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
    Mkdir,
}

/// A directory's files: their durable contents, and the writes that are not durable yet.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk<'a> {
    inodes: Vec<Inode<'a>>,
    /// The names as the process sees them, each with the index of its inode.
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<Naming>,
    directories: Vec<PathBuf>,
}

impl<'a> SimulatedDisk<'a> {
    /// Creates a disk that holds a directory durably. Paths are those that the recorder saw.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn of(dir: &Path) -> Result<Self> {
        let mut disk = Self::default();
        disk.take(dir)?;
        disk.durable_names = disk.names.clone();
        Ok(disk)
    }

    fn take(&mut self, dir: &Path) -> Result<()> {
        self.directories.push(dir.into());
        for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                self.take(&path)?;
            } else {
                let durable = fs::read(&path)?;
                self.names.insert(path, self.inodes.len());
                self.inodes.push(Inode { durable, unsynced: Vec::new() });
            }
        }
        Ok(())
    }

    /// Applies a call, if it began before the power fails at `cut`.
    pub fn happens(&mut self, record: &'a Record, cut: u64) {
        if record.start > cut {
            return;
        }
        let returned = record.end <= cut;
        let inode = self.names.get(&record.path).copied();
        match record.call {
            Call::Write | Call::Truncate => {
                let Some(inode) = inode.and_then(|at| self.inodes.get_mut(at)) else { return };
                let data = (record.call == Call::Write).then_some(record.data.as_slice());
                inode.unsynced.push(Change { end: record.end, offset: record.offset, data });
            }
            Call::Sync | Call::DataSync if returned && record.succeeded => match inode {
                Some(at) => self.sync(at, record.start),
                None => self.sync_names(),
            },
            Call::Sync | Call::DataSync | Call::SyncRange => {}
            Call::Create => {
                let at = self.inodes.len();
                self.inodes.push(Inode::default());
                self.name(Naming::Create(record.path.clone(), at));
            }
            Call::Rename => {
                let to = PathBuf::from(String::from_utf8_lossy(&record.data).into_owned());
                self.name(Naming::Rename(record.path.clone(), to));
            }
            Call::Unlink => self.name(Naming::Unlink(record.path.clone())),
            // A missing or additional empty directory makes no difference to a store.
            Call::Mkdir => {
                self.directories.push(record.path.clone());
                self.name(Naming::Mkdir);
            }
        }
    }

    fn name(&mut self, naming: Naming) {
        apply(&mut self.names, &naming);
        self.unsynced_names.push(naming);
    }

    fn sync(&mut self, at: usize, began: u64) {
        let Some(Inode { durable, unsynced }) = self.inodes.get_mut(at) else { return };
        unsynced.retain(|change| {
            let covered = change.end <= began;
            if covered {
                write(durable, change.offset, change.data);
            }
            !covered
        });
    }

    /// Makes the journal durable up to now, since a directory was synced.
    fn sync_names(&mut self) {
        for naming in self.unsynced_names.drain(..) {
            apply(&mut self.durable_names, &naming);
        }
    }

    /// Writes one possible content of the disk after a power failure into `into`, which stands for `from`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn fails(&self, fate: Fate, rng: &mut StdRng, from: &Path, into: &Path) -> Result<()> {
        let kept = match fate {
            Fate::Kept => self.unsynced_names.len(),
            Fate::Dropped => 0,
            Fate::Torn | Fate::Reordered => rng.random_range(0..=self.unsynced_names.len()),
        };
        let mut names = self.durable_names.clone();
        for naming in &self.unsynced_names[..kept] {
            apply(&mut names, naming);
        }
        for directory in &self.directories {
            fs::create_dir_all(into.join(directory.strip_prefix(from)?))?;
        }
        for (name, at) in names {
            let Some(inode) = self.inodes.get(at) else { continue };
            let mut bytes = inode.durable.clone();
            for change in &inode.unsynced {
                match fate {
                    Fate::Kept => write(&mut bytes, change.offset, change.data),
                    Fate::Dropped => {}
                    Fate::Torn => tear(&mut bytes, change, rng),
                    Fate::Reordered if rng.random() => {
                        write(&mut bytes, change.offset, change.data)
                    }
                    Fate::Reordered => {}
                }
            }
            let path = into.join(name.strip_prefix(from)?);
            fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, naming: &Naming) {
    match naming {
        Naming::Create(path, at) => {
            names.insert(path.clone(), *at);
        }
        Naming::Rename(from, to) => {
            if let Some(at) = names.remove(from) {
                names.insert(to.clone(), at);
            }
        }
        Naming::Unlink(path) => {
            names.remove(path);
        }
        Naming::Mkdir => {}
    }
}

fn write(bytes: &mut Vec<u8>, offset: u64, data: Option<&[u8]>) {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let Some(data) = data else {
        bytes.resize(offset, 0);
        return;
    };
    let end = offset + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(data);
}

/// Writes a random selection of one write's sectors.
fn tear(bytes: &mut Vec<u8>, change: &Change<'_>, rng: &mut StdRng) {
    let Some(data) = change.data else {
        if rng.random() {
            write(bytes, change.offset, None);
        }
        return;
    };
    let mut from = 0;
    while from < data.len() {
        let at = change.offset + from as u64;
        // Sectors begin at multiples of their size in the file, not in the write.
        let within = usize::try_from(at % SECTOR as u64).unwrap_or(0);
        let to = data.len().min(from + SECTOR - within);
        if rng.random() {
            write(bytes, at, Some(&data[from..to]));
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn record(call: Call, at: u64, offset: u64, data: &[u8]) -> Record {
        Record {
            call,
            start: at,
            end: at + 1,
            offset,
            succeeded: true,
            path: "/d/db".into(),
            data: data.to_vec(),
        }
    }

    fn after(records: &[Record], cut: u64, fate: Fate) -> Vec<u8> {
        let mut disk = SimulatedDisk::default();
        disk.inodes.push(Inode::default());
        disk.names.insert("/d/db".into(), 0);
        disk.durable_names = disk.names.clone();
        disk.directories.push("/d".into());
        for record in records {
            disk.happens(record, cut);
        }
        let into = tempfile::tempdir().expect("directory");
        let mut rng = StdRng::seed_from_u64(cut);
        disk.fails(fate, &mut rng, Path::new("/d"), into.path()).expect("image");
        fs::read(into.path().join("db")).expect("file")
    }

    #[test]
    fn synced_data_stays_and_unsynced_data_may_be_lost() {
        let records = [
            record(Call::Write, 0, 0, b"aaaa"),
            record(Call::DataSync, 2, 0, b""),
            record(Call::Write, 4, 2, b"bb"),
            record(Call::SyncRange, 6, 0, b""),
            record(Call::Write, 8, 4, b"cc"),
        ];
        assert_eq!(after(&records, 100, Fate::Kept), b"aabbcc");
        assert_eq!(after(&records, 100, Fate::Dropped), b"aaaa");
        assert_eq!(after(&records, 5, Fate::Kept), b"aabb");
        // The sync has not returned, so it guarantees nothing.
        assert_eq!(after(&records, 2, Fate::Dropped), b"");
    }

    #[test]
    fn torn_writes_are_torn_at_sectors() {
        let data = [7; 2048];
        let image = after(&[record(Call::Write, 0, 256, &data)], 100, Fate::Torn);
        for sector in image.chunks(SECTOR).skip(1) {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
        }
    }
}
