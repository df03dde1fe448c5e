//! A store of rows that fails as real ones do: writes are applied before they are synced, and a crash in between may
//! lose unacknowledged writes.
//!
//! It satisfies the contract of `ClusterStore`: writes are checked in order, nothing is returned before it is durable
//! (R2), and a watch may skip values, but never the last one. But its watch also repeats values: see `watches`.

use std::collections::BTreeMap;

use ostraca_core::node::WriteError;
use ostraca_core::rows::{Row, RowKey};

use crate::rng::Rng;

/// A row and the store's revision at its last change.
pub(super) type StoredRow = Option<(Row, u64)>;

/// A change, as a watch reports it.
pub(super) type Change = (RowKey, Row, u64);

#[derive(Clone, Debug, Default)]
struct Image {
    rows: BTreeMap<RowKey, (Row, u64)>,
    revision: u64,
}

/// The engine.
#[derive(Debug, Default)]
pub(super) struct Rows {
    disk: Image,
    cache: Image,
}

impl Rows {
    /// Checks a write against the applied rows, and applies it. The answer may be sent once the write is synced.
    pub(super) fn write(
        &mut self,
        key: &RowKey,
        expected: Option<u64>,
        row: Row,
    ) -> Result<u64, WriteError> {
        let stored = self.cache.rows.get(key);
        if stored.map(|(_, revision)| *revision) != expected {
            return Err(WriteError::Conflict(stored.cloned()));
        }
        self.cache.revision += 1;
        let revision = self.cache.revision;
        self.cache.rows.insert(key.clone(), (row, revision));
        Ok(revision)
    }

    /// The applied value of a row, which may not be durable yet. No node sees it.
    pub(super) fn applied(&self, key: &RowKey) -> Option<&(Row, u64)> {
        self.cache.rows.get(key)
    }

    /// The durable rows.
    pub(super) fn durable(&self) -> &BTreeMap<RowKey, (Row, u64)> {
        &self.disk.rows
    }

    /// The revision up to which everything is durable.
    pub(super) fn revision(&self) -> u64 {
        self.disk.revision
    }

    /// Whether an applied write is not yet durable.
    pub(super) fn dirty(&self) -> bool {
        self.disk.revision != self.cache.revision
    }

    /// Makes everything applied durable.
    pub(super) fn sync(&mut self) {
        if self.dirty() {
            self.disk = self.cache.clone();
        }
    }

    /// The newest durable change of each row after a revision, in order.
    pub(super) fn since(&self, revision: u64) -> Vec<Change> {
        let newer = self.disk.rows.iter().filter(|(_, (_, at))| *at > revision);
        let mut changes: Vec<Change> =
            newer.map(|(key, (row, at))| (key.clone(), row.clone(), *at)).collect();
        changes.sort_by_key(|(_, _, at)| *at);
        changes
    }

    /// Crashes the process. Writes that were applied but not synced, and so not answered, may be lost. Returns whether
    /// they were lost.
    pub(super) fn crash(&mut self, power: bool, rng: &mut Rng) -> bool {
        if !power || rng.chance(50) {
            self.disk = self.cache.clone();
        }
        let lost = self.dirty();
        self.cache = self.disk.clone();
        lost
    }
}
