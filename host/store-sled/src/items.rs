//! The records of entities as items that other stores can hold.

use bytes::Bytes;
use ostraca_core::records::Head;
use ostraca_store::entity::corrupt_floor;
use ostraca_store::record::{ClaimRecord, RecordKind};
use ostraca_store::transfer::{Item, ItemPage, PAGE_BYTES, PAGE_ITEMS};
use ostraca_store::{StoreError, keys};

use crate::records::{Records, Table};

/// The item of a record that was read under this full key.
pub(crate) fn decode(records: &Records, key: &[u8], raw: &[u8]) -> Result<Item, StoreError> {
    let bare = key.strip_prefix(&[Table::Entities as u8][..]).unwrap_or_default();
    let (shard, kind, rest) = keys::parse_kind(bare)?;
    Ok(match kind {
        RecordKind::Claim => {
            let record = records.decode::<ClaimRecord>(key, raw)?;
            let floor = record.floor().map_err(corrupt_floor)?;
            Item::Shard { claim: record.claim, floor, last_sequence: record.reserved_sequence }
        }
        RecordKind::Head => {
            let entity = keys::parse_entity(rest)?.0;
            Item::Head { shard, entity, head: Box::new(records.decode::<Head>(key, raw)?) }
        }
        _ => {
            let (entity, record) = keys::parse_record(kind, rest)?;
            let value = records.decode_bytes(kind, key, raw)?;
            Item::Record { shard, entity, key: record, value }
        }
    })
}

/// The names of the files of components, in order: their digests.
pub(crate) fn component_names(folder: &std::path::Path) -> Result<Vec<String>, StoreError> {
    let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unavailable)? {
        let name = entry.map_err(unavailable)?.file_name().to_string_lossy().into_owned();
        // An unfinished file has a longer name.
        if name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads the file of a component.
pub(crate) fn read_component(folder: &std::path::Path, name: &str) -> Result<Bytes, StoreError> {
    let read = std::fs::read(folder.join(name));
    let bytes = read.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    match blake3::hash(&bytes).to_hex().as_str() == name {
        true => Ok(bytes.into()),
        false => Err(StoreError::Corrupt(format!(
            "component {name} does not have its digest: deploy it again"
        ))),
    }
}

/// Collects the items of a page.
#[derive(Default)]
pub(crate) struct PageBuilder {
    items: Vec<Item>,
    bytes: usize,
    last: Option<Bytes>,
    pub(crate) is_full: bool,
}

impl PageBuilder {
    /// Adds an item, unless the page is full. `cursor` is the cursor behind it.
    pub(crate) fn add(&mut self, item: Item, cursor: impl FnOnce() -> Vec<u8>) -> bool {
        let bytes = self.bytes + item.bytes();
        self.is_full =
            self.items.len() >= PAGE_ITEMS || (bytes > PAGE_BYTES && !self.items.is_empty());
        if !self.is_full {
            self.bytes = bytes;
            self.items.push(item);
            self.last = Some(cursor().into());
        }
        !self.is_full
    }

    pub(crate) fn finish(self) -> ItemPage {
        ItemPage { items: self.items, next_cursor: self.last.filter(|_| self.is_full) }
    }
}
