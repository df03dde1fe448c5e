//! A store that no process has open, as the source or the target of a copy.
//!
//! Cursors are a letter and a key: `E` records of entities and claims, `F` components by digest, `R` rows. The target
//! keeps the state of the copy beside its identity, and gets its file `format`, without which nobody opens it, at the
//! end.

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_store::entity::corrupt_floor;
use ostraca_store::record::{Body, ClaimRecord, RecordKind};
use ostraca_store::transfer::{
    CopySource, CopyState, CopyTarget, Destination, Item, ItemPage, StoreContents,
};
use ostraca_store::witness::write_file_atomically;
use ostraca_store::{StoreError, StoreIdentity, keys};
use sled::Batch;

use crate::batch_builder::row;
use crate::dir::{Dir, sync_dir};
use crate::items;
use crate::meta::{IDENTITY, IdentityRecord, RowBody, SEQUENCE, StoreSequence};
use crate::open::{open_sled, read_identity, write};
use crate::records::{Records, Table, put, read_error};
use crate::{OpenError, Options};

/// The key of the state of a copy.
const COPY: &[u8] = b"copy";

const RECORDS: u8 = b'E';
const COMPONENTS: u8 = b'F';
const ROWS: u8 = b'R';

/// The state of a copy in its target.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct CopyRecord(CopyState);

impl Body for CopyRecord {
    const KIND: RecordKind = RecordKind::Meta;
}

fn unavailable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

/// The contents of a store whose directory this process has locked.
#[derive(Debug)]
struct Contents {
    dir: Dir,
    records: Records,
    data: File,
    identity: StoreIdentity,
}

impl Contents {
    /// Reads a page.
    fn read(&self, cursor: Option<&[u8]>) -> Result<ItemPage, StoreError> {
        let (mut section, mut after) = match cursor.and_then(|cursor| cursor.split_first()) {
            Some((section, key)) => (*section, Some(key.to_vec())),
            None => (RECORDS, None),
        };
        let mut page = items::PageBuilder::default();
        loop {
            let after = after.take();
            let next = match section {
                RECORDS => {
                    self.read_records(&mut page, after.as_deref())?;
                    COMPONENTS
                }
                COMPONENTS => {
                    self.read_components(&mut page, after.as_deref())?;
                    ROWS
                }
                ROWS => {
                    self.read_rows(&mut page, after.as_deref())?;
                    return Ok(page.finish());
                }
                _ => return Err(StoreError::Corrupt("the cursor is of another store".into())),
            };
            if page.is_full {
                return Ok(page.finish());
            }
            section = next;
        }
    }

    fn read_records(
        &self,
        page: &mut items::PageBuilder,
        after: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        for record in self.records.db.range(behind(Table::Entities, after)..) {
            let (key, raw) = record.map_err(read_error)?;
            let Some(bare) = key.strip_prefix(&[Table::Entities as u8][..]) else { break };
            let item = items::decode(&self.records, &key, &raw)?;
            if !page.add(item, || [&[RECORDS], bare].concat()) {
                break;
            }
        }
        Ok(())
    }

    fn read_components(
        &self,
        page: &mut items::PageBuilder,
        after: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let after = after.map(|after| String::from_utf8_lossy(after).into_owned());
        let folder = self.dir.components();
        let names = items::component_names(&folder)?.into_iter();
        for name in names.filter(|name| after.as_ref().is_none_or(|after| name > after)) {
            let item = Item::Component(items::read_component(&folder, &name)?);
            if !page.add(item, || [&[COMPONENTS], name.as_bytes()].concat()) {
                break;
            }
        }
        Ok(())
    }

    fn read_rows(
        &self,
        page: &mut items::PageBuilder,
        after: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        for record in self.records.db.range(behind(Table::Rows, after)..) {
            let (key, raw) = record.map_err(read_error)?;
            let Some(bare) = key.strip_prefix(&[Table::Rows as u8][..]) else { break };
            let row = row(&self.records, &key, &raw)?;
            let item = Item::Row { key: row.key, value: row.value };
            if !page.add(item, || [&[ROWS], bare].concat()) {
                break;
            }
        }
        Ok(())
    }
}

/// The first possible full key behind a key of a table; `None`: the first one of the table.
fn behind(table: Table, key: Option<&[u8]>) -> Vec<u8> {
    match key {
        Some(key) => [&table.key(key)[..], &[0]].concat(),
        None => table.key(&[]),
    }
}

/// A store to copy from. Its directory is locked until this is dropped, so no process has it open.
#[derive(Debug)]
pub struct SledCopySource {
    contents: Contents,
    moved_to: Option<String>,
}

impl SledCopySource {
    /// Opens the store in `dir`, also one that was marked as moved. It is checked against the witness of the options, but
    /// this does not count as an opening. Blocks.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub fn open(dir: &Path, options: &Options) -> Result<Self, OpenError> {
        let (dir, moved_to) = Dir::lock_for_copy(dir)?;
        dir.forget_cached_pages()?;
        let records = open_sled(&dir, options)?;
        let data = dir.sync_and_open_data()?;
        let (identity, durable_sequence) = read_identity(&records, &dir.path, options)?;
        let identity = identity.store_identity(durable_sequence);
        Ok(Self { contents: Contents { dir, records, data, identity }, moved_to })
    }
}

impl StoreContents for SledCopySource {
    fn identity(&self) -> StoreIdentity {
        self.contents.identity.clone()
    }

    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>> {
        ready(self.contents.read(cursor.as_deref())).boxed()
    }
}

impl CopySource for SledCopySource {
    fn moved_to(&self) -> Option<String> {
        self.moved_to.clone()
    }

    fn mark_moved(&mut self, to: &Destination) -> BoxFuture<'_, Result<(), StoreError>> {
        let to = to.to_string();
        let marked = self.contents.dir.mark_moved(&to).map_err(unavailable);
        self.moved_to = Some(to);
        ready(marked).boxed()
    }
}

/// A store that is copied to. Its directory is locked until this is dropped.
#[derive(Debug)]
pub struct SledCopyTarget {
    contents: Contents,
    state: CopyState,
    sequence: u64,
}

impl SledCopyTarget {
    /// Creates a store for a copy of `source` in a missing or empty directory, or continues an unfinished copy. Blocks.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub fn open(path: &Path, options: &Options, source: &StoreIdentity) -> Result<Self, OpenError> {
        let (dir, is_new) = match Dir::lock_unfinished(path)? {
            Some(dir) => (dir, false),
            None => (Dir::lock_empty(path)?, true),
        };
        if !is_new {
            dir.forget_cached_pages()?;
        }
        let records = open_sled(&dir, options)?;
        let data = dir.sync_and_open_data()?;
        if is_new {
            let identity = IdentityRecord::new(source.cluster, &source.cluster_name);
            let mut batch = Batch::default();
            let corrupt = |error: StoreError| OpenError::Corrupt {
                dir: path.into(),
                reason: error.to_string(),
            };
            let copy = CopyRecord(CopyState::new(source));
            put_meta(&records, &mut batch, IDENTITY, &identity).map_err(corrupt)?;
            put_meta(&records, &mut batch, SEQUENCE, &StoreSequence(0)).map_err(corrupt)?;
            put_meta(&records, &mut batch, COPY, &copy).map_err(corrupt)?;
            write(&records.db, batch, &data, path)?;
        }
        let not_a_copy = || OpenError::NotAStore(path.into());
        let state = records.get::<CopyRecord>(&Table::Meta.key(COPY));
        let state = state.ok().flatten().ok_or_else(not_a_copy)?.0;
        let (identity, sequence) = read_identity(&records, path, options)?;
        let identity = identity.store_identity(sequence);
        Ok(Self { contents: Contents { dir, records, data, identity }, state, sequence })
    }

    fn write_items(&mut self, items: Vec<Item>, state: CopyState) -> Result<(), StoreError> {
        let records = &self.contents.records;
        let mut batch = Batch::default();
        let mut sequence = self.sequence;
        for item in items {
            sequence += 1;
            match item {
                Item::Shard { claim, floor, last_sequence } => {
                    let key = Table::Entities.key(&keys::claim(&claim.shard));
                    let (reserved_sequence, extensions) = (last_sequence, Default::default());
                    let mut record = ClaimRecord { claim, reserved_sequence, extensions };
                    if let Some(floor) = floor {
                        record.set_floor(&floor).map_err(corrupt_floor)?;
                    }
                    let encoded = records.codec.encode(&key, &record)?;
                    put(&mut batch, key, encoded, 0);
                }
                Item::Head { shard, entity, head } => {
                    let key = Table::Entities.key(&keys::head(&shard, &entity));
                    let encoded = records.codec.encode(&key, &*head)?;
                    put(&mut batch, key, encoded, 0);
                }
                Item::Record { shard, entity, key, value } => {
                    let (key, kind) = keys::record_key(&shard, &entity, &key);
                    let key = Table::Entities.key(&key);
                    let encoded = records.codec.encode_bytes(kind, &key, value);
                    put(&mut batch, key, encoded, 0);
                }
                Item::Component(bytes) => {
                    let folder = self.contents.dir.components();
                    let path = folder.join(blake3::hash(&bytes).to_hex().as_str());
                    write_file_atomically(&path, &bytes).map_err(unavailable)?;
                    sync_dir(&folder).map_err(unavailable)?;
                }
                Item::Row { key, value } => {
                    let key = Table::Rows.key(key.as_bytes());
                    let encoded =
                        records.codec.encode(&key, &RowBody { revision: sequence, value })?;
                    put(&mut batch, key, encoded, 0);
                }
            }
        }
        put_meta(records, &mut batch, SEQUENCE, &StoreSequence(sequence))?;
        put_meta(records, &mut batch, COPY, &CopyRecord(state.clone()))?;
        let Contents { dir, records, data, .. } = &self.contents;
        write(&records.db, batch, data, &dir.path).map_err(unavailable)?;
        (self.sequence, self.state) = (sequence, state);
        Ok(())
    }
}

fn put_meta<T: Body>(
    records: &Records,
    batch: &mut Batch,
    key: &[u8],
    value: &T,
) -> Result<(), StoreError> {
    let key = Table::Meta.key(key);
    let record = records.codec.encode(&key, value)?;
    put(batch, key, record, 0);
    Ok(())
}

impl StoreContents for SledCopyTarget {
    fn identity(&self) -> StoreIdentity {
        StoreIdentity { durable_sequence: self.sequence, ..self.contents.identity.clone() }
    }

    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>> {
        ready(self.contents.read(cursor.as_deref())).boxed()
    }
}

impl CopyTarget for SledCopyTarget {
    fn state(&self) -> CopyState {
        self.state.clone()
    }

    fn write(
        &mut self,
        items: Vec<Item>,
        state: CopyState,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        ready(self.write_items(items, state)).boxed()
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        // The state of the copy stays: until the file is written, the copy must be found again.
        ready(self.contents.dir.finish().map_err(unavailable)).boxed()
    }

    fn place(&self) -> String {
        self.contents.dir.path.display().to_string()
    }
}
