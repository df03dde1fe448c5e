//! A backup as the source of a copy: how it is restored.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use super::dir::{manifests_dir, read_chunk};
use super::{BackupError, BackupRecord, Manifest, Section, decode_chunk, list_backups};
use crate::transfer::{CopySource, Destination, Item, ItemPage, StoreContents};
use crate::{StoreError, StoreIdentity};

/// A backup that can be copied to a store.
#[derive(Debug)]
pub struct BackupContents {
    dir: PathBuf,
    name: String,
    manifest: Manifest,
    /// The chunks in the order of their pages: shards first, since other records belong to them.
    order: Vec<(Section, [u8; 32])>,
    /// The last round that read a key, for all keys that were read more than once.
    last_rounds: HashMap<[u8; 32], u32>,
}

/// The key in `last_rounds`.
fn digest_of(key: &[u8]) -> [u8; 32] {
    *blake3::hash(key).as_bytes()
}

impl BackupContents {
    /// Opens a backup in a directory: the one of this name, or the newest. Blocks.
    ///
    /// # Errors
    /// [`BackupError`] says what to do.
    pub fn open(dir: &Path, name: Option<&str>) -> Result<Self, BackupError> {
        let known = list_backups(dir)?;
        let found = match name {
            None => known.last(),
            Some(name) => known.iter().find(|known| *known == name),
        };
        let Some(name) = found.cloned() else {
            return Err(BackupError::Unknown {
                dir: dir.into(),
                name: name.unwrap_or_default().into(),
                known: known.join(", "),
            });
        };
        let path = manifests_dir(dir).join(&name);
        let text = std::fs::read_to_string(&path).map_err(|error| BackupError::io(&path, error))?;
        let manifest = Manifest::parse(&text).ok_or_else(|| {
            BackupError::Damaged(format!("{} is not a complete manifest", path.display()))
        })?;
        let mut order = manifest.chunks.clone();
        order.sort_by_key(|(section, _)| *section);
        let mut contents =
            Self { dir: dir.into(), name, manifest, order, last_rounds: HashMap::new() };
        contents.read_later_rounds()?;
        Ok(contents)
    }

    /// Notes the keys of all rounds but the first.
    fn read_later_rounds(&mut self) -> Result<(), BackupError> {
        let later: Vec<_> = self
            .order
            .iter()
            .filter_map(|(section, digest)| match section {
                Section::Round(round) if *round > 0 => Some((*round, *digest)),
                _ => None,
            })
            .collect();
        for (round, digest) in later {
            for record in decode_chunk(&read_chunk(&self.dir, &digest)?)? {
                if let Some(key) = record.key() {
                    let last = self.last_rounds.entry(digest_of(&key)).or_default();
                    *last = round.max(*last);
                }
            }
        }
        Ok(())
    }

    /// The backup's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the backup is of.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The cursor of a chunk: its place, and what tells this backup from others of the same moment.
    fn cursor(&self, at: usize) -> Bytes {
        let manifest = blake3::hash(self.manifest.to_text().as_bytes());
        [&(at as u64).to_be_bytes()[..], &manifest.as_bytes()[..8]].concat().into()
    }

    /// Reads the chunk of a cursor.
    fn read(&self, cursor: Option<&Bytes>) -> Result<ItemPage, StoreError> {
        let at = match cursor {
            None => 0,
            Some(cursor) => {
                let at = cursor.first_chunk().map(|at| u64::from_be_bytes(*at));
                let at = at.and_then(|at| usize::try_from(at).ok());
                at.filter(|at| self.cursor(*at) == *cursor)
                    .ok_or_else(|| StoreError::Corrupt("the cursor is of another backup".into()))?
            }
        };
        let Some((section, digest)) = self.order.get(at) else { return Ok(ItemPage::default()) };
        let bytes = read_chunk(&self.dir, digest)
            .map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let items = match section {
            Section::Component => vec![Item::Component(bytes.into())],
            Section::Round(round) => {
                let records = decode_chunk(&bytes)?.into_iter();
                let is_last = |record: &BackupRecord| {
                    let key = record.key().unwrap_or_default();
                    self.last_rounds.get(&digest_of(&key)).is_none_or(|last| last == round)
                };
                records.filter(is_last).filter_map(item).collect()
            }
            Section::Shards | Section::Rows => {
                decode_chunk(&bytes)?.into_iter().filter_map(item).collect()
            }
        };
        let next = at + 1;
        let next_cursor = (next < self.order.len()).then(|| self.cursor(next));
        Ok(ItemPage { items, next_cursor })
    }
}

fn item(record: BackupRecord) -> Option<Item> {
    match record {
        BackupRecord::Item(item) => Some(item),
        BackupRecord::Removed { .. } => None,
    }
}

impl StoreContents for BackupContents {
    fn identity(&self) -> StoreIdentity {
        let Manifest { cluster, cluster_name, store_id, sequence, .. } = &self.manifest;
        StoreIdentity {
            store_id: *store_id,
            cluster: *cluster,
            cluster_name: cluster_name.clone(),
            open_count: 0,
            open_nonce: 0,
            durable_sequence: *sequence,
        }
    }

    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>> {
        ready(self.read(cursor.as_ref())).boxed()
    }
}

impl CopySource for BackupContents {
    fn moved_to(&self) -> Option<String> {
        None
    }

    /// A backup can be restored more than once: each time, the result is a store of its own.
    fn mark_moved(&mut self, _: &Destination) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(Ok(())).boxed()
    }
}
