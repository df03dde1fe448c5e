//! An entity's state, as the sandbox reads it from the store.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{JournalEvent, JournalSnapshot, RecordKey};
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord};
use ostraca_wasm::{StateError, StateSource, StoredEvent, StoredSnapshot};

use super::flush_gate::FlushGate;

/// Maximum number of records and bytes that one scan reads.
pub(super) const STATE_PAGE: (usize, usize) = (1_000, 1 << 20);

/// Reads an entity's state when its instance first accesses it (E16), and its journal page by page.
#[derive(Clone)]
pub struct StoredState {
    store: Arc<dyn EntityStore>,
    flush_gate: Option<Arc<FlushGate>>,
    shard: ShardPath,
    entity: Entity,
}

impl StateSource for StoredState {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        let store = self.store.clone();
        let (shard, entity) = (self.shard.clone(), self.entity.clone());
        async move {
            let mut state = Vec::new();
            let mut after = None;
            loop {
                let scan = Scan {
                    shard: shard.clone(),
                    kind: ScanKind::State(entity.clone()),
                    after,
                    max_records: STATE_PAGE.0,
                    max_bytes: STATE_PAGE.1,
                };
                let page = store.scan(scan).await.map_err(|error| StateError(error.to_string()))?;
                state.extend(page.records.into_iter().filter_map(|record| match record {
                    ScannedRecord::State(key, value) => Some((key, value)),
                    _ => None,
                }));
                after = page.next_cursor;
                if after.is_none() {
                    return Ok(state);
                }
            }
        }
        .boxed()
    }

    fn events(
        &mut self,
        from: u64,
        count: usize,
    ) -> BoxFuture<'static, Result<Vec<StoredEvent>, StateError>> {
        let page = self.journal(from, count);
        async move {
            let event = |record| match record {
                ScannedRecord::Event(number, JournalEvent { start, data, .. }) => {
                    Some(StoredEvent { number, start, data })
                }
                _ => None,
            };
            Ok(page.await?.into_iter().filter_map(event).collect())
        }
        .boxed()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Option<StoredSnapshot>, StateError>> {
        let page = self.journal(RecordKey::SNAPSHOT, 1);
        async move {
            Ok(match page.await?.into_iter().next() {
                Some(ScannedRecord::Snapshot(it)) => {
                    let JournalSnapshot { through, version, data, .. } = it;
                    Some(StoredSnapshot { through, version, data })
                }
                _ => None,
            })
        }
        .boxed()
    }
}

impl StoredState {
    /// The state of an entity as the store has it.
    #[must_use]
    pub fn new(store: Arc<dyn EntityStore>, shard: ShardPath, entity: Entity) -> Self {
        Self { store, flush_gate: None, shard, entity }
    }

    /// Reads the journal only after the commits that the gate holds.
    pub(super) fn after_commits(mut self, gate: Arc<FlushGate>) -> Self {
        self.flush_gate = Some(gate);
        self
    }

    /// Reads a page of the journal, after the commits of earlier turns have been passed to the store: only then is the
    /// read ordered after them (R2).
    fn journal(
        &self,
        from: u64,
        max_records: usize,
    ) -> impl Future<Output = Result<Vec<ScannedRecord>, StateError>> + use<> {
        let (store, gate) = (self.store.clone(), self.flush_gate.clone());
        let scan = Scan {
            shard: self.shard.clone(),
            kind: ScanKind::Journal { entity: self.entity.clone(), from },
            after: None,
            max_records,
            max_bytes: STATE_PAGE.1,
        };
        async move {
            if let Some(gate) = gate {
                gate.pass().await;
            }
            let page = store.scan(scan).await.map_err(|error| StateError(error.to_string()))?;
            Ok(page.records)
        }
    }
}
